"""Many writers of one log on a local disk: what each asks of it, and that none waits for long."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.storage.number_log import TABLE, created, opened, write
from txnlog.errors import (
    ConcurrentTransactionsError,
    LogGapError,
    ObjectNotFoundError,
    StorageError,
)
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX, VirtualClock
from txnlog.producer import Producer
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Conflict, DeltaLog, Unknown
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
WAIT_MS_MAX = 50
DISK_IS_SLOW_MS = 60_000


class _WatchedClock(VirtualClock):
    """A clock that remembers how long was slept."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_ms: list[float] = []

    def sleep_ms(self, duration_ms: float) -> None:
        self.slept_ms.append(duration_ms)
        super().sleep_ms(duration_ms)


class _WatchedStore(ObjectStore):
    """A local disk whose calls are counted; those of the verb `fails` fail. `loses`: it has no
    file that it lists.
    """

    calls: Counter[str]
    fails = ""
    loses = False

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.calls[verb] += 1
        if self.loses and verb == "get":
            raise ObjectNotFoundError(f"{path} is gone", path=path)
        if verb == self.fails:
            raise StorageError(f"{path}: the disk does not answer", path=path)
        return super()._call(verb, path, call)


@pytest.fixture
def clock() -> _WatchedClock:
    return _WatchedClock()


@pytest.fixture
def disk(tmp_path: Path, clock: _WatchedClock) -> Callable[[], _WatchedStore]:
    """Opens the store of one more process."""

    def open_store() -> _WatchedStore:
        store = _WatchedStore.from_url(str(tmp_path / "root"), clock=clock)
        assert isinstance(store, _WatchedStore)
        store.calls = Counter()
        return store

    return open_store


Disk = Callable[[], _WatchedStore]


def put(log: DeltaLog, number: int) -> None:
    transact(log, lambda: None, lambda _: write(log, number))


# --- Reading on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 31, 32, 33, 64, 500])
def test_refresh_lists_nothing_while_the_next_version_is_there(disk: Disk, behind: int) -> None:
    """A listing reads the names of a day of commits, and a loser was behind by more than 32."""
    writer = created(disk())
    store = disk()
    log, seen = opened(store)
    for number in range(1, behind + 1):
        write(writer, number)
    store.calls.clear()
    log.refresh()
    assert log.version == behind
    assert len(seen.numbers) == behind
    assert store.calls["list"] == 0
    # Each commit, and the empty slot after the last one, is asked for once.
    assert store.calls["get"] == behind + behind // 32


