"""Random histories with compaction anywhere in them: readers see no difference."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.housekeeping.compaction.logs import (
    TOPIC,
    Idempotent,
    Record,
    append,
    begin,
    commit,
    live,
    snapshot,
    world,
)
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.errors import DuplicateSequenceError
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite
from txnlog.protocol.compaction import CompactionSettings, plan
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.sequences import BATCHES_REMEMBERED
from txnlog.protocol.topics import TopicCommit
from txnlog.testing.invariants import check_cluster

PARTITIONS = 2
# Files of these tests have about 1,500 bytes; a segment of three of them about 1,800.
SEGMENTS = (1_000, 4_000, 8_000, 100_000)

counts = st.integers(1, 3)
partitions = st.integers(0, PARTITIONS - 1)
who = st.integers(0, 1)
Op = tuple[object, ...]
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("idempotent"), who, partitions, counts),
        st.tuples(st.just("deferred"), who, partitions, counts),
        st.tuples(st.just("eager"), who, partitions, counts),
        st.tuples(st.just("end"), who, st.booleans()),
        st.tuples(st.just("compact"), st.sampled_from(SEGMENTS), st.integers(1, 4)),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    min_size=4,
    max_size=30,
)


class History:
    """Two producers of each kind, a compactor and a reader, each a process of its own."""

    def __init__(self) -> None:
        self.shared = world(partitions=PARTITIONS)
        self.writer, self.compactor, self.reader = (process(self.shared) for _ in range(3))
        self.idempotent = [Idempotent.start(self.writer) for _ in range(2)]
        self.rows = [begin(self.writer, f"tx-{number}") for number in range(2)]
        self.open: list[dict[int, int]] = [{}, {}]
        self.written = 0

    def run(self, op: Op) -> None:
        name, *arguments = op
        act: Callable[..., None] = getattr(self, f"do_{name}")
        act(*arguments)

    def records(self, count: int) -> list[Record]:
        """New ones, each as no other is."""
        numbers = range(self.written, self.written + count)
        self.written += count
        return [
            Record(
                None if n % 3 == 0 else b"k%d" % n,
                None if n % 5 == 0 else b"v%d" % n,
                n * 1_000,
                [("n", b"%d" % n), ("none", None)] if n % 4 == 0 else None,
            )
            for n in numbers
        ]

    def do_idempotent(self, which: int, partition: int, count: int) -> None:
        self.idempotent[which].send(self.records(count), partition=partition)

    def do_deferred(self, which: int, partition: int, count: int) -> None:
        if not self.open[which]:
            self.rows[which] = commit(
                self.writer, self.rows[which], self.records(count), partition=partition
            )

    def do_eager(self, which: int, partition: int, count: int) -> None:
        sequence = self.open[which].get(partition, 0)
        self.rows[which] = append(
            self.writer,
            self.rows[which],
            self.records(count),
            partition=partition,
            sequence=sequence,
        )
        self.open[which][partition] = sequence + count

    def do_end(self, which: int, is_commit: bool) -> None:
        if self.open[which]:
            row, coordinator = self.rows[which], self.writer.coordinator
            self.rows[which] = coordinator.commit(row, []) if is_commit else coordinator.abort(row)
            self.open[which] = {}

    def do_restart(self, is_writer: bool) -> None:
        if not is_writer:
            self.compactor = process(self.shared)
            return
        self.writer = process(self.shared)
        for producer in self.idempotent:
            producer.cluster = self.writer

    def do_compact(self, segment_bytes: int, inputs_min: int) -> None:
        chosen = CompactionSettings(
            segment_bytes=segment_bytes, inputs_min=inputs_min, inputs_max=inputs_min + 2
        )
        before = snapshot(self.reader.topic_log(TOPIC))
        log = self.compactor.topic(TOPIC)
        for group in plan(log.view, TOPIC, chosen):
            decision = commit_segment(self.compactor, group, rewrite(self.compactor.store, group))
            assert isinstance(decision, TopicCommit)
        assert snapshot(log) == before
        for cluster in (self.compactor, self.reader, process(self.shared)):
            assert snapshot(cluster.topic(TOPIC)) == before
            check_cluster(cluster)


@given(OPS)
@settings(max_examples=settings().max_examples // 3)
def test_compaction_moves_nothing_that_readers_or_producers_can_see(ops: list[Op]) -> None:
    """Every client's positions, results and repeats rest on offsets and headers (R11, R20, R22)."""
    history = History()
    for op in ops:
        history.run(op)
    history.do_compact(100_000, 1)
    for cluster in (history.writer, process(history.shared)):
        check_repeats(history, cluster)
        check_next(history, cluster)


def check_repeats(history: History, cluster: Cluster) -> None:
    """The last five batches are acknowledged again with their offsets, older ones refused (R2)."""
    for producer in history.idempotent:
        producer.cluster = cluster
        for partition in range(PARTITIONS):
            sent = [(b, at) for b, at in producer.sent if b.partition == partition]
            recent, older = sent[-BATCHES_REMEMBERED:], sent[:-BATCHES_REMEMBERED]
            offsets = [producer.repeat(batch, at) for batch, at in recent]
            assert offsets == sorted(set(offsets))
            for batch, at in older:
                try:
                    producer.repeat(batch, at)
                except DuplicateSequenceError:
                    continue
                raise AssertionError("a batch of an expired producer was taken for a new one")


def check_next(history: History, cluster: Cluster) -> None:
    """Every producer continues as without compaction."""
    for number, row in enumerate(history.rows):
        row = finished(cluster, row, is_open=bool(history.open[number]))
        assert commit(cluster, row, history.records(1)).txn_epoch >= row.producer_epoch
        history.rows[number] = begin(cluster, f"tx-{number}")
        history.open[number] = {}
    for producer in history.idempotent:
        producer.send(history.records(2))
    check_cluster(cluster)


def finished(cluster: Cluster, row: TransactionMetadata, *, is_open: bool) -> TransactionMetadata:
    return cluster.coordinator.commit(row, []) if is_open else row


def test_history_that_is_settled_and_compacted_is_one_file() -> None:
    """The property above would hold of a compactor that does nothing."""
    history = History()
    for number in range(12):
        history.do_eager(0, 0, 2)
        history.do_end(0, number % 2 == 0)
        history.do_deferred(1, 0, 1)
    history.do_compact(100_000, 2)
    for _ in range(10):
        history.do_compact(100_000, 2)
    assert live(history.compactor.topic(TOPIC).view) == [(0, 35, "none")]
