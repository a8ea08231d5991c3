"""Source and sink on Spark 4.0 and 4.1, by fakes of their API; tests/versions starts them."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyspark
import pyspark.sql.datasource as data_source
import pyspark.sql.pandas.types as spark_types
import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

import txnlog.settings.config as config_module
from tests.spark_source.stream_steps import logged, positions, reader_of, values
from txnlog.admin.topics import create_partitions
from txnlog.connector import spark_versions
from txnlog.connector.spark_versions import StartKeepingReader
from txnlog.errors import ConfigError

NAME = spark_versions.__name__


def loaded() -> ModuleType:
    """The module anew, as a worker of the faked Spark imports it."""
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as Spark 4.0 has it: no limits, no class for Arrow in streams, timestamp_utc."""

    def to_arrow_schema(schema: StructType, timestamp_utc: bool = True) -> pa.Schema:
        return current(schema, timezone="UTC" if timestamp_utc else None)

    current = spark_types.to_arrow_schema
    monkeypatch.setattr(spark_types, "to_arrow_schema", to_arrow_schema)
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(data_source, "DataSourceStreamArrowWriter")
    config_module._warned.clear()
    return loaded()


def older_reader(topics, **options: str) -> StartKeepingReader:
    return StartKeepingReader(reader_of(topics, **options))


def next_end(reader: StartKeepingReader) -> dict[str, Any]:
    return logged(reader.latestOffset())


def resumed(topics, at: dict[str, Any], **options: str) -> StartKeepingReader:
    """A reader that Spark has told where its query continues."""
    reader = older_reader(topics, **options)
    assert reader.partitions(logged(at), logged(at)) == []
    return reader


# --- The API --------------------------------------------------------------------------------------


def test_pyspark_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError of a module of Spark does not say what to install."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    for name in (NAME, "pyspark_txnlog"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match=r"^txnlog needs pyspark 4\.0 or newer, found 3\.5\.1\.$"):
        importlib.import_module("pyspark_txnlog")


def test_writer_of_the_sink_gets_record_batches_where_streams_have_no_class_for_them(
    older: ModuleType,
) -> None:
    """Spark 4.0 looks for a DataSourceArrowWriter; else it passes rows, one by one."""
    writer = older.DataSourceStreamArrowWriter
    assert issubclass(writer, data_source.DataSourceArrowWriter)
    assert issubclass(writer, data_source.DataSourceStreamWriter)


@pytest.mark.parametrize("spark", ["this", "older"])
def test_arrow_schema_has_instants_in_utc(spark: str, request: pytest.FixtureRequest) -> None:
    """The sink refuses a timestamp without a time zone, which is no instant."""
    module = spark_versions if spark == "this" else request.getfixturevalue("older")
    schema = StructType([StructField("a", TimestampType()), StructField("b", StringType())])
    expected = pa.schema([("a", pa.timestamp("us", tz="UTC")), ("b", pa.string())])
    assert module.arrow_schema(schema) == expected


def test_reader_is_wrapped_only_where_spark_passes_no_start(topics, older: ModuleType) -> None:
    """From Spark 4.2 on nothing may be between Spark and the reader."""
    reader = reader_of(topics)
    assert spark_versions.for_this_spark(reader) is reader
    assert isinstance(older.for_this_spark(reader), older.StartKeepingReader)
    assert older.ReadMaxRows(5).max_rows == 5


@pytest.mark.parametrize("has_sockets", [True, False])
def test_worker_over_tcp_is_one_warning_where_there_is_another_way(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, has_sockets: bool
) -> None:
    """40 ms a hop, without a visible cause; a setting that Spark 4.0 does not have helps nobody."""
    config_module._warned.clear()
    if not has_sockets:
        monkeypatch.setattr(
            spark_versions, "local_connect_and_auth", lambda port, auth_secret: None
        )
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        monkeypatch.delenv("PYTHON_WORKER_FACTORY_SECRET", raising=False)
        spark_versions.warn_of_tcp()
        monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "hunter2")
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
        spark_versions.warn_of_tcp()
        assert not caplog.records
        monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED")
        spark_versions.warn_of_tcp()
        spark_versions.warn_of_tcp()
    assert len(caplog.records) == has_sockets
    assert not has_sockets or "spark.python.unix.domain.socket.enabled=true" in caplog.text
    assert "hunter2" not in caplog.text


# --- Where a batch starts -------------------------------------------------------------------------


def test_each_batch_starts_where_the_one_before_ended(topics) -> None:
    """Without a start each batch would begin anew, at startingOffsets."""
    topics.create("t")
    topics.append("t", 0, [b"a", b"b"])
    reader = older_reader(topics, startingOffsets="earliest")
    first = next_end(reader)
    assert reader.initialOffset() == {}
    assert values(reader, {}, first) == [b"a", b"b"]
    assert next_end(reader) == first
    topics.append("t", 0, [b"c"])
    second = next_end(reader)
    assert "start" not in second["@"]
    assert values(reader, first, second) == [b"c"]


