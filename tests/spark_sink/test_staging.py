"""Staging: every row is written once, to its topic and partition, in order, in bounded memory."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.staging import Limits, Stager
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTopicError,
    RecordTooLargeError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.partitioner import partition_for_key
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.records import RECORD_OVERHEAD_BYTES
from txnlog.storage.batches.writer import BatchFileWriter

TASK_MS = 1_700_000_000_000
TINY = Limits(
    round_bytes=4_000,
    carried_bytes=2_000,
    held_bytes=3_000,
    stream_from_bytes=2_500,
    files_max=3,
    streams_max=1,
    row_group_bytes=1_500,
)
Row = dict[str, Any]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.open("memory://", create=True)


def stage(
    cluster: Cluster,
    batches: Iterable[pa.RecordBatch],
    *,
    topic: str | None = "t",
    include_headers: bool = False,
    target_size_bytes: int = 64 << 20,
    **options: Any,
) -> list[StagedBatch]:
    stager = Stager(
        cluster,
        topic=topic,
        include_headers=include_headers,
        target_size_bytes=target_size_bytes,
        task_ms=TASK_MS,
        seed=1,
        **options,
    )
    return stager.write(batches)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def read(cluster: Cluster, staged: list[StagedBatch]) -> dict[tuple[str, int], list[Row]]:
    """Rows per topic-partition, files in the order given, checked against their headers."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for item in staged:
        path = f"{cluster.topic(item.topic).path}/{item.path}"
        span = FileSpan(path, num_records=item.num_records, size_bytes=item.size_bytes)
        rows = [row for part in read_batch_file(cluster.store, span) for row in part.to_pylist()]
        assert [row.pop("offset_delta") for row in rows] == list(range(item.num_records))
        times = [int(row["timestamp"].timestamp() * 1000) * 1000 for row in rows]
        assert (min(times), max(times)) == (item.timestamp_min_us, item.timestamp_max_us)
        found[item.topic, item.partition] += rows
    return dict(found)


def values(rows: list[Row]) -> list[Any]:
    return [row["value"] for row in rows]


# -- where rows go -------------------------------------------------------------------------------


def test_stager_without_rows_stages_nothing_and_creates_no_topic(cluster: Cluster) -> None:
    """A micro-batch without rows must cost nothing."""
    assert stage(cluster, []) == []
    assert stage(cluster, [batch(value=pa.array([], pa.binary()))]) == []
    assert cluster.list_topics() == []


def test_stager_describes_its_files_for_the_manifest(cluster: Cluster) -> None:
    """The manifest must match the files in the store."""
    before_ms = cluster.store.now_ms()
    (staged,) = stage(cluster, [batch(value=["a", "b"], key=["k", "k"])])
    log = cluster.topic("t")
    assert staged.topic_id == log.topic_id
    assert staged.num_records == 2
    assert staged.path.startswith(f"part-{staged.partition}-")
    assert staged.path.endswith(".parquet")
    assert staged.size_bytes == cluster.store.head(f"{log.path}/{staged.path}").size_bytes
    assert staged.timestamp_min_us == staged.timestamp_max_us == TASK_MS * 1000
    assert before_ms <= staged.staged_ms <= cluster.store.now_ms()
    assert log.view.high_watermark(staged.partition) == 0, "staging publishes nothing"


def test_keyed_rows_go_where_kafka_would_put_them(cluster: Cluster) -> None:
    """A key in another partition than Kafka's breaks joins of topics written by both."""
    cluster.create_topic("t", partitions=7)
    keys = [b"key-%d" % (i % 40) for i in range(1000)]
    rows = [b"%d" % i for i in range(1000)]
    found = read(cluster, stage(cluster, [batch(key=keys, value=rows)]))
    for (_, partition), there in found.items():
        wanted = [
            v for k, v in zip(keys, rows, strict=True) if partition_for_key(k, 7) == partition
        ]
        assert values(there) == wanted


