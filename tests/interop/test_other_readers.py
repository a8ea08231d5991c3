"""Others read our tables: Spark's Delta reader and delta-rs see the same rows and states.

Before and after a checkpoint, at the head and by version. The tables are written by the real
committer on a local disk, with the data files of the real Parquet writer.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

from tests.staged_files import append_ongoing, record_columns, written_file
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.protocol.metadata import (
    AppTransaction,
    Owner,
    StagedBatch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.topics import TopicCommit, marker_app_id
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TRUST_MS = 60_000
EITHER = pytest.mark.parametrize(
    "checkpointed", [pytest.param(False, marks=pytest.mark.soak), True]
)
COLUMNS = ["partition", "offset", "key", "value", "txn_status"]
COMMITTED = ("none", "committed")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    settings = LogSettings(checkpoint_mode="off")
    return Cluster.open(
        str(tmp_path / "root"), create=True, shards=1, offsets_shards=1, settings=settings
    )


def stage(cluster: Cluster, topic: TopicLog, partition: int, values: list[bytes]) -> StagedBatch:
    records = record_columns(
        timestamp=[1_700_000_000_000_000] * len(values),
        key=[None if i % 3 == 1 else b"k" * i for i in range(len(values))],
        value=values,
    )
    return written_file(cluster, topic.name, records, partition=partition)


def history(cluster: Cluster) -> TopicLog:
    """Deferred commits, an eager commit and an eager abort: headers are re-added twice."""
    topic = cluster.create_topic("events", partitions=2)
    coordinator = cluster.coordinator
    row = coordinator.init_producer_id("writer", Owner(run_id="run"))
    for number in range(3):
        values = [f"{number}-{i}".encode() for i in range(4)]
        staged = [stage(cluster, topic, 0, values), stage(cluster, topic, 1, values[:2])]
        row = coordinator.commit(row, staged)
    row = eager(cluster, topic, row, b"eager")
    row = coordinator.commit(row)
    row = eager(cluster, topic, row, b"aborted")
    coordinator.abort(row)
    return topic


def eager(
    cluster: Cluster, topic: TopicLog, row: TransactionMetadata, value: bytes
) -> TransactionMetadata:
    partitions = TopicPartitions(topic=topic.name, topic_id=topic.topic_id, partitions=(0,))
    row = cluster.coordinator.add_partitions(row, [partitions])
    append_ongoing(cluster, row, [stage(cluster, topic, 0, [value] * 3)], {0: 0})
    return row


def with_spark(spark: SparkSession, folder: str, version: int | None = None) -> DataFrame:
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(folder)


def by_delta_rs(folder: str, version: int | None = None) -> list[dict[str, Any]]:
    """The rows that `records` gives of Spark's."""
    table = DeltaTable(folder, version=version).to_pyarrow_table()
    offset = pc.add(table["base_offset"], table["offset_delta"])
    rows = table.append_column("offset", offset).select(COLUMNS)
    return rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """By partition and offset; sorted here, which costs no job of Spark's."""
    columns = ("partition", "base_offset + offset_delta AS offset", *COLUMNS[2:])
    return by_position(frame.selectExpr(*columns))


