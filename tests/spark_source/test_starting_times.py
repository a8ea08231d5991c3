"""Starting and ending by timestamp: precedence of options, partitions without a later record."""

from __future__ import annotations

import pytest

from spark_source.batch import batch_reader
from spark_source.schema import spark_schema
from tests.spark_source.stream_steps import next_end, reader_of, values
from txnlog.errors import ConfigError, UnknownTopicOrPartitionError

DAY_MS = 86_400_000


@pytest.fixture
def days(topics):
    """Topic t: partition 0 has records of days 1 to 4 in two files, partition 1 one of day 1."""
    topics.create("t", 2)
    topics.append("t", 0, [b"1", b"2"], times_us=[DAY_MS * 1000, 2 * DAY_MS * 1000])
    topics.append("t", 0, [b"3", b"4"], times_us=[3 * DAY_MS * 1000, 4 * DAY_MS * 1000])
    topics.append("t", 1, [b"one"], times_us=[DAY_MS * 1000])
    return topics


def at(day: float) -> str:
    return str(int(day * DAY_MS))


def starts(topics, **options: str) -> dict[str, int]:
    return next_end(reader_of(topics, **options), {})["@"]["start"]["t"]


def read(topics, **options: str) -> list[bytes]:
    given = {"path": topics.root, "subscribe": "t", **options}
    reader = batch_reader(given, spark_schema(include_headers=False))
    return [
        value
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for value in batch.column("value").to_pylist()
    ]


LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def test_starting_timestamp_is_the_first_record_at_or_after_it(days) -> None:
    """Kafka's offsetsForTimes: inclusive; a partition without such a record by the strategy."""
    assert starts(days, startingTimestamp=at(1)) == {"0": 0, "1": 0}
    assert starts(days, startingTimestamp=at(2), **LATEST) == {"0": 1, "1": 1}
    assert starts(days, startingTimestamp=at(2.5), **LATEST) == {"0": 2, "1": 1}
    assert starts(days, startingTimestamp=at(9), **LATEST) == {"0": 4, "1": 1}


def test_starting_timestamp_no_match_is_an_error_by_default(days) -> None:
    """Kafka's default strategy; the message names the partition and the remedy (R60)."""
    with pytest.raises(ConfigError) as caught:
        starts(days, startingTimestamp=at(2))
    message = str(caught.value)
    assert "startingTimestamp: partition 1 of topic t has no record with timestamp" in message
    assert "startingOffsetsByTimestampStrategy=latest" in message


def test_starting_timestamps_per_partition_and_their_rank(days) -> None:
    """startingTimestamp > startingOffsetsByTimestamp > startingOffsets; others are not parsed."""
    by_partition = f'{{"t":{{"0":{at(3)},"1":{at(1)}}}}}'
    options = {"startingOffsetsByTimestamp": by_partition, "startingOffsets": "broken {"}
    assert starts(days, **options) == {"0": 2, "1": 0}
    assert starts(days, startingTimestamp=at(1), **options) == {"0": 0, "1": 0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{"t":{"0":1}}', "startingOffsetsByTimestamp does not name partition 1 of topic t"),
        ('{"u":{"0":1}}', "startingOffsetsByTimestamp names topic u, which the query does not"),
        ('{"t":{"0":1,"1":1,"2":1}}', "startingOffsetsByTimestamp names partition 2 of topic t"),
        (
            '{"t":{"0":-1,"1":1}}',
            "startingOffsetsByTimestamp: topic t has .*milliseconds since 1970",
        ),
        ('{"t":[1,2]}', "startingOffsetsByTimestamp: topic t needs a number per partition"),
        ("yesterday", "startingOffsetsByTimestamp is not JSON"),
        pytest.param("[" * 100_000, "startingOffsetsByTimestamp is not JSON", id="deep"),
    ],
)
def test_invalid_starting_timestamps_name_option_and_topic(days, value, message) -> None:
    """(R60)"""
    with pytest.raises(ConfigError, match=message):
        starts(days, startingOffsetsByTimestamp=value)


def test_starting_timestamp_of_a_missing_topic_names_the_existing_ones(days) -> None:
    """(R60)"""
    with pytest.raises(UnknownTopicOrPartitionError, match="'nope'.*there are: t"):
        next_end(reader_of(days, subscribe="nope", startingTimestamp="1"), {})


def test_starting_timestamp_is_logged_and_a_replay_reads_the_same(days) -> None:
    """Records that come later may be the first of their time in another replay (R54)."""
    reader = reader_of(days, startingTimestamp=at(3), **LATEST)
    end = next_end(reader, {})
    days.append("t", 1, [b"late"], times_us=[5 * DAY_MS * 1000])
    again = reader_of(days, startingTimestamp=at(3), **LATEST)
    assert values(again, again.initialOffset(), end) == [b"3", b"4"]
    assert values(again, end, next_end(again, end)) == [b"late"]


def test_starting_timestamp_sees_no_undecided_record(days) -> None:
    """Under read_uncommitted it does (R15, R18)."""
    days.append("t", 1, [b"open"], times_us=[2 * DAY_MS * 1000], status="ongoing")
    with pytest.raises(ConfigError, match="partition 1 of topic t has no record"):
        starts(days, startingTimestamp=at(2))
    uncommitted = {"isolation.level": "read_uncommitted"}
    assert starts(days, startingTimestamp=at(2), **uncommitted) == {"0": 1, "1": 1}


def test_batch_between_times_reads_just_that(days) -> None:
    """The end is exclusive; without a later record it is the end of the partition."""
    assert read(days, startingTimestamp=at(2), endingTimestamp=at(4), **LATEST) == [b"2", b"3"]
    assert read(days, endingTimestamp=at(2)) == [b"1", b"one"]
    assert read(days, endingTimestamp=at(9)) == [b"1", b"2", b"3", b"4", b"one"]
    per_partition = f'{{"t":{{"0":{at(3)},"1":{at(1)}}}}}'
    assert read(days, endingOffsetsByTimestamp=per_partition, endingOffsets="x") == [b"1", b"2"]
    assert read(days, endingTimestamp=at(1), endingOffsetsByTimestamp=per_partition) == []


def test_batch_that_ends_before_it_starts_names_the_option(days) -> None:
    """(R60)"""
    with pytest.raises(ConfigError, match="starts at offset 2, after the offset 1 of option end"):
        read(days, startingTimestamp=at(3), endingTimestamp=at(2), **LATEST)
