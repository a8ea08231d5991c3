"""The state of a topic in memory, as its log has it, and commits to it as data.

TopicState is the whole state: headers per partition, transactional markers, producer sequences,
ends. A decision takes the state and returns a TopicCommit; the caller writes it by put-if-absent
and, if that succeeds, applies the same commit to its state.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
from msgspec import Struct

from txnlog.errors import InvalidTopicError
from txnlog.protocol import sequences
from txnlog.protocol.batches import ABORTED, NONE, ONGOING, BatchHeader, HeaderColumns
from txnlog.protocol.decoding import INT64_MAX, check_partition_number, to_int64
from txnlog.protocol.txn_memory import TxnMemory

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
INTERNAL_PREFIX = "__"
DELTA_LOG = "_delta_log"
"""The one other folder of a root that means something: with it a root would be a Delta table."""

MARKER_PREFIX = "txnlog/"
END_PREFIX = "txnlog/end/"
START_PREFIX = "txnlog/start/"
CLEANED_PREFIX = "txnlog/cleaned/"
TOMBSTONES_PREFIX = "txnlog/tombstones/"
HORIZON_PREFIX = "txnlog/horizon/"
_BOUNDS = {
    START_PREFIX: "start_offset",
    CLEANED_PREFIX: "cleaned_offset",
    TOMBSTONES_PREFIX: "tombstone_offset",
    HORIZON_PREFIX: "horizon_ms",
}


_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


def may_be_topic(folder: str) -> bool:
    """Whether a folder of a root may hold a topic, by its name."""
    is_named = bool(TOPIC_NAME.match(folder)) and folder not in (".", "..", DELTA_LOG)
    return is_named and not folder.startswith(INTERNAL_PREFIX)


def check_topic_name(name: str, *, internal: bool = False) -> str:
    """Check a name by Kafka's rules (R64). Raises InvalidTopicError."""
    if not TOPIC_NAME.match(name) or name in (".", ".."):
        raise InvalidTopicError(
            f"Topic name {name[:249]!r} is not valid: 1 to 249 of the characters a-z, A-Z, 0-9, "
            "'.', '_' and '-', and not '.' or '..'.",
            topic=name,
        )
    if name == DELTA_LOG:
        raise InvalidTopicError(
            f"Topic name {name!r} is not valid: a folder of this name would make the whole root "
            "one Delta table. Choose another name.",
            topic=name,
        )
    if name.startswith(INTERNAL_PREFIX) and not internal:
        raise InvalidTopicError(
            f"Topic {name!r} is internal: names that start with '__' belong to txnlog. Choose "
            "another name.",
            topic=name,
        )
    return name


@dataclass(slots=True)
class PartitionState:
    """One partition's live batches in offset order, and its bounds.

    Key compaction is done below `cleaned_offset`; tombstones below `tombstone_offset` may be
    removed from `horizon_ms` on (see txnlog.protocol.key_compaction).
    """

    batches: list[BatchHeader] = field(default_factory=list)
    end_offset: int = 0
    start_offset: int = 0
    ongoing: dict[str, BatchHeader] = field(default_factory=dict)
    cleaned_offset: int = 0
    tombstone_offset: int = 0
    horizon_ms: int = 0

    @property
    def last_stable_offset(self) -> int:
        """First offset of the earliest undecided batch, else the end (R12); see R14."""
        if not self.ongoing:
            return self.end_offset
        first = min(batch.base_offset for batch in self.ongoing.values())
        return max(first, self.log_start_offset)

    @property
    def log_start_offset(self) -> int:
        """Oldest live offset, or that of delete_records if it is higher; never above the end."""
        oldest = self.batches[0].base_offset if self.batches else self.end_offset
        return min(max(oldest, self.start_offset), self.end_offset)

    def add(self, batch: BatchHeader) -> None:
        """Add a batch, or replace the header of a known path."""
        batches = self.batches
        if not batches or batch.base_offset > batches[-1].base_offset:
            batches.append(batch)
        else:
            at = bisect_left(batches, batch.base_offset, key=_base_offset)
            if batches[at].path == batch.path:
                batches[at] = batch
            else:
                insort(batches, batch, key=_base_offset)
        if batch.status == ONGOING:
            self.ongoing[batch.path] = batch
        else:
            self.ongoing.pop(batch.path, None)
        self.end_offset = max(self.end_offset, batch.last_offset + 1)

    def remove(self, batches: Collection[BatchHeader]) -> None:
        """Remove batches; a run of adjacent ones costs little more than one."""
        paths = {batch.path for batch in batches}
        offsets = [batch.base_offset for batch in batches]
        first = bisect_left(self.batches, min(offsets), key=_base_offset)
        last = bisect_right(self.batches, max(offsets), key=_base_offset)
        self.batches[first:last] = [b for b in self.batches[first:last] if b.path not in paths]
        for path in paths:
            self.ongoing.pop(path, None)

    def slice(self, start: int, end: int, *, read_committed: bool) -> list[BatchHeader]:
        """Batches that hold an offset in [start, end), in order; aborted ones left out (R16)."""
        if end <= start:
            return []
        first = bisect_left(self.batches, start, key=_last_offset)
        last = bisect_right(self.batches, end - 1, key=_base_offset)
        found = self.batches[first:last]
        if read_committed:
            return [batch for batch in found if batch.status not in (ABORTED, ONGOING)]
        return found


