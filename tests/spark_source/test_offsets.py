"""The source's offsets as JSON, in users' options and in Spark's checkpoint."""

from __future__ import annotations

import json

import pytest

from spark_source.offsets import (
    SourceOffset,
    parse_assign,
    parse_positions,
    parse_subscribe,
    positions_json,
)
from txnlog.errors import CheckpointError, ConfigError, InvalidTopicError

LOGGED = SourceOffset(
    positions={"b": {10: 4, 2: 1}, "a": {0: 7}},
    cluster="c1",
    topic_ids={"b": "id-b", "a": "id-a"},
    group="g",
    generation=3,
    start={"a": {0: 5}},
)


def test_source_offset_written_comes_back_equal() -> None:
    """The sink commits what it reads here; a lost field is a lost position (R59)."""
    assert SourceOffset.from_json(json.loads(json.dumps(LOGGED.to_json()))) == LOGGED


def test_source_offset_equal_offsets_are_equal_text() -> None:
    """Spark compares offsets as text: another order of keys would look like new data."""
    again = SourceOffset(
        positions={"a": {0: 7}, "b": {2: 1, 10: 4}},
        cluster="c1",
        topic_ids={"a": "id-a", "b": "id-b"},
        group="g",
        generation=3,
        start={"a": {0: 5}},
    )
    assert json.dumps(again.to_json()) == json.dumps(LOGGED.to_json())
    assert list(LOGGED.to_json()) == ["a", "b", "@"]
    assert list(LOGGED.to_json()["b"]) == ["2", "10"]


def test_source_offset_without_group_or_start_leaves_them_out() -> None:
    """Other readers of the checkpoint test whether the key `absent` exists."""
    stamp = SourceOffset(positions={"a": {0: 1}}, cluster="c").to_json()["@"]
    assert set(stamp) == {"cluster", "topics"}


@pytest.mark.parametrize(
    "logged", [{"t": {"0": 5}}, {"@": {"cluster": "c", "topics": {}}, "t": 5}, {"@": 1}]
)
def test_source_offset_of_another_source_is_an_error(logged: dict[str, object]) -> None:
    """A checkpoint of Spark's Kafka source has offsets of other topics (R60)."""
    with pytest.raises(CheckpointError, match="new checkpointLocation"):
        SourceOffset.from_json(logged)


def test_positions_json_sorts_partitions_as_numbers() -> None:
    """As text, 10 would come before 2."""
    assert json.dumps(positions_json({"t": {10: 1, 2: 0}})) == '{"t": {"2": 0, "10": 1}}'


def test_subscribe_list_is_split_trimmed_and_deduplicated() -> None:
    """A topic named twice must not be read twice."""
    assert parse_subscribe(" a, b,a ,") == ("a", "b")


@pytest.mark.parametrize("value", [",", "__consumer_offsets", "a/../b", ".."])
def test_subscribe_no_topic_or_a_bad_name_is_refused(value: str) -> None:
    """Nothing escapes the root, internal tables are not topics (R60, R64)."""
    with pytest.raises((ConfigError, InvalidTopicError)):
        parse_subscribe(value)


def test_assign_names_partitions() -> None:
    """Kafka's own format."""
    assert parse_assign('{"a":[1,0,1],"b":[3]}') == {"a": (0, 1), "b": (3,)}


@pytest.mark.parametrize(
    "value", ["", "[]", "{}", '{"a":[]}', '{"a":0}', '{"a":["0"]}', '{"a":[-1]}', '{"a":[true]}']
)
def test_assign_malformed_names_the_option(value: str) -> None:
    """Partition "0" or true is not a partition (R60)."""
    with pytest.raises(ConfigError, match="Option assign"):
        parse_assign(value)


def test_positions_option_takes_offsets_earliest_latest_and_a_logged_offset() -> None:
    """A user copies an offset from a progress report or a checkpoint, with our key in it."""
    logged = json.dumps(LOGGED.to_json())
    assert parse_positions("startingOffsets", logged) == {"a": {0: 7}, "b": {2: 1, 10: 4}}
    assert parse_positions("startingOffsets", '{"t":{"0":-2,"1":-1}}') == {"t": {0: -2, 1: -1}}


@pytest.mark.parametrize(
    "value",
    [
        "soon",
        "[1]",
        '{"t":5}',
        '{"t":{"0":"5"}}',
        '{"t":{"x":5}}',
        '{"t":{"0":-3}}',
        '{"t":{"0":1.5}}',
    ],
)
def test_positions_option_malformed_names_option_and_topic(value: str) -> None:
    """KafkaMicroBatchSourceSuite's malformed offsets (R60)."""
    with pytest.raises(ConfigError, match="startingOffsets") as caught:
        parse_positions("startingOffsets", value)
    if '"t"' in value:
        assert "topic t" in str(caught.value)
