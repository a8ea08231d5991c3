"""From offsets to tasks: which files contain a range, and which ranges one Spark task reads.

Planning reads only batch headers. By default a range is never split between tasks, so that the
order of a partition is kept, and small ranges share a task, since a task costs more than reading
them. minPartitions and maxRecordsPerPartition split ranges, as in Spark's Kafka connector
(KafkaOffsetRangeCalculator); each piece is then one task.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from spark_source.filters import Bounds
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.group_metadata import Positions

# One core reads 2 MiB of files or 50,000 records and sends them to the JVM in about 30 ms.
# Starting a task takes 5 ms with Unix domain sockets, 50 ms without. 64 small files take 6 ms on a
# local disk; on an object store each is a request, and a task sends its requests one by one.
TASK_BYTES = 2 << 20
RECORD_BYTES = 40
FILE_BYTES = 32 << 10

# A split point moves by up to 1/SNAP_SHARE of a piece to fall between two files: inside a file,
# both tasks decode the row group that contains it.
SNAP_SHARE = 8


class TopicBatches(Protocol):
    """The part of a topic's view that planning uses."""

    def batches(
        self, partition: int, start: int, end: int, read_committed: bool
    ) -> list[BatchHeader]: ...


class FileSlice(NamedTuple):
    """A data file: its path in the store, and fields of its header."""

    path: str
    base_offset: int
    last_offset: int
    size_bytes: int
    num_records: int | None

    @property
    def records_max(self) -> int:
        """Upper bound of the records in the file."""
        return self.num_records or self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Records of one partition with start <= offset < end, and the files that contain them."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[FileSlice, ...]

    @property
    def records(self) -> int:
        """Offsets of the range in its files; some of the records may have been erased."""
        return sum(self.records_of(file) for file in self.files)

    def records_of(self, file: FileSlice) -> int:
        """Offsets of the range in one of its files."""
        return min(self.end, file.last_offset + 1) - max(self.start, file.base_offset)

    @property
    def weight(self) -> int:
        """Cost of reading it, in bytes; each record and each file adds a minimum cost."""
        return sum(
            max(file.size_bytes, file.records_max * RECORD_BYTES) + FILE_BYTES
            for file in self.files
        )


class SourcePartition(InputPartition):
    """The ranges one Spark task reads, in order, and the id of the cluster to expect."""

    def __init__(self, ranges: Sequence[PartitionRange], cluster_id: str = "") -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.cluster_id = cluster_id


def plan_ranges(
    starts: Positions,
    ends: Positions,
    views: Mapping[str, TopicBatches],
    paths: Mapping[str, str],
    *,
    read_committed: bool,
    times_us: Bounds | None = None,
) -> Iterator[PartitionRange]:
    """Ranges with files, by topic and partition; `paths` gives each topic's folder.

    Files that have no record in `times_us`, by their statistics, are left out.
    """
    for topic in sorted(ends):
        for partition in sorted(ends[topic]):
            start, end = starts[topic][partition], ends[topic][partition]
            if end <= start:
                continue
            batches = views[topic].batches(partition, start, end, read_committed)
            files = tuple(
                FileSlice(
                    f"{paths[topic]}/{batch.path}",
                    batch.base_offset,
                    batch.last_offset,
                    batch.size_bytes,
                    batch.num_records,
                )
                for batch in batches
                if times_us is None or _is_in(times_us, batch)
            )
            if files:
                yield PartitionRange(topic, partition, start, end, files)


def _is_in(times_us: Bounds, batch: BatchHeader) -> bool:
    statistics = batch.statistics
    return times_us.overlaps(statistics.timestamp_min_us, statistics.timestamp_max_us)


def plan_tasks(
    ranges: Iterable[PartitionRange],
    *,
    min_tasks: int | None = None,
    records_max: int | None = None,
) -> list[SourcePartition]:
    """Tasks for ranges: grouped without a limit, else split to satisfy both limits.

    There are at least `min_tasks` tasks if there are that many records, and none has more than
    `records_max` records.
    """
    if min_tasks is None and records_max is None:
        return _grouped(ranges)
    whole = list(ranges)
    counts = _pieces(whole, min_tasks or 1, records_max)
    return [
        SourcePartition([piece])
        for range_, count in zip(whole, counts, strict=True)
        for piece in cut(range_, count, records_max)
    ]


def cut(range_: PartitionRange, count: int, records_max: int | None = None) -> list[PartitionRange]:
    """Split a range into `count` pieces of similar size, none with more than `records_max` records.

    Pieces start at file boundaries where one is near. `count` must be between 1 and the range's
    records, and large enough for `records_max`.
    """
    # `before` counts the records before each file, so that offsets without a file are not counted.
    before = [0, *accumulate(range_.records_of(file) for file in range_.files)]
    total = before[-1]
    most = total if records_max is None else records_max
    slack = total // count // SNAP_SHARE
    cuts = [0]
    for number in range(1, count):
        ideal = number * total // count
        low = max(ideal - slack, total - (count - number) * most)
        high = min(ideal + slack, cuts[-1] + most)
        cuts.append(_nearest(before, ideal, low, high))
    pieces = []
    for start, end in zip(cuts, [*cuts[1:], total], strict=True):
        first = bisect_right(before, start) - 1
        last = bisect_left(before, end)
        pieces.append(
            PartitionRange(
                range_.topic,
                range_.partition,
                _offset_at(range_, first, start - before[first]),
                _offset_at(range_, last - 1, end - before[last - 1]),
                range_.files[first:last],
            )
        )
    return pieces


def _pieces(ranges: Sequence[PartitionRange], min_tasks: int, records_max: int | None) -> list[int]:
    """The number of pieces of each range; the range with the largest pieces gets the next one."""
    sizes = [range_.records for range_ in ranges]
    counts = [1 if records_max is None else -(-size // records_max) for size in sizes]
    missing = min(min_tasks, sum(sizes)) - sum(counts)
    if missing <= 0:
        return counts
    biggest = [(-sizes[at] / counts[at], at) for at in range(len(sizes))]
    heapify(biggest)
    for _ in range(missing):
        at = biggest[0][1]
        counts[at] += 1
        heapreplace(biggest, (-sizes[at] / counts[at], at))
    return counts


def _nearest(before: Sequence[int], ideal: int, low: int, high: int) -> int:
    """The start of a file in [low, high] near `ideal`; without one, the nearest allowed number."""
    at = bisect_left(before, ideal)
    near = [start for start in before[max(0, at - 1) : at + 1] if low <= start <= high]
    return min(near, key=lambda start: abs(start - ideal), default=min(max(ideal, low), high))


def _offset_at(range_: PartitionRange, file: int, records: int) -> int:
    """The offset `records` after the first offset that the range has in a file."""
    return max(range_.start, range_.files[file].base_offset) + records


def _grouped(ranges: Iterable[PartitionRange]) -> list[SourcePartition]:
    """Group ranges into tasks of up to TASK_BYTES; a larger range is one task."""
    tasks: list[SourcePartition] = []
    group: list[PartitionRange] = []
    group_weight = 0
    for range_ in ranges:
        weight = range_.weight
        if weight >= TASK_BYTES:
            tasks.append(SourcePartition([range_]))
            continue
        if group and group_weight + weight > TASK_BYTES:
            tasks.append(SourcePartition(group))
            group, group_weight = [], 0
        group.append(range_)
        group_weight += weight
    if group:
        tasks.append(SourcePartition(group))
    return tasks
