"""Vacuum while clocks step and machines stand still: no commit names a file that is gone (R72).

The store's clock is the one shared by all; each process has a clock of its own, which a hypervisor
may freeze.
"""

from __future__ import annotations

import pytest

from tests.coordinator.processes import owned, process, world
from tests.hygiene.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    SHORT,
    WEEK_MS,
    check_files,
    vacuum,
    written_both,
)
from txnlog.clock import VirtualClock
from txnlog.errors import StagedFileTooOldError
from txnlog.testing.faults import SharedMemory


def passed(shared: SharedMemory, duration_ms: int, *clocks: VirtualClock) -> None:
    """Time for the store and for these processes; a frozen one does not notice."""
    for clock in (shared.clock, *clocks):
        clock.advance_ms(duration_ms)


def test_writer_paused_for_longer_than_the_vacuum_age_commits_no_file_that_is_gone() -> None:
    """By its own clocks the file is a second old; vacuum elsewhere has waited for eight days."""
    shared = world(config=FOREVER)
    clock = VirtualClock(shared.clock.now_ms())
    writer = process(shared, clock=clock)
    row = owned(writer, "a")
    batches = written_both(writer, "x")
    clock.freeze()
    passed(shared, 8 * DAY_MS, clock)
    assert vacuum(shared) == 2
    clock.thaw()
    passed(shared, 1_000, clock)
    with pytest.raises(StagedFileTooOldError):
        writer.coordinator.commit(row, batches)
    check_files(process(shared))
    writer.coordinator.commit(row, written_both(writer, "y"))
    check_files(process(shared))


def test_writer_that_does_not_know_of_a_step_commits_no_file_that_is_gone() -> None:
    """The disk's machine sets its clock ahead by ten days: a staged file of a minute looks old to
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


def test_append_of_a_paused_producer_names_no_file_that_is_gone() -> None:
    """Without a transaction the append itself is the commit that names the file."""
    shared = world(config=FOREVER)
    clock = VirtualClock(shared.clock.now_ms())
    writer = process(shared, clock=clock)
    batch = written_both(writer, "x")[0]
    clock.freeze()
    passed(shared, 8 * DAY_MS, clock)
    vacuum(shared)
    clock.thaw()
    with pytest.raises(StagedFileTooOldError):
        writer.coordinator.append_idempotent(99, [batch], {batch.partition: 0})
    check_files(process(shared))


def test_barrier_time_survives_a_checkpoint_and_never_goes_back() -> None:
    """A writer that opens the log from a checkpoint meets no barrier commit, only what it left."""
    shared = world(config=FOREVER, settings=SHORT)
    clock = VirtualClock(shared.clock.now_ms())
    writer = process(shared, clock=clock, settings=SHORT)
    row = owned(writer, "a")
    batches = written_both(writer, "x")
    clock.freeze()
    passed(shared, WEEK_MS + HOUR_MS)
    vacuum(shared)
    other = process(shared, settings=SHORT)
    for number in range(8):
        other.topic("orders").alter(lambda config, n=number: {**config, "retention.ms": f"{n}00"})
    clock.thaw()
    fresh = process(shared, clock=clock, settings=SHORT)
    fresh.store.now_ms()
    with pytest.raises(StagedFileTooOldError):
        fresh.coordinator.commit(row, batches)
