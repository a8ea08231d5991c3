"""Where the store refuses requests of a wrong date, a recent proof of the head is enough (D129)."""

from __future__ import annotations

import pytest

from tests.storage.number_log import HOUR_MS, OFF, TABLE, History, created, opened, write
from tests.storage.test_log_sleepers import aged
from txnlog.errors import LogGapError, NothingWrittenError
from txnlog.process.clock import VirtualClock
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, Conflict, DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.log_settings import LOG_RETENTION_MS_MIN, LogSettings
from txnlog.testing.faults import FaultyStore, PausedClock, SharedMemory

MINUTE_MS = 60_000
REFUSED_MS = 15 * MINUTE_MS
NEAR_MS = 14 * MINUTE_MS


class Guest(PausedClock):
    """A guest whose wall clock can be set."""

    set_ms = 0

    def now_ms(self) -> int:
        """As it was set, plus the time that passed on it."""
        return super().now_ms() + self.set_ms


def dated(shared: SharedMemory, clock: VirtualClock | PausedClock | None = None) -> FaultyStore:
    store = shared.open(clock=clock)
    store.refuses_skewed_requests = True
    return store


def slept(shared: SharedMemory, clock: Guest) -> tuple[DeltaLog, DeltaLog, History]:
    """A writer, and a guest's log that was read before a day in which the guest was paused."""
    writer = created(dated(shared), 2)
    sleeper, seen = opened(dated(shared, clock))
    with clock.paused():
        aged(shared, writer)
    return writer, sleeper, seen


def looks(store: FaultyStore, version: int) -> int:
    """How often a version up to this one was looked at."""
    paths = {commit_path(TABLE, earlier) for earlier in range(version + 1)}
    return sum(verb == "head" and path in paths for verb, path in store.calls)


def test_commit_soon_after_a_proof_makes_no_look() -> None:
    """A while after the last proof a look is due, which is the next."""
    shared = SharedMemory()
    store = dated(shared)
    log = created(store, 2)
    for number in range(3, 9):
        shared.clock.advance_ms(9_000)
        store.calls.clear()
        assert write(log, number) == Committed(number)
        assert [verb for verb, _ in store.calls] == ["put"]
    shared.clock.advance_ms(OFF.dated_ms + 1)
    assert write(log, 9) == Committed(9)
    assert looks(store, 8) == 1
    store.calls.clear()
    assert write(log, 10) == Committed(10)
    assert [verb for verb, _ in store.calls] == ["put"]


@pytest.mark.parametrize("step_ms", [OFF.dated_ms + 1, -1])
def test_look_is_made_when_the_wall_clock_was_set(step_ms: int) -> None:
    """The time since the proof is then not known."""
    shared = SharedMemory()
    store = dated(shared)
    log = created(store, 2)
    store.calls.clear()
    shared.clock.step_wall_ms(step_ms)
    assert write(log, 3) == Committed(3)
    assert looks(store, 2) == 1


@pytest.mark.parametrize("refuses", [False, True])
def test_commit_to_be_proved_later_is_proved_by_its_date(refuses: bool) -> None:
    """Nothing is left for the next use of the log (D87)."""
    shared = SharedMemory()
    store = dated(shared)
    store.refuses_skewed_requests = refuses
    log = created(store, 2)
    store.calls.clear()
    assert log.commit([], operation="WRITE", prove_later=True) == Committed(3)
    assert log.prove()
    assert looks(store, 2) == (not refuses)


def test_guest_that_wakes_up_with_an_old_clock_is_refused() -> None:
    """Its put into a freed slot has no effect, and is not acknowledged (R34, R70)."""
    shared = SharedMemory()
    clock = Guest(shared.clock)
    writer, sleeper, seen = slept(shared, clock)
    with pytest.raises(NothingWrittenError):
        write(sleeper, 5)
    assert not shared.open().exists(commit_path(TABLE, 3))
    clock.set_ms = shared.clock.now_ms() - clock.now_ms()
    assert isinstance(write(sleeper, 5), Unknown)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)
    assert write(sleeper, 5) == Committed(writer.version + 1)


def test_guest_whose_clock_is_set_as_it_wakes_up_looks() -> None:
    """Then the store takes its put, into a freed slot (R34, R70)."""
    shared = SharedMemory()
    clock = Guest(shared.clock)
    writer, sleeper, seen = slept(shared, clock)
    clock.set_ms = shared.clock.now_ms() - clock.now_ms()
    assert isinstance(write(sleeper, 5), Unknown)
    assert shared.open().exists(commit_path(TABLE, 3))
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)


