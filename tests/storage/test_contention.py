"""Several writers at one log, at a slow store or on a local disk: each gets in, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import pytest
from obstore.store import MemoryStore

from txnlog.process.latency import LATENCY_MS_MIN, Latency
from txnlog.protocol.contention import (
    AT_ONCE_MAX,
    SLOW_MS,
    WANTED_PUTS,
    WINS_ALONE_MAX,
    WINS_MAX,
    give_way_ms,
    is_wanted,
    retry_ms,
)
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.actions import Commit, Txn
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings
from txnlog.storage.delta.transact import CONFLICTS_MAX, transact
from txnlog.storage.tables.schemas import create_actions
from txnlog.testing.virtual_time import SlowStore, VirtualTime

T = TypeVar("T")

LATENCY_MS = (20.0, 40.0)
DURATION_MS = 20_000
LOCAL_MS = {"head": 0.003, "get": 0.01, "put": 0.06, "list": 5.0}
FSYNC_MS = {**LOCAL_MS, "put": 4.0}
WORK_MS = 0.12
"""What a process needs to decide and to encode a commit; at a slow store it does not count."""
LOCAL_DURATION_MS = 100
FSYNC_DURATION_MS = 2_000
OFF = LogSettings(checkpoint_mode="off")


class _Ignored:
    """A view of nothing."""

    def reset(self) -> None: ...

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, parsed: object) -> None: ...


class _LocalStore(SlowStore):
    """A store that is used as a local disk is; `took_ms` by verb."""

    is_local = True

    def __init__(
        self, backing: MemoryStore, time: VirtualTime, took_ms: Mapping[str, float], seed: object
    ) -> None:
        super().__init__(backing, time, latency_ms=(0.8, 1.2), seed=seed)
        self._unit_ms = self._latency_ms
        self._took_ms = took_ms

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        least, most = self._unit_ms
        self._latency_ms = (least * self._took_ms[verb], most * self._took_ms[verb])
        return super()._call(verb, path, call)


def race(writers: int, *, seed: int = 1) -> tuple[list[int], float]:
    """Each commits to a slow store as often as it can; numbers of commits, longest wait in ms."""

    def open_store(shared: MemoryStore, world: VirtualTime, number: int) -> SlowStore:
        return SlowStore(shared, world, latency_ms=LATENCY_MS, seed=(seed, number))

    return _race(writers, seed, DURATION_MS, 0, open_store)


def local_race(
    writers: int, took_ms: Mapping[str, float], duration_ms: int, *, seed: int = 1
) -> tuple[list[int], float]:
    """The same on a local disk."""

    def open_store(shared: MemoryStore, world: VirtualTime, number: int) -> SlowStore:
        return _LocalStore(shared, world, took_ms, (seed, number))

    return _race(writers, seed, duration_ms, WORK_MS, open_store)


def _race(
    writers: int,
    seed: int,
    duration_ms: int,
    work_ms: float,
    open_store: Callable[[MemoryStore, VirtualTime, int], SlowStore],
) -> tuple[list[int], float]:
    random.seed(seed)
    shared, world = MemoryStore(), VirtualTime()
    end_ms = world.at_ms + duration_ms
    commits, longest_ms = [0] * writers, [0.0]

    def program(number: int) -> None:
        log = DeltaLog(open_store(shared, world, number), "table", _Ignored(), settings=OFF)

        def commit() -> delta_log.Outcome:
            world.sleep_ms(work_ms)
            return log.commit([Txn(f"{number}", 1)], operation="WRITE")

        write(log, _create(log))
        while world.at_ms < end_ms:
            began_ms = world.at_ms
            write(log, commit)
            commits[number] += 1
            longest_ms[0] = max(longest_ms[0], world.at_ms - began_ms)

    world.run([partial(program, number) for number in range(writers)])
    return commits, longest_ms[0]


def write(log: DeltaLog, commit: Callable[[], delta_log.Outcome | None]) -> None:
    transact(log, lambda: None, lambda _: commit())


def _create(log: DeltaLog) -> Callable[[], delta_log.Outcome | None]:
    actions = create_actions(
        table_id="x", data_columns={}, partition_columns={}, config={}, created_ms=0
    )
    return lambda: None if log.exists else log.commit(actions, operation="CREATE")


@pytest.mark.parametrize("writers", [2, 4, 8])
def test_writers_of_one_log_share_it(writers: int) -> None:
    """Two ids in one shard starved each other: 109 transactions against 1."""
    commits, longest_ms = race(writers)
    assert max(commits) <= 3 * min(commits), commits
    assert longest_ms <= (4_000 if writers < 8 else 15_000)
    assert sum(commits) >= 12 * DURATION_MS / 1000


@pytest.mark.parametrize("writers", [2, 6, pytest.param(16, marks=pytest.mark.soak)])
def test_writers_of_one_log_on_a_local_disk_share_it(writers: int) -> None:
    """One process had 19 transactions while another had 2,424: losers slept, winners did not."""
    commits, longest_ms = local_race(writers, LOCAL_MS, LOCAL_DURATION_MS)
    assert max(commits) <= 2 * min(commits), commits
    assert longest_ms <= 50
    # Together they commit as often as one of them alone does.
    alone, _ = local_race(1, LOCAL_MS, LOCAL_DURATION_MS)
    assert sum(commits) >= 0.8 * alone[0]


def test_writers_of_one_log_on_a_disk_with_fsync_share_it() -> None:
    """There a lost put is a wait for the disk, as at a slow store."""
    commits, longest_ms = local_race(4, FSYNC_MS, FSYNC_DURATION_MS)
    assert max(commits) <= 2 * min(commits), commits
    assert longest_ms <= 200


def test_reader_that_is_behind_reads_several_commits_in_one_round() -> None:
    """A round for each commit: meanwhile others wrote more, and who was behind stayed behind."""
    shared, world = MemoryStore(), VirtualTime()

    def open_log(number: int) -> tuple[SlowStore, DeltaLog]:
        store = SlowStore(shared, world, latency_ms=(25.0, 25.0), seed=number)
        return store, DeltaLog(store, "table", _Ignored(), settings=OFF)

    (_, writer), (store, reader) = open_log(1), open_log(2)
    write(writer, _create(writer))
    reader.refresh()
    took_ms, requests = [], []
    for _ in range(2):
        for number in range(6):
            write(writer, partial(writer.commit, [Txn(f"{number}", 1)], operation="WRITE"))
        store.requests, began_ms = 0, world.at_ms
        world.run([reader.refresh])
        took_ms.append(world.at_ms - began_ms)
        requests.append(store.requests)
    assert reader.version == writer.version
    # 1, 1, 2, 4 slots; then all at once, with the empty one after them.
    assert (took_ms, requests) == ([100.0, 25.0], [8, 7])
    store.requests = 0
    for _ in range(2):
        reader.refresh()
    assert store.requests == 8, "none was there, so the next read asks for one"


def test_commit_that_has_beaten_ours_is_read_once() -> None:
    shared, world = MemoryStore(), VirtualTime()
    stores = [SlowStore(shared, world, latency_ms=(25.0, 25.0), seed=n) for n in range(2)]
    first, second = (DeltaLog(store, "table", _Ignored(), settings=OFF) for store in stores)
    write(first, _create(first))
    second.refresh()
    write(first, partial(first.commit, [Txn("1", 1)], operation="WRITE"))
    stores[1].requests = 0
    assert isinstance(second.commit([Txn("2", 1)], operation="WRITE"), delta_log.Conflict)
    second.refresh()
    assert second.version == first.version
    # The put, what has beaten it, and the end.
    assert stores[1].requests == 3


def test_without_giving_way_a_writer_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find."""
    monkeypatch.setattr(delta_log, "give_way_ms", lambda **_: 0.0)
    monkeypatch.setattr("txnlog.storage.delta.transact.retry_ms", lambda *_, **__: 0.0)
    longest_ms = [race(2, seed=seed)[1] for seed in (1, 2, 3)]
    assert max(longest_ms) > 5_000, longest_ms


