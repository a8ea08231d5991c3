"""Budgets: how many requests of a commit wait for one another, and which may not (D88, D89).

A round is what an object store takes to answer, 20 to 60 ms. Counted in a steady state, with every
request included; the same for any number of topics and partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from spark_sink.commit import commit_once
from spark_sink.messages import StagedTask
from spark_sink.source_offsets import PlannedBatch
from spark_sink.staging import Stager
from tests.producer.worlds import group
from tests.world import (
    GROUP,
    PLAIN,
    both,
    consumed,
    owned,
    process,
    row_of,
    staged,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.phases import Phases
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import StorageError, TxnLogError
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.settings.config import parse_config
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.rounds import RoundsStore

SIZES = [(1, 1), (1, 16), (4, 4), (4, 16)]
PAUSES_MS = [1_000, 15_000]
"""Between transactions; after 10 s a log looks at its newest versions again."""


class Counted:
    """A process whose store counts rounds, in a world of `topics` of `partitions`."""

    def __init__(self, topics: int, partitions: int) -> None:
        self.shared = SharedMemory()
        self.store = RoundsStore(self.shared)
        self.cluster = Cluster.open(self.store, create=True, shards=8, settings=PLAIN)
        self.topics = [f"t{number}" for number in range(topics)]
        self.partitions = partitions
        for name in self.topics:
            self.cluster.create_topic(name, partitions=partitions)
        self.cluster.groups.start(GROUP)

    def producer(self, **config: str) -> Producer:
        given = {key.replace("_", "."): value for key, value in config.items()}
        made = Producer(
            {"txnlog.root": "memory://", **given}, cluster=self.cluster, background=False
        )
        if "transactional.id" in given:
            made.init_transactions()
        return made

    def produce(self, producer: Producer) -> None:
        for name in self.topics:
            for partition in range(self.partitions):
                producer.produce(name, b"x", partition=partition)

    def rounds(self, act: Callable[[], object]) -> tuple[int, list[int]]:
        """Rounds of an act, and of those how many had passed at the put of each topic's commit,
        each group's, and each commit to a table of others.
        """
        visible: list[int] = []
        self.store.rounds = 0

        def note(verb: str, path: str) -> Fault:
            table, is_commit, _ = path.partition("/_delta_log/")
            is_seen = table in self.topics or table.startswith(("__consumer_offsets-", "memory://"))
            if verb == "put" and is_commit and is_seen:
                visible.append(self.store.rounds)
            return Fault.NONE

        self.store.plan = note
        act()
        return self.store.rounds, visible


@pytest.mark.parametrize("pause_ms", PAUSES_MS)
@pytest.mark.parametrize("size", SIZES)
def test_transaction_is_visible_after_three_rounds_whatever_it_writes(
    size: tuple[int, int], pause_ms: int
) -> None:
    """Files; PREPARE, which completes the one before; all markers."""
    world = Counted(*size)
    producer = world.producer(transactional_id="tx")
    for _ in range(4):
        world.shared.clock.advance_ms(pause_ms)
        producer.begin_transaction()
        world.produce(producer)
        rounds, visible = world.rounds(producer.commit_transaction)
    assert (rounds, max(visible)) == (3, 3)
    assert len(visible) == size[0]


@pytest.mark.parametrize("pause_ms", PAUSES_MS)
@pytest.mark.parametrize("size", SIZES)
def test_transaction_with_offsets_is_visible_after_four_rounds(
    size: tuple[int, int], pause_ms: int
) -> None:
    """Files; PREPARE, which completes the one before; all markers; offsets."""
    world = Counted(*size)
    producer = world.producer(transactional_id="tx")
    for number in range(4):
        world.shared.clock.advance_ms(pause_ms)
        producer.begin_transaction()
        world.produce(producer)
        positions = [TopicPartition("input", 0, number + 1)]
        before, _ = world.rounds(partial(producer.send_offsets_to_transaction, positions, group()))
        rounds, visible = world.rounds(producer.commit_transaction)
    # After a pause it looks around the head of the group's log, too.
    assert (before, rounds, max(visible)) == (1 + (pause_ms > 10_000), 4, 4)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_puts_of_chained_transactions_are_files_topics_and_one(
    size: tuple[int, int], with_offsets: bool
) -> None:
    """PREPARE completes the one before. The first one of a producer with offsets registers."""
    world = Counted(*size)
    producer = world.producer(transactional_id="tx")
    puts: list[int] = []
    for number in range(6):
        world.shared.clock.advance_ms(300)
        world.store.calls.clear()
        producer.begin_transaction()
        world.produce(producer)
        if with_offsets:
            positions = [TopicPartition("input", 0, number + 1)]
            producer.send_offsets_to_transaction(positions, group())
        producer.commit_transaction()
        puts.append(sum(verb == "put" for verb, _ in world.store.calls))
    topics, partitions = size
    each = topics * partitions + topics + 1
    moved = [2, 1, 1, 1, 1, 1] if with_offsets else [0] * 6
    assert puts == [each + more for more in moved]


@pytest.mark.parametrize("size", SIZES)
def test_eager_and_idempotent_requests_take_the_same_rounds_whatever_they_write(
    size: tuple[int, int],
) -> None:
    """COMPLETE of the one before; files; AddPartitions; appends; a look; then the end, as above."""
    world = Counted(*size)
    eager = world.producer(transactional_id="tx", transaction_publish="eager")
    idempotent = world.producer()
    for _ in range(4):
        world.shared.clock.advance_ms(1_000)
        eager.begin_transaction()
        world.produce(eager)
        of_eager, _ = world.rounds(eager.commit_transaction)
        world.produce(idempotent)
        of_idempotent, _ = world.rounds(idempotent.flush)
    assert (of_eager, of_idempotent) == (7, 2)


# --- The sink -------------------------------------------------------------------------------------


def task_of(world: Counted, batch_id: int, *, sends_rows: bool) -> StagedTask:
    """What a task has staged, or the rows that it sends."""
    topics = [name for name in world.topics for _ in range(world.partitions)]
    values = [f"{batch_id}.{number}" for number in range(len(topics))]
    stager = Stager(
        world.cluster,
        topic=None,
        include_headers=False,
        target_size_bytes=1 << 20,
        message_bytes_max=1 << 20 if sends_rows else 0,
    )
    partitions = pa.array([*range(world.partitions)] * len(world.topics), pa.int32())
    rows = {"topic": topics, "value": values, "partition": partitions}
    batches = stager.write([pa.RecordBatch.from_pydict(rows)])
    assert bool(batches) != sends_rows
    return StagedTask(0, tuple(batches), "query", "run", batch_id, rows=stager.message_rows)


@pytest.mark.parametrize("pause_ms", PAUSES_MS)
@pytest.mark.parametrize("with_group", [False, True])
@pytest.mark.parametrize("sends_rows", [False, True])
@pytest.mark.parametrize("size", [(1, 2), (4, 2)])
def test_micro_batch_reads_once_and_is_visible_after_two_rounds_more(
    size: tuple[int, int],
    sends_rows: bool,
    with_group: bool,
    pause_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One round for the row and the topics, PREPARE, markers, offsets; and no sweep before. Files
    of rows that tasks have sent are written beside the first.
    """
    world = Counted(*size)

    def offsets(*_: Any, **__: Any) -> list[GroupOffsets]:
        return [consumed(batch_id * 10, batch_id * 10 + 10)] if with_group else []

    monkeypatch.setattr("spark_sink.commit.group_offsets", offsets)
    given = {"path": "/memory", "topic": "t0"} | ({"group.id": GROUP} if with_group else {})
    options = parse_config(given, "writeStream")
    monkeypatch.setattr("spark_sink.commit.planned_batch", lambda _, number: PlannedBatch(number))
    ended: list[TransactionMetadata | None] = []
    for batch_id in range(4):
        world.shared.clock.advance_ms(pause_ms)
        task = task_of(world, batch_id, sends_rows=sends_rows)

        def commit(task: StagedTask = task, batch_id: int = batch_id) -> None:
            ended.append(commit_once(world.cluster, options, [task], batch_id, Phases()))

        world.store.calls.clear()
        rounds, visible = world.rounds(commit)
        calls = list(world.store.calls)
        assert ended[-1] is not None
    # COMPLETE is in the next batch's PREPARE.
    assert (rounds, max(visible)) == ((4, 4) if with_group else (3, 3))
    read_at = next(at for at, (verb, path) in enumerate(calls) if verb == "put" and "_log/" in path)
    tables = [path.split("/")[0] for _, path in calls[:read_at]]
    # After a pause it looks around the head, too, in the same round.
    assert len([table for table in tables if "state" in table]) == (4 if pause_ms > 10_000 else 1)


