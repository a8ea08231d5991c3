"""The stream reader as Spark drives it: latestOffset, partitions, read; offsets go through JSON."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from spark_source.offsets import SourceOffset
from spark_source.schema import spark_schema
from spark_source.stream import open_reader, stream_reader
from tests.spark_source.stream_steps import ALL, next_end, positions, reader_of, values
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.connector.spark_versions import ReadMaxRows
from txnlog.errors import (
    CheckpointError,
    ConfigError,
    DataLossError,
    IllegalGenerationError,
    UnknownTopicOrPartitionError,
)
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore


def test_reader_made_does_no_io(topics) -> None:
    """Spark makes one in every worker and task, also where the root cannot be reached."""
    reader = open_reader(
        {"path": "/nowhere/at/all", "subscribe": "t"}, spark_schema(include_headers=False)
    )
    assert reader.initialOffset() == {}
    assert reader.getDefaultReadLimit() == ALL
    assert reader_of(topics, maxOffsetsPerTrigger="7").getDefaultReadLimit() == ReadMaxRows(7)


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.getDefaultReadLimit(),
        lambda reader: reader.prepareForTriggerAvailableNow(),
        lambda reader: reader.initialOffset(),
        lambda reader: reader.latestOffset({}, ALL),
        lambda reader: reader.partitions({}, {}),
        lambda reader: reader.read(None),
    ],
)
def test_reader_of_wrong_options_refuses_whatever_spark_asks_first(topics, ask) -> None:
    """Raised while Spark makes the reader, the message would end with an error of Spark's (R60)."""
    options = {"path": topics.root, "subscribe": "t", "endingOffsets": "latest"}
    reader = stream_reader(options, spark_schema(include_headers=False))
    with pytest.raises(ConfigError, match="endingOffsets is for read"):
        ask(reader)


def test_first_batch_logs_its_start_and_a_replay_reads_the_same(topics) -> None:
    """initialOffset is asked again at a replay, and by then latest is somewhere else (R54)."""
    topics.create("t")
    topics.append("t", 0, [b"old"])
    end = next_end(reader_of(topics), {})
    assert positions(end) == {"t": {"0": 1}}
    assert end["@"]["start"] == {"t": {"0": 1}}
    assert end["@"]["cluster"] == topics.cluster.cluster_id
    assert end["@"]["topics"] == {"t": topics.cluster.topic("t").topic_id}
    earliest = next_end(reader_of(topics, startingOffsets="earliest"), {})
    topics.append("t", 0, [b"new"])
    replay = reader_of(topics, startingOffsets="earliest")
    assert values(replay, replay.initialOffset(), earliest) == [b"old"]
    replay = reader_of(topics)
    assert values(replay, replay.initialOffset(), end) == []


def test_without_new_records_the_start_is_returned_unchanged(topics) -> None:
    """Spark compares text; anything else would be an empty batch at every trigger."""
    topics.create("t", 2)
    reader = reader_of(topics)
    end = next_end(reader, {})
    assert json.dumps(next_end(reader, end)) == json.dumps(end)
    assert reader.partitions(end, end) == []
    topics.append("t", 1, [b"a"])
    second = next_end(reader, end)
    assert positions(second) == {"t": {"0": 0, "1": 1}}
    assert "start" not in second["@"]
    assert values(reader, end, second) == [b"a"]
    assert reader.reportLatestOffset() == {"t": {"0": 0, "1": 1}}


