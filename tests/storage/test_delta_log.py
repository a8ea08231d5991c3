"""DeltaLog: one winner per version, lost replies, catching up."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.storage.number_log import (
    HOUR_MS,
    OFF,
    TABLE,
    History,
    created,
    faulty,
    opened,
    slots,
    write,
)
from txnlog.errors import StorageError, StorePermissionError
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, Conflict, DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory

# --- Racing (R62) ---------------------------------------------------------------------------------


def race(root: str, worker: int, commits: int) -> list[int]:
    """One process's share of the race: `commits` commits, each retried until it wins a version."""
    log, _ = opened(ObjectStore.from_url(root))
    won = []
    while len(won) < commits:
        log.refresh()
        match write(log, worker * 1_000 + len(won)):
            case Committed(version):
                won.append(version)
    return won


def test_commit_raced_by_processes_gives_each_version_one_winner(tmp_path: Path) -> None:
    """Two winners of one version lose an acknowledged commit; a gap ends the log (R62)."""
    root = str(tmp_path / "root")
    created(ObjectStore.from_url(root))
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(4).wait
    with ProcessPoolExecutor(4, mp_context=context, initializer=together) as pool:
        won = dict(enumerate(pool.map(partial(race, root, commits=50), range(4))))
    assert sorted(v for versions in won.values() for v in versions) == list(range(1, 201))
    log, view = opened(ObjectStore.from_url(root))
    assert log.version == 200
    assert view.numbers == {f"{w * 1_000 + n}": w * 1_000 + n for w in won for n in range(50)}


def test_commit_at_a_taken_version_is_a_conflict_that_leaves_no_trace(store: ObjectStore) -> None:
    """The loser must decide again on what the winner wrote (R62, R7)."""
    created(store)
    first, _ = opened(store)
    second, seen = opened(store)
    assert write(first, 1) == Committed(1)
    assert write(second, 2) == Conflict(1)
    assert seen.numbers == {}
    second.refresh()
    assert seen.numbers == {"1": 1}
    assert write(second, 2) == Committed(2)


def test_commit_before_refresh_is_a_bug_not_a_write(store: ObjectStore) -> None:
    """Version 0 of a log that was not read would be a guess."""
    with pytest.raises(RuntimeError, match="before refresh"):
        write(DeltaLog(store, TABLE, History(), settings=OFF), 1)


# --- Lost replies (R63) ---------------------------------------------------------------------------


def test_commit_whose_reply_is_lost_is_recognised() -> None:
    """A writer that takes its own commit for a foreign one writes it twice (R63)."""
    shared, log = faulty({0: Fault.LOSE_REPLY})
    assert write(log, 1) == Committed(1)
    assert opened(shared.open())[0].version == 1


def test_commit_refused_as_existing_though_nothing_landed_is_put_again() -> None:
    """S3 replies 409 to a conditional put that raced, whichever of them landed (R63)."""
    shared, log = faulty({0: Fault.SAY_EXISTS})
    assert write(log, 1) == Committed(1)
    assert opened(shared.open())[1].numbers == {"1": 1}


def test_commit_put_fails_and_then_succeeds_is_committed_once() -> None:
    """The same bytes go into the same slot until the outcome is known."""
    shared, log = faulty({0: Fault.FAIL_BEFORE, 2: Fault.LOSE_REPLY, 3: Fault.FAIL_BEFORE})
    assert write(log, 1) == Committed(1)
    assert slots(shared.open()) == [f"{n:020}.json" for n in (0, 1)]


def test_commit_lost_race_hidden_by_lost_replies_is_a_conflict() -> None:
    """A put that never landed must not count because another one is in the slot (R63)."""
    shared, log = faulty({0: Fault.FAIL_BEFORE})
    other, _ = opened(shared.open())
    assert write(other, 7) == Committed(1)
    assert write(log, 1) == Conflict(1)


def test_commit_put_under_way_lands_late_and_counts_once() -> None:
    """An empty slot proves nothing: the first put may land between the attempts (R63)."""
    shared = SharedMemory()
    created(shared.open())
    store = shared.open()
    log, _ = opened(store)
    # put delayed; read back absent; then, as the second put is sent, the first one lands.
    store.plan = FaultsAt(
        {0: Fault.LAND_LATE}, interlude=lambda: assert_landed(shared), interlude_at=2
    )
    assert write(log, 1) == Committed(1)
    assert opened(shared.open())[0].version == 1


def assert_landed(shared: SharedMemory) -> None:
    assert shared.land_late() == [commit_path(TABLE, 1)]


def test_commit_that_times_out_is_unknown_and_never_a_failure() -> None:
    """After half a minute of errors the state is unknown; a failure would be written twice."""
    shared = SharedMemory()
    created(shared.open())
    store = shared.open()
    log, view = opened(store)
    store.plan = lambda verb, path: Fault.LAND_LATE if verb == "put" else Fault.FAIL_BEFORE
    assert isinstance(write(log, 1), Unknown)
    store.plan = lambda verb, path: Fault.NONE
    assert len(shared.land_late()) == 1
    log.refresh()
    assert (log.version, view.numbers) == (1, {"1": 1})


def test_commit_of_other_bytes_after_unknown_conflicts_with_the_late_one() -> None:
    """A late put and a new decision contend for one slot: whichever lands, the other never does."""
    shared = SharedMemory()
    created(shared.open())
    store = shared.open()
    log, view = opened(store)
    store.plan = lambda verb, path: Fault.LAND_LATE if verb == "put" else Fault.FAIL_BEFORE
    assert isinstance(write(log, 1), Unknown)
    store.plan = lambda verb, path: Fault.NONE
    log.refresh()
    assert write(log, 2) == Committed(1)
    assert shared.land_late() == []
    log.refresh()
    assert view.numbers == {"2": 2}


