"""Sweeping: any process finishes, or times out, the transactions of dead processes (R73)."""

from __future__ import annotations

import gc
import uuid
import weakref

import pytest
from obstore.store import MemoryStore

from tests.staged_files import append_ongoing, named_file_of
from tests.world import row_of, write_behind
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import CorruptLogError, InvalidTxnStateError
from txnlog.process.clock import VirtualClock
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, StagedBatch, TopicPartitions, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import Fault, FaultyStore, SimulatedCrash

SETTINGS = LogSettings(checkpoint_mode="off")


def process(backing: MemoryStore, clock: VirtualClock) -> Cluster:
    return Cluster.open(FaultyStore(backing, clock=clock), create=True, shards=2, settings=SETTINGS)


def staged(cluster: Cluster, topic: TopicLog) -> StagedBatch:
    path = f"part-0-{uuid.uuid4()}.parquet"
    write_behind(cluster, f"{topic.name}/{path}", b"r")
    return named_file_of(topic, path, records=3, staged_ms=cluster.store.now_ms())


def test_sweeper_prepared_row_of_dead_process_finished_without_other_traffic() -> None:
    """A coordinator dies right after PREPARE and its id is not used again (R73, R36)."""
    clock, backing = VirtualClock(), MemoryStore()
    dying, other = process(backing, clock), process(backing, clock)
    topic = dying.create_topic("t", partitions=1)
    row = dying.coordinator.init_producer_id("tx", Owner(run_id="r"))

    die_at_marker_of(dying, "t")
    with pytest.raises(SimulatedCrash):
        dying.coordinator.commit(row, [staged(dying, topic)])
    sweeper = Sweeper(other)
    assert sweeper.sweep() == 0, "a transaction just decided is its owner's to finish"
    clock.advance_ms(10_000)
    assert sweeper.sweep() == 1
    assert other.topic("t").view.high_watermark(0) == 3
    after = row_of(other)
    assert after.state is TransactionState.COMPLETE_COMMIT