def test_limit_cuts_batches_and_all_is_read_in_order(topics) -> None:
    """maxOffsetsPerTrigger in the middle of files (R61)."""
    topics.create("t", 2)
    for first in range(0, 20, 5):
        topics.append("t", 0, [str(first + i).encode() for i in range(5)])
    topics.append("t", 1, [b"one"])
    reader = reader_of(topics, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    start: dict[str, Any] = {}
    found: list[list[bytes]] = []
    while (end := next_end(reader, start, reader.getDefaultReadLimit())) != start:
        found.append(values(reader, start, end))
        start = end
    assert [len(batch) for batch in found] == [8, 8, 5]
    assert [v for batch in found for v in batch if v != b"one"] == [
        str(i).encode() for i in range(20)
    ]


def test_available_now_ends_at_the_end_fixed_at_its_start(topics) -> None:
    """Else a busy topic keeps the run alive for ever (R61)."""
    topics.create("t")
    topics.append("t", 0, [b"a", b"b", b"c"])
    reader = reader_of(topics, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    topics.append("t", 0, [b"late"])
    first = next_end(reader, {}, ReadMaxRows(2))
    second = next_end(reader, first, ReadMaxRows(2))
    assert next_end(reader, second, ReadMaxRows(2)) == second
    assert values(reader, {}, first) + values(reader, first, second) == [b"a", b"b", b"c"]
    again = reader_of(topics, startingOffsets="earliest")
    again.prepareForTriggerAvailableNow()
    assert values(again, second, next_end(again, second)) == [b"late"]


def test_read_committed_stops_at_open_transactions_and_skips_aborted(topics) -> None:
    """Undecided data is invisible, aborted data is skipped (R15, R16, R18)."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    open_batch = topics.append("t", 0, [b"open"], status="ongoing")
    topics.append("t", 0, [b"after"])
    committed = reader_of(topics, startingOffsets="earliest")
    uncommitted = reader_of(
        topics, startingOffsets="earliest", kafka_isolation_level="read_uncommitted"
    )
    first = next_end(committed, {})
    assert values(committed, {}, first) == [b"a"]
    assert values(uncommitted, {}, next_end(uncommitted, {})) == [b"a", b"open", b"after"]
    topics.settle("t", open_batch, "aborted")
    second = next_end(committed, first)
    assert values(committed, first, second) == [b"after"]
    assert values(uncommitted, {}, next_end(uncommitted, {})) == [b"a", b"open", b"after"]


def test_assign_reads_only_its_partitions(topics) -> None:
    """Kafka's assign."""
    topics.create("t", 3)
    for partition in range(3):
        topics.append("t", partition, [str(partition).encode()])
    reader = reader_of(topics, assign='{"t":[2,0]}', startingOffsets="earliest")
    end = next_end(reader, {})
    assert positions(end) == {"t": {"0": 1, "2": 1}}
    assert values(reader, {}, end) == [b"0", b"2"]
    wrong = reader_of(topics, assign='{"t":[3]}')
    with pytest.raises(UnknownTopicOrPartitionError, match="topic t has partitions 0 to 2, not 3"):
        wrong.latestOffset({}, ALL)


def test_starting_offsets_json_is_used_and_checked(topics) -> None:
    """Offsets that do not fit the topic name option, topic and partition (R60)."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a", b"b", b"c"])
    reader = reader_of(topics, startingOffsets='{"t":{"0":1,"1":-1}}')
    assert values(reader, {}, next_end(reader, {})) == [b"b", b"c"]
    with pytest.raises(ConfigError, match="startingOffsets does not name partition 1 of topic t"):
        reader_of(topics, startingOffsets='{"t":{"0":1}}').latestOffset({}, ALL)
    message = "Option startingOffsets names .*offset 9 of partition 0 of topic t is after its end"
    with pytest.raises(DataLossError, match=message):
        reader_of(topics, startingOffsets='{"t":{"0":9,"1":0}}').latestOffset({}, ALL)


def test_missing_topic_names_the_existing_topics(topics) -> None:
    """A misspelt topic must not wait for ever for its first record (R60)."""
    topics.create("orders")
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(UnknownTopicOrPartitionError, match="'t'.*orders"):
            reader_of(topics, **options).latestOffset({}, ALL)


def test_deleted_topic_fails_or_continues_by_fail_on_data_loss(topics, caplog) -> None:
    """failOnDataLoss decides, at the running query and at its restart (R60, R71)."""
    topics.create("t")
    topics.create("u")
    topics.append("t", 0, [b"a"])
    topics.append("u", 0, [b"b"])
    end = next_end(reader_of(topics, subscribe="t,u"), {})
    topics.cluster.delete_topic("t")
    topics.append("u", 0, [b"c"])
    with pytest.raises(DataLossError, match="topic t was deleted; its partition 0 was read up to"):
        reader_of(topics, subscribe="t,u").latestOffset(end, ALL)
    lenient = reader_of(topics, subscribe="t,u", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        second = next_end(lenient, end)
    assert "topic t was deleted; its partition 0 was read up to offset 1" in caplog.text
    assert positions(second) == {"u": {"0": 2}}
    assert values(lenient, end, second) == [b"c"]
    assert next_end(lenient, second) == second
    with pytest.raises(UnknownTopicOrPartitionError, match="'t'.*there are: u"):
        reader_of(topics, subscribe="t,u").latestOffset(second, ALL)


def test_deleted_topic_does_not_lead_to_reading_others(topics, monkeypatch) -> None:
    """failOnDataLoss=false would fail for a topic the query does not read, and read all (R60)."""
    for topic in ("t", "u", "broken"):
        topics.create(topic)
    end = next_end(reader_of(topics, subscribe="t,u"), {})
    topics.cluster.delete_topic("t")
    topics.cluster.store.put(commit_path("broken", 1), b'{"add": {"pa')
    lenient = reader_of(topics, subscribe="t,u", failOnDataLoss="false")
    listed: list[str] = []
    list_folders = ObjectStore.list_folders
    monkeypatch.setattr(
        ObjectStore,
        "list_folders",
        lambda store: listed.append("") or list_folders(store),
    )
    second = next_end(lenient, end)
    assert next_end(lenient, second) == second
    assert positions(second) == {"u": {"0": 0}}
    assert listed == []
    with pytest.raises(UnknownTopicOrPartitionError, match="'t'.*there are: broken, u"):
        reader_of(topics, subscribe="t,u").latestOffset(second, ALL)


def test_available_now_leaves_new_partitions_for_the_next_run(topics) -> None:
    """A topic created during the run: logged, not read, and the run ends (R61)."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    topics.create("u")
    end = next_end(reader_of(topics, startingOffsets="earliest"), {})
    reader = reader_of(topics, subscribe="t,u")
    reader.prepareForTriggerAvailableNow()
    topics.cluster.delete_topic("u")
    topics.create("u")
    topics.append("u", 0, [b"late"])
    second = next_end(reader, end)
    assert positions(second) == {"t": {"0": 1}, "u": {"0": 0}}
    assert second["@"]["start"] == {"u": {"0": 0}}
    assert next_end(reader, second) == second
    assert reader.reportLatestOffset() == {"t": {"0": 1}, "u": {"0": 1}}
    assert values(
        reader_of(topics, subscribe="t,u"),
        second,
        next_end(reader_of(topics, subscribe="t,u"), second),
    ) == [b"late"]


def test_topic_created_again_is_another_topic(topics, caplog) -> None:
    """Its offsets continue from the old end, so nothing else would show the difference (R71)."""
    topics.create("t")
    topics.append("t", 0, [b"a", b"b"])
    reader = reader_of(topics, startingOffsets="earliest")
    end = next_end(reader, {})
    replanned = next_end(reader, end)
    topics.cluster.delete_topic("t")
    topics.create("t")
    topics.append("t", 0, [b"new"])
    with pytest.raises(DataLossError, match="topic t was deleted and created again"):
        reader.latestOffset(replanned, ALL)
    with pytest.raises(DataLossError, match="offsets 0 to 1 of partition 0 of topic t, which was"):
        reader_of(topics, startingOffsets="earliest").partitions({}, end)
    lenient = reader_of(topics, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        assert values(lenient, {}, end) == []
        second = next_end(lenient, end)
    assert "failOnDataLoss" not in caplog.text
    assert second["@"]["start"] == {"t": {"0": 2}}
    assert values(lenient, end, second) == [b"new"]
    # After it has continued once, the query loses nothing more.
    strict = reader_of(topics)
    assert next_end(strict, second) == second


def test_retention_faster_than_the_query_is_data_loss(topics) -> None:
    """The range was planned, but deleted before it was read (R14)."""
    topics.create("t")
    header = topics.append("t", 0, [b"a", b"b"])
    topics.append("t", 0, [b"c"])
    end = next_end(reader_of(topics, startingOffsets="earliest"), {})
    topics.expire("t", header)
    with pytest.raises(DataLossError, match="offsets 0 to 1 of partition 0 of topic t are below"):
        reader_of(topics).partitions({}, end)
    assert values(reader_of(topics, failOnDataLoss="false"), {}, end) == [b"c"]
    empty_start = reader_of(topics, startingOffsets="earliest")
    assert positions(next_end(empty_start, {})) == {"t": {"0": 3}}


def test_checkpoint_of_another_cluster_is_refused(topics) -> None:
    """Offsets of one cluster read in another skip or repeat records silently."""
    topics.create("t")
    end = next_end(reader_of(topics), {})
    end["@"]["cluster"] = "other"
    with pytest.raises(CheckpointError, match="belongs to cluster other"):
        reader_of(topics).latestOffset(end, ALL)


def test_checkpoint_of_the_origin_goes_on_in_a_copy_up_to_where_it_was_copied(
    topics, tmp_path
) -> None:
    """Above that both have records of their own, at the same offsets (R75)."""
    topics.create("t")
    topics.append("t", 0, [b"a", b"b"])
    reader = reader_of(topics, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    first = next_end(reader, {}, ReadMaxRows(1))
    places = [str(tmp_path / name) for name in ("copy", "copy of the copy")]
    for origin, place in zip((topics.root, *places), places, strict=False):
        AdminClient({"txnlog.root": origin}).backup(place).result()
    topics.append("t", 0, [b"c"])
    last = next_end(reader_of(topics), first)
    for place in places:
        copy = type(topics)(Cluster.open(place))
        assert values(reader_of(copy), first, next_end(reader_of(copy), first)) == [b"b"]
        copy.append("t", 0, [b"x", b"y"])
        with pytest.raises(CheckpointError, match="the checkpoint is newer"):
            reader_of(copy).latestOffset(last, ALL)
        end = next_end(reader_of(copy), first)
        assert end["@"]["cluster"] == copy.cluster.cluster_id
        with pytest.raises(CheckpointError, match="belongs to cluster"):
            reader_of(topics).latestOffset(end, ALL)


def test_group_new_query_bumps_first_and_reads_under_that_generation(topics) -> None:
    """The old query may still commit: after the bump it cannot (R48, R59)."""
    topics.create("t", 2)
    topics.append("t", 0, [b"a", b"b", b"c"])
    topics.append("t", 1, [b"d"])
    topics.commit_offsets("g", {"t": {0: 2}})
    generation = topics.cluster.groups.start("g")
    reader = reader_of(topics, group_id="g", startingOffsets="committed")
    end = next_end(reader, {})
    assert end["@"]["group"] == "g"
    assert end["@"]["generation"] == generation + 1
    assert end["@"]["start"] == {"t": {"0": 2, "1": 0}}
    assert values(reader, {}, end) == [b"c", b"d"]
    with pytest.raises(IllegalGenerationError):
        topics.cluster.groups.fetch("g", generation)
    # The generation stays with the checkpoint: a restart does not start in the group again.
    topics.append("t", 0, [b"e"])
    again = next_end(reader_of(topics, group_id="g", startingOffsets="committed"), end)
    assert again["@"]["generation"] == generation + 1
    assert "start" not in again["@"]


@pytest.mark.parametrize("starting", ["latest", "earliest", '{"t":{"0":0}}'])
def test_group_bumps_whatever_the_starting_offsets(topics, starting: str) -> None:
    """Two queries of one group must not both commit, wherever the new one starts (R59)."""
    topics.create("t")
    end = next_end(reader_of(topics, group_id="g", startingOffsets=starting), {})
    assert end["@"]["generation"] == 1


def test_group_without_offsets_starts_at_auto_offset_reset(topics) -> None:
    """The first run of a job that always sets startingOffsets=committed."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    for reset, start in ((None, 1), ("latest", 1), ("earliest", 0)):
        options = {} if reset is None else {"auto.offset.reset": reset}
        reader = reader_of(topics, group_id="g", startingOffsets="committed", **options)
        assert next_end(reader, {})["@"]["start"] == {"t": {"0": start}}
    none = reader_of(
        topics, group_id="g", startingOffsets="committed", **{"auto.offset.reset": "none"}
    )
    with pytest.raises(ConfigError, match="auto.offset.reset is none"):
        none.latestOffset({}, ALL)


def test_group_added_to_a_running_checkpoint_logs_where_it_began(topics) -> None:
    """The sink needs the start from which the batch moves the group's offsets."""
    topics.create("t")
    end = next_end(reader_of(topics), {})
    topics.append("t", 0, [b"a"])
    reader = reader_of(topics, group_id="g")
    second = next_end(reader, end)
    assert second["@"]["start"] == {"t": {"0": 0}}
    assert (second["@"]["group"], second["@"]["generation"]) == ("g", 1)
    assert next_end(reader, second) == second
    assert values(reader, end, second) == [b"a"]


def test_group_query_that_cannot_start_does_not_fence_the_running_one(topics) -> None:
    """A misspelt topic in a new query must not stop production (R60)."""
    topics.create("t")
    generation = topics.cluster.groups.start("g")
    for options in ({"subscribe": "nope"}, {"startingOffsets": '{"t":{"0":9}}'}):
        with pytest.raises((UnknownTopicOrPartitionError, DataLossError)):
            reader_of(topics, group_id="g", **options).latestOffset({}, ALL)
    assert topics.cluster.groups.fetch("g", generation) == {}


def test_committed_without_group_names_the_option(topics) -> None:
    """(R60)"""
    with pytest.raises(ConfigError, match=r"startingOffsets=committed requires option group\.id"):
        reader_of(topics, startingOffsets="committed")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "t", "assign": '{"t":[0]}'},
        {"subscribe": "t", "subscribePattern": "t"},
        {"subscribePattern": "t", "assign": '{"t":[0]}'},
    ],
)
def test_exactly_one_subscription_option_is_required(topics, options) -> None:
    """One of two would override the other silently (R60)."""
    with pytest.raises(ConfigError, match="exactly one of the options subscribe"):
        open_reader({"path": topics.root, **options}, spark_schema(include_headers=False))


def test_empty_topic_and_empty_partitions_read_nothing(topics) -> None:
    """(R60)"""
    topics.create("t", 3)
    reader = reader_of(topics, startingOffsets="earliest")
    end = next_end(reader, {})
    assert reader.partitions({}, end) == []
    topics.append("t", 1, [b"a"])
    assert values(reader, end, next_end(reader, end)) == [b"a"]


def test_group_added_to_an_idle_query_is_logged_with_its_positions(topics) -> None:
    """The group has no offsets of this query yet; a replay would have no start (D19)."""
    topics.create("t")
    topics.append("t", 0, [b"old"])
    end = next_end(reader_of(topics), {})
    joined = next_end(reader_of(topics, **{"group.id": "g"}), end)
    assert positions(joined) == positions(end)
    found = SourceOffset.from_json(joined)
    assert (found.group, found.start) == ("g", {"t": {0: 1}})
