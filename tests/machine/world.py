"""One store, its processes with their clocks, two readers that follow it, and faults."""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from operator import ge
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from txnlog.admin import topics
from txnlog.cluster import Cluster
from txnlog.consuming import fetching
from txnlog.consuming.fetcher import Fetcher
from txnlog.consuming.fetching import PartitionReader
from txnlog.consuming.record_stream import RecordStream
from txnlog.errors import (
    CorruptLogError,
    ObjectNotFoundError,
    UnexpectedError,
)
from txnlog.housekeeping import retention
from txnlog.housekeeping.compaction import local, segments
from txnlog.messages import Message
from txnlog.process.clock import Clock
from txnlog.protocol import transitions
from txnlog.protocol.compaction import CompactionSettings
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.delta.delta_log import Committed, DeltaLog, LogSettings, Outcome
from txnlog.testing.auditor import AuditedTransaction, Auditor
from txnlog.testing.faults import Fault, FaultyStore, SharedMemory, SkewedClock

R = TypeVar("R")

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
SETTINGS = LogSettings(checkpoint_mode="off", log_retention_ms=HOUR_MS)

TOPICS = {"orders": 2, "stock": 1, "copies": 2}
"""`orders` is copied to `copies`; `stock` has keys, and is deleted and created again at times."""
SOURCE, STOCK, COPIES = TOPICS
CONFIGS = {
    STOCK: {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(DAY_MS),
        "min.cleanable.dirty.ratio": "0.01",
    }
}
SEGMENTS = CompactionSettings(segment_bytes=1 << 20, inputs_min=2)
"""Small, so that there are soon files to compact."""
READERS, COPIERS, JOBS, FREE = "readers", "copiers", "jobs", "free"
"""Consumers with plain commits; copiers with a subscription; copiers with partitions of their
choice; offsets that producers commit beside their records."""

MESSAGES_MAX = 100_000
BUGS = (CorruptLogError, ObjectNotFoundError, UnexpectedError)
"""Errors that no fault here explains."""

seen: Counter[str] = Counter()
"""Events in all examples so far; test_machine checks that each kind happens."""


def quiet(verb: str, path: str) -> Fault:
    return Fault.NONE


class Process:
    """A process: its own store over the shared memory, and the clusters it has opened."""

    def __init__(self, shared: SharedMemory, clock: Clock) -> None:
        self.store: FaultyStore = shared.open(clock=clock)
        self.is_busy = False

    def open(self) -> Cluster:
        """A separate handle: logs are not thread-safe."""
        return Cluster.open(self.store, settings=SETTINGS)


