"""Vacuum while clocks step and machines are suspended: no commit names a deleted file (R72).

The store's clock is the one shared by all; each process has a clock of its own, which stops
while a hypervisor pauses its guest.
"""

from __future__ import annotations

import pytest

from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    SHORT,
    WEEK_MS,
    check_files,
    vacuum,
    written_both,
)
from tests.world import owned, process, world
from txnlog.errors import StagedFileTooOldError
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.process.clock import VirtualClock
from txnlog.protocol.vacuum import ClockReading, has_run_evenly
from txnlog.testing.faults import SharedMemory


def passed(shared: SharedMemory, duration_ms: int, *clocks: VirtualClock) -> None:
    """Time for the store and for these processes; the guests of others are paused."""
    for clock in (shared.clock, *clocks):
        clock.advance_ms(duration_ms)


def test_writer_that_does_not_know_of_a_step_commits_no_file_that_is_gone() -> None:
    """The disk's machine sets its clock ahead by ten days: a staged file of a minute appears old to
    a vacuum that starts now, and the writer knows the store's time from half an hour ago.
    """
    shared = world(config=FOREVER)
    clock = VirtualClock(shared.clock.now_ms())
    writer = process(shared, clock=clock)
    row = owned(writer, "a")
    writer.store.now_ms()
    batches = written_both(writer, "x")
    passed(shared, 60_000, clock)
    shared.clock.step_wall_ms(10 * DAY_MS)
    vacuum(shared)
    with pytest.raises(StagedFileTooOldError):
        writer.coordinator.commit(row, batches)
    check_files(process(shared))


def test_barrier_time_survives_a_checkpoint_and_never_goes_back() -> None:
    """A writer that opens the log from a checkpoint reads only the barrier's `txn` action."""
    shared = world(config=FOREVER, settings=SHORT)
    clock = VirtualClock(shared.clock.now_ms())
    writer = process(shared, clock=clock, settings=SHORT)
    row = owned(writer, "a")
    batches = written_both(writer, "x")
    passed(shared, WEEK_MS + HOUR_MS)
    vacuum(shared)
    other = process(shared, settings=SHORT)
    for number in range(8):
        other.topic("orders").alter(lambda config, n=number: {**config, "retention.ms": f"{n}00"})
    fresh = process(shared, clock=clock, settings=SHORT)
    fresh.store.now_ms()
    with pytest.raises(StagedFileTooOldError):
        fresh.coordinator.commit(row, batches)


# --- When ages can be trusted ---------------------------------------------------------------------


def vacuumed(shared: SharedMemory, clock: VirtualClock | None = None) -> int:
    """How many files a housekeeping process that was just started vacuums."""
    keeper = Housekeeper(process(shared, clock=clock))
    done = keeper.run_once()
    keeper.close()
    assert done is not None
    return done["files vacuumed"]


def test_housekeeping_after_a_step_deletes_nothing_that_is_young() -> None:
    """A reader's files of a minute ago appear ten days old, and so does every staged file."""
    shared = world(config=FOREVER)
    passed(shared, 2 * HOUR_MS)
    written_both(process(shared), "x")
    shared.clock.step_wall_ms(10 * DAY_MS)
    for _ in range(3):
        assert vacuumed(shared) == 0
        passed(shared, 29 * 60_000)
    passed(shared, HOUR_MS)
    assert vacuumed(shared) == 2


def test_housekeeping_on_a_machine_that_watches_for_the_first_time_waits_an_hour() -> None:
    """It cannot know whether the store's clock was set just now."""
    shared = world(config=FOREVER)
    written_both(process(shared), "x")
    clock = VirtualClock(shared.clock.now_ms())
    passed(shared, 8 * DAY_MS, clock)
    assert vacuumed(shared, clock) == 0
    passed(shared, HOUR_MS - 1, clock)
    assert vacuumed(shared, clock) == 0
    passed(shared, 1, clock)
    assert vacuumed(shared, clock) == 2


def test_housekeeping_in_a_guest_that_was_paused_watches_again() -> None:
    """Its boot clock did not count the pause, so it cannot trust ages."""
    shared = world(config=FOREVER)
    clock = VirtualClock(shared.clock.now_ms())
    vacuumed(shared, clock)
    passed(shared, 2 * HOUR_MS, clock)
    written_both(process(shared), "x")
    passed(shared, 8 * DAY_MS)
    assert vacuumed(shared, clock) == 0
    passed(shared, HOUR_MS, clock)
    assert vacuumed(shared, clock) == 2


@pytest.mark.parametrize(
    ("boot_ms", "store_ms", "expected"),
    [
        (3_600_000, 3_600_000, True),
        (3_599_999, 3_599_999, False),
        (3_600_000, 3_600_000 + 303_600, True),
        (3_600_000, 3_600_000 + 303_601, None),
        (3_600_000, 3_600_000 - 303_601, None),
        (400 * DAY_MS, 400 * DAY_MS + 900_001, None),
        (-1, -1, None),
    ],
)
def test_clock_runs_evenly_within_what_clocks_are_slewed(
    boot_ms: int, store_ms: int, expected: bool | None
) -> None:
    """Steps that are small one by one add up, and must not stay below the limit for ever."""
    now = ClockReading(5 + boot_ms, 7 + store_ms)
    assert has_run_evenly(ClockReading(5, 7), now) is expected