class TopicState:
    """The state of one topic that decisions need; changed only by commits and `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.topic_id = ""
        self.deleted = False
        self.config: dict[str, str] = {}
        self.partitions: list[PartitionState] = []
        self.by_path: dict[str, BatchHeader] = {}
        self.sequences: dict[tuple[int, int], sequences.ProducerStateEntry] = {}
        self.txns = TxnMemory()
        self.markers = self.txns.markers
        self.last_sequences = self.txns.sequences

    def set_topic(self, topic_id: str, config: Mapping[str, str]) -> None:
        """Apply a `metaData` action; a partition count never shrinks."""
        deleted = config.get("deleted") == "true"
        if deleted or topic_id != self.topic_id:
            # Batches of the former topic are gone: sending them again is no repeat.
            self.sequences.clear()
        self.topic_id = topic_id
        self.config = dict(config)
        self.deleted = deleted
        self._grow(partition_count(config))

    def add(self, batch: BatchHeader) -> None:
        self._grow(batch.partition + 1)
        known = self.by_path.get(batch.path)
        if known is not None and known.base_offset != batch.base_offset:
            self.partitions[known.partition].remove([known])
        self.by_path[batch.path] = batch
        self.partitions[batch.partition].add(batch)
        if batch.producer_id >= 0:
            key = (batch.producer_id, batch.partition)
            seen = sequences.observe(self.sequences.get(key), batch)
            if seen is None:
                self.sequences.pop(key, None)
            else:
                self.sequences[key] = seen

    def load(self, columns: HeaderColumns) -> None:
        """Add all headers of a checkpoint to an empty state (R11)."""
        assert not self.by_path
        numbers = columns.partition
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
            number = int(numbers[start])
            self._grow(number + 1)
            state = self.partitions[number]
            state.batches = columns.headers[start:end]
            ongoing = start + np.flatnonzero(columns.is_ongoing[start:end])
            state.ongoing = {columns.paths[at]: columns.headers[at] for at in ongoing.tolist()}
            last_offset = int(columns.last_offset[start:end].max())
            state.end_offset = max(state.end_offset, last_offset + 1)
        self.by_path = dict(zip(columns.paths, columns.headers, strict=True))
        self.sequences = sequences.observe_all(columns)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, and the states of producers without other batches (R11)."""
        gone: dict[int, list[BatchHeader]] = {}
        for path in paths:
            batch = self.by_path.pop(path, None)
            if batch is None:
                continue
            gone.setdefault(batch.partition, []).append(batch)
            key = (batch.producer_id, batch.partition)
            seen = self.sequences.get(key)
            if seen is not None:
                left = sequences.forget(seen, batch)
                if left is None:
                    del self.sequences[key]
                else:
                    self.sequences[key] = left
        for partition, batches in gone.items():
            self.partitions[partition].remove(batches)

    def set_txn(self, app_id: str, version: int, updated_ms: int | None = None) -> None:
        """Apply a `txn` action: a marker, a partition's bound, an idempotent sequence, ..."""
        self.txns.set_txn(app_id, version, updated_ms)
        self._set_bound(app_id, version)

    def _set_bound(self, app_id: str, version: int) -> None:
        bound = check_bound(app_id, version)
        if bound is None:
            return
        prefix, partition = bound
        self._grow(partition + 1)
        state = self.partitions[partition]
        if prefix == END_PREFIX:
            state.end_offset = max(state.end_offset, version)
        else:
            setattr(state, _BOUNDS[prefix], version)

    def _grow(self, count: int) -> None:
        while len(self.partitions) < count:
            self.partitions.append(PartitionState())

    # -- for readers and decisions ---------------------------------------------------------------

    def log_start_offset(self, partition: int) -> int:
        return self.partitions[partition].log_start_offset

    def high_watermark(self, partition: int) -> int:
        """The offset of the next record."""
        return self.partitions[partition].end_offset

    def last_stable_offset(self, partition: int) -> int:
        return self.partitions[partition].last_stable_offset

    def batches(
        self, partition: int, start: int, end: int, read_committed: bool
    ) -> list[BatchHeader]:
        return self.partitions[partition].slice(start, end, read_committed=read_committed)

    def may_be_repeated(self, batch: BatchHeader) -> bool:
        """Whether it is one of the last batches of an idempotent producer that is known (R2)."""
        key = (batch.producer_id, batch.partition)
        if batch.status != NONE or key not in self.last_sequences:
            return False
        seen = self.sequences.get(key)
        return seen is not None and any(
            known.base_offset == batch.base_offset for known in seen.recent
        )

    def knows_producer(self, producer_id: int) -> bool:
        """Whether it has a marker, an undecided batch or a sequence of the producer id."""
        keys = [(producer_id, number) for number in range(len(self.partitions))]
        return producer_id in self.markers or any(
            key in self.sequences or key in self.last_sequences for key in keys
        )

    @property
    def producer_id_max(self) -> int:
        """The largest producer id that it knows; -1 without any."""
        of_partitions = (key[0] for key in (*self.sequences, *self.last_sequences))
        return max((*self.markers, *of_partitions), default=-1)

    def ongoing_of(self, producer_id: int, epoch_max: int) -> list[BatchHeader]:
        """Undecided headers of a producer up to an epoch, in partition and offset order."""
        return [
            batch
            for state in self.partitions
            if state.ongoing
            for batch in sorted(state.ongoing.values(), key=_base_offset)
            if batch.producer_id == producer_id and batch.producer_epoch <= epoch_max
        ]


