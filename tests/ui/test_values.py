"""Keys and values: JSON, Avro, text, hex; long ones are cut, and nothing invisible gets through."""

from __future__ import annotations

import io
import json
import tracemalloc
from functools import reduce

import fastavro
import pytest

from tests.ui.moments import FakeMoments, rich
from txnlog.protocol.moments import RecordMoment
from txnlog.ui.reading import Reader, Wanted
from txnlog.ui.values import SHOWN_BYTES, Shown, shown

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def avro(value: dict[str, object], schema_id: int) -> bytes:
    """In the wire format of a schema registry."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(SCHEMA), value)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


def no_schema(schema_id: int) -> str | None:
    return None


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"", "text", ""),
        (b"pear\nfig", "text", "pear\nfig"),
        (b"a\x00\x1b[31m\r", "text", r"a\x00\x1b[31m\x0d"),
        (b"\xff\x00", "hex", "ff 00"),
        (b"\0\0\0\0\1\x02", "text", r"\x00\x00\x00\x00\x01\x02"),
        (b'{"a": "\\u0000\xe2\x80\xae"}', "JSON", '{"a": "\\u0000\\u202e"}'),
        (b"{not json", "text", "{not json"),
        (b"[" * 100_000, "text", "[" * SHOWN_BYTES),
        (b"42", "text", "42"),
    ],
)
def test_a_value_is_shown_as_what_it_is(data: bytes, kind: str, text: str) -> None:
    found = shown(data, no_schema)
    assert found is not None
    assert (found.kind, found.text) == (kind, text)
    assert found.size_bytes == len(data)


def test_null_is_not_an_empty_value() -> None:
    assert shown(None, no_schema) is None


@pytest.mark.parametrize("character", ["a", "é", "漢", "🙂"])
def test_a_megabyte_is_cut_also_within_a_character(character: str) -> None:
    for before in range(4):
        data = b"x" * before + character.encode() * (1 << 20)
        found = shown(data, no_schema)
        assert found is not None
        assert found.is_cut
        assert found.kind == "text"
        assert len(found.text) <= 4 * SHOWN_BYTES


def test_long_json_is_on_lines_of_its_own() -> None:
    found = shown(json.dumps({"items": ["pear"] * 100}).encode(), no_schema)
    assert found is not None
    assert found.text.startswith('{\n  "items": [\n')


def test_the_indents_of_nested_json_are_made_as_far_as_they_are_shown() -> None:
    """All of them are 160 MB of a value of 200 kB."""
    data = b"[" * 800 + b"1," * 100_000 + b"1" + b"]" * 800
    tracemalloc.start()
    found = shown(data, no_schema)
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert (found.kind, found.is_cut) == ("JSON", True)
    assert highest < 20_000_000


DOUBLED = reduce(
    lambda inner, level: {
        "type": "record",
        "name": f"Record{level}",
        "fields": [{"name": "a", "type": inner}, {"name": "b", "type": f"Record{level - 1}"}],
    },
    range(1, 16),
    {"type": "record", "name": "Record0", "fields": [{"name": "a", "type": "null"}]},
)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, b"\x80\x89\x7a\0"),  # a million of them
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
            b"\x02" * 100 + b"\0",
        ),
        (
            {
                "type": "record",
                "name": "T",
                "fields": [{"name": "a", "type": DOUBLED}, {"name": "n", "type": "int"}],
            },
            b"\x02",
        ),
    ],
)
def test_avro_that_grows_without_a_bound_is_not_read(schema: object, data: bytes) -> None:
    """Ten bytes may be a list that fills the memory, or a depth that ends the process."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    fastavro.schemaless_reader(io.BytesIO(data), parsed, None)  # The library reads it.
    found = shown(b"\0\0\0\0\x03" + data, lambda _: json.dumps(schema))
    assert found is not None
    assert found.kind in ("hex", "text")


def test_avro_of_every_type_is_read() -> None:
    """Also where a named type is used twice, and a type is wrapped."""
    money = {"type": "record", "name": "money", "fields": [{"name": "n", "type": "long"}]}
    fields = {
        "null": "null", "bool": "boolean", "number": {"type": "int"}, "money": money,
        "again": "money", "list": {"type": "array", "items": "money"},
        "map": {"type": "map", "values": ["null", "money"]},
        "kind": {"type": "enum", "name": "kind", "symbols": ["A"]},
        "id": {"type": "fixed", "name": "id", "size": 2},
    }  # fmt: skip
    schema = {
        "type": "record",
        "name": "all",
        "namespace": "shop",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    one = {"n": 1}
    value = {
        "null": None, "bool": True, "number": 1, "money": one, "again": one, "list": [one],
        "map": {"a": one, "b": None}, "kind": "A", "id": b"xy",
    }  # fmt: skip
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    found = shown(b"\0\0\0\0\x03" + out.getvalue(), lambda _: json.dumps(schema))
    assert found is not None
    assert found.kind == "Avro"
    assert json.loads(found.text) == {**value, "id": "b'xy'"}


def test_avro_is_read_with_the_schema_of_its_registry() -> None:
    """A schema's id is the offset of its first record in _schemas, plus one."""

    class Registry(FakeMoments):
        def records(self, topic: str, partition: int, **asked: object) -> list[RecordMoment]:  # type: ignore[override]
            value = avro({"id": 4711}, 3)
            if topic == "_schemas":
                assert asked["offset"] == 2
                value = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
            return [RecordMoment(topic, 0, 2, 0, None, value, (), None, "committed")]

    [found] = Reader(Registry(rich())).records(Wanted(topic="orders", partition=0), None)
    assert found.value == Shown("Avro", '{"id": 4711}', 7, False)


@pytest.mark.parametrize("schema", [None, "{", '{"type": "nope"}', '{"type": "string"}'])
def test_avro_without_a_schema_that_fits_is_shown_as_it_is(schema: str | None) -> None:
    found = shown(avro({"id": -1}, 3) + b"\xff", lambda _: schema)
    assert found is not None
    assert found.kind == "hex"
