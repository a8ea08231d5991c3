"""What a task yields: Arrow batches of exactly Spark's schema, the rows of its ranges in order."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from spark_source import reading
from spark_source.planning import PartitionRange, plan_ranges
from spark_source.reading import BATCH_BYTES, BATCH_ROWS, read_ranges
from spark_source.schema import check_schema, spark_schema
from tests.spark_source.conftest import Topics
from tests.spark_source.stream_steps import next_end, reader_of
from txnlog.cluster import CLUSTERS, Cluster
from txnlog.connector.spark_versions import arrow_schema
from txnlog.errors import ConfigError, CorruptLogError, ObjectNotFoundError
from txnlog.storage.batches.records import BARE_MESSAGE_SCHEMA, MESSAGE_SCHEMA
from txnlog.storage.batches.small_batch_form import ROWS_MAX


def ranges_of(topics, topic: str, start: int, end: int) -> list[PartitionRange]:
    log = topics.cluster.topic(topic)
    return list(
        plan_ranges(
            {topic: dict.fromkeys(range(log.partitions), start)},
            {topic: dict.fromkeys(range(log.partitions), end)},
            {topic: log.view},
            {topic: log.path},
            read_committed=True,
        )
    )


def read(topics, start: int, end: int, *, include_headers: bool = False) -> pa.Table:
    batches = read_ranges(
        topics.cluster.store, ranges_of(topics, "t", start, end), include_headers=include_headers
    )
    schema = MESSAGE_SCHEMA if include_headers else BARE_MESSAGE_SCHEMA
    return pa.Table.from_batches(list(batches), schema)


@pytest.mark.parametrize("include_headers", [False, True])
def test_batches_have_exactly_sparks_arrow_schema(topics, include_headers: bool) -> None:
    """Spark checks the first batch only; a later one of another layout would be misread."""
    topics.create("t")
    topics.append(
        "t", 0, [b"v", None], keys=[None, b"k"], headers=[[("h", b"1"), ("h", None)], None]
    )
    table = read(topics, 0, 2, include_headers=include_headers)
    expected_schema = arrow_schema(spark_schema(include_headers=include_headers))
    assert table.schema.equals(expected_schema)
    rows = table.drop_columns(["timestamp"]).to_pylist()
    expected = {"topic": "t", "partition": 0, "timestampType": 0}
    headers = [
        {"headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]},
        {"headers": None},
    ]
    extra = headers if include_headers else [{}, {}]
    assert rows == [
        {"key": None, "value": b"v", "offset": 0, **expected, **extra[0]},
        {"key": b"k", "value": None, "offset": 1, **expected, **extra[1]},
    ]


def test_rows_outside_the_range_are_cut_off(topics) -> None:
    """maxOffsetsPerTrigger ends batches in the middle of files (R61)."""
    topics.create("t")
    for first in range(0, 12, 4):
        topics.append("t", 0, [str(first + i).encode() for i in range(4)])
    table = read(topics, 2, 10)
    assert table["offset"].to_pylist() == list(range(2, 10))
    assert table["value"].to_pylist() == [str(i).encode() for i in range(2, 10)]


@pytest.mark.parametrize("with_stats", [True, False])
def test_offsets_of_an_erased_file_stay(topics, with_stats: bool) -> None:
    """A file rewritten without some rows: deltas are neither dense nor do they start at 0."""
    topics.create("t")
    topics.append("t", 0, [b"0"])
    header = topics.append("t", 0, [b"1", b"2", b"3", b"4", b"5"])
    topics.erase("t", header, [False, True, False, True, True], with_stats=with_stats)
    table = read(topics, 0, 6)
    assert table["offset"].to_pylist() == [0, 2, 4, 5]
    assert table["value"].to_pylist() == [b"0", b"2", b"4", b"5"]
    assert read(topics, 3, 5)["offset"].to_pylist() == [4]


def test_small_files_come_as_one_batch(topics) -> None:
    """Each Arrow batch costs Spark a message; a micro-batch of 40 tiny files is one."""
    topics.create("t", 2)
    for number in range(40):
        topics.append("t", number % 2, [b"x", b"y"])
    batches = list(
        read_ranges(topics.cluster.store, ranges_of(topics, "t", 0, 40), include_headers=True)
    )
    assert [batch.num_rows for batch in batches] == [80]
    assert batches[0].column("partition").to_pylist() == [0] * 40 + [1] * 40
    assert batches[0].column("offset").to_pylist() == [*range(40), *range(40)]


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, ROWS_MAX + 1]), min_size=1, max_size=9),
    headed=st.sets(st.integers(0, 8)),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    batch_rows=st.sampled_from([2, 5, BATCH_ROWS]),
)
@settings(max_examples=40)
def test_files_of_every_kind_come_in_order(
    sizes: list[int], headed: set[int], cut: tuple[float, float], batch_rows: int
) -> None:
    """Small files are combined, others are read by Arrow: the order of records is kept."""
    values = [b"%d" % number for number in range(sum(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BATCH_ROWS", batch_rows)
        topics = Topics(Cluster.open("memory://", create=True))
        topics.create("t")
        at = 0
        for number, size in enumerate(sizes):
            headers = [[("h", b"1")]] * size if number in headed else None
            topics.append("t", 0, values[at : at + size], headers=headers)
            at += size
        start, end = sorted(round(share * at) for share in cut)
        for include_headers in (False, True):
            table = read(topics, start, end, include_headers=include_headers)
            assert table["offset"].to_pylist() == list(range(start, end))
            assert table["value"].to_pylist() == values[start:end]


def test_big_files_come_in_bounded_batches(topics) -> None:
    """A worker's memory must not depend on the size of a file or of a record."""
    topics.create("t", 2)
    topics.append("t", 0, [b"x"] * (2 * BATCH_ROWS + 1))
    megabyte = [bytes([i]) * (1 << 20) for i in range(12)]
    topics.append("t", 1, megabyte)
    for found in ranges_of(topics, "t", 0, 1 << 20):
        for batch in read_ranges(topics.cluster.store, [found], include_headers=False):
            assert batch.num_rows <= BATCH_ROWS
    big = ranges_of(topics, "t", 0, 1 << 20)[1:]
    sizes = [b.num_rows for b in read_ranges(topics.cluster.store, big, include_headers=False)]
    assert sum(sizes) == 12
    assert BATCH_BYTES == 4 << 20