def by_position(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in frame.collect()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def states(frame: DataFrame) -> list[dict[str, Any]]:
    """Of one id."""
    columns = ("transactional_id", "producer_epoch", "txn_epoch", "state")
    return [row.asDict() for row in frame.select(*columns).collect()]


@EITHER
def test_readers_topic_same_records_as_ours(
    spark: SparkSession, cluster: Cluster, checkpointed: bool
) -> None:
    """A re-added path must replace its header in every engine, in a checkpoint, too (R11)."""
    topic = history(cluster)
    folder = cluster.store.local_path("events")
    assert folder is not None
    if checkpointed:
        assert create_checkpoint(cluster.store, "events", trust_ms=TRUST_MS) == topic.log.version
    theirs = records(with_spark(spark, folder))
    assert theirs == by_delta_rs(folder)
    ours = spark.read.format("txnlog").option("subscribe", "events").load(cluster.root)
    statuses = [row.pop("txn_status") for row in theirs]
    committed = [row for row, status in zip(theirs, statuses, strict=True) if status in COMMITTED]
    assert by_position(ours.select("partition", "offset", "key", "value")) == committed
    assert len(committed) == 3 * 6 + 3
    assert statuses.count("aborted") == 3


@EITHER
def test_readers_topic_by_version_same_as_our_log(
    spark: SparkSession, cluster: Cluster, checkpointed: bool
) -> None:
    """Time travel shows what was live at each version, aborted and undecided data included."""
    topic = history(cluster)
    folder = cluster.store.local_path("events")
    assert folder is not None
    if checkpointed:
        create_checkpoint(cluster.store, "events", trust_ms=TRUST_MS)
    for version in (1, topic.log.version - 3, topic.log.version - 1):
        rows = records(with_spark(spark, folder, version))
        assert rows == by_delta_rs(folder, version)
    assert [row["txn_status"] for row in rows].count("ongoing") == 3


@pytest.mark.soak
@EITHER
def test_readers_state_one_row_per_id_at_every_version(
    spark: SparkSession, cluster: Cluster, checkpointed: bool
) -> None:
    """`SELECT *` over a shard is the coordinator's state, and time travel its history (R38)."""
    history(cluster)
    cluster.coordinator.init_producer_id("other", Owner(run_id="run"))
    shard = cluster.shard(0)
    folder = cluster.store.local_path(shard.path)
    assert folder is not None
    if checkpointed:
        create_checkpoint(cluster.store, shard.path, trust_ms=TRUST_MS)
    # Each PREPARE_COMMIT completes the one before; an eager transaction opens after COMPLETE.
    deferred = ["PREPARE_COMMIT"] * 3 + ["COMPLETE_COMMIT"]
    eager_end = ["ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
    aborted = ["ONGOING", "PREPARE_ABORT", "COMPLETE_ABORT"]
    history_of_writer = ["EMPTY", *deferred, *eager_end, *aborted]
    for version, expected in list(enumerate(history_of_writer, start=1))[::3]:
        rows = states(with_spark(spark, folder, version))
        rust = DeltaTable(folder, version=version).to_pyarrow_table(columns=[*rows[0]])
        assert rows == rust.to_pylist()
        assert [row["state"] for row in rows] == [expected], "one live row per id"
    found = {row["transactional_id"]: row["state"] for row in with_spark(spark, folder).collect()}
    assert found == {"writer": "COMPLETE_ABORT", "other": "EMPTY"}


def test_readers_group_row_same_offsets(spark: SparkSession, cluster: Cluster) -> None:
    """The consumer offsets are a table like any other (R45)."""
    cluster.groups.reset("g", {"events": {0: 42}})
    folder = cluster.store.local_path("__consumer_offsets-0")
    assert folder is not None
    for _ in range(2):
        frame = with_spark(spark, folder).select("group_id", "generation", "offsets", "tickets")
        rust = DeltaTable(folder).to_pyarrow_table(columns=frame.columns)
        assert [row.asDict(recursive=True) for row in frame.collect()] == rust.to_pylist()
        assert [row["group_id"] for row in frame.collect()] == ["g"]
        create_checkpoint(cluster.store, "__consumer_offsets-0", trust_ms=TRUST_MS)


def test_checkpoint_holds_what_delta_rs_itself_reads_in_the_commits(tmp_path: Path) -> None:
    """Commits are combined before delta-rs sees them: no action may be lost or reappear."""
    root = tmp_path / "root"
    cluster = Cluster.open(
        str(root),
        create=True,
        shards=1,
        offsets_shards=1,
        settings=LogSettings(checkpoint_mode="off"),
    )
    topic = cluster.create_topic("t", partitions=2)
    kept = root / "t/_delta_log"
    for turn in range(3):
        row = cluster.coordinator.init_producer_id(f"id-{turn}", Owner(run_id=f"r{turn}"))
        for number in range(3):
            row = cluster.coordinator.add_partitions(
                row, [TopicPartitions(topic="t", topic_id=topic.topic_id, partitions=(0, 1))]
            )
            append_ongoing(cluster, row, [stage(cluster, topic, 0, [b"eager"])], {0: 0})
            end = cluster.coordinator.abort if number == 1 else cluster.coordinator.commit
            row = end(row)
            row = cluster.coordinator.commit(row, [stage(cluster, topic, 1, [b"a", b"b"])])
        oldest = min(topic.view.by_path)
        topic.transact(lambda state, path=oldest: TopicCommit(operation="X", removes=(path,)))
        by_commits = read_by_delta_rs(root / "t")
        create_checkpoint(cluster.store, "t", trust_ms=TRUST_MS)
        # Our reader misses the newest one.
        before = sorted(kept.glob("*.json"))[:-1]
        hidden = [path.rename(tmp_path / path.name) for path in before]
        assert read_by_delta_rs(root / "t") == by_commits
        for path in hidden:
            path.rename(kept / path.name)
        cluster = Cluster.open(str(root), settings=LogSettings(checkpoint_mode="off"))
        topic = cluster.topic("t")


def test_readers_txn_version_same_as_ours(cluster: Cluster) -> None:
    """A batch write's txnAppId is Delta's: tools of other writers read it there (R36)."""
    topics = [cluster.create_topic(name, partitions=1) for name in ("events", "more")]
    for version, among in ((3, topics), (4, topics[:1])):
        batches = [stage(cluster, topic, 0, [b"x"]) for topic in among]
        app = AppTransaction(app_id="nightly", version=version)
        assert commit_one_off(cluster, batches, Owner(run_id="r"), app=app, phases=None)
    for checkpointed in (False, True):
        for topic, version in zip(topics, (4, 3), strict=True):
            if checkpointed:
                create_checkpoint(cluster.store, topic.path, trust_ms=TRUST_MS)
            folder = cluster.store.local_path(topic.path)
            assert DeltaTable(str(folder)).transaction_version("nightly") == version


def read_by_delta_rs(table: Path) -> tuple[object, ...]:
    """(version, live files with headers and statistics, txn versions, metadata, our own view)."""
    found = DeltaTable(table)
    log = TopicLog(ObjectStore.from_url(str(table.parent)), table.name)
    log.refresh()
    ids = [*map(marker_app_id, log.view.markers), "txnlog/end/0"]
    adds = pa.table(found.get_add_actions(flatten=True)).sort_by("path").to_pylist()
    metadata = found.metadata()
    return (
        found.version(),
        adds,
        {app_id: found.transaction_version(app_id) for app_id in ids},
        (metadata.id, metadata.partition_columns, metadata.configuration),
        log.view.by_path,
    )


def test_readers_column_that_a_file_does_not_have_is_null(
    spark: SparkSession, cluster: Cluster
) -> None:
    """Files of records without headers have no such column; other files of the topic do."""
    topic = cluster.create_topic("t", partitions=1)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    row = cluster.coordinator.commit(row, [stage(cluster, topic, 0, [b"bare"])])
    path = f"part-0-{uuid.uuid4()}.parquet"
    headers = pa.array([[{"key": "h", "value": b"1"}]], RECORD_SCHEMA.field("headers").type)
    records = pa.table(
        [pa.array([0]).cast(RECORD_SCHEMA.field("timestamp").type), [b"k"], [b"full"], headers],
        schema=RECORD_SCHEMA,
    )
    written = write_batch_file(cluster.store, f"t/{path}", records)
    full = replace(stage(cluster, topic, 0, [b"full"]), path=path, size_bytes=written.size_bytes)
    cluster.coordinator.commit(row, [full])
    root = cluster.root.removeprefix("file://")
    by_spark = spark.read.format("delta").load(f"{root}/t").orderBy("base_offset")
    found = [(bytes(r.value), r.headers and r.headers[0].key) for r in by_spark.collect()]
    assert found == [(b"bare", None), (b"full", "h")]
    table = DeltaTable(f"{root}/t").to_pyarrow_table().sort_by("base_offset")
    assert [h and h[0]["key"] for h in table["headers"].to_pylist()] == [None, "h"]
    ours = spark.read.format("txnlog").options(subscribe="t", includeHeaders="true").load(root)
    rows = [r.headers and r.headers[0].key for r in ours.orderBy("offset").collect()]
    assert rows == [None, "h"]
