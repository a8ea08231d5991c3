"""From offsets to tasks: which files hold a range, and which ranges one Spark task reads.

Only headers are looked at. A range is never cut into two tasks, so the order of a partition holds;
small ranges share a task, since a task costs Spark more than it takes to read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyspark.sql.datasource import InputPartition

from spark_source.offsets import Positions
from txnlog.protocol.batches import BatchHeader

# Read and handed to the JVM by one core: 2 MiB of files, or 50,000 records, or 60 small files take
# about 30 ms. Starting a task takes 5 ms with unix domain sockets, and 50 ms without.
TASK_BYTES = 2 << 20
RECORD_BYTES = 40
FILE_BYTES = 32 << 10


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
    num_records: int


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Records of one partition with start <= offset < end, and the files that hold them."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[FileSlice, ...]

    @property
    def weight(self) -> int:
        """Cost of reading it, in bytes of files; small records and files weigh more than theirs."""
        return sum(
            max(file.size_bytes, file.num_records * RECORD_BYTES) + FILE_BYTES
            for file in self.files
        )


class SourcePartition(InputPartition):
    """What one Spark task reads, in this order."""

    def __init__(self, ranges: Sequence[PartitionRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)


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


def plan_tasks(ranges: Iterable[PartitionRange]) -> list[SourcePartition]:
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
