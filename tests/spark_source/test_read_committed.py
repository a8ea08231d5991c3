"""Batch reads by Spark's own Delta reader: the records of format("txnlog"), one snapshot each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException

from spark_source.sql import Views, conditions, create_views, read_committed, read_uncommitted
from tests.spark_source.conftest import START_US, Topics
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError, StorageError, UnknownTopicOrPartitionError
from txnlog.producer import Producer
from txnlog.protocol.batches import ABORTED, COMMITTED, ONGOING
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.checkpoints import create_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders.eu-1"
LATER_US = START_US + 3_600_000_000
ORDER = ["topic", "partition", "offset"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Topics:
    """A root that tests only read: a topic with everything in it, an empty one, a plain one."""
    folder = tmp_path_factory.mktemp("sql")
    topics = Topics(Cluster.open(str(folder / "a root"), create=True))
    topics.create(TOPIC, 4)
    topics.append(TOPIC, 0, [b"a", b"b"], headers=[[("h", b"1"), ("h", None)], None])
    topics.append(TOPIC, 0, [b"aborted"], status=ABORTED)
    erased = topics.append(TOPIC, 0, [b"c", b"erased", b"d"], status=COMMITTED)
    topics.erase(TOPIC, erased, [True, False, True])
    topics.append(TOPIC, 0, [None], keys=[b"tombstone"])
    topics.append(TOPIC, 1, [b"e"], status=COMMITTED)
    topics.append(TOPIC, 1, [b"open"], status=ONGOING)
    topics.append(TOPIC, 1, [b"behind it"])
    topics.append(TOPIC, 2, [b"gone"])
    topics.append(TOPIC, 2, [b"gone", b"aborted, gone"], status=ABORTED)
    topics.append(TOPIC, 2, [b"gone", b"f", b"g"], times_us=[LATER_US + i for i in range(3)])
    topics.delete_records(TOPIC, 2, 4)
    topics.create("empty")
    topics.create("plain", 2)
    topics.append("plain", 1, [b"p"])
    return topics


def by_source(spark: SparkSession, root: str, *names: str, **options: str) -> DataFrame:
    """The same by our own source."""
    reader = spark.read.format("txnlog").option("subscribe", ",".join(names))
    return reader.options(**options).load(root)


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.orderBy(*ORDER).collect()]


# --- The same records ----------------------------------------------------------------------------


@pytest.mark.spark
def test_read_committed_gives_what_the_source_gives(spark: SparkSession, world: Topics) -> None:
    """Aborted, undecided, behind it, erased, deleted, null, with headers or not (R15, R16)."""
    names = [TOPIC, "empty", "plain"]
    ours = read_committed(spark, world.root, names, include_headers=True)
    source = by_source(spark, world.root, *names, includeHeaders="true")
    assert ours.schema == source.schema
    assert_df_equality(ours.orderBy(*ORDER), source.orderBy(*ORDER))
    assert ours.where("value IS NOT NULL").count() == 8


@pytest.mark.spark
@pytest.mark.soak
def test_read_uncommitted_gives_what_the_source_gives(spark: SparkSession, world: Topics) -> None:
    """All records from the log start on, and headers only on request (R18)."""
    bare = read_uncommitted(spark, world.root, TOPIC)
    source = by_source(spark, world.root, TOPIC, **{"isolation.level": "read_uncommitted"})
    assert bare.schema == source.schema
    assert_df_equality(bare.orderBy(*ORDER), source.orderBy(*ORDER))


@pytest.mark.spark
def test_read_committed_opens_only_files_that_may_match(spark: SparkSession, world: Topics) -> None:
    """Header columns cost nothing: Delta leaves files out when the read is planned."""
    frame = read_committed(spark, world.root, TOPIC)
    assert files(frame) == 5
    assert files(frame.where("partition = 0")) == 3
    # The header's columns can be selected, though they are not in the result.
    assert files(frame.where("last_offset >= 5 AND offset = 5")) == 3
    found = frame.where("last_offset >= 5 AND offset = 5").select("partition", "value").collect()
    assert sorted((row.partition, bytes(row.value)) for row in found) == [(0, b"d"), (2, b"g")]
    # The erased file has no statistics.
    assert files(frame.where(f"timestamp >= timestamp_micros({LATER_US})")) == 2


def files(frame: DataFrame) -> int:
    """How many files the plan of a frame reads."""
    return len(frame.inputFiles())


def test_conditions_of_a_quiet_topic_are_on_the_status_alone(world: Topics) -> None:
    """Bounds without effect would cost a check of each file, or even of each record (R12)."""
    view = world.cluster.topic("plain").view
    assert list(conditions(view, read_committed=True)) == ["txn_status IN ('none', 'committed')"]
    assert list(conditions(view, read_committed=False)) == []
    everything = list(conditions(world.cluster.topic(TOPIC).view, read_committed=True))
    end = 2**63 - 1
    assert everything == [
        "txn_status IN ('none', 'committed')",
        f"last_offset < get(array({end}L, 1L, {end}L, {end}L), partition)",
        "last_offset >= get(array(0L, 0L, 4L, 0L), partition)",
        "base_offset + offset_delta >= get(array(0L, 0L, 4L, 0L), partition)",
    ]


@pytest.mark.spark
def test_read_committed_beside_an_open_transaction_below_the_log_start(
    spark: SparkSession, topics: Topics
) -> None:
    """The last stable offset is the log start then, inside a batch that must wait (R14, R15)."""
    topics.create("t")
    undecided = topics.append("t", 0, [b"open"] * 4, status=ONGOING)
    topics.append("t", 0, [b"%d" % number for number in range(4, 10)], status=COMMITTED)
    topics.delete_records("t", 0, 6)
    views = create_views(spark, topics.root, topics=["t"], prefix="beside ")
    assert values(by_source(spark, topics.root, "t")) == []
    assert values(read_committed(spark, topics.root, "t")) == []
    assert values(spark.table("`beside t`")) == []
    rest = [b"6", b"7", b"8", b"9"]
    assert values(read_uncommitted(spark, topics.root, "t")) == rest
    topics.settle("t", undecided, ABORTED)
    views.refresh()
    assert values(read_committed(spark, topics.root, "t")) == rest
    assert values(spark.table("`beside t`")) == rest
    views.drop()


# --- One snapshot --------------------------------------------------------------------------------


@pytest.mark.spark
def test_read_committed_is_a_snapshot(spark: SparkSession, topics: Topics) -> None:
    """What is appended, decided, rewritten or expired after the frame was made (R19, R20)."""
    topics.create("t")
    first = topics.append("t", 0, [b"a", b"b"])
    undecided = topics.append("t", 0, [b"open"], status=ONGOING)
    frame = read_committed(spark, topics.root, "t")
    topics.append("t", 0, [b"late"])
    topics.settle("t", undecided, COMMITTED)
    topics.erase("t", first, [False, True])
    topics.delete_records("t", 0, 2)
    topics.cluster.topic("t").log.refresh()
    assert values(frame) == [b"a", b"b"]
    topics.cluster.delete_topic("t")
    assert values(frame) == [b"a", b"b"]
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 't'"):
        read_committed(spark, topics.root, "t")
    topics.create("t")
    topics.append("t", 0, [b"another topic"])
    again = read_committed(spark, topics.root, "t")
    assert [(row.offset, bytes(row.value)) for row in again.collect()] == [(4, b"another topic")]


@pytest.mark.spark
@pytest.mark.soak
def test_read_committed_of_files_that_vacuum_deleted_names_the_file(
    spark: SparkSession, topics: Topics
) -> None:
    """A frame older than what vacuum keeps must fail, and name the missing file (R66)."""
    topics.create("t")
    header = topics.append("t", 0, [b"a"])
    frame = read_committed(spark, topics.root, "t")
    topics.expire("t", header)
    Path(topics.root, "t", header.path).unlink()
    with pytest.raises(Exception, match=f"{header.path}.*does not exist|recreating the Dataset"):
        frame.collect()
    assert read_committed(spark, topics.root, "t").count() == 0


@pytest.mark.spark
@pytest.mark.soak
def test_read_committed_continues_after_log_clean_up(spark: SparkSession, topics: Topics) -> None:
    """The version was deleted from the log: an older frame has already been resolved (R70)."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    frame = read_committed(spark, topics.root, "t")
    assert values(frame) == [b"a"]
    topics.append("t", 0, [b"b"])
    create_checkpoint(topics.cluster.store, "t", trust_ms=60_000)
    for path in Path(topics.root, "t/_delta_log").glob("*.json"):
        path.unlink()
    assert values(frame) == [b"a"]


