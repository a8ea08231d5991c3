"""Members of a group while wall clocks step: none expires, and no offset is lost or repeated.

The row of a group has wall-clock times, of machines whose clocks are set; who expires is decided
by counters and boot clocks (D29).
"""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    BEAT_MS,
    SESSION_MS,
    consumer,
    group_row,
    member,
    parts,
    put,
    read,
    turn,
    world,
)
from tests.world import PLAIN, process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import IllegalGenerationError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.process.clock import VirtualClock
from txnlog.testing.faults import SharedMemory

DAY_MS = 24 * 3_600_000


class SteppingClock(VirtualClock):
    """A machine's clock: it runs as the shared one, but its wall clock may be set."""

    def __init__(self, shared: SharedMemory) -> None:
        super().__init__()
        self._shared = shared.clock
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._shared.now_ms() + self.ahead_ms

    def boot_ms(self) -> int:
        return self._shared.boot_ms()

    def advance_ms(self, duration_ms: int) -> None:
        self._shared.advance_ms(duration_ms)


def stepping_member(shared: SharedMemory) -> tuple[Consumer, SteppingClock]:
    """A member of the group on a machine of its own."""
    clock = SteppingClock(shared)
    cluster = Cluster.open(shared.open(clock=clock), settings=PLAIN)
    made = consumer(cluster, group_id="g")
    made.subscribe(["t"])
    return made, clock


@pytest.mark.parametrize("step_ms", [10 * DAY_MS, -10 * DAY_MS])
@pytest.mark.parametrize("whose", ["member", "store", "both"])
def test_member_with_a_stepping_wall_clock_keeps_its_partitions_and_offsets(
    step_ms: int, whose: str
) -> None:
    """An age by wall clocks would expire each member, or the group with its offsets (R34, R48)."""
    shared = world(2)
    stepping, clock = stepping_member(shared)
    other = member(shared)
    turn(shared, stepping, other)
    generation = group_row(shared).generation
    owned = [parts(stepping), parts(other)]
    assert sorted(owned) == [[0], [1]]
    for number in range(4):
        for partition in range(2):
            put(process(shared), b"%d" % number, partition=partition)
        sign = 1 if number % 2 == 0 else -1
        if whose in ("member", "both"):
            clock.ahead_ms += sign * step_ms
        if whose in ("store", "both"):
            shared.clock.step_wall_ms(sign * step_ms)
        assert read(stepping) == read(other) == [b"%d" % number]
        for one in (stepping, other):
            one.commit(asynchronous=False)
        turn(shared, stepping, other, rounds=SESSION_MS // BEAT_MS + 2)
        Housekeeper(process(shared)).run_once()
        assert (group_row(shared).generation, [parts(stepping), parts(other)]) == (
            generation,
            owned,
        )
        assert group_row(shared).positions() == {"t": {0: number + 1, 1: number + 1}}


@pytest.mark.parametrize("step_ms", [10 * DAY_MS, -10 * DAY_MS])
def test_member_that_died_expires_although_the_wall_clock_of_its_observer_steps(
    step_ms: int,
) -> None:
    """A clock that was set back would keep its partitions unread for days (R34, R48)."""
    shared = world(2)
    observer, clock = stepping_member(shared)
    dead = member(shared)
    turn(shared, observer, dead)
    assert len(parts(dead)) == 1
    clock.ahead_ms += step_ms
    turn(shared, observer, rounds=2)
    assert parts(observer) != [0, 1]
    turn(shared, observer, rounds=SESSION_MS // BEAT_MS + 2)
    assert parts(observer) == [0, 1]
    put(process(shared), b"a", partition=0)
    put(process(shared), b"b", partition=1)
    assert sorted(read(observer)) == [b"a", b"b"]
    with pytest.raises(IllegalGenerationError):
        dead.commit(asynchronous=False)
    observer.commit(asynchronous=False)
    assert group_row(shared).positions() == {"t": {0: 1, 1: 1}}
