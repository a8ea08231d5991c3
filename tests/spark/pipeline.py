"""The pipeline that the tests run, kill and check: topic `numbers` into `evens` and `odds`.

Record i of `numbers` has value str(i) and key str(i % KEYS), so all records of a key go to one
topic and one partition, and must be there in the order of their values. The same code runs in the
tests' own session and in separate drivers (driver.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.state_rows import as_shown
from txnlog.protocol.metadata import Owner
from txnlog.storage.batches.reader import FileSpan, read_batch_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

SOURCE = "numbers"
OUTPUTS = ("evens", "odds")
GROUP = "splitters"
KEYS = 10
PARTITIONS = 2
WAIT_S = 600

NUMBER = "cast(cast(value as string) as long)"
TO_TOPICS = f"if({NUMBER} % 2 = 0, 'evens', 'odds') as topic"
LARGE = "array(named_struct('key', 'h', 'value', cast(repeat('x', 250000) as binary))) as headers"
"""Ten such records are too many bytes for a commit message."""


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """A record as stored in a topic."""

    topic: str
    partition: int
    offset: int
    key: str
    value: int


def feed(root: str | Path, numbers: range, topic: str = SOURCE) -> None:
    """Append records to the source topic, in one transaction; creates cluster and topic."""
    cluster = Cluster.open(str(root), create=True)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": [str(number % KEYS) for number in numbers],
            "value": [str(number) for number in numbers],
        }
    )
    stager = Stager(
        cluster,
        topic=topic,
        include_headers=False,
        target_size_bytes=1 << 20,
        partitions=PARTITIONS,
    )
    commit_one_off(cluster, stager.write([batch]), Owner(run_id="feeder"))


def numbers(spark: SparkSession, root: str | Path, **options: object) -> DataFrame:
    """The source topic as a stream, read under GROUP from its committed offsets."""
    defaults = {
        "subscribe": SOURCE,
        "group.id": GROUP,
        "startingOffsets": "committed",
        "auto.offset.reset": "earliest",
    }
    return (
        spark.readStream.format("txnlog").options(**set_options(defaults, options)).load(str(root))
    )


def split(frame: DataFrame, *, shift: int = 0, large: bool = False) -> DataFrame:
    """Each number with its output topic; an even `shift` is added, to distinguish runs."""
    value = f"cast({NUMBER} + {shift} as string) as value"
    return frame.selectExpr("key", value, TO_TOPICS, *([LARGE] if large else []))


def writer(
    frame: DataFrame, root: str | Path, checkpoint: str | Path, **options: object
) -> DataStreamWriter:
    """A sink that commits the offsets of GROUP with each batch, and ends when all is read."""
    defaults = {
        "txnlog.root": str(root),
        "checkpointLocation": str(checkpoint),
        "group.id": GROUP,
        "num.partitions": PARTITIONS,
    }
    chosen = frame.writeStream.format("txnlog").options(**set_options(defaults, options))
    return chosen.trigger(availableNow=True)


def start(
    spark: SparkSession,
    root: str | Path,
    checkpoint: str | Path,
    *,
    batch_records: int | None = None,
    shift: int = 0,
    large: bool = False,
    source: Mapping[str, object] | None = None,
    **options: object,
) -> StreamingQuery:
    """Start the pipeline on the available input; `source` and `options` are their options."""
    frame = numbers(spark, root, maxOffsetsPerTrigger=batch_records, **(source or {}))
    frame = split(frame, shift=shift, large=large)
    return writer(frame, root, checkpoint, **options).start()


def run(query: StreamingQuery) -> StreamingQuery:
    """Wait until a query has ended. Raises StreamingQueryException when it failed."""
    assert query.awaitTermination(WAIT_S), "the query is still running"
    return query


def set_options(defaults: dict[str, object], options: dict[str, object]) -> dict[str, str]:
    """Options for Spark; None omits one, and `_` stands for a dot."""
    chosen = {**defaults, **{name.replace("_", "."): value for name, value in options.items()}}
    return {name: str(value) for name, value in chosen.items() if value is not None}


def records(root: str | Path, topic: str) -> list[Record]:
    """All committed records of a topic, by partition and offset, read without Spark."""
    cluster = Cluster.open(str(root))
    if topic not in cluster.list_topics():
        return []
    return sorted(_records(cluster, topic))


def _records(cluster: Cluster, topic: str) -> Iterator[Record]:
    log = cluster.topic(topic)
    for partition in range(log.partitions):
        end = log.view.last_stable_offset(partition)
        for header in log.view.batches(partition, 0, end, True):
            for batch in read_batch_file(cluster.store, FileSpan(f"{log.path}/{header.path}")):
                for row in batch.to_pylist():
                    offset = header.base_offset + row["offset_delta"]
                    key, value = row["key"].decode(), int(row["value"])
                    yield Record(topic, partition, offset, key, value)


def live_files(root: str | Path, topic: str) -> set[str]:
    """Names of the data files that a topic's log refers to."""
    log = Cluster.open(str(root)).topic(topic)
    ends = {p: log.view.high_watermark(p) for p in range(log.partitions)}
    return {h.path for p, end in ends.items() for h in log.view.batches(p, 0, end, False)}


def files_on_disk(root: str | Path, topic: str) -> set[str]:
    """Names of all data files in a topic's folder, staged ones included."""
    return {path.name for path in (Path(root) / topic).glob("part-*.parquet")}


def check(
    root: str | Path, count: int, *, groups: Sequence[str] = (GROUP,), ordered: bool = True
) -> None:
    """Numbers below `count` are published exactly once, each in its topic, in key order, densely.

    Also: no transaction is open, and the groups' offsets are at the end of the input.
    """
    found = [record for topic in OUTPUTS for record in records(root, topic)]
    assert sorted(record.value for record in found) == list(range(count))
    last: dict[tuple[str, str], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    for record in found:
        assert record.topic == OUTPUTS[record.value % 2], record
        assert record.key == str(record.value % KEYS), record
        place = (record.topic, record.partition)
        assert record.offset == offsets.get(place, 0), f"{record}: offsets are not dense"
        offsets[place] = record.offset + 1
        if ordered:
            before = last.get((record.topic, record.key), -1)
            assert record.value > before, f"{record}: out of order"
            last[record.topic, record.key] = record.value
    cluster = Cluster.open(str(root))
    for number in range(cluster.shards):
        shard = cluster.shard(number)
        shard.refresh()
        for row in as_shown(cluster, list(shard.view.rows.values())):
            assert row.state.is_idle, row
    committed = [
        positions for group in groups for positions in cluster.groups.fetch(group).values()
    ]
    assert sum(sum(partitions.values()) for partitions in committed) == count
