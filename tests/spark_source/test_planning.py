"""From ranges of offsets to Spark tasks."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source.planning import (
    FILE_BYTES,
    TASK_BYTES,
    FileSlice,
    PartitionRange,
    SourcePartition,
    cut,
    plan_ranges,
    plan_tasks,
)
from spark_source.reading import read_ranges

COMMITTED = {"read_committed": True}


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


def test_large_ranges_are_one_task_each() -> None:
    """All cores work; a partition is never split, so its order is kept."""
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


def in_files(*sizes: int, partition: int = 0, gap: int = 0) -> PartitionRange:
    """A range over files of these many records, with `gap` offsets of aborted data before each."""
    files, base = [], 0
    for size in sizes:
        base += gap
        files.append(FileSlice(f"t/{base}", base, base + size - 1, 100, size))
        base += size
    return PartitionRange("t", partition, 0, base, tuple(files))


def offsets(ranges: list[PartitionRange]) -> list[int]:
    """Every offset that reading the ranges gives, in that order."""
    return [
        offset
        for found in ranges
        for file in found.files
        for offset in range(
            max(found.start, file.base_offset), min(found.end, file.last_offset + 1)
        )
    ]


def pieces(*ranges: PartitionRange, **limits: int) -> list[list[int]]:
    """Records of each task, per partition."""
    tasks = plan_tasks(ranges, **limits)
    found: list[list[int]] = [[] for _ in ranges]
    for task in tasks:
        (piece,) = task.ranges
        found[piece.partition].append(piece.records)
    return found


def test_min_partitions_splits_the_longest_ranges() -> None:
    """A skewed partition limits parallelism; short ones are not split (R61)."""
    ranges = [in_files(1000, partition=0), in_files(10, partition=1), in_files(500, partition=2)]
    assert pieces(*ranges, min_tasks=3) == [[1000], [10], [500]]
    assert pieces(*ranges, min_tasks=4) == [[500, 500], [10], [500]]
    assert pieces(*ranges, min_tasks=7) == [[250, 250, 250, 250], [10], [250, 250]]


def test_min_partitions_beyond_the_records_is_one_record_a_task() -> None:
    """Empty tasks would cost without reading (R61)."""
    assert pieces(in_files(3), min_tasks=100) == [[1, 1, 1]]
    assert pieces(min_tasks=100) == []


def test_max_records_splits_evenly_and_exactly() -> None:
    """25 at most 10 is 8, 8, 9 and not 10, 10, 5: the last task is not the idle one (R61)."""
    assert pieces(in_files(25), records_max=10) == [[8, 8, 9]]
    assert pieces(in_files(20), in_files(5, partition=1), records_max=10) == [[10, 10], [5]]


def test_both_limits_hold_together() -> None:
    """First no more records than the maximum, then no fewer tasks than the minimum (R61)."""
    assert pieces(in_files(20), records_max=10, min_tasks=1) == [[10, 10]]
    assert pieces(in_files(20), records_max=10, min_tasks=4) == [[5, 5, 5, 5]]


def test_cut_between_files_where_that_is_near() -> None:
    """Inside a file, two tasks decode the same row group; far from the middle, one would wait."""
    two = cut(in_files(48, 52), 2)
    assert [len(piece.files) for piece in two] == [1, 1]
    assert [piece.records for piece in two] == [48, 52]
    assert [piece.records for piece in cut(in_files(10, 90), 2)] == [50, 50]
    assert [piece.records for piece in cut(in_files(52, 48), 2, records_max=50)] == [50, 50]
    assert [piece.records for piece in cut(in_files(45, 55), 2, records_max=52)] == [50, 50]


def test_given_limits_leave_small_ranges_ungrouped() -> None:
    """As in Kafka's connector each range is then one task; the user has set the number."""
    ranges = [in_files(1, partition=partition) for partition in range(5)]
    assert len(plan_tasks(ranges)) == 1
    assert len(plan_tasks(ranges, min_tasks=2)) == 5
    assert len(plan_tasks(ranges, records_max=100)) == 5


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 70),
    st.one_of(st.none(), st.integers(1, 70)),
)
def test_cut_ranges_hold_every_record_once_and_in_order(
    sizes: list[int], gap: int, skip: int, drop: int, min_tasks: int, records_max: int | None
) -> None:
    """Whatever the files and limits: nothing lost, nothing twice, both limits hold (R61)."""
    whole = in_files(*sizes, gap=gap)
    start = min(skip, whole.files[0].last_offset)
    end = max(whole.end - drop, whole.files[-1].base_offset + 1)
    if end <= start:
        return
    cut_off = PartitionRange("t", 0, start, end, whole.files)
    tasks = plan_tasks([cut_off], min_tasks=min_tasks, records_max=records_max)
    found = [task.ranges[0] for task in tasks]
    assert offsets(found) == offsets([cut_off])
    assert len(found) >= min(min_tasks, cut_off.records)
    for piece in found:
        assert 1 <= piece.records <= (records_max or cut_off.records)


@pytest.mark.parametrize("cuts", [2, 3, 5])
def test_pieces_of_a_file_read_its_records_once(topics, cuts: int) -> None:
    """A cut inside a file is honoured by the reader on both sides (R61)."""
    topics.create("t")
    topics.append("t", 0, [str(i).encode() for i in range(11)])
    undecided = topics.append("t", 0, [b"x", b"y"], status="ongoing")
    topics.settle("t", undecided, "aborted")
    topics.append("t", 0, [str(i).encode() for i in range(11, 17)])
    view = topics.cluster.topic("t").view
    ranges = list(plan_ranges({"t": {0: 2}}, {"t": {0: 18}}, {"t": view}, {"t": "t"}, **COMMITTED))
    tasks = plan_tasks(ranges, min_tasks=cuts)
    read = [
        value.decode()
        for task in tasks
        for batch in read_ranges(topics.cluster.store, task.ranges, include_headers=False)
        for value in batch.column("value").to_pylist()
    ]
    assert len(tasks) == cuts
    assert read == [str(i) for i in range(2, 16)]


def test_ranges_come_from_headers_without_aborted_files(topics) -> None:
    """Aborted data is never opened; a file that overlaps the range is included (R16)."""
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