def test_batch_that_nobody_read_is_not_planned_again(topics) -> None:
    """A function of foreachBatch that does not use its frame: Spark asks for no partitions."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    reader = older_reader(topics, startingOffsets="earliest")
    first = next_end(reader)
    topics.append("t", 0, [b"b"])
    second = next_end(reader)
    assert values(reader, first, second) == [b"b"]


def test_batch_that_is_read_again_later_moves_nothing_back(topics) -> None:
    """Code of foreachBatch may use its frame in a thread, while the next batch is planned."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    reader = older_reader(topics, startingOffsets="earliest")
    first = next_end(reader)
    create_partitions(topics.cluster, "t", 2)
    topics.append("t", 1, [b"b"])
    second = next_end(reader)
    assert values(reader, {}, first) == [b"a"]
    topics.append("t", 1, [b"c"])
    third = next_end(reader)
    assert values(reader, first, second) + values(reader, second, third) == [b"b", b"c"]


@pytest.mark.parametrize("replayed", [True, False])
def test_restarted_query_continues_where_spark_says(topics, replayed: bool) -> None:
    """startingOffsets, latest here, would skip what came while the query did not run."""
    topics.create("t")
    before = older_reader(topics)
    first = next_end(before)
    topics.append("t", 0, [b"a"])
    second = next_end(before)
    topics.append("t", 0, [b"while it did not run"])
    after = resumed(topics, second)
    if replayed:
        assert values(after, first, second) == [b"a"]
    third = next_end(after)
    assert "start" not in third["@"]
    assert values(after, second, third) == [b"while it did not run"]


def test_restarted_query_without_news_plans_no_batch(topics) -> None:
    """Spark compares the offsets as text: another one with the same positions is a new batch."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    first = next_end(older_reader(topics, startingOffsets="earliest", group_id="g"))
    after = resumed(topics, first, startingOffsets="earliest", group_id="g")
    assert next_end(after) == first
    assert next_end(after) == first


def test_restarted_query_begins_no_generation(topics) -> None:
    """A batch that is replayed after it would be refused as that of a former run."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    options = {"group_id": "g", "startingOffsets": "committed", "auto_offset_reset": "earliest"}
    first = next_end(older_reader(topics, **options))
    after = resumed(topics, first, **options)
    assert values(after, {}, first) == [b"a"]
    topics.append("t", 0, [b"b"])
    second = next_end(after)
    assert values(after, first, second) == [b"b"]
    assert second["@"]["generation"] == first["@"]["generation"] == 1
    described = topics.cluster.groups.describe("g")
    assert described is not None
    assert described.generation == 1


# --- Triggers and limits --------------------------------------------------------------------------


def test_limits_are_ignored_with_one_warning(topics, caplog: pytest.LogCaptureFixture) -> None:
    """Spark ends AvailableNow after one batch: a limit would leave the rest unread, silently."""
    config_module._warned.clear()
    topics.create("t")
    topics.append("t", 0, [b"a", b"b", b"c"])
    topics.commit_offsets("g", {"t": {0: 1}})
    reader = older_reader(
        topics,
        startingOffsets="committed",
        group_id="g",
        maxOffsetsPerTrigger="1",
        minOffsetsPerTrigger="1",
    )
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        first = next_end(reader)
        next_end(reader)
    assert values(reader, {}, first) == [b"b", b"c"]
    assert len(caplog.records) == 1
    assert "maxOffsetsPerTrigger and minOffsetsPerTrigger are ignored" in caplog.text
    assert "AvailableNow would end after one batch" in caplog.text


def test_query_without_limits_has_no_warning(topics, caplog: pytest.LogCaptureFixture) -> None:
    """A warning that does not apply teaches users to read none."""
    config_module._warned.clear()
    topics.create("t")
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        next_end(older_reader(topics))
    assert not caplog.records


def test_new_query_runs_under_the_wrapper_of_available_now(topics) -> None:
    """Spark's wrapper fixes the first end it gets, and asks again for its metrics alone."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    reader = older_reader(topics, startingOffsets="earliest")
    fixed = next_end(reader)
    topics.append("t", 0, [b"b"])
    assert positions(next_end(reader)) == {"t": {"0": 2}}
    assert values(reader, {}, fixed) == [b"a"]
    assert positions(next_end(reader)) == {"t": {"0": 2}}


def test_query_that_continues_is_refused_under_the_wrapper_of_available_now(topics) -> None:
    """The wrapper fixes an end before Spark says where the query is: records would be skipped."""
    topics.create("t")
    before = older_reader(topics)
    first = next_end(before)
    topics.append("t", 0, [b"a"])
    after = older_reader(topics)
    next_end(after)
    with pytest.raises(ConfigError, match="triggerAvailableNowWrapper"):
        after.partitions(logged(first), logged(first))