def test_partition_column_wins_over_the_key_and_null_leaves_it_to_the_key(
    cluster: Cluster,
) -> None:
    """As Kafka's producer: an explicit partition first, then the key."""
    cluster.create_topic("t", partitions=4)
    found = read(
        cluster,
        stage(
            cluster,
            [
                batch(
                    key=["a"] * 3,
                    value=["0", "1", "2"],
                    partition=pa.array([3, None, 0], pa.int32()),
                )
            ],
        ),
    )
    by_key = partition_for_key(b"a", 4)
    wanted: dict[int, list[bytes]] = defaultdict(list)
    for partition, value in ((3, b"0"), (by_key, b"1"), (0, b"2")):
        wanted[partition].append(value)
    assert {partition: values(rows) for (_, partition), rows in found.items()} == wanted


def test_topic_column_routes_rows_and_the_option_wins(cluster: Cluster) -> None:
    """Rows for several topics in one batch, topics with different partition counts."""
    cluster.create_topic("a", partitions=1)
    cluster.create_topic("b", partitions=5)
    count = 300
    rows = batch(
        topic=["ab"[i % 2] for i in range(count)],
        key=[f"k{i % 9}" for i in range(count)],
        value=[f"{i}" for i in range(count)],
    )
    found = read(cluster, stage(cluster, [rows], topic=None))
    assert values(found["a", 0]) == [b"%d" % i for i in range(0, count, 2)]
    for (topic, partition), there in found.items():
        if topic == "b":
            assert all(partition_for_key(row["key"], 5) == partition for row in there)
    assert sum(map(len, found.values())) == count
    assert {topic for topic, _ in read(cluster, stage(cluster, [rows], topic="b"))} == {"b"}


def test_small_task_without_keys_makes_one_file_and_large_ones_spread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round robin by record would make a file per partition of every tiny micro-batch."""
    cluster.create_topic("t", partitions=4)
    small = [batch(value=[f"{i}" for i in range(n, n + 10)]) for n in range(0, 100, 10)]
    assert len(stage(cluster, small)) == 1
    monkeypatch.setattr("spark_sink.routing.STICKY_RUN_BYTES", 1_000)
    found = read(cluster, stage(cluster, small * 10))
    counts = [len(rows) for rows in found.values()]
    assert len(counts) == 4
    assert max(counts) - min(counts) <= 12


def test_headers_are_staged_only_when_requested(cluster: Cluster) -> None:
    """Headers must be complete, and absent without includeHeaders."""
    headers = [[{"key": "h", "value": b"1"}], None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = batch(value=["a", "b"], key=["k", "k"], headers=pa.array(headers, kind))
    for asked, wanted in ((True, headers), (False, [None, None])):
        (there,) = read(cluster, stage(cluster, [rows], include_headers=asked)).values()
        assert [row["headers"] for row in there] == wanted


def test_tombstones_and_empty_values_stay_apart(cluster: Cluster) -> None:
    """A null value deletes a key in a compacted topic, an empty one does not."""
    (there,) = read(cluster, stage(cluster, [batch(key=["k"] * 2, value=[None, ""])])).values()
    assert values(there) == [None, b""]


# -- what is refused -----------------------------------------------------------------------------


def test_missing_topic_is_created_only_when_allowed(cluster: Cluster) -> None:
    """With auto.create.topics.enable=false a misspelt name must not create a topic."""
    with pytest.raises(UnknownTopicOrPartitionError):
        stage(cluster, [batch(value=["v"])], topic="new", auto_create=False)
    assert cluster.list_topics() == []
    stage(cluster, [batch(value=["v"])], topic="new", partitions=3)
    assert cluster.topic("new").partitions == 3


@pytest.mark.parametrize("name", ["__consumer_offsets", "../escape", "", "a/b"])
def test_topic_names_of_the_column_are_checked(cluster: Cluster, name: str) -> None:
    """A row must not write into the coordinator's tables, nor outside the root (R64)."""
    with pytest.raises(InvalidTopicError):
        stage(cluster, [batch(value=["v"], topic=[name])], topic=None)


def test_invalid_name_is_reported_with_its_row_and_creates_no_other(cluster: Cluster) -> None:
    """No part of a batch is written, nor an empty topic; rows count over batches (R60, R64)."""
    good = batch(value=["v"] * 3, topic=["fresh"] * 3)
    bad = batch(value=["v"] * 3, topic=["other", "no such", "no such"])
    with pytest.raises(InvalidTopicError, match=r"Row 1 of this task, column topic.*'no such'"):
        stage(cluster, [bad], topic=None)
    assert cluster.list_topics() == []
    stage(cluster, [good], topic=None)
    with pytest.raises(UnknownTopicOrPartitionError) as failure:
        stage(
            cluster,
            [good, batch(value=["v"], topic=["missing"])],
            topic=None,
            auto_create=False,
        )
    assert failure.value.row == 3
    assert failure.value.topic == "missing"


