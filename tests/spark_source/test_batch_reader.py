"""The batch reader: ranges between startingOffsets and endingOffsets."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import InputPartition

from spark_source.batch import TxnLogBatchReader, batch_reader
from spark_source.schema import source_schema, spark_schema
from txnlog.errors import ConfigError, DataLossError, UnknownTopicOrPartitionError


def reader_of(topics, **options: str) -> TxnLogBatchReader:
    given = {"path": topics.root, "subscribe": "t", **options}
    return batch_reader(given, spark_schema(include_headers=False))


def values(reader: TxnLogBatchReader) -> list[bytes]:
    return [
        value
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]


@pytest.fixture
def letters(topics):
    """Topic t with a, b, c in partition 0, nothing in partition 1."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a", b"b"])
    topics.append("t", 0, [b"c"])
    return topics


def test_batch_by_default_reads_everything(letters) -> None:
    """Earliest to latest, as in Spark's Kafka connector."""
    assert values(reader_of(letters)) == [b"a", b"b", b"c"]


def test_batch_between_offsets_reads_just_that(letters) -> None:
    """endingOffsets is exclusive."""
    reader = reader_of(
        letters, startingOffsets='{"t":{"0":1,"1":-2}}', endingOffsets='{"t":{"0":2,"1":-1}}'
    )
    assert values(reader) == [b"b"]


def test_batch_of_an_empty_topic_yields_nothing(letters) -> None:
    """For an empty plan Spark creates InputPartition(None), and reads it (R60)."""
    letters.create("empty")
    reader = reader_of(letters, subscribe="empty")
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets of a batch read cannot be latest"),
        ({"startingOffsets": '{"t":{"0":-1,"1":0}}'}, "startingOffsets of a batch read cannot be"),
        ({"endingOffsets": "earliest"}, "endingOffsets of a batch read cannot be earliest"),
        ({"endingOffsets": "committed"}, "endingOffsets must be latest or JSON"),
        ({"endingOffsets": '{"t":{"0":1}}'}, "endingOffsets does not name partition 1 of topic t"),
        (
            {"startingOffsets": '{"t":{"0":2,"1":0}}', "endingOffsets": '{"t":{"0":1,"1":0}}'},
            "Partition 0 of topic t starts at offset 2, after the offset 1 of option endingOffs",
        ),
    ],
)
def test_invalid_batch_offsets_name_the_option(letters, options, message: str) -> None:
    """(R60)"""
    with pytest.raises(ConfigError, match=message):
        values(reader_of(letters, **options))


def test_batch_beyond_or_below_the_log_is_data_loss(letters) -> None:
    """An end after the log's end must not shorten the read."""
    ending = '{"t":{"0":9,"1":0}}'
    message = "Option endingOffsets names .*offset 9 of partition 0 of topic t is after its end"
    with pytest.raises(DataLossError, match=message):
        values(reader_of(letters, endingOffsets=ending))
    reader = reader_of(letters, endingOffsets=ending, failOnDataLoss="false")
    assert values(reader) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("starting", ['{"t":{"0":0,"1":0}}', "earliest"])
def test_batch_whose_range_was_removed_from_one_partition_reads_the_others(
    letters, starting: str
) -> None:
    """It was refused as one that ends before it starts, also with failOnDataLoss=false."""
    letters.append("t", 1, [b"d"])
    letters.delete_records("t", 0, 2)
    options = {"startingOffsets": starting, "endingOffsets": '{"t":{"0":1,"1":1}}'}
    assert values(reader_of(letters, **options, failOnDataLoss="false")) == [b"d"]
    with pytest.raises((DataLossError, ConfigError)):
        values(reader_of(letters, **options))


def test_batch_committed_reads_offsets_and_does_not_start_in_the_group(letters) -> None:
    """A backfill must not fence the query that runs in the group (R48)."""
    letters.commit_offsets("g", {"t": {0: 1}})
    generation = letters.cluster.groups.start("g")
    options = {"startingOffsets": "committed", "group.id": "g"}
    assert values(reader_of(letters, **options)) == [b"b", b"c"]
    assert letters.cluster.groups.fetch("g", generation) == {"t": {0: 1}}


def test_batch_of_a_missing_topic_names_the_existing_ones(letters) -> None:
    """(R60)"""
    with pytest.raises(UnknownTopicOrPartitionError, match="nope.*there are: t"):
        values(reader_of(letters, subscribe="nope", failOnDataLoss="false"))


def test_batch_read_committed_sees_no_open_transaction(letters) -> None:
    """(R15, R18)"""
    letters.append("t", 0, [b"open"], status="ongoing")
    letters.append("t", 0, [b"after"])
    assert values(reader_of(letters)) == [b"a", b"b", b"c"]
    uncommitted = reader_of(letters, **{"isolation.level": "read_uncommitted"})
    assert values(uncommitted) == [b"a", b"b", b"c", b"open", b"after"]


def test_schema_follows_the_options_of_batch_and_stream(letters) -> None:
    """Spark requests the schema before it says whether a batch or a stream will be read."""
    options = {"path": letters.root, "subscribe": "t"}
    assert source_schema(options) == spark_schema(include_headers=False)
    assert source_schema({**options, "endingOffsets": "latest", "includeHeaders": "true"}) == (
        spark_schema(include_headers=True)
    )
    timed = {**options, "endingTimestamp": "1", "includeHeaders": "true"}
    assert source_schema(timed) == spark_schema(include_headers=True)
    with pytest.raises(ConfigError, match="endingOffsets of a batch"):
        source_schema({**options, "endingOffsets": "earliest"})
    with pytest.raises(ConfigError, match="endingTimestamp is 'noon'"):
        source_schema({**options, "endingTimestamp": "noon"})
