"""A topic as one Arrow table: `Cluster.read`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark_source.conftest import START_US, Topics
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError, UnknownTopicOrPartitionError
from txnlog.storage.batches.records import MESSAGE_SCHEMA
from txnlog.storage.tables import topic_reading


@pytest.fixture
def filled(tmp_path: Path) -> Topics:
    """Three files of one record in partition 0, an aborted one between, and one in partition 1."""
    topics = Topics(Cluster.open(str(tmp_path / "root"), create=True))
    topics.create("t", 2)
    for number in range(3):
        at_us = START_US + number * 1_000_000
        topics.append("t", 0, [b"%d" % number], keys=[b"k"], times_us=[at_us])
        if not number:
            topics.append("t", 0, [b"no"], status="aborted", times_us=[START_US - 1])
    topics.append("t", 1, [b"x", b"y"], headers=[[("h", b"1")], None])
    return topics


def test_read_gives_the_committed_records_with_every_column(filled: Topics) -> None:
    """In the order of partitions and offsets, with offsets that aborted records leave out."""
    table = filled.cluster.read("t")
    assert table.schema == MESSAGE_SCHEMA
    assert table.column("value").to_pylist() == [b"0", b"1", b"2", b"x", b"y"]
    assert table.column("offset").to_pylist() == [0, 2, 3, 0, 1]
    assert table.column("partition").to_pylist() == [0, 0, 0, 1, 1]
    assert table.column("headers").to_pylist()[3] == [{"key": "h", "value": b"1"}]
    assert filled.cluster.read("t", columns=["key", "topic"]).to_pylist()[0] == {
        "key": b"k",
        "topic": "t",
    }


@pytest.mark.parametrize(
    ("condition", "expected", "files"),
    [
        (pc.field("partition") == 1, [b"x", b"y"], 1),
        (pc.field("offset") >= 3, [b"2"], 1),
        ((pc.field("offset") < 1) | (pc.field("partition") == 1), [b"0", b"x", b"y"], 2),
        (pc.field("topic") == "other", [], 0),
        (
            pc.field("timestamp")
            > pa.scalar(
                datetime.fromtimestamp(START_US / 1e6 + 1, timezone.utc),
                pa.timestamp("us", tz="UTC"),
            ),
            [b"2"],
            1,
        ),
        (pc.field("value") == b"1", [b"1"], 4),
        (pc.field("key").is_null(), [b"x", b"y"], 4),
    ],
)
def test_read_opens_only_files_that_may_match(
    filled: Topics, condition: pc.Expression, expected: list[bytes], files: int
) -> None:
    """By the headers: partition, offsets, times."""
    opened = []
    real = topic_reading.read_records

    def noted(store: object, span: object, **given: object) -> object:
        opened.append(span)
        return real(store, span, **given)  # type: ignore[arg-type]

    with patch.object(topic_reading, "read_records", noted):
        table = filled.cluster.read("t", filter=condition, columns=["value"])
    assert table.column("value").to_pylist() == expected
    assert len(opened) == files


def test_read_of_an_empty_topic_has_the_columns(filled: Topics) -> None:
    """A join or a chart needs them."""
    filled.create("empty")
    assert filled.cluster.read("empty", columns=["offset"]).schema.names == ["offset"]
    with pytest.raises(UnknownTopicOrPartitionError):
        filled.cluster.read("missing")
    with pytest.raises(ConfigError, match="There is no column 'valu'"):
        filled.cluster.read("t", columns=["valu"])
    with pytest.raises(ConfigError, match="columns is empty"):
        filled.cluster.read("t", columns=[])
    without_zone = pc.field("timestamp") > datetime(2026, 11, 27)
    for wrong in (pc.field("valu") == b"1", pc.field("offset") == "a", without_zone):
        with pytest.raises(ConfigError, match="The filter does not fit the columns"):
            filled.cluster.read("empty", filter=wrong)
    with pytest.raises(ConfigError, match="by its number"):
        filled.cluster.read("t", columns=["value"], filter=pc.field(0) == b"k")
    with pytest.raises(TypeError, match="filter must be an Expression"):
        filled.cluster.read("t", filter="offset > 1")  # type: ignore[arg-type]


def test_read_begins_at_the_log_start(filled: Topics) -> None:
    """Also inside a file, as `delete_records` leaves it."""
    filled.delete_records("t", 1, 1)
    table = filled.cluster.read("t", filter=pc.field("partition") == 1)
    assert table.column("value").to_pylist() == [b"y"]


def test_files_that_are_read_at_once_come_in_order(filled: Topics) -> None:
    """Threads end in any order; and files of many records are read otherwise than small ones."""
    filled.create("large", 2)
    written = [[b"%d-%d" % (file, at) * 40 for at in range(3_000)] for file in range(6)]
    for file, values in enumerate(written):
        filled.append("large", file % 2, values)
    with patch.object(topic_reading, "_RUN_BYTES", 1):
        table = filled.cluster.read("large", columns=["value", "offset"])
        assert filled.cluster.read("t").num_rows == 5
    expected = [value for number in (0, 1) for values in written[number::2] for value in values]
    assert table.column("value").to_pylist() == expected
    assert table.column("offset").to_pylist() == [*range(9_000), *range(9_000)]
