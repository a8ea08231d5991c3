"""docs/format.md agrees with the code: another implementation relies only on this page."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from txnlog.protocol.batches import HEADER_COLUMNS, STATUSES
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.group_metadata import GROUP_COLUMNS, Member, PendingOffsets
from txnlog.protocol.leases import Lease
from txnlog.protocol.metadata import (
    ROW_COLUMNS,
    Fenced,
    LastBatch,
    Manifest,
    Owner,
    StagedBatch,
    TopicPartitions,
)
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import (
    CLEANED_PREFIX,
    END_PREFIX,
    HORIZON_PREFIX,
    START_PREFIX,
    TOMBSTONES_PREFIX,
)
from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    EXPIRING_TRANSACTIONS,
    VACUUM_AGE,
)
from txnlog.storage.batches.records import DATA_SCHEMA
from txnlog.storage.delta.actions import CommitInfo
from txnlog.storage.store.seals import MAGIC, MAGIC_WITHOUT_NAME
from txnlog.storage.tables.cluster_log import FORMAT, PRODUCER_IDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()
TABLES = [
    re.findall(r"^\| `([^`|]+)` \| ([^|]*)", part, re.MULTILINE) for part in PAGE.split("\n\n")
]


@pytest.mark.parametrize(
    "columns", [HEADER_COLUMNS, ROW_COLUMNS, GROUP_COLUMNS], ids=["header", "row", "group"]
)
def test_partition_columns_are_those_of_the_code(columns: dict[str, str]) -> None:
    """In order, with their types."""
    expected = [*columns.items()]
    assert expected in [[(name, kind.strip()) for name, kind in table] for table in TABLES]


def test_data_columns_are_those_of_the_code() -> None:
    assert DATA_SCHEMA.names in [[name for name, _ in table] for table in TABLES]


@pytest.mark.parametrize(
    "kind",
    [
        Manifest,
        StagedBatch,
        TopicPartitions,
        Owner,
        LastBatch,
        Fenced,
        PendingOffsets,
        Member,
        Lease,
    ],
)
def test_every_field_of_a_json_value_is_documented(kind: type[msgspec.Struct]) -> None:
    """A new field must be documented."""
    names = {field.encode_name for field in msgspec.structs.fields(kind)} - {"*"}
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    found = [set(re.findall(r"`([^`]+)`", line)) for line in rows]
    assert any(names <= have for have in found), names


def test_fields_of_commit_info_are_documented() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(CommitInfo)}
    ours = {name for name in names if name.startswith("txnlog")}
    assert ours in [{name for name, _ in table} for table in TABLES]


@pytest.mark.parametrize(
    "name",
    [
        *(f"{p}<partition>" for p in (END_PREFIX, START_PREFIX, CLEANED_PREFIX)),
        *(f"{p}<partition>" for p in (TOMBSTONES_PREFIX, HORIZON_PREFIX)),
        EXPIRED_PRODUCERS,
        EXPIRED_TRANSACTIONS,
        EXPIRING_TRANSACTIONS,
        VACUUM_AGE,
        MAGIC.decode(),
        MAGIC_WITHOUT_NAME.decode(),
        *sorted(STATUSES),
        *(state.name for state in TransactionState if state is not TransactionState.DEAD),
    ],
)
def test_name_on_disk_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_range_of_partitions_is_that_of_the_code() -> None:
    assert f"| `partition` | integer | 0 to {PARTITIONS_MAX - 1} |" in PAGE


def test_version_and_producer_ids_are_documented() -> None:
    assert f"Format version {FORMAT}." in PAGE
    assert f"`txn{{{PRODUCER_IDS}}}`" in PAGE
