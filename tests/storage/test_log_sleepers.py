"""A process paused for longer than the log retention must not use its old state (R70)."""

from __future__ import annotations

import pytest

from tests.storage.number_log import HOUR_MS, OFF, TABLE, created, opened, write
from txnlog.process.clock import VirtualClock
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.table_protocol import PROTOCOL
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
    assert isinstance(write(sleeper, 5), Unknown)
    sleeper.refresh()
    assert sleeper.version == writer.version
    assert "5" not in seen.numbers
    assert write(sleeper, 5) == Committed(writer.version + 1)


def test_stray_version_is_neither_read_nor_checkpointed() -> None:
    """A stray file in an old slot disturbs neither open, checkpoint nor clean-up (R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    sleeper, _ = opened(shared.open())
    aged(shared, writer)
    assert isinstance(write(sleeper, 5), Unknown)
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
    first, _ = opened(shared.open())
    second, seen = opened(shared.open())
    aged(shared, writer)
    write(first, 5)
    second.refresh()
    assert (second.version, "5" in seen.numbers) == (writer.version, False)


# --- In a paused guest, none of whose clocks moves meanwhile --------------------------------------


def paused(shared: SharedMemory) -> tuple[PausedClock, FaultyStore]:
    clock = PausedClock(shared.clock)
    return clock, shared.open(clock=clock)


def test_commit_of_a_paused_guest_into_a_freed_slot_never_counts() -> None:
    """It was acknowledged, and no process read it (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        aged(shared, writer)
    assert isinstance(write(sleeper, 5), Unknown)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)
    assert write(sleeper, 5) == Committed(writer.version + 1)


@pytest.mark.parametrize("use", ["refresh", "commit", "prove"])
def test_commit_to_be_proved_later_is_found_in_a_freed_slot_at_the_next_use(use: str) -> None:
    """The check of the previous version was deferred, and must not be lost (D87, R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        aged(shared, writer)
    assert sleeper.commit([Txn("5", 5)], operation="WRITE", prove_later=True) == Committed(3)
    assert not [call for call in store.calls if call == ("head", commit_path(TABLE, 2))]
    if use == "commit":
        assert isinstance(write(sleeper, 6), Unknown)
    elif use == "prove":
        assert not sleeper.prove()
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)
    assert sleeper.prove()
    assert write(sleeper, 6) == Committed(writer.version + 1)


def test_commits_of_others_after_one_that_is_not_proved_are_read_from_the_log_itself() -> None:
    """They follow the true commit, not the stray one: that is no damage (D87, R66, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)
    with clock.paused():
        for number in range(100, 104):
            write(writer, number)
        create_checkpoint(writer.store, TABLE, trust_ms=OFF.trust_ms)
        store.delete([commit_path(TABLE, version) for version in range(4)])
    assert sleeper.commit([Txn("5", 5)], operation="WRITE", prove_later=True) == Committed(3)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)


def test_commit_that_was_proved_later_counts_like_any_other() -> None:
    """Also where another process commits before the check is made (D87)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    log, seen = opened(shared.open())
    assert log.commit([Txn("5", 5)], operation="WRITE", prove_later=True) == Committed(3)
    writer.refresh()
    assert write(writer, 6) == Committed(4)
    log.refresh()
    assert (log.version, seen.numbers["5"], seen.numbers["6"]) == (4, 5, 6)
    assert log.prove()


def test_table_created_by_a_paused_guest_in_a_freed_slot_never_counts() -> None:
    """Version 0 has no slot before it (R34, R70)."""
    shared = SharedMemory()
    clock, store = paused(shared)
    sleeper, _ = opened(store)
    with clock.paused():
        writer = created(shared.open(), 2)
        aged(shared, writer)
    assert isinstance(sleeper.commit([PROTOCOL], operation="CREATE"), Unknown)
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


@pytest.mark.parametrize("call", range(5))
@pytest.mark.parametrize("operation", ["refresh", "commit"])
def test_guest_paused_within_a_call_finds_the_log_as_it_is(operation: str, call: int) -> None:
    """All clocks may stop for a day at any call of the store (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    sleeper, seen = opened(store)

    def meanwhile() -> None:
        with clock.paused():
            aged(shared, writer)

    store.plan = FaultsAt({}, interlude=meanwhile, interlude_at=call)
    outcome = None
    if operation == "commit":
        outcome = write(sleeper, 5)
    else:
        sleeper.refresh(sure=True)
    if call >= store.plan.calls:
        pytest.skip("fewer calls than that")
    sleeper.refresh(sure=True)
    assert sleeper.version == writer.version
    landed = operation == "commit" and call > 0
    assert ("5" in seen.numbers) == landed
    assert not isinstance(outcome, Committed) or landed


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
    assert (slow.version, "5" in seen.numbers) == (writer.version, False)


@pytest.mark.parametrize("is_paused", [True, False])
def test_reply_lost_before_a_long_sleep_is_unknown_beside_a_stray_file(
    is_paused: bool,
) -> None:
    """Our commit was in the slot and was read; what is there now proves nothing (R63, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock = PausedClock(shared.clock)
    other, _ = opened(shared.open(clock=clock))
    store = shared.open(clock=clock) if is_paused else shared.open()
    sleeper, _ = opened(store)

    def meanwhile() -> None:
        with clock.paused():
            writer.refresh()
            aged(shared, writer)
        assert isinstance(write(other, 6), Unknown)

    store.plan = FaultsAt({0: Fault.LOSE_REPLY}, interlude=meanwhile, interlude_at=1)
    assert isinstance(write(sleeper, 5), Unknown)
    assert store.calls[-1][0] != "put"


@pytest.mark.parametrize("call", [32, 33, 34, 35])
def test_reader_far_behind_in_a_paused_guest_does_not_read_a_stray(call: int) -> None:
    """It reads more than it tails in one go when clean-up frees all of that (R34, R70)."""
    shared = SharedMemory()
    writer = created(shared.open(), 2)
    clock, store = paused(shared)
    other, _ = opened(shared.open(clock=clock))
    reader, seen = opened(store)
    for number in range(3, 37):
        write(writer, number)
        if number == 34:
            other.refresh()

    def meanwhile() -> None:
        with clock.paused():
            aged(shared, writer, commits=0)
        assert isinstance(write(other, 5_000), Unknown)

    store.plan = FaultsAt({}, interlude=meanwhile, interlude_at=call)
    reader.refresh()
    assert store.plan.calls > call
    assert (reader.version, "5000" in seen.numbers) == (writer.version, False)


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


def test_wall_clock_steps_change_nothing() -> None:
    """A corrected or wrong wall clock is not time that passed (R34)."""
    shared = SharedMemory()
    clock = VirtualClock()
    created(shared.open())
    store = shared.open(clock=clock)
    log, _ = opened(store)
    for number, step_ms in enumerate((-86_400_000, 10 * 86_400_000, -(10**12)), start=1):
        clock.step_wall_ms(step_ms)
        assert write(log, number) == Committed(number)
        calls = len(store.calls)
        log.refresh()
        assert len(store.calls) == calls + 1, "it opened the log again"
