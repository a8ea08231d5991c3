"""From ranges of offsets to Spark tasks."""

from __future__ import annotations

import pickle

from spark_source.planning import (
    FILE_BYTES,
    TASK_BYTES,
    FileSlice,
    PartitionRange,
    SourcePartition,
    plan_ranges,
    plan_tasks,
)


def of_size(partition: int, size_bytes: int, records: int = 1) -> PartitionRange:
    file = FileSlice(f"t/{partition}", 0, records - 1, size_bytes, records)
    return PartitionRange("t", partition, 0, records, (file,))


def test_many_small_files_weigh_more_than_their_bytes() -> None:
    """Opening a file takes half a millisecond, however small it is."""
    files = tuple(FileSlice(f"t/{n}", n, n, 2_000, 1) for n in range(100))
    ranges = [PartitionRange("t", partition, 0, 100, files) for partition in range(2)]
    assert planned(*ranges) == [[0], [1]]


def planned(*ranges: PartitionRange) -> list[list[int]]:
    return [[found.partition for found in task.ranges] for task in plan_tasks(ranges)]


def test_small_ranges_share_one_task_in_order() -> None:
    """A micro-batch of 100 records over 50 partitions must not cost 50 tasks."""
    assert planned(*(of_size(p, 2_000) for p in range(50))) == [list(range(50))]


def test_big_ranges_have_tasks_of_their_own() -> None:
    """All cores work; a partition is never cut in two, so its order holds."""
    big, small = TASK_BYTES, TASK_BYTES // 3 - FILE_BYTES
    assert planned(of_size(0, big), of_size(1, small), of_size(2, big), of_size(3, small)) == [
        [0],
        [2],
        [1, 3],
    ]
    assert planned(*(of_size(p, small) for p in range(4))) == [[0, 1, 2], [3]]


def test_many_tiny_records_weigh_more_than_their_bytes() -> None:
    """A file of a million equal records is small on disk and slow to read."""
    assert len(planned(of_size(0, 100, 1_000_000), of_size(1, 100, 1_000_000))) == 2


def test_nothing_to_read_is_no_task() -> None:
    """Spark makes one InputPartition(None) of it, which yields nothing (R60)."""
    assert planned() == []


def test_source_partition_pickled_is_small_and_equal() -> None:
    """Every task's ranges travel through Spark's driver and JVM."""
    task = SourcePartition([of_size(0, 10)])
    data = pickle.dumps(task)
    assert pickle.loads(data).ranges == task.ranges
    assert len(data) < 400


def test_ranges_come_from_headers_without_aborted_files(topics) -> None:
    """Aborted data is never opened; a file that straddles the range is in it (R16)."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a", b"b"])
    aborted = topics.append("t", 0, [b"x"], status="ongoing")
    topics.settle("t", aborted, "aborted")
    topics.append("t", 0, [b"c", b"d"])
    view = topics.cluster.topic("t").view
    starts, ends = {"t": {0: 1, 1: 0}}, {"t": {0: 4, 1: 0}}
    committed = list(plan_ranges(starts, ends, {"t": view}, {"t": "t"}, read_committed=True))
    assert [(r.partition, r.start, r.end) for r in committed] == [(0, 1, 4)]
    assert [(f.base_offset, f.last_offset) for f in committed[0].files] == [(0, 1), (3, 4)]
    assert all(f.path.startswith("t/part-0-") for f in committed[0].files)
    everything = list(plan_ranges(starts, ends, {"t": view}, {"t": "t"}, read_committed=False))
    assert len(everything[0].files) == 3
