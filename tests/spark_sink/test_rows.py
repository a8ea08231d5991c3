"""Spark's columns become records under the rules and messages of Kafka's sink."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from spark_sink.rows import Rows, check_columns, rows_of_batch, sliced
from txnlog.errors import ConfigError, InvalidRecordError
from txnlog.storage.batches.records import HEADERS_TYPE, RECORD_SCHEMA

TASK_US = 1_700_000_000_000_000
UTC = pa.timestamp("us", "UTC")


def rows_of(
    *,
    topic: str | None = "t",
    include_headers: bool = False,
    first_row: int = 0,
    **columns: pa.Array,
) -> Rows:
    batch = pa.RecordBatch.from_pydict(columns)
    checked = check_columns(batch.schema, topic=topic, include_headers=include_headers)
    return rows_of_batch(batch, checked, first_row=first_row, task_us=TASK_US)


def micros(rows: Rows) -> list[int]:
    return rows.records.column("timestamp").cast(pa.int64()).to_pylist()


# -- the schema ----------------------------------------------------------------------------------


def test_columns_without_value_are_refused() -> None:
    """A sink that guesses which column is the message writes garbage (R60)."""
    with pytest.raises(InvalidRecordError, match="Required attribute 'value' not found") as error:
        check_columns(pa.schema([("key", pa.binary()), ("payload", pa.string())]), topic="t")
    assert "payload" in str(error.value)


def test_columns_without_topic_need_the_option() -> None:
    """No topic anywhere is found when planning, not at the first row (R60)."""
    with pytest.raises(ConfigError, match="topic option required when no 'topic' attribute"):
        check_columns(pa.schema([("value", pa.binary())]))
    with_column = check_columns(pa.schema([("value", pa.binary()), ("topic", pa.string())]))
    assert with_column.topic == 1


def test_topic_option_wins_over_a_column_of_any_type() -> None:
    """The column is ignored, not checked, when the option names the topic."""
    schema = pa.schema([("value", pa.binary()), ("topic", pa.int32())])
    assert check_columns(schema, topic="t").topic is None


@pytest.mark.parametrize(
    ("name", "found", "spark_name", "allowed"),
    [
        ("value", pa.int64(), "bigint", "string or binary"),
        ("value", pa.null(), "void", "string or binary"),
        ("key", pa.int32(), "int", "string or binary"),
        ("topic", pa.binary(), "binary", "string"),
        ("partition", pa.int64(), "bigint", "int"),
        ("partition", pa.string(), "string", "int"),
        ("timestamp", pa.int64(), "bigint", "double or timestamp"),
        ("timestamp", pa.timestamp("us"), "timestamp_ntz", "double or timestamp"),
        ("headers", pa.string(), "string", "array<struct<key:string,value:binary>>"),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
            "list",
            "array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_column_of_a_wrong_type_is_named_with_what_it_may_be(
    name: str, found: pa.DataType, spark_name: str, allowed: str
) -> None:
    """The error must name the column, its type and the allowed types (R60)."""
    fields = {"value": pa.binary(), "topic": pa.string(), name: found}
    with pytest.raises(InvalidRecordError) as error:
        check_columns(pa.schema(list(fields.items())), include_headers=True)
    message = str(error.value)
    assert message.startswith(f"{name} attribute unsupported type {spark_name}")
    assert f"{name} must be a(n) {allowed}" in message
    assert error.value.column == name


def test_headers_and_unknown_columns_are_ignored_unless_asked_for() -> None:
    """A column headers of any type is no error without includeHeaders; nor is any other column."""
    rows = rows_of(
        value=pa.array([b"v"]), headers=pa.array([1]), offset=pa.array([7]), extra=pa.array(["x"])
    )
    assert rows.records.to_pylist()[0]["headers"] is None
    assert rows.records.schema.equals(RECORD_SCHEMA)


# -- the rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()],
    ids=str,
)
def test_text_and_bytes_of_any_width_become_binary(kind: pa.DataType) -> None:
    """Strings are written as their UTF-8 bytes; null is a tombstone, the empty string is not."""
    values = ["a", None, "", "größer"] if "string" in str(kind) else [b"a", None, b"", b"gr"]
    rows = rows_of(value=pa.array(values, kind).slice(1), key=pa.array(values, kind).slice(0, 3))
    wanted = [v.encode() if isinstance(v, str) else v for v in values]
    assert rows.records.column("value").to_pylist() == wanted[1:]
    assert rows.records.column("key").to_pylist() == wanted[:3]
    assert rows_of(value=pa.array([None], kind)).records.column("value").null_count == 1
    assert rows.records.schema.equals(RECORD_SCHEMA)


def test_required_fields_become_nullable() -> None:
    """Spark says "not null" for columns that have none; the file's schema must not vary with it."""
    schema = pa.schema([pa.field("value", pa.string(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array(["x"])], schema=schema)
    checked = check_columns(schema, topic="t")
    rows = rows_of_batch(batch, checked, first_row=0, task_us=TASK_US)
    assert rows.records.schema.equals(RECORD_SCHEMA)
    assert rows.partitions is None
    assert rows.topics is None


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+05:30"])
def test_timestamp_of_any_zone_and_unit_is_the_same_moment(unit: str, zone: str) -> None:
    """The session's time zone must not change a record's time; null is the time of the task."""
    moment = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.timezone.utc)
    kind = pa.timestamp(unit, zone)
    rows = rows_of(value=pa.array([b"a", b"b"]), timestamp=pa.array([moment, None]).cast(kind))
    assert micros(rows) == [int(moment.timestamp()) * 1_000_000, TASK_US]


def test_timestamp_as_double_is_seconds() -> None:
    """As in Kafka's sink: seconds with a fraction; NaN and null are the time of the task."""
    seconds = pa.array([1.5, None, float("nan"), 1_700_000_000.25])
    rows = rows_of(value=pa.array([b"v"] * 4), timestamp=seconds)
    assert micros(rows) == [1_500_000, TASK_US, TASK_US, 1_700_000_000_250_000]


def test_rows_without_timestamp_column_have_the_time_of_the_task() -> None:
    """A record without a time breaks look-ups by time."""
    assert micros(rows_of(value=pa.array([b"a", b"b"]))) == [TASK_US, TASK_US]


def test_timestamp_before_1970_names_the_row() -> None:
    """Kafka refuses negative timestamps; so do we, with the row."""
    times = pa.array([1, None, -5], UTC)
    with pytest.raises(InvalidRecordError, match=r"Row 102 .*1969-12-31") as error:
        rows_of(value=pa.array([b"v"] * 3), timestamp=times, first_row=100)
    assert error.value.row == 102


def test_null_topic_names_the_row() -> None:
    """A row without a topic cannot be written (R60)."""
    columns = {"value": [b"v"] * 4, "topic": ["a", "b", None, None]}
    batch = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(InvalidRecordError, match=r"Row 12 .*null topic present in the data"):
        rows_of_batch(batch, check_columns(batch.schema), first_row=10, task_us=TASK_US)


def test_partition_column_null_means_undecided_and_negative_is_refused() -> None:
    """-1 means "no partition" internally; from a user it is an error (R60)."""
    rows = rows_of(value=pa.array([b"v"] * 3), partition=pa.array([2, None, 0], pa.int32()))
    assert rows.partitions is not None
    assert rows.partitions.tolist() == [2, -1, 0]
    assert rows.partitions.dtype == np.int32
    with pytest.raises(InvalidRecordError, match=r"Row 6 .*partition -1 is negative"):
        rows_of(value=pa.array([b"v"] * 2), partition=pa.array([None, -1], pa.int32()), first_row=5)


def test_headers_of_other_widths_become_the_files_type() -> None:
    """Spark names list elements otherwise and may send large types; null, empty, filled stay so."""
    kind = pa.large_list(
        pa.field("element", pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    )
    wanted = [None, [], [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]]
    headers = pa.array([[{"key": "cut", "value": None}], *wanted], kind).slice(1)
    rows = rows_of(value=pa.array([b"v"] * 3), headers=headers, include_headers=True)
    assert rows.records.column("headers").type.equals(HEADERS_TYPE)
    assert rows.records.column("headers").to_pylist() == wanted


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"x"}])
def test_header_without_a_key_names_the_row(header: dict[str, bytes] | None) -> None:
    """Kafka's RecordHeader has no null key; a reader would fail on it much later."""
    good = {"key": "k", "value": b"v"}
    headers = pa.array([None, [good, good], [], [good, header], [header]], HEADERS_TYPE)
    with pytest.raises(InvalidRecordError, match=r"Row 3 .*header without a key"):
        rows_of(value=pa.array([b"v"] * 5), headers=headers, include_headers=True)


def test_large_batches_are_sliced_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch beyond 2 GB must not overflow the 32-bit offsets of binary columns."""
    monkeypatch.setattr("spark_sink.rows.SLICE_BYTES_MAX", 1_000)
    values = [b"%d" % i * (i % 50) for i in range(500)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values)})
    parts = list(sliced(batch))
    assert len(parts) > 10
    assert all(part.nbytes <= 1_000 or part.num_rows == 1 for part in parts)
    assert pa.Table.from_batches(parts).column(0).to_pylist() == values


def test_large_binary_beyond_32_bit_offsets_is_rebased(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of a shared buffer above 2 GB cannot keep its offsets."""
    monkeypatch.setattr("spark_sink.rows._INT32_MAX", 10)
    values = pa.array([b"x" * 30, b"yy", None, b"z"], pa.large_binary()).slice(1)
    rows = rows_of(value=values)
    assert rows.records.column("value").to_pylist() == [b"yy", None, b"z"]
    assert rows.records.column("value").buffers()[2].size < 30