class World:
    """The shared state of one history. `close` it at the end."""

    def __init__(self, skews_ms: list[int]) -> None:
        numbers = count(1)
        self.patch = pytest.MonkeyPatch()
        # Random file names and run ids would give replays other shards and another order.
        self.patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) * 0x9E3779B97F4A7C15))
        logging.disable(logging.CRITICAL)
        self._count()
        self._read_once()
        self.shared = SharedMemory()
        self.clocks = [SkewedClock(self.shared.clock, skew_ms) for skew_ms in skews_ms]
        self.auditor = Auditor()
        self.handed_out: dict[tuple[str, int], set[int]] = {}
        self.epochs: dict[tuple[int, int], object] = {}
        self.owners: dict[str, object] = {}
        self.prepared: dict[str, Any] = {}
        self.free: dict[AuditedTransaction, int] = {}
        self.newest_free = 0
        self._free: set[int] = set()
        self.told: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        """By group: offsets that somebody was told, or that are of an acknowledged commit."""
        self._positions: dict[tuple[str, str, int], int] = {}
        self._bounds: dict[tuple[str, int], tuple[int, ...]] = {}
        first = Process(self.shared, self.shared.clock)
        cluster = Cluster.open(
            first.store, create=True, shards=2, offsets_shards=2, settings=SETTINGS
        )
        for name, partitions in TOPICS.items():
            cluster.create_topic(name, partitions=partitions, config=CONFIGS.get(name))
        cluster.groups.start(FREE)
        self.cluster = cluster
        self._readers = {committed: reader(cluster, committed) for committed in (False, True)}
        self._looked_at = -1
        # The readers read all records before retention, compaction or an operator removes them.
        self.patch.setattr(
            retention, "prepare_retention", self._after_look(retention.prepare_retention)
        )
        self.patch.setattr(
            segments, "prepare_compaction", self._after_look(segments.prepare_compaction)
        )
        self.patch.setattr(
            topics, "prepare_delete_records", self._after_look(topics.prepare_delete_records)
        )
        self.patch.setattr(local, "settings_of", lambda _: SEGMENTS)

    def _read_once(self) -> None:
        """Cache data files: half of the time would be spent reading them again."""
        known: dict[object, list[pa.RecordBatch | RecordLists]] = {}

        def read(
            store: FaultyStore, span: FileSpan, **asked: Any
        ) -> Iterator[pa.RecordBatch | RecordLists]:
            # Whether the file is there, and the outcome of the request, are not remembered.
            store.get(span.path)
            key = span, *asked.values()
            if key not in known:
                known[key] = list(read_records(store, span, **asked))
            yield from known[key]

        self.patch.setattr(fetching, "read_records", read)

    def _count(self) -> None:
        """Count commits by operation, and other outcomes."""
        commit = DeltaLog.commit
        read = PartitionReader._next_chunk

        def counted(log: DeltaLog, *args: Any, operation: str, **more: Any) -> Outcome:
            outcome = commit(log, *args, operation=operation, **more)
            if isinstance(outcome, Committed):
                seen[operation] += 1
            else:
                seen[type(outcome).__name__] += 1
            return outcome

        def counted_read(reader: PartitionReader) -> Any:
            before = reader._header
            chunk = read(reader)
            if chunk is None and before is not None and before.path not in reader.log.view.by_path:
                seen["a file was read that has been replaced"] += 1
            return chunk

        after = transitions._after

        def counted_after(
            row: TransactionMetadata | None, follows: ProducerIdAndEpoch | None, now_ms: int
        ) -> TransactionMetadata | None:
            if row is not None and row.moves and row.transaction == follows:
                seen["a decision completed one with offsets"] += 1
            return after(row, follows, now_ms)

        self.patch.setattr(transitions, "_after", counted_after)
        self.patch.setattr(DeltaLog, "commit", counted)
        self.patch.setattr(PartitionReader, "_next_chunk", counted_read)

    def close(self) -> None:
        self.patch.undo()
        logging.disable(logging.NOTSET)

    def process(self, number: int) -> Process:
        """A new process on one of the machines."""
        return Process(self.shared, self.clocks[number % len(self.clocks)])

    # -- what must hold after every step -----------------------------------------------------------

    def look(self) -> None:
        """Let both readers continue, and check their records and the groups' rows."""
        # Every commit of a log is a new object.
        newest = len(self.shared.modified_ms)
        if newest == self._looked_at:
            return
        self._looked_at = newest
        for committed, stream in self._readers.items():
            for message in stream.take(MESSAGES_MAX):
                self.auditor.see(*_read(message), committed=committed)
        self.auditor.check()
        self._check_bounds()
        self._check_groups()

    def _after_look(self, decide: Callable[..., R]) -> Callable[..., R]:
        def look_and_decide(*args: Any, **asked: Any) -> R:
            self.look()
            return decide(*args, **asked)

        return look_and_decide

    def _check_bounds(self) -> None:
        """Log start, LSO and end are in order and never decrease, neither when files are removed
        (R14) nor when the topic is created again (R71).
        """
        for topic in TOPICS:
            view = self.cluster.topic_log(topic).view
            if view.deleted:
                # By a late put, or by a process that died; the machine needs the topic.
                self.forgive(topic)
                self.create(topic)
            for number, state in enumerate(view.partitions):
                known = self._bounds.get((topic, number), (0, 0, 0))
                found = state.log_start_offset, state.last_stable_offset, state.end_offset
                assert all(map(ge, found, known)), f"{topic}-{number}: {found} after {known}"
                assert list(found) == sorted(found), f"{topic}-{number}: {found} are out of order"
                self._bounds[topic, number] = found

    @property
    def log_starts(self) -> dict[tuple[str, int], int]:
        return {place: bounds[0] for place, bounds in self._bounds.items()}

    def _check_groups(self) -> None:
        """Positions never go back, nor past records that were delivered (R47, R48)."""
        shards = self.cluster.offsets_shards()
        for shard in shards:
            shard.refresh()
        for group_id, group in [pair for one in shards for pair in one.view.rows.items()]:
            for topic, numbers in group.positions().items():
                for number, offset in numbers.items():
                    key = (group_id, topic, number)
                    before = self._positions.get(key, 0)
                    if group_id == FREE:
                        # Nobody reads it: a commit that is tried again may bring a lower number,
                        # but none comes twice.
                        assert offset == before or offset not in self._free, f"{key}: {offset}"
                        self._free.add(offset)
                    else:
                        assert offset >= before, f"{key} went back from {before} to {offset}"
                    if offset > before and group_id == READERS:
                        start = self._bounds[topic, number][0]
                        there = self.auditor.offsets(topic, number)
                        passed = {at for at in there if start <= at < offset}
                        lost = passed - self.handed_out.get((topic, number), set())
                        assert not lost, f"{key} is at {offset}; {lost} were never delivered"
                    self._positions[key] = offset

    def tell(self, group_id: str, positions: Mapping[tuple[str, int], int]) -> None:
        known = self.told[group_id]
        for place, offset in positions.items():
            known[place] = max(offset, known.get(place, 0))

    def check_cold(self) -> None:
        """New readers get the same records as the others, from the log start on."""
        cluster = self.process(0).open()
        found: defaultdict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        for message in reader(cluster, True).take(MESSAGES_MAX):
            topic, partition, offset, value = _read(message)
            found[topic, partition][offset] = value
        for topic, partitions in TOPICS.items():
            view = cluster.topic_log(topic).view
            for number in range(partitions):
                start = view.log_start_offset(number)
                keys = key_of if topic == STOCK else None
                records = found[topic, number]
                self.auditor.check_again(topic, number, records, start=start, key_of=keys)

    def create(self, topic: str) -> None:
        """Create a topic again if it is deleted."""
        config, partitions = CONFIGS.get(topic), TOPICS[topic]
        self.cluster.create_topic(topic, partitions=partitions, config=config, exist_ok=True)

    def forgive(self, topic: str) -> None:
        """A topic is deleted: its records are gone, and appear in no other topic (R71)."""
        log = self.cluster.topic_log(topic)
        log.refresh()
        ends = {n: state.end_offset for n, state in enumerate(log.view.partitions)}
        self.auditor.forgive(topic, ends if log.view.deleted else {})

    def check_epoch(self, row: TransactionMetadata, holder: object) -> None:
        """No two producers ever hold the same (producer id, epoch) (R10)."""
        if not row.state.is_idle:
            return
        key = (row.producer_id, row.producer_epoch)
        assert self.epochs.setdefault(key, holder) is holder, f"{key} was assigned twice"


def key_of(value: str) -> str:
    """The key of a record in the topic with keys."""
    return str(int(value.partition(":")[0]) % 3)


def reader(cluster: Cluster, committed: bool) -> RecordStream:
    """A reader of everything, from the start. Without a Consumer around it, it settles nothing."""
    fetcher = Fetcher(
        read_committed=committed,
        reset=lambda reader: reader.start_offset,
        now_ms=cluster.store.clock.boot_ms,
        tail_each=cluster.tail_each,
    )
    for topic, partitions in TOPICS.items():
        log = cluster.topic(topic)
        for number in range(partitions):
            fetcher.add(log, number).seek(0)
    return RecordStream(fetcher, report_ends=False, raises=False)


def _read(message: Message) -> tuple[str, int, int, str]:
    value = (message.value() or b"").decode()
    return message.topic(), message.partition(), message.offset() or 0, value