def test_commit_refused_for_permission_raises_and_writes_nothing() -> None:
    """A refusal is the only error which proves that nothing landed (R68)."""
    shared, log = faulty({0: Fault.DENY})
    with pytest.raises(StorePermissionError):
        write(log, 1)
    assert opened(shared.open())[0].version == 0


@pytest.mark.parametrize("first", [Fault.LAND_LATE, Fault.SAY_EXISTS])
def test_commit_refused_for_permission_after_a_doubtful_put_is_unknown(first: Fault) -> None:
    """Credentials may expire between two attempts of one commit; the first may land (R63)."""
    _, log = faulty({0: first, 2: Fault.DENY})
    assert isinstance(write(log, 1), Unknown)


def test_refresh_error_leaves_memory_as_it_was() -> None:
    """A failed read must be repeatable."""
    shared, log = faulty({0: Fault.FAIL_BEFORE})
    write(opened(shared.open())[0], 1)
    with pytest.raises(StorageError):
        log.refresh()
    assert log.version == 0
    log.refresh()
    assert log.version == 1


@pytest.mark.parametrize("call", range(6))
def test_open_that_fails_leaves_memory_as_it_was(call: int) -> None:
    """A caller that reads memory without a refresh must not find it empty."""
    shared = SharedMemory()
    writer = created(shared.open(), 3)
    create_checkpoint(shared.open(), TABLE, trust_ms=OFF.trust_ms)
    write(writer, 4)
    store = shared.open()
    log, view = opened(store)
    write(writer, 5)
    shared.clock.advance_ms(HOUR_MS)
    store.plan = FaultsAt({call: Fault.FAIL_BEFORE})
    try:
        log.refresh()
    except StorageError:
        assert (log.version, len(view.numbers)) == (4, 4)
    store.plan = FaultsAt({})
    log.refresh()
    assert (log.version, len(view.numbers)) == (5, 5)


# --- Catching up ----------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [1, 31, 32, 33, 100, 500])
def test_refresh_far_behind_reads_every_commit(store: ObjectStore, behind: int) -> None:
    """One commit skipped in a catch-up is data lost to this reader alone."""
    created(store)
    late, seen = opened(store)
    writer, _ = opened(store)
    for number in range(1, behind + 1):
        write(writer, number)
    late.refresh()
    assert late.version == behind
    assert seen.numbers == {f"{n}": n for n in range(1, behind + 1)}


def test_refresh_far_behind_a_checkpoint_starts_from_it(store: ObjectStore) -> None:
    """Reading ten thousand commits one by one takes longer than any batch."""
    created(store)
    late, seen = opened(store)
    writer, _ = opened(store)
    for number in range(1, 400):
        write(writer, number)
    create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)
    write(writer, 400)
    late.refresh()
    assert late.version == 400
    assert seen.numbers == {f"{n}": n for n in range(1, 401)}


@pytest.mark.parametrize("call", range(1, 6))
def test_catch_up_racing_with_clean_up_opens_again(call: int) -> None:
    """Listed files may be gone when they are read; a newer checkpoint has their content."""
    shared = SharedMemory()
    writer = created(shared.open())
    store = shared.open()
    late, seen = opened(store)
    for number in range(1, 60):
        write(writer, number)

    def clean() -> None:
        create_checkpoint(shared.open(), TABLE, trust_ms=OFF.trust_ms)
        assert clean_up(shared.open(), TABLE, retention_ms=-1)

    # 32 commits are read one by one, then come the listing and the reads in bulk.
    store.plan = FaultsAt({}, interlude=clean, interlude_at=31 + call)
    late.refresh()
    assert late.version == 59
    assert seen.numbers == {f"{n}": n for n in range(1, 60)}


@pytest.mark.parametrize("call", range(6))
def test_open_racing_with_clean_up_finds_the_newer_checkpoint(call: int) -> None:
    """The checkpoint and commits of the first listing are deleted before they are read."""
    shared = SharedMemory()
    writer = created(shared.open(), 10)
    create_checkpoint(shared.open(), TABLE, trust_ms=OFF.trust_ms)
    for number in range(11, 20):
        write(writer, number)

    def clean() -> None:
        create_checkpoint(shared.open(), TABLE, trust_ms=OFF.trust_ms)
        assert clean_up(shared.open(), TABLE, retention_ms=-1)

    store = shared.open(plan=FaultsAt({}, interlude=clean, interlude_at=call))
    log, seen = opened(store)
    assert log.version == 19
    assert seen.numbers == {f"{n}": n for n in range(1, 20)}


# --- Fork -----------------------------------------------------------------------------------------

_FORK = """
import os, sys
from txnlog.errors import ForkedProcessError
from txnlog.storage.store.objects import ObjectStore
store = ObjectStore.from_url(sys.argv[1])
if sys.argv[2] == "used":
    store.put("a", b"1")
child = os.fork()
if child == 0:
    code = 1
    try:
        store.put("b", b"2")
        code = 3
    except ForkedProcessError as error:
        code = 4 if "spawn" in str(error) else 1
    os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("url", "parent", "code"),
    [("memory://", "used", "4"), ("", "used", "3"), ("", "unused", "3")],
)
def test_store_in_a_forked_child_raises_instead_of_hanging(
    tmp_path: Path, url: str, parent: str, code: str
) -> None:
    """The store's threads are not in a forked child: its first call would hang for ever. A local
    disk needs none.
    """
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _FORK, url or str(tmp_path), parent],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout.strip() == code, done.stderr
