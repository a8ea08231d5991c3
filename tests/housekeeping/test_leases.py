"""Leases: at most one process relies on a lease, whatever clocks and processes do (R34)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts
from tests.world import SETTINGS, outcome_of, planned, process, world
from txnlog.cluster import Cluster
from txnlog.errors import CorruptLogError
from txnlog.housekeeping.lease import LeaseHolder
from txnlog.protocol.leases import (
    HeldByAnother,
    Lease,
    LeaseObservation,
    decode_lease,
    prepare_take,
)
from txnlog.testing.faults import Fault, FaultyStore, SharedMemory

LEASE_MS = 60_000


@dataclass
class OwnClock:
    """A machine's clocks: true time run at another rate, from another start, wall clock wrong."""

    shared: SharedMemory
    rate: float = 1.0
    skew_ms: int = 0
    started_ms: int = field(init=False)
    boot_id: str = "own"

    def __post_init__(self) -> None:
        self.started_ms = self.shared.clock.boot_ms()

    def now_ms(self) -> int:
        return self.shared.clock.now_ms() + self.skew_ms

    def boot_ms(self) -> int:
        return int((self.shared.clock.boot_ms() - self.started_ms) * self.rate) + abs(self.skew_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        self.shared.clock.sleep_ms(duration_ms / self.rate)


def candidate(cluster: Cluster) -> LeaseHolder:
    return LeaseHolder(cluster, "work", lease_ms=LEASE_MS)


def test_lease_is_had_by_the_first_and_renewed_by_it_alone() -> None:
    """Many may run and one works."""
    shared = world()
    first, second = candidate(process(shared)), candidate(process(shared))
    assert first.take() == LEASE_MS // 3
    assert first.is_held
    for _ in range(30):
        shared.clock.advance_ms(LEASE_MS // 3)
        first.take()
        second.take()
        assert (first.is_held, second.is_held) == (True, False)
    assert second.other is not None
    assert second.other.by.startswith("process ")


def test_lease_of_a_dead_holder_is_taken_after_its_time() -> None:
    """SIGKILL releases no lease: the others wait for the lease time on their own clocks."""
    shared = world()
    first, second = candidate(process(shared)), candidate(process(shared))
    first.take()
    waited_ms = 0
    wait_ms = second.take()
    while not second.is_held:
        shared.clock.advance_ms(wait_ms)
        waited_ms += wait_ms
        wait_ms = second.take()
        assert not (first.is_held and second.is_held)
    assert waited_ms == LEASE_MS
    assert not first.is_held
    first.take()
    assert not first.is_held


def test_lease_given_up_is_free_at_once() -> None:
    """SIGTERM must not leave the work undone for a lease time."""
    shared = world()
    first, second = candidate(process(shared)), candidate(process(shared))
    first.take()
    first.release()
    first.release()
    assert not first.is_held
    second.take()
    assert second.is_held
    first.release()
    second.take()
    assert second.is_held


def test_lease_keeps_the_cluster_as_it_is() -> None:
    """It lives beside the format, the number of shards, and the producer ids given out."""
    shared = world()
    cluster = process(shared)
    before = cluster.next_producer_id()
    candidate(cluster).take()
    other = process(shared)
    assert (other.shards, other.cluster_id) == (cluster.shards, cluster.cluster_id)
    assert other.next_producer_id() > before


def test_lease_is_found_in_a_checkpoint() -> None:
    """Its log is opened from one by every process that comes later (R11)."""
    shared = world(settings=SETTINGS)
    first = candidate(process(shared, settings=SETTINGS))
    for _ in range(20):
        first.take()
        shared.clock.advance_ms(1_000)
    files = shared.open().list("__cluster/_delta_log")
    assert any(meta.path.endswith(".checkpoint.parquet") for meta in files)
    second = candidate(process(shared, settings=SETTINGS))
    second.take()
    assert (first.is_held, second.is_held) == (True, False)


def test_lease_that_cannot_be_read_names_the_table() -> None:
    """A newer version's lease must not count as free (R38, R66)."""
    with pytest.raises(CorruptLogError, match="__cluster"):
        decode_lease('{"holder": 1}', source="__cluster")


@given(since_ms=st.integers(0, 10**9), counter=st.integers(0, 9), waited_ms=st.integers(0, 10**6))
def test_lease_decision_waits_for_the_lease_time_of_the_holder(
    since_ms: int, counter: int, waited_ms: int
) -> None:
    """A process with a shorter lease time must not take it early."""
    lease = Lease(holder="a", counter=counter, lease_ms=LEASE_MS, by="a")
    decision = prepare_take(
        lease,
        LeaseObservation(lease, since_ms),
        holder="b",
        by="b",
        lease_ms=10,
        now_ms=since_ms + waited_ms,
    )
    if waited_ms < LEASE_MS:
        assert decision == HeldByAnother(lease, LEASE_MS - waited_ms)
    else:
        assert isinstance(decision, Lease)
        assert (decision.holder, decision.counter) == ("b", counter + 1)


def test_lease_taken_with_a_fault_at_any_call_is_held_only_if_it_was_written(
    some: Some[int],
) -> None:
    """A lost reply must not make a false holder, nor a holder that never expires."""

    def begin() -> Trial:
        shared = world()
        cluster = process(shared)
        first, second = candidate(cluster), candidate(process(shared))
        return Trial(shared, cluster, first.take, more=(first, second))

    for trial in cuts(begin, some, lands=False):
        first, second = trial.more
        assert trial.outcome in ("done", "crashed", *RETRIABLE)
        second.take()
        assert not (first.is_held and second.is_held)
        assert first.is_held == (trial.outcome == "done")
        trial.shared.land_late()
        if trial.outcome != "crashed":
            first.take()
            assert first.is_held != second.is_held
        for _ in range(9):
            trial.shared.clock.advance_ms(LEASE_MS // 3)
            second.take()
            assert not (first.is_held and second.is_held)
        assert second.is_held


@given(
    clocks=st.lists(
        st.tuples(st.floats(0.9, 1.1), st.integers(-(10**9), 10**9)), min_size=2, max_size=4
    ),
    acts=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from(["take", "take", "take", "release", "die", "lose", "late", "step"]),
            st.sampled_from([0, 1, LEASE_MS // 10, LEASE_MS // 3, LEASE_MS * 4 // 5, LEASE_MS]),
        ),
        min_size=30,
        max_size=60,
    ),
)
def test_lease_has_one_holder_under_any_clocks(
    clocks: list[tuple[float, int]], acts: list[tuple[int, str, int]]
) -> None:
    """Clocks off by days, ten per cent fast or slow, suspended processes, lost replies."""
    shared = world()
    own = [OwnClock(shared, rate, skew_ms) for rate, skew_ms in clocks]
    clusters = [process(shared, clock=clock) for clock in own]
    holders = [candidate(cluster) for cluster in clusters]
    for index, act, pause_ms in acts:
        number = index % len(holders)
        shared.clock.advance_ms(pause_ms)
        assert sum(holder.is_held for holder in holders) <= 1
        store = clusters[number].store
        assert isinstance(store, FaultyStore)
        match act:
            case "take" | "lose" | "late":
                fault = {"lose": Fault.LOSE_REPLY, "late": Fault.LAND_LATE}.get(act, Fault.NONE)
                with planned(clusters[number], {0: fault, 1: fault}):
                    outcome_of(holders[number].take)
            case "release":
                holders[number].release()
            case "die":
                clusters[number] = process(shared, clock=own[number])
                holders[number] = candidate(clusters[number])
            case "step":
                own[number].skew_ms = -own[number].skew_ms
                shared.land_late()
        assert sum(holder.is_held for holder in holders) <= 1


def test_round_takes_the_lease_of_a_dead_holder_although_it_looks_once() -> None:
    """A round of cron that is killed would end housekeeping for ever: each later one is new, and
    has watched nothing.
    """
    shared = world()
    candidate(process(shared)).take()
    shared.clock.advance_ms(2 * LEASE_MS)
    early = candidate(process(shared))
    early.take(looks_once=True)
    assert not early.is_held
    shared.clock.advance_ms(1)
    first, second = candidate(process(shared)), candidate(process(shared))
    first.take(looks_once=True)
    second.take(looks_once=True)
    assert (first.is_held, second.is_held) == (True, False)


def test_round_takes_the_lease_of_a_dead_holder_beside_other_writers_of_the_cluster() -> None:
    """Each process that gets producer ids, or a snapshot, commits there, too: the lease seemed to
    be renewed.
    """
    shared = world()
    candidate(process(shared)).take()
    for _ in range(5):
        shared.clock.advance_ms(LEASE_MS // 2)
        process(shared).next_producer_id()
    late = candidate(process(shared))
    late.take(looks_once=True)
    assert late.is_held


def test_round_leaves_the_lease_to_a_holder_that_renews_it() -> None:
    """Two that work at once do everything twice."""
    shared = world()
    holder = candidate(process(shared))
    for _ in range(10):
        holder.take()
        shared.clock.advance_ms(LEASE_MS // 3)
        late = candidate(process(shared))
        late.take(looks_once=True)
        assert (holder.is_held, late.is_held) == (True, False)