# --- Views ---------------------------------------------------------------------------------------


@pytest.fixture
def views(spark: SparkSession, topics: Topics) -> Any:
    """Views over two topics, a transaction that is open and a group; dropped at the end."""
    topics.create(TOPIC)
    topics.append(TOPIC, 0, [b"a", b"b"])
    topics.create("empty")
    topics.commit_offsets("g", {TOPIC: {0: 1}, "gone": {3: 7}})
    topics.cluster.coordinator.init_producer_id("shop", Owner(run_id="r", host="h", pid=1))
    made = create_views(spark, topics.root)
    yield made
    made.drop()


@pytest.mark.spark
def test_views_serve_plain_sql(spark: SparkSession, topics: Topics, views: Views) -> None:
    """One call, then SQL only; state and offsets with the columns of Kafka's tools."""
    assert views.names == ("__transaction_state", "__consumer_offsets", "empty", TOPIC)
    found = spark.sql(f"SELECT offset, string(value) AS v FROM `{TOPIC}` ORDER BY 1").collect()
    assert [tuple(row) for row in found] == [(0, "a"), (1, "b")]
    assert spark.table("empty").count() == 0
    state = spark.table("__transaction_state").collect()[0].asDict()
    expected = {"TransactionalId": "shop", "ProducerEpoch": 0, "TransactionState": "Empty"}
    assert expected.items() <= state.items()
    assert state["CoordinatorId"] == topics.cluster.shard_of("shop")
    assert (state["TopicPartitions"], state["CurrentTransactionStartTimeMs"]) == ([], None)
    asked = """
        SELECT GroupId, Topic, Partition, CurrentOffset, LogEndOffset, Lag
        FROM __consumer_offsets ORDER BY Topic
    """
    rows = [tuple(row) for row in spark.sql(asked).collect()]
    assert rows == [("g", "gone", 3, 7, None, None), ("g", TOPIC, 0, 1, 2, 1)]
    assert "offsets" not in repr(views).replace("__consumer_offsets", "")

    topics.append(TOPIC, 0, [b"c"])
    topics.cluster.delete_topic("empty")
    assert spark.table(f"`{TOPIC}`").count() == 2
    views.refresh()
    assert spark.table(f"`{TOPIC}`").count() == 3
    with pytest.raises(AnalysisException, match="empty"):
        spark.table("empty")

    topics.create("again")
    views.refresh()
    topics.cluster.delete_topic("again")
    topics.create("AGAIN")
    views.refresh()
    assert "AGAIN" in views.names
    assert spark.table("AGAIN").count() == 0


