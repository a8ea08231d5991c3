"""A process paused for longer than the log retention must not use its old state (R70)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.number_log import HOUR_MS, OFF, TABLE, created, opened, write
from txnlog.errors import LogGapError
from txnlog.process.clock import VirtualClock
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, Conflict, DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, PausedClock, SharedMemory


def aged(shared: SharedMemory, log: DeltaLog, *, commits: int = 4) -> None:
    """Let a day pass, with commits, a checkpoint and a clean-up that leaves the last two."""
    for number in range(100, 100 + commits):
        write(log, number)
    shared.clock.advance_ms(30 * HOUR_MS)
    create_checkpoint(log.store, TABLE, trust_ms=OFF.trust_ms)
    log.refresh()
    write(log, 200)
    assert clean_up(log.store, TABLE, retention_ms=OFF.log_retention_ms)


def paused(shared: SharedMemory) -> tuple[PausedClock, FaultyStore]:
    clock = PausedClock(shared.clock)
    return clock, shared.open(clock=clock)


def test_refresh_after_sleeping_past_clean_up_is_not_at_the_head() -> None:
    """The next version is absent because clean-up deleted it (R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    sleeper, seen = opened(shared.open())
    aged(shared, writer)
    sleeper.refresh()
    assert sleeper.version == writer.version
    assert seen.numbers["200"] == 200


def test_log_is_opened_again_when_its_confirmed_head_is_older_than_trust_ms() -> None:
    """Half the retention and not all of it: a put that is under way needs the rest (R70, D3)."""
    shared = SharedMemory()
    created(shared.open(), 2)
    store = shared.open()
    log, _ = opened(store)
    for wait_ms, is_opened in ((OFF.trust_ms, False), (OFF.trust_ms + 1, True)):
        store.calls.clear()
        shared.clock.advance_ms(wait_ms)
        log.refresh()
        assert ("list" in {verb for verb, _ in store.calls}) == is_opened


def test_commit_after_sleeping_past_clean_up_never_counts() -> None:
    """The slot is free again; no process reads a commit there (R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    sleeper, seen = opened(shared.open())
    aged(shared, writer)
    assert write(sleeper, 5) == Conflict(3)
    sleeper.refresh()
    assert sleeper.version == writer.version
    assert "5" not in seen.numbers
    assert write(sleeper, 5) == Committed(writer.version + 1)


def test_stray_version_is_neither_read_nor_checkpointed() -> None:
    """A stray file in an old slot disturbs neither open, checkpoint nor clean-up (R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, _ = opened(store)
    with clock.paused():
        aged(shared, writer)
    assert write(sleeper, 5) == Committed(3)
    assert commit_path(TABLE, 3) in [m.path for m in shared.open().list(TABLE)]
    fresh, seen = opened(shared.open())
    assert (fresh.version, "5" in seen.numbers) == (writer.version, False)
    writer.refresh()
    write(writer, 201)
    create_checkpoint(shared.open(), TABLE, trust_ms=OFF.trust_ms)
    clean_up(shared.open(), TABLE, retention_ms=OFF.log_retention_ms)
    fresh, seen = opened(shared.open())
    assert (fresh.version, "5" in seen.numbers) == (writer.version, False)


def test_second_sleeper_does_not_read_the_first_ones_stray() -> None:
    """Two sleepers at one version: the stray of one looks like the next commit to the other."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    first, _ = opened(store)
    second, seen = opened(shared.open())
    with clock.paused():
        aged(shared, writer)
    assert write(first, 5) == Committed(3)
    second.refresh()
    assert (second.version, "5" in seen.numbers) == (writer.version, False)


# --- In a guest that is paused while idle, none of whose clocks moves meanwhile -------------------


def test_commit_of_a_paused_guest_into_a_freed_slot_never_counts() -> None:
    """It was acknowledged, and no process read it (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        aged(shared, writer)
    shared.clock.advance_ms(11_000)
    assert write(sleeper, 5) == Conflict(3)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)
    assert write(sleeper, 5) == Committed(writer.version + 1)


def test_branch_that_a_guest_began_just_after_a_look_ends_with_the_next_one() -> None:
    """Nothing has shown it the pause, and its own commits are where it looks (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        aged(shared, writer)
    assert write(sleeper, 5) == Committed(3)
    shared.clock.advance_ms(11_000)
    assert write(sleeper, 6) == Conflict(4)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)
    assert write(sleeper, 6) == Committed(writer.version + 1)


def test_table_created_by_a_paused_guest_in_a_freed_slot_never_counts() -> None:
    """Version 0 has no slot before it (R34, R70)."""
    shared = SharedMemory()
    clock, store = paused(shared)
    sleeper, _ = opened(store)
    with clock.paused():
        writer = created(shared.open(), 2)
        aged(shared, writer)
    shared.clock.advance_ms(11_000)
    assert sleeper.commit([PROTOCOL], operation="CREATE") == Conflict(0)
    sleeper.refresh()
    assert sleeper.version == writer.version


def test_reader_in_a_paused_guest_finds_the_head_again() -> None:
    """It waited for ever for a version that clean-up had deleted (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        aged(shared, writer)
    shared.clock.advance_ms(11_000)
    sleeper.refresh()
    assert (sleeper.version, seen.numbers["200"]) == (writer.version, 200)


def test_reader_in_a_paused_guest_does_not_keep_the_stray_of_another() -> None:
    """The stray of a process in the same guest looks like the next commit (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    first, _ = opened(store)
    second, seen = opened(shared.open(clock=clock))
    with clock.paused():
        aged(shared, writer)
    write(first, 5)
    second.refresh(sure=True)
    assert (second.version, "5" in seen.numbers) == (writer.version, False)


def test_commit_into_a_slot_freed_by_a_stepped_wall_clock_never_counts() -> None:
    """The machine's clock steps forward by more than the retention; the boot clock does not (R34).

    Clean-up takes commits of a moment ago; a writer that has not read them commits in their place.
    """
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    slow, seen = opened(shared.open())
    for number in range(100, 104):
        write(writer, number)
    shared.clock.step_wall_ms(30 * HOUR_MS)
    create_checkpoint(writer.store, TABLE, trust_ms=OFF.trust_ms)
    write(writer, 200)
    assert clean_up(shared.open(), TABLE, retention_ms=OFF.log_retention_ms)
    assert isinstance(write(slow, 5), Unknown)
    slow.refresh()
    head, _ = opened(shared.open())
    assert (slow.version, "5" in seen.numbers) == (head.version, False)


def test_reply_lost_before_a_long_sleep_is_unknown_beside_a_stray_file() -> None:
    """Our commit was in the slot and was read; what is there now proves nothing (R63, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock = PausedClock(shared.clock)
    other, _ = opened(shared.open(clock=clock))
    store = shared.open()
    sleeper, _ = opened(store)

    def meanwhile() -> None:
        with clock.paused():
            writer.refresh()
            aged(shared, writer)
        write(other, 6)

    store.plan = FaultsAt({0: Fault.LOSE_REPLY}, interlude=meanwhile, interlude_at=1)
    assert isinstance(write(sleeper, 5), Unknown)
    assert store.calls[-1][0] != "put"


# --- A log that was restored under a living writer ---------------------------------------------


@pytest.mark.parametrize("lost", [1, 4, 40])
def test_writer_notices_that_its_log_was_restored_to_a_version_after_its_last_look(
    lost: int,
) -> None:
    """It would write behind a hole for ever, and read that back; others write into the hole."""
    shared = SharedMemory()
    store = shared.open()
    log = created(store, 2)
    shared.clock.advance_ms(11_000)
    log.refresh()
    for number in range(3, 4 + lost):
        write(log, number)
    store.delete([commit_path(TABLE, version) for version in range(4, 4 + lost)])
    assert isinstance(write(log, 100), Committed)
    shared.clock.advance_ms(11_000)
    assert isinstance(write(log, 101), Conflict)
    with pytest.raises(LogGapError):
        log.refresh()


def test_writer_on_a_local_disk_notices_it_at_its_next_commit(tmp_path: Path) -> None:
    store = ObjectStore.from_url(str(tmp_path / "root"), create=True)
    log = created(store, 3)
    store.delete([commit_path(TABLE, 3)])
    assert isinstance(write(log, 4), Conflict)
    with pytest.raises(LogGapError):
        log.refresh()


# --- Running clocks -------------------------------------------------------------------------------


@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("operation", ["refresh", "commit"])
def test_process_stopped_within_a_call_relies_on_nothing_it_read_before(
    operation: str, call: int
) -> None:
    """A machine is suspended between a request and its reply, at any call (R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    store = shared.open()
    sleeper, seen = opened(store)
    store.plan = FaultsAt({}, interlude=lambda: aged(shared, writer), interlude_at=call)
    if operation == "commit":
        write(sleeper, 5)
    else:
        sleeper.refresh()
    sleeper.refresh()
    if call >= store.plan.calls:
        pytest.skip("fewer calls than that")
    sleeper.refresh()
    assert sleeper.version == writer.version
    landed = "5" in seen.numbers
    assert landed == (operation == "commit" and call > 0)


@pytest.mark.parametrize("delay_ms", [0, 20 * 60_000, 29 * 60_000])
def test_commit_within_half_the_retention_counts(delay_ms: int) -> None:
    """Only a process after a long pause has to open the log again."""
    shared = SharedMemory()
    created(shared.open())
    store = shared.open()
    log, _ = opened(store)
    shared.clock.advance_ms(delay_ms)
    assert write(log, 1) == Committed(1)


def test_wall_clock_that_is_set_loses_no_commit() -> None:
    """A step forward may be time that passed: the log is opened again; one back is none (R34)."""
    shared = SharedMemory()
    clock = VirtualClock()
    created(shared.open())
    store = shared.open(clock=clock)
    log, seen = opened(store)
    for number, step_ms in enumerate((-86_400_000, 10 * 86_400_000, -(10**12)), start=1):
        clock.step_wall_ms(step_ms)
        store.calls.clear()
        log.refresh()
        assert ("list" in {verb for verb, _ in store.calls}) == (step_ms > 0)
        assert write(log, number) == Committed(number)
    assert len(seen.numbers) == 3
