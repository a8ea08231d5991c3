"""Names of Delta tables of others, and what a manifest may say of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from txnlog.errors import ConfigError, CorruptLogError, UnknownTableError
from txnlog.protocol.enlisted.registry import (
    EnlistedTable,
    check_table_name,
    find_enlisted,
    prepare_enlist,
)
from txnlog.protocol.metadata import Manifest, StagedTable, TransactionMetadata
from txnlog.protocol.states import TransactionState

HERE = EnlistedTable(url="file:///silver", table_id="a", since_ms=1)
THERE = EnlistedTable(url="file:///gold", table_id="b", since_ms=1)
PART = StagedTable(
    name="silver", url="file:///silver", table_id="a", part="_txnlog/c/0.json", size_bytes=1,
    digest="", num_files=1, num_records=1, staged_ms=0,
)  # fmt: skip


def test_table_has_one_name_and_a_name_one_table() -> None:
    """Repeated after a lost reply it changes nothing (R63)."""
    known = {"silver": HERE}
    assert prepare_enlist({}, "silver", HERE) == HERE
    assert (
        prepare_enlist(known, "silver", EnlistedTable(url=HERE.url, table_id="a", since_ms=2))
        is None
    )
    assert prepare_enlist(known, "gold", THERE) == THERE
    seen = replace(HERE, staging="visible")
    assert prepare_enlist(known, "silver", replace(seen, since_ms=2)) == seen
    for name, table in [
        ("silver", THERE),
        ("again", HERE),
        ("moved", EnlistedTable(url="file:///moved", table_id="a", since_ms=1)),
        ("made-again", EnlistedTable(url=HERE.url, table_id="c", since_ms=1)),
    ]:
        with pytest.raises(ConfigError, match="txnlog tables delist silver"):
            prepare_enlist(known, name, table)


def test_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    assert find_enlisted({"silver": HERE}, "silver") == HERE
    with pytest.raises(UnknownTableError, match="there are: silver"):
        find_enlisted({"silver": HERE}, "sliver")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "x" * 250, "a\n", "-x", "."])
def test_name_has_the_characters_of_a_topic(name: str) -> None:
    """It is part of a property's name, and of messages (R64)."""
    with pytest.raises(ConfigError):
        check_table_name(name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("part", "../other/0.json"),
        ("part", "_txnlog/../../0.json"),
        ("part", "/etc/passwd"),
        ("part", ""),
        ("url", ""),
        ("name", "a; rm -rf /"),
        ("mode", "mix"),
        ("size_bytes", -1),
        ("unknown", 1),
    ],
)
def test_row_with_a_part_that_txnlog_never_writes_is_refused(field: str, value: Any) -> None:
    """A path that leaves the table would be read, and a mode be published (R38)."""
    row = TransactionMetadata(
        transactional_id="tx", producer_id=1, producer_epoch=1, timeout_ms=1,
        state=TransactionState.PREPARE_COMMIT, pending=Manifest(tables=(PART,)),
    )  # fmt: skip
    values = row.to_values()
    again = TransactionMetadata.from_values(values, path="", source="s")
    assert again.tables == (PART,)
    pending = json.loads(values["pending"])
    pending["tables"][0][field] = value
    with pytest.raises(CorruptLogError, match="'tx' cannot be read"):
        TransactionMetadata.from_values(
            {**values, "pending": json.dumps(pending)}, path="", source="s"
        )