def test_refresh_opens_a_log_again_whose_checkpoint_is_far_ahead(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was idle for half an hour would read a million commits."""
    writer = created(disk())
    store = disk()
    log, seen = opened(store)
    for number in range(1, 101):
        write(writer, number)
    create_checkpoint(disk(), TABLE, trust_ms=writer.settings.trust_ms)
    monkeypatch.setattr(delta_log, "_FAR_BEHIND", 60)
    monkeypatch.setattr(delta_log, "_READ_AT_ONCE", 5)
    log.refresh()
    assert log.version == 100
    assert len(seen.numbers) == 100
    assert store.calls["list"] > 0
    assert store.calls["get"] < 50


def test_commits_before_a_damaged_one_are_read(disk: Disk) -> None:
    """They are read before any of them is applied; the error is that of the damaged one."""
    writer = created(disk(), 0)
    log, seen = opened(disk())
    for number in range(1, 6):
        write(writer, number)
    store = disk()
    store.delete([delta_log.commit_path(TABLE, 4)])
    store.put(delta_log.commit_path(TABLE, 4), b"no commit")
    for _ in range(2):
        with pytest.raises(delta_log.CorruptLogError, match=f"{4:020}.json"):
            log.refresh()
        assert log.version == 3
        assert sorted(seen.numbers) == ["1", "2", "3"]


def test_commit_is_missing_in_the_middle_of_many(disk: Disk) -> None:
    """Found at once, as by the listing that is no longer made."""
    writer = created(disk())
    log, _ = opened(disk())
    for number in range(1, 60):
        write(writer, number)
    disk().delete([delta_log.commit_path(TABLE, 50)])
    with pytest.raises(LogGapError, match=delta_log.commit_path(TABLE, 50)):
        log.refresh()


# --- Meeting others -------------------------------------------------------------------------------


def test_slot_that_another_has_taken_costs_no_put(disk: Disk) -> None:
    """A put that loses has written and synced a file for nothing."""
    other = created(disk())
    store = disk()
    log, _ = opened(store)
    put(other, 1)
    put(log, 2)
    log.refresh()
    put(other, 3)
    store.calls.clear()
    assert isinstance(write(log, 4), Conflict)
    assert store.calls["put"] == 0
    put(log, 4)
    assert (log.version, store.calls["put"]) == (4, 1)


def test_writer_of_a_log_that_others_write_looks_before_it_decides(disk: Disk) -> None:
    """What is decided on an old state is decided for nothing; who is alone never looks (D23)."""
    other = created(disk())
    log, seen = opened(disk())
    decided: list[list[str]] = []

    def put_and_note(number: int) -> None:
        def decide() -> None:
            decided.append(sorted(seen.numbers))

        transact(log, decide, lambda _: write(log, number))

    put(other, 1)
    put_and_note(2)
    put(other, 3)
    put_and_note(4)
    assert decided == [["1"], ["1", "2", "3"]]


def test_lone_writer_asks_nothing_before_its_put(disk: Disk, clock: _WatchedClock) -> None:
    """Sharing must cost nothing where nobody shares."""
    log = created(disk())
    store = log.store
    assert isinstance(store, _WatchedStore)
    put(log, 1)
    store.calls.clear()
    for number in range(2, 22):
        put(log, number)
    # That its last commit is there costs two microseconds each time.
    assert store.calls == {"put": 20, "head": 20}
    assert clock.slept_ms == []


def test_winner_gives_way_on_a_log_that_others_want(disk: Disk, clock: _WatchedClock) -> None:
    """On a local disk a winner never waited, and others met it each time."""
    other = created(disk())
    log, _ = opened(disk())
    put(other, 1)
    for number in range(2, 20):
        put(log, number)
    waits = [ms for ms in clock.slept_ms if ms]
    assert len(waits) == 4
    assert all(0.3 <= ms <= 0.5 for ms in waits)


# --- Waits ----------------------------------------------------------------------------------------


def test_no_wait_for_a_version_is_long_on_a_local_disk(disk: Disk, clock: _WatchedClock) -> None:
    """A loser slept for up to 200 ms, and was a hundred versions behind when it woke."""
    log = created(disk())
    for slow in (False, True):
        if slow:
            log.store.latency.record(DISK_IS_SLOW_MS)
            for _ in range(100):
                log.store.latency.record(DISK_IS_SLOW_MS)
        with pytest.raises(ConcurrentTransactionsError):
            transact(log, lambda: None, lambda _: Conflict(1))
        log._meet_others()
        for number in range(20):
            log._wins = number
            log.give_way()
    assert len(clock.slept_ms) > 1_000
    assert max(clock.slept_ms) <= WAIT_MS_MAX


def test_no_wait_for_others_is_long_on_a_local_disk(disk: Disk, clock: _WatchedClock) -> None:
    """Operations that others interrupt: a take-over, a registration, a reset, a fence."""
    store = disk()
    for attempt in range(OPERATION_ATTEMPTS_MAX):
        store.back_off(attempt)
    assert 0 < max(clock.slept_ms) <= WAIT_MS_MAX


def test_no_wait_for_a_failing_put_is_long(disk: Disk, clock: _WatchedClock) -> None:
    """It may have landed, so the same bytes are put again until that is known."""
    log = created(disk())
    store = log.store
    assert isinstance(store, _WatchedStore)
    store.fails = "put"
    assert isinstance(log.commit([Txn("1", 1)], operation="WRITE"), Unknown)
    assert len(clock.slept_ms) > 10
    assert max(clock.slept_ms) <= WAIT_MS_MAX


@pytest.mark.parametrize(
    "read", [DeltaLog.refresh, lambda log: read_tombstones(log.store, TABLE, version=0)]
)
def test_no_wait_for_files_that_clean_up_removed_is_long(
    disk: Disk, clock: _WatchedClock, read: Callable[[DeltaLog], object]
) -> None:
    """They were listed, and are gone: a newer checkpoint is there, or will be."""
    log = created(disk())
    store = log.store
    assert isinstance(store, _WatchedStore)
    log.invalidate()
    store.loses = True
    with pytest.raises(LogGapError):
        read(log)
    assert len(clock.slept_ms) > 3
    assert max(clock.slept_ms) <= WAIT_MS_MAX


def test_no_pause_of_a_producers_call_is_long_on_a_local_disk(tmp_path: Path) -> None:
    """It waited for up to a second before it tried again."""
    with Producer({"txnlog.root": str(tmp_path / "root")}) as producer:
        deadline = producer._deadline("flush", 60)
        clock = deadline._clock = _WatchedClock()
        deadline._end_ms = clock.boot_ms() + 60_000
        while deadline.remaining_ms > 0:
            deadline.pause(None)
        assert max(clock.slept_ms) <= WAIT_MS_MAX


SLEEPS = {
    "txnlog/admin/root_configs.py:alter_root": "processes are given time to follow",
    "txnlog/consumer.py:_back_off": "a reader whose polls fail",
    "txnlog/consumer.py:_wait": "a reader without new records",
    "txnlog/consumer.py:committed": "IDLE_MS_MIN, between looks at open transactions",
    "txnlog/consuming/turn.py:take": "LOOK_S, while a callback runs",
    "txnlog/coordinator/helping.py:refresh": "only in an object store",
    "txnlog/housekeeping/housekeeper.py:_wait": "a round between two looks at members",
    "txnlog/process/clock.py:sleep_ms": "the clock",
    "txnlog/producer.py:_serve_and_wait": "BACKOFF_MS_MIN, while another thread calls callbacks",
    "txnlog/producing/deadlines.py:pause": "at most `backoff_ms_max`, see above",
    "txnlog/producing/sender.py:turn": "RETRY_MS, after a bug",
    "txnlog/repairing/repair.py:_check_idle": "the cluster is stopped, and watched",
    "txnlog/storage/delta/delta_log.py:give_way": "see above",
    "txnlog/storage/delta/transact.py:transact": "see above",
    "txnlog/storage/store/objects.py:back_off": "see above",
    "txnlog/storage/tables/enlisted_log.py:publish": "as transact.py",
    "txnlog/verifying/verifier.py:verify": "verify reads twice",
    "spark_source/stream.py:_must_rest": "a query without new records",
}
"""Each place where this process sleeps, and why that is no long wait of a writer on a disk."""


def test_every_sleep_is_known() -> None:
    """A new back-off would be as long as its author finds right for an object store."""
    found = set()
    for folder in ("txnlog", "spark_sink", "spark_source"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            if not where.startswith("txnlog/testing/") and where != "txnlog/process/failpoint.py":
                found |= {f"{where}:{name}" for name in _sleepers(ast.parse(path.read_text()))}
    assert found == set(SLEEPS)


def _sleepers(tree: ast.AST) -> set[str]:
    """The functions that call `sleep` or `sleep_ms`."""
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("sleep", "sleep_ms")
    }
