"""Members that were killed, where only `txnlog housekeeping --once` runs: the recipe for cron."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cases import Some
from tests.consumer.records import BEAT_MS, SESSION_MS, beat, group_row, member, turn, world
from tests.faults import Trial, cuts
from tests.world import PLAIN, planned, process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.process.clock import VirtualClock
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.leases import Lease, decode_lease, encode_lease
from txnlog.protocol.membership import BEATS_PER_SESSION
from txnlog.protocol.sightings import (
    GROUPS_MAX,
    Sighting,
    counters_of,
    is_silent,
    look_again_ms,
    sight,
)
from txnlog.testing.faults import Fault, SharedMemory

HOUR_MS = 3_600_000
NIGHT_MS = 240_000
"""Less than max.poll.interval.ms: a member that did not poll for this long leaves."""
INTERVAL_MS = SESSION_MS // BEATS_PER_SESSION
DUTY = "groups of dead members emptied"


class Elsewhere(VirtualClock):
    """The shared clock; while its owner sleeps, others do what `meanwhile` says each second."""

    def __init__(self, shared: SharedMemory, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._shared = shared.clock
        self._meanwhile = meanwhile
        self.slept_ms = 0

    def now_ms(self) -> int:
        return self._shared.now_ms()

    def boot_ms(self) -> int:
        return self._shared.boot_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms += int(duration_ms)
        for _ in range(max(1, int(duration_ms) // 1_000)):
            self._shared.advance_ms(1_000)
            self._meanwhile()


def round_of(shared: SharedMemory, clock: Elsewhere | None = None) -> Housekeeper:
    """The process of one round, as `txnlog housekeeping --once`."""
    store = shared.open(clock=clock or Elsewhere(shared))
    settings = HousekeepingSettings(abort_interval_ms=0)
    return Housekeeper(Cluster.open(store, settings=PLAIN), settings)


def run_once(shared: SharedMemory, clock: Elsewhere | None = None) -> int:
    """One round; how many groups it has emptied."""
    keeper = round_of(shared, clock)
    done = keeper.run_once()
    keeper.close()
    assert done is not None
    return done[DUTY]


def joined(shared: SharedMemory, count: int = 1) -> list[Consumer]:
    """Members of group g, which is stable."""
    members = [member(shared) for _ in range(count)]
    turn(shared, *members)
    assert set(group_row(shared).assignment) == set(group_row(shared).members)
    return members


def test_killed_members_are_expelled_by_the_second_of_two_rounds() -> None:
    """Each round is a new process, which has watched nothing: the group stays Stable for ever."""
    shared = world()
    joined(shared, 2)
    generation = group_row(shared).generation
    assert run_once(shared) == 0
    shared.clock.advance_ms(SESSION_MS + INTERVAL_MS + 1)
    assert run_once(shared) == 1
    after = group_row(shared)
    assert (after.members, after.assignment) == ({}, {})
    assert after.generation > generation


def test_rounds_that_are_nearer_than_a_session_and_an_interval_expel_nobody() -> None:
    """A beat may be late; the time counts from the first round that saw the counter."""
    shared = world()
    joined(shared)
    for _ in range(3):
        clock = Elsewhere(shared)
        assert run_once(shared, clock) == 0
        assert clock.slept_ms == 0
        shared.clock.advance_ms((SESSION_MS + INTERVAL_MS) // 3)
    assert len(group_row(shared).members) == 1
    shared.clock.advance_ms(1)
    assert run_once(shared) == 1


def test_member_that_beats_between_two_rounds_is_not_suspected() -> None:
    """Cron runs each five minutes; a round that waits each time would be slow."""
    shared = world()
    living = joined(shared)
    for _ in range(3):
        clock = Elsewhere(shared)
        assert run_once(shared, clock) == 0
        assert clock.slept_ms == 0
        turn(shared, *living, rounds=100)
    assert len(group_row(shared).members) == 1


def test_member_whose_machine_slept_beats_while_the_round_waits() -> None:
    """Cron is woken with it, and may come first (D61)."""
    shared = world()
    living = joined(shared)
    run_once(shared)
    shared.clock.advance_ms(NIGHT_MS)
    clock = Elsewhere(shared, lambda: beat(*living))
    assert run_once(shared, clock) == 0
    assert clock.slept_ms >= INTERVAL_MS
    assert len(group_row(shared).members) == 1
    # That it was silent once says nothing about the next time.
    assert run_once(shared, Elsewhere(shared)) == 0


@pytest.mark.parametrize("late_ms", [0, INTERVAL_MS // 3])
def test_live_member_beats_at_least_once_while_the_round_waits(late_ms: int) -> None:
    """One that beat right before the round beats an interval later, or a little after that."""
    shared = world()
    joined(shared)
    row = group_row(shared)
    assert look_again_ms(row) > INTERVAL_MS + late_ms
    assert look_again_ms(row) < SESSION_MS


@pytest.mark.parametrize("step_ms", [10 * HOUR_MS, -10 * HOUR_MS])
def test_live_member_stays_though_the_clock_of_the_store_jumps(step_ms: int) -> None:
    """Two rounds within one interval see the same counter, hours apart by that clock (R34)."""
    shared = world()
    living = joined(shared)
    run_once(shared)
    shared.clock.step_wall_ms(step_ms)
    assert run_once(shared, Elsewhere(shared, lambda: beat(*living))) == 0
    turn(shared, *living, rounds=10)
    assert run_once(shared, Elsewhere(shared, lambda: beat(*living))) == 0
    assert len(group_row(shared).members) == 1


def test_dead_member_is_expelled_though_the_clock_of_the_store_was_set_back() -> None:
    """Else it would stay until that clock is again where it was."""
    shared = world()
    joined(shared)
    run_once(shared)
    shared.clock.step_wall_ms(-10 * HOUR_MS)
    assert run_once(shared) == 0
    shared.clock.advance_ms(SESSION_MS + INTERVAL_MS + 1)
    assert run_once(shared) == 1


def test_group_with_one_live_member_is_left_to_that_member() -> None:
    """It expels the others itself, and stays a member."""
    shared = world()
    living, _dead = joined(shared, 2)
    run_once(shared)
    for _ in range(3):
        turn(shared, living, rounds=SESSION_MS // BEAT_MS // 2)
        assert run_once(shared) == 0
    assert living._consumption().member_id in group_row(shared).members


def test_members_that_join_while_the_round_waits_are_not_expelled() -> None:
    """The write is decided on the newest row (D29)."""
    shared = world()
    joined(shared)
    run_once(shared)
    shared.clock.advance_ms(HOUR_MS)
    late: list[Consumer] = []

    def join() -> None:
        if not late:
            late.append(member(shared))
            late[0]._consumption().maintain()

    assert run_once(shared, Elsewhere(shared, join)) == 0
    assert late[0]._consumption().member_id in group_row(shared).members


def test_round_expels_nobody_once_another_process_has_the_lease() -> None:
    """A round that was suspended while it waited: the other one has looked since."""
    shared = world()
    joined(shared)
    run_once(shared)
    shared.clock.advance_ms(HOUR_MS)
    other = Housekeeper(process(shared))

    def take() -> None:
        shared.clock.advance_ms(HOUR_MS)
        other.step()

    assert run_once(shared, Elsewhere(shared, take)) == 0


def test_round_may_die_at_each_storage_call_and_the_next_ones_expel_the_dead(
    some: Some[int],
) -> None:
    """What it has seen is told or lost, the group is emptied or not; nothing hinders the next."""

    def begin() -> Trial:
        shared = world()
        joined(shared)
        run_once(shared)
        shared.clock.advance_ms(HOUR_MS)
        keeper = round_of(shared)
        return Trial(shared, keeper._cluster, lambda: (keeper.run_once(), keeper.close()))

    for trial in cuts(begin, some, (Fault.CRASH_BEFORE,)):
        for _ in range(2):
            trial.shared.clock.advance_ms(HOUR_MS)
            run_once(trial.shared)
        assert group_row(trial.shared).members == {}


def test_what_a_round_tells_the_next_one_costs_no_request() -> None:
    """It is in the lease, which each round takes and releases."""

    def calls(shared: SharedMemory) -> int:
        keeper = round_of(shared)
        with planned(keeper._cluster, {}) as counted:
            keeper.run_once()
            keeper.close()
        return counted.calls

    shared = world()
    living = joined(shared)
    run_once(shared)
    turn(shared, *living)
    with_members = calls(shared)
    for one in living:
        one.close()
    # Without members the store is not asked for its time by this duty, but by others.
    assert with_members <= calls(shared)


# --- Decisions ------------------------------------------------------------------------------------


def a_group(name: str = "g", heartbeat: int = 1, updated_ms: int = 0, **more: int) -> Group:
    members = {"m": Member(topics=("t",), heartbeat=heartbeat, **more)}
    return Group(group_id=name, members=members, updated_ms=updated_ms)


def test_counters_differ_with_each_member_and_each_beat() -> None:
    """One that beats, leaves, joins or is replaced is alive, or was."""
    group = a_group()
    two = {"m": group.members["m"], "n": group.members["m"]}
    found = [
        counters_of(one)
        for one in (
            group,
            a_group(heartbeat=2),
            Group(group_id="g", members=two),
            Group(group_id="g", members={"n": group.members["m"]}),
        )
    ]
    assert len(set(found)) == len(found)


def test_longest_session_of_a_group_counts() -> None:
    """The others would be expelled by the one that may still be alive."""
    members = {
        "m": Member(topics=("t",), session_timeout_ms=6_000),
        "n": Member(topics=("t",), session_timeout_ms=60_000),
    }
    group = Group(group_id="g", members=members)
    seen = sight([group], {}, now_ms=0)["g"]
    assert not is_silent(group, seen, now_ms=80_000)
    assert is_silent(group, seen, now_ms=80_001)
    assert look_again_ms(group) == 30_000


def test_what_is_told_is_bounded_and_dead_members_are_told_first() -> None:
    """A lease with 100,000 groups would be written with each change of it."""
    many = [a_group(f"g{n}", updated_ms=1_000 + n) for n in range(2 * GROUPS_MAX)]
    dead = a_group("dead", updated_ms=1)
    first = sight([*many, dead], {}, now_ms=5_000)
    assert len(first) == GROUPS_MAX
    assert "dead" in first
    moved = [a_group(g.group_id, heartbeat=2, updated_ms=6_000) for g in many]
    second = sight([*moved, dead], first, now_ms=9_000)
    assert second["dead"].since_ms == 5_000
    assert len(second) == GROUPS_MAX


def test_lease_of_an_earlier_version_tells_nothing_and_keeps_its_form() -> None:
    """Processes of both versions take turns."""
    old = decode_lease('{"holder":"h","counter":3,"lease_ms":5,"by":"b"}', source="s")
    assert old.seen == {}
    assert encode_lease(old) == '{"holder":"h","counter":3,"lease_ms":5,"by":"b"}'
    told = Lease(lease_ms=5, seen={"*": Sighting(counters="c", since_ms=7)})
    assert decode_lease(encode_lease(told), source="s") == told