def test_single_writer_seldom_waits() -> None:
    """A put, but for a look and a wait now and then."""
    commits, longest_ms = race(1)
    assert longest_ms <= 6 * LATENCY_MS[1]
    assert commits[0] >= 0.75 * DURATION_MS / LATENCY_MS[1]


def test_virtual_time_is_the_same_every_time() -> None:
    """A race that depends on this machine's speed would prove nothing."""
    assert race(3, seed=5) == race(3, seed=5)
    assert race(3, seed=5) != race(3, seed=6)


@pytest.mark.parametrize("latency_ms", [0.1, 4.0, 30.0])
def test_who_gives_way_and_when(latency_ms: float) -> None:
    """Only who has won often, sooner where others have written lately; in units of a put."""
    for is_wanted_now, wins_max in ((True, WINS_MAX), (False, WINS_ALONE_MAX)):
        give_way = partial(give_way_ms, is_wanted=is_wanted_now, latency_ms=latency_ms, jitter=0.5)
        assert give_way(wins=wins_max - 1) == 0.0
        assert give_way(wins=wins_max) == 4 * latency_ms
    lately_ms = int(WANTED_PUTS * latency_ms)
    assert is_wanted(lately_ms, latency_ms=latency_ms)
    assert not is_wanted(lately_ms + 1, latency_ms=latency_ms)
    assert not is_wanted(None, latency_ms=latency_ms)


@pytest.mark.parametrize("latency_ms", [SLOW_MS, 30.0])
def test_loser_waits_for_less_the_more_often_it_has_lost(latency_ms: float) -> None:
    waits = [retry_ms(n, latency_ms=latency_ms, jitter=1.0) / latency_ms for n in (0, 5, 10, 999)]
    assert waits == pytest.approx([1.5, 1.0, 0.5, 0.5])


def test_loser_on_a_local_disk_tries_again_at_once() -> None:
    """It waited for longer and longer, up to 200 ms, and met the same winner each time."""
    waits = [retry_ms(n, latency_ms=LATENCY_MS_MIN, jitter=1.0) for n in range(CONFLICTS_MAX)]
    assert set(waits[:AT_ONCE_MAX]) == {0.0}
    assert max(waits) <= 50
    # What always loses is refused after many seconds, not after a third of one.
    assert sum(waits) > 10_000


def test_latency_is_the_median_of_recent_puts() -> None:
    """One put that hangs for a minute must not make every back-off a minute."""
    latency = Latency()
    assert latency.ms == LATENCY_MS_MIN
    for _ in range(50):
        for duration_ms in (20, 30, 40):
            latency.record(duration_ms)
    assert 25 <= latency.ms <= 36
    latency.record(60_000)
    assert latency.ms <= 40
    for _ in range(50):
        latency.record(200)
    assert latency.ms == 200


def test_put_that_was_interrupted_is_not_the_latency_of_a_local_disk() -> None:
    """A process that lost its processor for 30 ms in a put would let others pass for 100 ms."""
    latency = Latency()
    for duration_ms in (0, 30, 0, 0, 1, 0):
        latency.record(duration_ms)
    assert latency.ms == LATENCY_MS_MIN