@pytest.mark.spark
@pytest.mark.soak
def test_views_show_whole_what_the_state_shows_as_committed(
    spark: SparkSession, topics: Topics
) -> None:
    """A transaction over two topics: the state is read first, the topics after it (R53)."""
    producer = Producer({"txnlog.root": topics.root, "transactional.id": "shop"})
    producer.init_transactions()
    for name in ("orders", "stock"):
        topics.create(name)
    for number in range(3):
        with producer.transaction():
            producer.produce("orders", str(number))
            producer.produce("stock", str(number))
        views = create_views(spark, topics.root, prefix="lake ")
        state = spark.table("`lake __transaction_state`").collect()[0]
        assert state.TransactionState == "CompleteCommit"
        both = spark.sql("SELECT * FROM `lake orders` UNION ALL SELECT * FROM `lake stock`")
        assert sorted(bytes(row.value) for row in both.collect()) == sorted(
            str(n).encode() for n in range(number + 1) for _ in range(2)
        )
    producer.close()
    views.drop()


def test_views_that_differ_only_by_case_are_refused(topics: Topics) -> None:
    """Topic names have case, SQL's have none: one view would hide the other."""
    topics.create("t")
    topics.create("T")
    with pytest.raises(ConfigError, match="Views T and t have the same name"):
        create_views(StandIn(), topics.root)  # type: ignore[arg-type]