def test_sweep_comes_after_the_commit_of_a_micro_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Transactions of dead processes never delay a live one."""
    from spark_sink import commit as sink

    done: list[str] = []
    monkeypatch.setattr(Sweeper, "sweep_if_due", lambda self: done.append("sweep"))
    monkeypatch.setattr(sink, "commit_once", lambda *_: done.append("commit"))
    options = parse_config({"path": str(tmp_path), "topic": "t"}, "writeStream")
    Cluster.cached(str(tmp_path), create=True)
    sink.commit_micro_batch(options, [StagedTask(0, (), "query", "run", 0)], 0)
    assert done == ["commit", "sweep"]


# --- Topics do not wait for one another -----------------------------------------------------------


class Waiting(ObjectStore):
    """A store with threads, in which one topic cannot be written before another one is."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "memory://")
        self._at_once = 64
        self.is_broken = False
        self.other = threading.Event()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As ObjectStore's."""
        if self.is_broken and path.startswith("orders/"):
            assert self.other.wait(600), "the marker of `stock` waited for that of `orders`"
            raise StorageError("orders cannot be written")
        landed = super().put_if_absent(path, data)
        if path.startswith("stock/"):
            self.other.set()
        return landed


def test_topic_that_cannot_be_written_does_not_hold_up_the_next_one() -> None:
    """Its time-outs passed before the marker of any topic after it in the alphabet (R37)."""
    store = Waiting()
    settings = PLAIN.__class__(checkpoint_mode="off", commit_timeout_ms=1)
    cluster = Cluster.open(store, create=True, shards=2, settings=settings)
    for name in ("orders", "stock"):
        cluster.create_topic(name, partitions=2)
    row = owned(cluster, "run")
    batches = both(cluster, "mine")
    store.other.clear()
    store.is_broken = True
    with pytest.raises(StorageError):
        cluster.coordinator.commit(row, batches)
    store.is_broken = False
    decided = row_of(cluster)
    assert decided.state.is_prepared
    assert finish(cluster, decided) is not None
    assert [len(cluster.topic(name).view.by_path) for name in ("orders", "stock")] == [1, 1]


def test_sweeper_leaves_a_transaction_alone_that_it_cannot_end() -> None:
    """Each attempt takes time-outs, of which the process that sweeps has other use (R37, R73)."""
    shared = SharedMemory()
    first = process(shared)
    first.create_topic("orders", partitions=2)
    row = owned(first, "run")
    first.store.plan = lambda verb, path: (  # type: ignore[attr-defined]
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(BaseException, match="before put"):
        first.coordinator.commit(row, [staged(first, "orders", "mine")])
    cluster = process(shared)
    sweeper = Sweeper(cluster, interval_ms=10_000)
    attempts: list[int] = []
    turn = 0

    def deny(verb: str, path: str) -> Fault:
        is_marker = verb == "put" and path.startswith("orders/_delta_log")
        if is_marker:
            attempts.append(turn)
        return Fault.DENY if is_marker else Fault.NONE

    cluster.store.plan = deny  # type: ignore[attr-defined]
    for number in range(40):
        shared.clock.advance_ms(10_000)
        turn = number
        with suppress(TxnLogError):
            sweeper.sweep()
    assert sorted(set(attempts)) == [1, 2, 4, 8, 16, 32]
    cluster.store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
    shared.clock.advance_ms(600_000)
    assert sweeper.sweep() == 1