def test_sweeper_ongoing_row_timed_out_by_its_own_clock_only() -> None:
    """A wrong wall clock must not abort a healthy transaction; real time must (R32, R34)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    row = open_transaction(owner)
    sweeper = Sweeper(other, interval_ms=60_000)
    sweeper.sweep()
    clock.step_wall_ms(86_400_000)
    assert sweeper.sweep() == 0
    clock.advance_ms(60_000)
    assert sweeper.sweep() == 1
    assert [b.status for b in other.topic("t").view.batches(0, 0, 9, False)] == ["aborted"]
    with pytest.raises(InvalidTxnStateError, match="timed out"):
        owner.coordinator.commit(row)


def test_shard_of_the_offsets_that_cannot_be_read_keeps_no_transaction_from_its_end() -> None:
    """Each sweep ended there, and the next one began to watch again (R37, R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner = process(backing, clock)
    open_transaction(owner)
    owner.groups.start("g")
    log = owner.offsets_log("g")
    log.refresh()
    owner.store.put(commit_path(log.path, log.log.version), b"{damaged")
    sweeper = Sweeper(process(backing, clock), interval_ms=10_000)
    for _ in range(8):
        with pytest.raises(CorruptLogError, match=log.path):
            sweeper.sweep()
        clock.advance_ms(10_000)
    after = row_of(process(backing, clock))
    assert after.state is TransactionState.COMPLETE_ABORT


def test_process_that_may_not_read_the_offsets_sweeps_transactions() -> None:
    """It was taken for one that may write nothing (R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    open_transaction(owner)
    owner.groups.start("g")
    assert isinstance(other.store, FaultyStore)
    other.store.plan = lambda verb, path: (
        Fault.DENY if path.startswith("__consumer_offsets") else Fault.NONE
    )
    sweeper = Sweeper(other, interval_ms=10_000)
    for _ in range(8):
        sweeper.sweep_if_due()
        clock.advance_ms(10_000)
    after = row_of(process(backing, clock))
    assert after.state is TransactionState.COMPLETE_ABORT


@pytest.mark.parametrize("verb", ["get", "put"])
def test_process_that_one_shard_refuses_sweeps_the_others(verb: str) -> None:
    """It was taken for one that may write nothing, and swept every ten minutes (R37, R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    names = {owner.shard_of(name): name for name in ("a", "b", "c", "d")}
    calls: list[str] = []

    def plan(asked: str, path: str) -> Fault:
        if asked != verb or not path.startswith("__transaction_state-0/"):
            return Fault.NONE
        calls.append(path)
        return Fault.DENY

    assert isinstance(other.store, FaultyStore)
    other.store.plan = plan
    sweeper = Sweeper(other, interval_ms=10_000)
    for name in (names[0], names[1]):
        generation = owner.groups.start(name)
        row = owner.coordinator.init_producer_id(name, Owner(run_id="r"), timeout_ms=60_000)
        offsets = GroupOffsets(group_id=name, generation=generation, start={}, end={"t": {0: 7}})
        owner.coordinator.add_partitions(row, offsets=[offsets])
        for _ in range(9):
            sweeper.sweep_if_due()
            clock.advance_ms(10_000)
    states = [process(backing, clock).coordinator.describe(names[number]) for number in (0, 1)]
    assert [row and row.state for row in states] == [
        TransactionState.ONGOING,
        TransactionState.COMPLETE_ABORT,
    ]
    calls.clear()
    for _ in range(120):
        sweeper.sweep_if_due()
        clock.advance_ms(10_000)
    assert 0 < len(calls) < 20, "what is refused is asked less often"


def test_process_that_may_not_write_one_topic_sweeps_those_of_others() -> None:
    """It was taken for one that may write nothing; a table of others is no other case (R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    other = process(backing, clock)
    assert isinstance(other.store, FaultyStore)
    other.store.plan = lambda verb, path: (
        Fault.DENY if (verb, path[:2]) == ("put", "a/") else Fault.NONE
    )
    sweeper = Sweeper(other, interval_ms=10_000)
    for name in ("a", "b"):
        owner = process(backing, clock)
        topic = owner.create_topic(name, partitions=1)
        row = owner.coordinator.init_producer_id(name, Owner(run_id="r"))
        die_at_marker_of(owner, name)
        with pytest.raises(SimulatedCrash):
            owner.coordinator.commit(row, [staged(owner, topic)])
        for _ in range(2):
            sweeper.sweep_if_due()
            clock.advance_ms(10_000)
    states = {name: process(backing, clock).coordinator.describe(name) for name in ("a", "b")}
    assert [row and row.state for row in states.values()] == [
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ]


@pytest.mark.parametrize("verb", ["get", "put"])
def test_process_that_was_refused_for_a_time_sweeps_again(verb: str) -> None:
    """Credentials that had expired for a moment ended its sweeps for ever (R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    open_transaction(owner)
    sweeper = Sweeper(other, interval_ms=10_000)
    sweeper.sweep_if_due()
    assert isinstance(other.store, FaultyStore)
    other.store.plan = lambda asked, path: Fault.DENY if asked == verb else Fault.NONE
    for _ in range(8):
        clock.advance_ms(10_000)
        sweeper.sweep_if_due()
    other.store.plan = lambda asked, path: Fault.NONE
    for _ in range(150):
        clock.advance_ms(10_000)
        sweeper.sweep_if_due()
    after = row_of(process(backing, clock))
    assert after.state is TransactionState.COMPLETE_ABORT


def die_at_marker_of(cluster: Cluster, topic: str) -> None:
    def plan(verb: str, path: str) -> Fault:
        is_marker = verb == "put" and path.startswith(f"{topic}/_delta_log")
        return Fault.CRASH_BEFORE if is_marker else Fault.NONE

    assert isinstance(cluster.store, FaultyStore)
    cluster.store.plan = plan


def open_transaction(cluster: Cluster, *, timeout_ms: int = 60_000) -> TransactionMetadata:
    """An eager transaction with a batch."""
    topic = cluster.create_topic("t", partitions=1)
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="r"), timeout_ms=timeout_ms)
    partitions = TopicPartitions(topic="t", topic_id=topic.topic_id, partitions=(0,))
    row = cluster.coordinator.add_partitions(row, [partitions])
    append_ongoing(cluster, row, [staged(cluster, topic)], {0: 0})
    return row


@pytest.mark.parametrize("away_ms", [60_000, 3_600_000, 7 * 86_400_000])
def test_sweeper_that_was_suspended_aborts_no_transaction_that_was_suspended_with_it(
    away_ms: int,
) -> None:
    """The boot clock has jumped by the time a laptop was closed, or a process stopped; what it
    watched unchanged for 50 s of 60 it must watch for 10 more (R32, R34).
    """
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    row = open_transaction(owner)
    generation = owner.groups.start("g")
    holder = owner.coordinator.init_producer_id("e", Owner(run_id="e"), timeout_ms=60_000)
    offsets = GroupOffsets(group_id="g", generation=generation, start={}, end={"t": {0: 7}})
    holder = owner.coordinator.add_partitions(holder, offsets=[offsets])
    sweeper = Sweeper(other)
    for _ in range(6):
        assert sweeper.sweep() == 0
        clock.advance_ms(10_000)
    clock.advance_ms(away_ms)
    assert sweeper.sweep() == 0
    clock.advance_ms(9_999)
    assert sweeper.sweep() == 0
    owner.coordinator.commit(row)
    owner.coordinator.commit(holder, offsets=[offsets])
    assert other.topic("t").view.last_stable_offset(0) == 3


def test_sweeper_after_a_suspend_still_ends_dead_transactions() -> None:
    """The observed time was paused, not reset (R32)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    open_transaction(owner)
    sweeper = Sweeper(other)
    for _ in range(4):
        assert sweeper.sweep() == 0
        clock.advance_ms(10_000)
    clock.advance_ms(3_600_000)
    for _ in range(3):
        assert sweeper.sweep() == 0
        clock.advance_ms(10_000)
    assert sweeper.sweep() == 1


def test_sweeper_that_is_rarely_called_ends_dead_transactions() -> None:
    """A micro-batch every ten minutes may be the only caller (R32, R73)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    open_transaction(owner)
    sweeper, sweeps = Sweeper(other), 0
    while not sweeper.sweep():
        sweeps += 1
        assert sweeps < 10
        clock.advance_ms(600_000)
    assert other.topic("t").view.last_stable_offset(0) == 3


def test_sweeper_forgets_the_holder_of_a_ticket_that_is_refused_for_good() -> None:
    """A group's row does not grow with each run that has ever read for it (R46)."""
    clock, backing = VirtualClock(), MemoryStore()
    former, other = process(backing, clock), process(backing, clock)
    former.create_topic("t", partitions=1)
    offsets = {"start": {}, "end": {"t": {0: 7}}}
    for name in ("a", "b"):
        generation = former.groups.start("g")
        row = former.coordinator.init_producer_id(name, Owner(run_id=name))
        request = GroupOffsets(group_id="g", generation=generation, **offsets)  # type: ignore[arg-type]
        former.coordinator.commit(row, offsets=[request])
    former.groups.start("g")
    sweeper = Sweeper(other)
    assert held(other) == {"b"}, "a registration drops whom it has fenced"
    assert sweeper.sweep() == 0
    clock.advance_ms(10_000)
    assert sweeper.sweep() == 2, "the COMPLETE that each run has left"
    for settled in (0, 1):
        clock.advance_ms(10_000)
        assert sweeper.sweep() == settled
    assert held(other) == set()
    group = other.groups.describe("g")
    assert group is not None
    assert group.tickets.newest == 2


def test_sweeper_keeps_holders_that_may_commit() -> None:
    """However long they are idle: the next one must meet them (R46)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    owner.create_topic("t", partitions=1)
    generation = owner.groups.start("g")
    row = owner.coordinator.init_producer_id("tx", Owner(run_id="r"), timeout_ms=5_000)
    first = GroupOffsets(group_id="g", generation=generation, start={}, end={"t": {0: 7}})
    row = owner.coordinator.commit(row, offsets=[first])
    complete(owner, row)
    sweeper = Sweeper(other)
    for _ in range(5):
        assert sweeper.sweep() == 0
        clock.advance_ms(3_600_000)
    assert held(other) == {"tx"}
    second = GroupOffsets(group_id="g", generation=generation, start={}, end={"t": {0: 9}})
    owner.coordinator.commit(row, offsets=[second])
    assert other.groups.fetch("g", generation) == {"t": {0: 9}}


def held(cluster: Cluster) -> set[str]:
    group = cluster.groups.describe("g")
    assert group is not None
    return {holder.transactional_id for holder in group.tickets.holders}


def test_sweeper_does_not_end_a_prepared_two_phase_transaction() -> None:
    """Its client is waiting for an external database: no timeout, and no error (R32, R46)."""
    clock, backing = VirtualClock(), MemoryStore()
    owner, other = process(backing, clock), process(backing, clock)
    topic = owner.create_topic("t", partitions=1)
    generation = owner.groups.start("g")
    row = owner.coordinator.init_producer_id("tx", Owner(run_id="r"), timeout_ms=5_000)
    offsets = GroupOffsets(group_id="g", generation=generation, start={}, end={"t": {0: 7}})
    row = owner.coordinator.prepare(row, [staged(owner, topic)], offsets=[offsets])
    sweeper = Sweeper(other)
    for _ in range(3):
        assert sweeper.sweep() == 0
        clock.advance_ms(3_600_000)
    owner.coordinator.commit(row, row.pending.batches)
    assert other.groups.fetch("g", generation) == {"t": {0: 7}}


def test_cluster_that_has_swept_is_released_with_its_last_user() -> None:
    """A process that opens one cluster after another would keep all their logs in memory (D17)."""
    cluster = process(MemoryStore(), VirtualClock())
    cluster.sweeper.sweep_if_due()
    released = weakref.ref(cluster)
    del cluster
    gc.collect()
    assert released() is None
