"""Several writers at one log whose store takes 20 to 40 ms: each gets in (in virtual time)."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from obstore.store import MemoryStore

from txnlog.process.latency import Latency
from txnlog.protocol.contention import WINS_MAX, give_way_ms, retry_ms
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.actions import Commit, Txn
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings
from txnlog.storage.delta.transact import transact
from txnlog.storage.tables.schemas import create_actions
from txnlog.testing.virtual_time import SlowStore, VirtualTime

LATENCY_MS = (20.0, 40.0)
DURATION_MS = 20_000
OFF = LogSettings(checkpoint_mode="off")


class _Ignored:
    """A view of nothing."""

    def reset(self) -> None: ...

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, parsed: object) -> None: ...


def race(writers: int, *, seed: int = 1) -> tuple[list[int], int]:
    """Each commits as often as it can; the numbers of commits, and the longest wait in ms."""
    random.seed(seed)
    shared, world = MemoryStore(), VirtualTime()
    end_ms = world.at_ms + DURATION_MS
    commits, longest_ms = [0] * writers, [0]

    def program(number: int) -> None:
        store = SlowStore(shared, world, latency_ms=LATENCY_MS, seed=(seed, number))
        log = DeltaLog(store, "table", _Ignored(), settings=OFF)
        write(log, _create(log))
        while world.boot_ms() < end_ms:
            began_ms = world.boot_ms()
            write(log, lambda: log.commit([Txn(f"{number}", 1)], operation="WRITE"))
            commits[number] += 1
            longest_ms[0] = max(longest_ms[0], world.boot_ms() - began_ms)

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


def test_without_giving_way_a_writer_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find."""
    monkeypatch.setattr(delta_log, "give_way_ms", lambda **_: 0.0)
    monkeypatch.setattr("txnlog.storage.delta.transact.retry_ms", lambda *_, **__: 0.0)
    longest_ms = [race(2, seed=seed)[1] for seed in (1, 2, 3)]
    assert max(longest_ms) > 5_000, longest_ms


def test_single_writer_never_waits() -> None:
    """A put and a check of the slot before: no more."""
    commits, longest_ms = race(1)
    assert longest_ms <= 6 * LATENCY_MS[1]
    assert commits[0] >= DURATION_MS / (2 * LATENCY_MS[1])


def test_virtual_time_is_the_same_every_time() -> None:
    """A race that depends on this machine's speed would prove nothing."""
    assert race(3, seed=5) == race(3, seed=5)
    assert race(3, seed=5) != race(3, seed=6)


def test_who_gives_way_and_when() -> None:
    """Only who has won often, at a slow store, on a log that others have written lately."""
    asked = {"wins": WINS_MAX, "since_others_ms": 1_000, "latency_ms": 30.0, "jitter": 0.5}

    def wait_ms(**changed: object) -> float:
        return give_way_ms(**{**asked, **changed})  # type: ignore[arg-type]

    assert wait_ms() == 120.0
    for changed in (
        {"wins": WINS_MAX - 1},
        {"since_others_ms": None},
        {"since_others_ms": 60_001},
        {"latency_ms": 0.1},
    ):
        assert wait_ms(**changed) == 0.0


def test_retries_at_a_local_disk_and_at_a_slow_store() -> None:
    """At once where it costs nothing; in proportion to the latency where it does."""
    local = [retry_ms(n, latency_ms=0.1, jitter=1.0) for n in (0, 2, 3, 4, 50)]
    assert local == [0.0, 0.0, 0.5, 1.0, 200.0]
    slow = [retry_ms(n, latency_ms=30.0, jitter=1.0) for n in (0, 5, 50)]
    assert slow == [45.0, 30.0, 15.0]


def test_latency_is_the_median_of_recent_puts() -> None:
    """One put that hangs for a minute must not make every back-off a minute."""
    latency = Latency()
    assert latency.ms == 0
    for _ in range(50):
        for duration_ms in (20, 30, 40):
            latency.record(duration_ms)
    assert 25 <= latency.ms <= 36
    latency.record(60_000)
    assert latency.ms <= 40
    for _ in range(50):
        latency.record(200)
    assert latency.ms == 200