def test_partition_out_of_range_names_row_topic_and_count(cluster: Cluster) -> None:
    """The row is counted over all batches of the task (R60)."""
    cluster.create_topic("t", partitions=4)
    good = batch(value=["v"] * 3, partition=pa.array([0, 3, None], pa.int32()))
    bad = batch(value=["v"] * 3, partition=pa.array([0, 4, 9], pa.int32()))
    with pytest.raises(InvalidRecordError) as error:
        stage(cluster, [good, bad])
    assert "Row 4 " in str(error.value)
    assert "partition 4 does not exist, topic t has 4 partitions" in str(error.value)
    assert error.value.partition == 4


def test_partition_out_of_range_in_one_of_two_topics_names_that_row(cluster: Cluster) -> None:
    """Partition 3 is valid for one topic and not for the other."""
    cluster.create_topic("wide", partitions=4)
    cluster.create_topic("slim", partitions=2)
    topics = ["wide", "slim", "wide", "slim", "slim"]
    rows = batch(value=["v"] * 5, topic=topics, partition=pa.array([3, 1, 3, 3, 0], pa.int32()))
    with pytest.raises(InvalidRecordError, match=r"Row 3 .*topic slim has 2 partitions"):
        stage(cluster, [rows], topic=None)


def test_record_above_max_message_bytes_names_row_and_both_sizes(cluster: Cluster) -> None:
    """Nothing of the task may be published: no list of files comes back (R65)."""
    cluster.create_topic("t", config={"max.message.bytes": "1000"})
    fits = 1000 - RECORD_OVERHEAD_BYTES - 1
    rows = batch(key=["k"] * 2, value=["x" * fits] * 2)
    assert sum(item.num_records for item in stage(cluster, [rows])) == 2
    large = batch(key=["k"] * 2, value=["x" * fits, "x" * (fits + 1)])
    with pytest.raises(RecordTooLargeError) as error:
        stage(cluster, [rows, large])
    assert "Row 3 " in str(error.value)
    assert (error.value.size_bytes, error.value.size_bytes_max) == (1001, 1000)
    assert "1001 bytes" in str(error.value)
    assert "1000 of topic t" in str(error.value)


def test_record_above_the_default_limit_is_refused(cluster: Cluster) -> None:
    """Kafka's default is 1048588 bytes with the overhead (R65)."""
    limit = 1_048_588
    fits = limit - RECORD_OVERHEAD_BYTES
    assert len(stage(cluster, [batch(value=[b"x" * fits])])) == 1
    with pytest.raises(RecordTooLargeError, match=f"{limit + 1} bytes"):
        stage(cluster, [batch(value=[b"x" * (fits + 1)])])


def test_error_after_files_were_staged_deletes_none(cluster: Cluster) -> None:
    """Only vacuum deletes: a slow attempt of the same task may have named them (R56)."""
    good = batch(value=["x" * 100] * 100, partition=pa.nulls(100, pa.int32()))
    with pytest.raises(InvalidRecordError):
        stage(
            cluster,
            [good, good, batch(value=["v"], partition=pa.array([99], pa.int32()))],
            limits=TINY,
            target_size_bytes=300,
        )
    files = [m.path for m in cluster.store.list("t") if m.path.endswith(".parquet")]
    assert files
    assert cluster.topic("t").view.high_watermark(0) == 0


def test_wrong_columns_are_refused_in_the_task_too(cluster: Cluster) -> None:
    """The planner checked another schema when the DataFrame was changed by a hint or a cast."""
    with pytest.raises(InvalidRecordError, match="value"):
        stage(cluster, [batch(payload=["v"])])
    with pytest.raises(ConfigError, match="topic option required"):
        stage(cluster, [batch(value=["v"])], topic=None)