def test_truncated_and_missing_files_name_the_file(topics) -> None:
    """Never a silent skip (R66)."""
    topics.create("t")
    header = topics.append("t", 0, [b"a"] * 1000)
    path = topics.cluster.store.local_path(f"t/{header.path}")
    with open(path, "r+b") as file:
        file.truncate(200)
    with pytest.raises(CorruptLogError, match=header.path):
        read(topics, 0, 10)
    topics.cluster.store.delete([f"t/{header.path}"])
    with pytest.raises(ObjectNotFoundError, match=f"{header.path} .*start the query again"):
        read(topics, 0, 10)


def test_task_without_the_root_names_its_host_and_makes_none(topics) -> None:
    """A disk that a worker has not mounted: an empty folder there would hide what is wrong."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    reader = reader_of(topics, startingOffsets="earliest")
    task = reader.partitions({}, next_end(reader, {}))[0]
    root = Path(topics.root)
    root.rename(root.with_name("elsewhere"))
    host = f"Host {socket.gethostname()}"
    CLUSTERS.clear()
    with pytest.raises(ConfigError, match=f"{host}: There is no folder {root}. Check the path"):
        list(reader.read(task))
    assert not root.exists()
    root.mkdir()
    with pytest.raises(ConfigError, match=f"{host}: There is no txnlog cluster"):
        list(reader.read(task))
    assert not list(root.iterdir())
    Cluster.open(str(root), create=True)
    with pytest.raises(ConfigError, match=f"{host} has cluster .* the driver has cluster"):
        list(reader.read(task))


def test_schema_of_the_user_other_than_ours_is_refused() -> None:
    """.schema(...) bypasses ours: columns would be read as something else."""
    ours = spark_schema(include_headers=False)
    with_headers = spark_schema(include_headers=True)
    check_schema(with_headers, include_headers=True)
    text = StructType([StructField("value", StringType()), *ours.fields[1:]])
    not_null = StructType([StructField("key", BinaryType(), nullable=False), *ours.fields[1:]])
    for schema in (text, not_null, StructType(ours.fields[:2]), with_headers):
        with pytest.raises(ConfigError, match="schema of format txnlog is fixed"):
            check_schema(schema, include_headers=False)