def check_bound(app_id: str, version: int) -> tuple[str, int] | None:
    """(prefix, partition) of a `txn` action that is a partition's bound, None for others.

    Raises ValueError for an invalid partition or offset.
    """
    prefix, slash, number = app_id.rpartition("/")
    prefix += slash
    if prefix not in (END_PREFIX, *_BOUNDS):
        return None
    if not 0 <= version <= INT64_MAX:
        raise ValueError(f"txn {app_id!r} with version {version}")
    return prefix, check_partition_number(to_int64(number))


def partition_count(config: Mapping[str, str]) -> int:
    """Number of partitions in a topic's properties. Raises ValueError."""
    return check_partition_number(to_int64(config.get("partitions", "1")) - 1) + 1


def marker_app_id(producer_id: int) -> str:
    """`txn` app id of a transaction's marker commit: its version is the txn epoch."""
    return f"{MARKER_PREFIX}{producer_id}"


def sequence_app_id(producer_id: int, partition: int) -> str:
    """`txn` app id of an idempotent producer in a partition: its version is the last sequence."""
    return f"{MARKER_PREFIX}{producer_id}-{partition}"


def end_app_id(partition: int) -> str:
    """`txn` app id of a partition's end, if no live file shows it."""
    return f"{END_PREFIX}{partition}"


def start_app_id(partition: int) -> str:
    """`txn` app id of a partition's log start, if it is above its oldest batch."""
    return f"{START_PREFIX}{partition}"


class TopicCommit(Struct, frozen=True, kw_only=True):
    """One commit to a topic, as data: headers added or re-added, paths removed, txn versions.

    Without `data_change` it only moves records to other files: a Delta stream skips it.
    """

    operation: str
    producer_id: int = -1
    producer_epoch: int = -1
    adds: tuple[BatchHeader, ...] = ()
    removes: tuple[str, ...] = ()
    txns: Mapping[str, int] = {}
    data_change: bool = True

    def apply(self, state: TopicState) -> None:
        """Apply the commit to memory, with the same result as reading it from the log (R11)."""
        for app_id, version in self.txns.items():
            state.set_txn(app_id, version)
        state.remove(self.removes)
        for batch in self.adds:
            state.add(batch)