def test_longest_pause_that_dates_do_not_show_frees_no_slot() -> None:
    """Clocks off by what the store allows, and all of `dated_ms`: less than logs are kept."""
    assert OFF.dated_ms + 2 * REFUSED_MS < LOG_RETENTION_MS_MIN
    shared = SharedMemory()
    settings = LogSettings(checkpoint_mode="inline", checkpoint_interval=1)
    writer = created(dated(shared), 1)
    clock = Guest(shared.clock)
    # Fast by as much as is allowed when the head is proved, slow by as much when it writes.
    clock.set_ms = NEAR_MS
    store = dated(shared, clock)
    sleeper, _ = opened(store, settings)
    for number in (2, 3, 4):
        write(writer, number)
    with clock.paused():
        shared.clock.advance_ms(2 * NEAR_MS + OFF.dated_ms)
    clock.set_ms += OFF.dated_ms
    writer.refresh()
    write(writer, 5)
    clean_up(dated(shared), TABLE, retention_ms=LOG_RETENTION_MS_MIN)
    store.calls.clear()
    assert write(sleeper, 6) == Conflict(2)
    assert looks(store, 1) == 0


def test_slot_is_proved_by_when_it_was_found_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot before is still there when the guest wakes up, and freed right after (R34, R70)."""
    shared = SharedMemory()
    writer = created(dated(shared), 2)
    clock = Guest(shared.clock)
    store = dated(shared, clock)
    sleeper, seen = opened(store)
    shared.clock.advance_ms(11_000)
    get = store.get

    def get_and_sleep(path: str) -> bytes:
        try:
            return get(path)
        finally:
            with clock.paused():
                for number in (100, 101, 102):
                    write(writer, number)
                shared.clock.advance_ms(30 * HOUR_MS)
            clock.set_ms = shared.clock.now_ms() - clock.now_ms()

    monkeypatch.setattr(store, "get", get_and_sleep)
    sleeper.refresh()
    monkeypatch.undo()
    create_checkpoint(writer.store, TABLE, trust_ms=OFF.trust_ms)
    assert clean_up(dated(shared), TABLE, retention_ms=OFF.log_retention_ms)
    assert isinstance(write(sleeper, 5), Unknown)
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (5, False)


def test_wall_clock_that_is_set_back_proves_no_earlier_commit() -> None:
    """A date is a proof only in a request that the store has accepted (D87, R34, R70)."""
    shared = SharedMemory()
    writer = created(dated(shared), 2)
    clock = Guest(shared.clock)
    sleeper, seen = opened(dated(shared, clock))
    with clock.paused():
        aged(shared, writer)
    pause_ms = shared.clock.now_ms() - clock.now_ms()
    clock.set_ms = pause_ms
    assert sleeper.commit([Txn("5", 5)], operation="WRITE", prove_later=True) == Committed(3)
    clock.set_ms = 0
    assert not sleeper.prove()
    clock.set_ms = pause_ms
    sleeper.refresh()
    assert (sleeper.version, "5" in seen.numbers) == (writer.version, False)


def test_wall_clock_that_is_set_back_within_a_proof_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at boot, while the first request waits for its credentials (R34, R70)."""
    shared = SharedMemory()
    writer = created(dated(shared), 2)
    clock = Guest(shared.clock)
    store = dated(shared, clock)
    get = store.get

    def set_and_get(path: str) -> bytes:
        clock.set_ms = 0
        return get(path)

    monkeypatch.setattr(store, "get", set_and_get)
    clock.set_ms = 30 * HOUR_MS
    log = DeltaLog(store, TABLE, History(), settings=OFF)
    log.refresh()
    monkeypatch.undo()
    with clock.paused():
        aged(shared, writer)
    clock.set_ms = 30 * HOUR_MS
    assert isinstance(write(log, 5), Unknown)


def test_busy_writer_notices_within_minutes_that_its_log_is_gone() -> None:
    """Each commit would be the proof for the next one for ever (D52, D129)."""
    shared = SharedMemory()
    store = dated(shared)
    log = created(store, 2)
    shared.open().delete([meta.path for meta in shared.open().list(TABLE)])
    found = []
    for number in range(3, 3 + OFF.dated_ms // 9_000 + 2):
        shared.clock.advance_ms(9_000)
        found.append(write(log, number))
        if isinstance(found[-1], Unknown):
            break
    assert isinstance(found[-1], Unknown)
    with pytest.raises(LogGapError):
        log.refresh()
