"""From offsets to tasks: which files hold a range, and which ranges one Spark task reads.

Only headers are looked at. By default a range is never cut into two tasks, so the order of a
partition holds, and small ranges share a task, since a task costs Spark more than reading them.
minPartitions and maxRecordsPerPartition cut ranges, as in Spark's Kafka connector
(KafkaOffsetRangeCalculator), and then every piece is a task of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.group_metadata import Positions

# Read and handed to the JVM by one core, 2 MiB of files or 50,000 records take about 30 ms.
# Starting a task takes 5 ms with unix domain sockets, 50 ms without. 64 small files take 6 ms on a
# local disk; on an object store each is a request, and a task makes one after the other.
TASK_BYTES = 2 << 20
RECORD_BYTES = 40
FILE_BYTES = 32 << 10

# A cut moves by up to this part of a piece to fall between two files: inside a file, both tasks
# decode the row group it falls into.
SNAP_SHARE = 8


class TopicBatches(Protocol):
    """What is asked of a topic's view."""

    def batches(
        self, partition: int, start: int, end: int, read_committed: bool
    ) -> list[BatchHeader]: ...


class FileSlice(NamedTuple):
    """A data file, by its path in the store, and what its header says."""

    path: str
    base_offset: int
    last_offset: int
    size_bytes: int
    num_records: int | None

    @property
    def records_max(self) -> int:
        """Records that it may hold."""
        return self.num_records or self.last_offset - self.base_offset + 1


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Records of one partition with start <= offset < end, and the files that hold them."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[FileSlice, ...]

    @property
    def records(self) -> int:
        """Offsets of the range that its files hold; some may have been erased since."""
        return sum(self.records_of(file) for file in self.files)

    def records_of(self, file: FileSlice) -> int:
        """Offsets of the range that one of its files holds."""
        return min(self.end, file.last_offset + 1) - max(self.start, file.base_offset)

    @property
    def weight(self) -> int:
        """Cost of reading it, in bytes of files; small records and files weigh more than theirs."""
        return sum(
            max(file.size_bytes, file.records_max * RECORD_BYTES) + FILE_BYTES
            for file in self.files
        )


class SourcePartition(InputPartition):
    """What one Spark task reads, in this order, and the cluster it must find."""

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
) -> Iterator[PartitionRange]:
    """Ranges that hold files, by topic and partition; `paths` gives each topic's folder."""
    for topic in sorted(ends):
        for partition in sorted(ends[topic]):
            start, end = starts[topic][partition], ends[topic][partition]
            if end <= start:
                continue
            found = views[topic].batches(partition, start, end, read_committed)
            files = tuple(
                FileSlice(
                    f"{paths[topic]}/{batch.path}",
                    batch.base_offset,
                    batch.last_offset,
                    batch.size_bytes,
                    batch.num_records,
                )
                for batch in found
            )
            if files:
                yield PartitionRange(topic, partition, start, end, files)


def plan_tasks(
    ranges: Iterable[PartitionRange],
    *,
    min_tasks: int | None = None,
    records_max: int | None = None,
) -> list[SourcePartition]:
    """Tasks for ranges: grouped when no limit is given, else cut to hold both limits.

    There are at least `min_tasks` tasks if there are as many records, none with more than
    `records_max` records.
    """
    if min_tasks is None and records_max is None:
        return _grouped(ranges)
    whole = list(ranges)
    counts = _pieces(whole, min_tasks or 1, records_max)
    return [
        SourcePartition([piece])
        for found, count in zip(whole, counts, strict=True)
        for piece in cut(found, count, records_max)
    ]


def cut(found: PartitionRange, count: int, records_max: int | None = None) -> list[PartitionRange]:
    """Cut a range into `count` pieces of about as many records, none of more than `records_max`.

    Pieces begin between two files where that is near. `count` must be 1 or more, at most the
    range's records, and enough for `records_max`.
    """
    # Positions count the records before a file, so that what is not in a file counts for nothing.
    before = [0, *accumulate(found.records_of(file) for file in found.files)]
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
                found.topic,
                found.partition,
                _offset_at(found, first, start - before[first]),
                _offset_at(found, last - 1, end - before[last - 1]),
                found.files[first:last],
            )
        )
    return pieces


def _pieces(ranges: Sequence[PartitionRange], min_tasks: int, records_max: int | None) -> list[int]:
    """Into how many pieces to cut each range; the one with the biggest pieces gets the next one."""
    sizes = [found.records for found in ranges]
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
    """The start of a file near `ideal` if there is one in [low, high], else the number nearest."""
    at = bisect_left(before, ideal)
    near = [found for found in before[max(0, at - 1) : at + 1] if low <= found <= high]
    return min(near, key=lambda found: abs(found - ideal), default=min(max(ideal, low), high))


def _offset_at(found: PartitionRange, file: int, records: int) -> int:
    """The offset so many records after the first that the range has in a file."""
    return max(found.start, found.files[file].base_offset) + records


def _grouped(ranges: Iterable[PartitionRange]) -> list[SourcePartition]:
    """Group ranges into tasks of up to TASK_BYTES; a bigger range has a task of its own."""
    tasks: list[SourcePartition] = []
    group: list[PartitionRange] = []
    group_weight = 0
    for found in ranges:
        weight = found.weight
        if weight >= TASK_BYTES:
            tasks.append(SourcePartition([found]))
            continue
        if group and group_weight + weight > TASK_BYTES:
            tasks.append(SourcePartition(group))
            group, group_weight = [], 0
        group.append(found)
        group_weight += weight
    if group:
        tasks.append(SourcePartition(group))
    return tasks
