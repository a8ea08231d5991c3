"""delta-rs and Spark read a compacted topic as they read it before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.housekeeping.compaction.logs import TOPIC, Record, append, begin, commit, records_of
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite
from txnlog.protocol.compaction import CompactionSettings, plan
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = LogSettings(checkpoint_mode="off")
SMALL = CompactionSettings(segment_bytes=1 << 20, inputs_min=2, inputs_max=3)
VISIBLE = "txn_status IN ('none', 'committed')"
Row = tuple[int, Any, Any]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Deferred, eager and aborted batches, with and without headers."""
    cluster = Cluster.open(str(tmp_path / "root"), create=True, shards=1, settings=SETTINGS)
    config = {"min.cleanable.dirty.ratio": "0"}
    cluster.create_topic(TOPIC, partitions=1, config=config)
    row, eager = begin(cluster), begin(cluster, "eager")
    for number in range(4):
        headers = [("h", b"1")] if number % 2 else None
        records = [Record(b"k%d" % n, b"%d" % number, 5, headers) for n in range(3)]
        row = commit(cluster, row, records)
        eager = append(cluster, eager, records)
        end = cluster.coordinator
        eager = end.commit(eager, []) if number == 2 else end.abort(eager)
    for _ in range(3):
        eager = append(cluster, eager, [Record(b"x", b"aborted")])
        eager = cluster.coordinator.abort(eager)
    return cluster


def merge(cluster: Cluster) -> None:
    """In groups of three, the last one without any record."""
    for group in plan(cluster.topic(TOPIC).view, TOPIC, SMALL):
        commit_segment(cluster, group, rewrite(cluster.store, group))


def key_compact(cluster: Cluster) -> None:
    log = cluster.topic(TOPIC)
    log.alter(lambda config: {**config, "cleanup.policy": "compact"})
    Compactor(cluster).compact(TOPIC)


def folder(cluster: Cluster) -> str:
    return f"{cluster.root.removeprefix('file://')}/{TOPIC}"


def ours(cluster: Cluster) -> list[Row]:
    found = records_of(cluster.topic(TOPIC))
    return [(offset, record.key, record.value) for offset, record in found]


def with_delta_rs(cluster: Cluster) -> list[Row]:
    rows = DeltaTable(folder(cluster)).to_pyarrow_table().to_pylist()
    return sorted(
        (row["base_offset"] + row["offset_delta"], row["key"], row["value"])
        for row in rows
        if row["txn_status"] in ("none", "committed")
    )


def test_delta_rs_reads_the_same_after_compaction(cluster: Cluster) -> None:
    """Any Delta reader may read a topic (R20)."""
    before = ours(cluster)
    assert with_delta_rs(cluster) == before
    merge(cluster)
    assert with_delta_rs(cluster) == ours(cluster) == before
    assert 0 in [b.num_records for b in cluster.topic(TOPIC).view.by_path.values()]
    create_checkpoint(cluster.store, TOPIC, trust_ms=SETTINGS.trust_ms)
    assert with_delta_rs(cluster) == before
    key_compact(cluster)
    left = ours(cluster)
    assert with_delta_rs(cluster) == left
    assert {key: value for _, key, value in before} == {key: value for _, key, value in left}
    assert len(left) == 3


@pytest.mark.spark
@pytest.mark.soak
def test_spark_reads_the_same_after_compaction(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's Delta reader, a Delta stream that is under way, and our source (R20, R22)."""
    before = ours(cluster)

    def stream() -> list[Row]:
        query = (
            spark.readStream.format("delta")
            .option("ignoreChanges", "true")
            .load(folder(cluster))
            .writeStream.format("delta")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "copy"))
        )
        query.awaitTermination()
        return rows(spark.read.format("delta").load(str(tmp_path / "copy")).where(VISIBLE))

    def delta() -> list[Row]:
        return rows(spark.read.format("delta").load(folder(cluster)).where(VISIBLE))

    def source() -> list[Row]:
        root = folder(cluster).rpartition("/")[0]
        options = {"path": root, "subscribe": TOPIC, "startingOffsets": "earliest"}
        found = spark.read.format("txnlog").options(**options).load()
        return collected(found.select("offset", "key", "value"))

    assert delta() == source() == before
    streamed = stream()
    merge(cluster)
    assert delta() == source() == before
    assert stream() == streamed, "the same records, moved, are no new ones"
    create_checkpoint(cluster.store, TOPIC, trust_ms=SETTINGS.trust_ms)
    assert delta() == before
    key_compact(cluster)
    assert delta() == source() == ours(cluster)
    assert stream() == streamed


def rows(frame: DataFrame) -> list[Row]:
    return collected(frame.selectExpr("base_offset + offset_delta AS offset", "key", "value"))


def collected(frame: DataFrame) -> list[Row]:
    return sorted(
        (row["offset"], bytes(row["key"]), bytes(row["value"])) for row in frame.collect()
    )