# --- Errors --------------------------------------------------------------------------------------


class StandIn:
    """A session whose reads return or raise a given value."""

    def __init__(
        self,
        error: Exception | None = None,
        *,
        version: str = "4.2.0",
        rows: Exception | None = None,
    ) -> None:
        self.read = self.conf = self
        self.version = version
        self._error = error
        self._rows = rows

    def format(self, name: str) -> StandIn:
        return self

    def option(self, name: str, value: object) -> StandIn:
        return self

    def options(self, **options: object) -> StandIn:
        return self

    def load(self, path: str) -> Any:
        if self._error is not None:
            raise self._error
        return self

    schema = None

    def head(self, rows: int) -> None:
        if self._rows is not None:
            raise self._rows

    def get(self, name: str, default: None) -> None:
        return default

    def set(self, name: str, value: str) -> None:
        pass

    def unset(self, name: str) -> None:
        pass

    def where(self, condition: str) -> StandIn:
        return self

    def selectExpr(self, *columns: str) -> StandIn:
        return self

    def createDataFrame(self, table: object) -> StandIn:
        return self


@pytest.mark.parametrize(
    "message",
    [
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta.",
        "[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] This Delta operation requires",
    ],
)
def test_read_committed_without_delta_names_the_lines_of_conf(world: Topics, message: str) -> None:
    """The txnlog source needs no jar, so a session may lack Delta (R60)."""
    session: Any = StandIn(AnalysisException(message))
    with pytest.raises(ConfigError, match="spark.sql.extensions=io.delta.*Spark says: .DATA|DELTA"):
        read_committed(session, world.root, "plain")


def test_read_committed_on_a_spark_without_delta_says_so_in_one_sentence(world: Topics) -> None:
    """Its user would look for a jar that does not exist, or take one of another Spark."""
    session: Any = StandIn(AnalysisException("[DATA_SOURCE_NOT_FOUND] delta."), version="4.3.0")
    with pytest.raises(ConfigError, match="Delta has no release for Spark 4.3 yet"):
        read_committed(session, world.root, "plain")
    error = Exception("java.lang.NoSuchMethodError: LogicalRDD")
    another: Any = StandIn(version="4.3.0", rows=error)
    with pytest.raises(ConfigError, match="for Spark 4.3 yet.*NoSuchMethodError"):
        read_committed(another, world.root, "plain")


def test_read_committed_of_an_unknown_topic_names_the_existing_ones(world: Topics) -> None:
    """(R60)"""
    session: Any = StandIn()
    with pytest.raises(UnknownTopicOrPartitionError, match="'nope'.*there are: empty, orders.eu-1"):
        read_committed(session, world.root, ["plain", "nope"])
    with pytest.raises(ConfigError, match="at least one topic"):
        read_committed(session, world.root, [])


@pytest.mark.spark
def test_read_committed_where_spark_cannot_read_names_the_remedy(
    spark: SparkSession, world: Topics, tmp_path: Path
) -> None:
    """Spark has its own credentials and schemes; the message has no secrets (R60, R67)."""
    with pytest.raises(StorageError, match="but txnlog can: .*pass spark_root"):
        read_committed(
            spark,
            world.root,
            "plain",
            spark_root=f"file://{tmp_path}/",
            storage_options={"aws_secret_access_key": "hunter2"},
        )