def test_failing_store_fails_the_task(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be written must not be in the commit message."""
    cluster.create_topic("t", partitions=4)

    def refuse(path: str, data: object) -> None:
        raise StorageError("no space")

    monkeypatch.setattr(cluster.store, "put_new", refuse)
    with pytest.raises(StorageError, match="no space"):
        stage(cluster, [batch(key=[f"{i}" for i in range(50)], value=["v"] * 50)])


# -- much data -----------------------------------------------------------------------------------


def keyed_batches(count: int, *, seed: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Batches of odd sizes; each value is its key and the key's own counter."""
    rng = random.Random(seed)
    counters: dict[int, int] = defaultdict(int)
    left = count
    while left:
        size = min(left, rng.choice([1, 7, 100, 400]))
        left -= size
        chosen = [rng.randrange(keys) for _ in range(size)]
        rows = []
        for key in chosen:
            rows.append(f"{key}:{counters[key]}:" + "x" * rng.randrange(50))
            counters[key] += 1
        yield batch(key=[f"{key}" for key in chosen], value=rows)


@given(
    seed=st.integers(0, 2**20),
    keys=st.sampled_from([1, 5, 300]),
    partitions=st.sampled_from([1, 4, 40]),
    target_size_bytes=st.sampled_from([500, 5_000, 1 << 20]),
    stream_from_bytes=st.sampled_from([0, TINY.stream_from_bytes]),
)
def test_all_rows_arrive_once_and_in_order_per_key(
    seed: int, keys: int, partitions: int, target_size_bytes: int, stream_from_bytes: int
) -> None:
    """Rolling, carrying, streaming and closing early must not lose, repeat or reorder rows."""
    cluster = Cluster.open("memory://", create=True)
    cluster.create_topic("t", partitions=partitions)
    count = 300
    staged = stage(
        cluster,
        keyed_batches(count, seed=seed, keys=keys),
        limits=replace(TINY, stream_from_bytes=stream_from_bytes),
        target_size_bytes=target_size_bytes,
    )
    found = read(cluster, staged)
    seen: dict[bytes, int] = defaultdict(int)
    for (_, partition), rows in found.items():
        for row in rows:
            key, number, _ = row["value"].split(b":")
            assert key == row["key"]
            assert partition_for_key(key, partitions) == partition
            assert int(number) == seen[key]
            seen[key] += 1
    assert sum(seen.values()) == count == sum(item.num_records for item in staged)


def test_files_roll_at_the_target_size(cluster: Cluster) -> None:
    """A file much above the target is slow to compact; much below, there are too many."""
    rng = random.Random(2)
    rows = [batch(value=[rng.randbytes(100) for _ in range(1000)]) for _ in range(20)]
    cluster.create_topic("t", partitions=1)
    staged = stage(cluster, rows, target_size_bytes=200_000)
    assert len(staged) > 5
    assert all(150_000 < item.size_bytes < 450_000 for item in staged[:-1])
    assert sum(item.num_records for item in staged) == 20_000


def test_remote_store_gets_its_last_files_several_at_once(cluster: Cluster) -> None:
    """Many partitions, one request each: the result must not depend on their order."""
    cluster.create_topic("t", partitions=32)
    keys = [f"{i}" for i in range(2_000)]
    staged = stage(cluster, [batch(key=keys, value=keys)])
    assert [item.partition for item in staged] == list(range(32))
    assert sum(len(rows) for rows in read(cluster, staged).values()) == 2_000


def test_local_store_stages_as_the_memory_store_does(tmp_path: Path) -> None:
    """Rows streamed into a local file, rolled and put."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True)
    cluster.create_topic("t", partitions=3)
    staged = stage(
        cluster, keyed_batches(5_000, seed=9, keys=50), limits=TINY, target_size_bytes=20_000
    )
    assert sum(len(rows) for rows in read(cluster, staged).values()) == 5_000


def test_local_store_streams_a_file_from_its_first_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoded bytes that wait in memory cost as much again as encoding them (D120)."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True)
    cluster.create_topic("t", partitions=1)
    held_bytes: list[int] = []
    write = BatchFileWriter.write

    def watched(writer: BatchFileWriter, table: pa.Table) -> None:
        write(writer, table)
        held_bytes.append(writer.held_bytes)

    monkeypatch.setattr(BatchFileWriter, "write", watched)
    value = random.Random(4).randbytes(1 << 19)
    (staged,) = stage(cluster, (batch(key=["k"], value=[value]) for _ in range(48)))
    assert staged.num_records == 48
    assert len(held_bytes) > 1
    assert set(held_bytes) == {0}
