"""Which Delta tables may take part in transactions; each refusal says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.enlisted_tables import URL, column, definition, state_of
from txnlog.errors import TableFeatureError
from txnlog.protocol.enlisted.actions import Definition, Format, Protocol, TableMetadata
from txnlog.protocol.enlisted.features import KNOWN, check_enlistable, retention_ms


@pytest.mark.parametrize("feature", sorted(KNOWN))
def test_known_feature_is_enlisted(feature: str) -> None:
    """Spark gives tables these features without being asked."""
    check_enlistable(state_of(definition(features=(feature,))))


def test_all_known_features_together_are_enlisted() -> None:
    check_enlistable(state_of(definition(features=tuple(KNOWN), reader=3)))


@pytest.mark.parametrize("writer", range(1, 7))
def test_writer_versions_before_features_are_enlisted(writer: int) -> None:
    """Version 6 supports identity columns, which this table does not have."""
    check_enlistable(state_of(definition(writer=writer)))


REFUSED: dict[str, tuple[Definition, str]] = {
    **{
        name: (definition(features=(name,)), f"needs '{name}': {why}")
        for name, why in {
            "catalogManaged": "its commits go through a catalog",
            "catalogOwned-preview": "its commits go through a catalog",
            "coordinatedCommits-preview": "its commits go through a catalog",
            "icebergCompatV1": "each commit would have to write Iceberg",
            "icebergCompatV2": "each commit would have to write Iceberg",
            "icebergCompatV3": "each commit would have to write Iceberg",
            "txnlog.exclusive": "this txnlog does not know it",
            "somethingNew": "this txnlog does not know it; upgrade, or drop the feature",
        }.items()
    },
    "identity": (
        definition(column("id", delta_identity_start=1), features=("identityColumns",)),
        "needs 'identityColumns': each append would have to change the table's metadata",
    ),
    "identity of version 6": (
        definition(column("id", delta_identity_start=1), writer=6),
        "needs 'identityColumns'",
    ),
    "identity in a struct": (
        definition(
            column("s", {"type": "struct", "fields": [column("id", delta_identity_step=1)]}),
            writer=6,
        ),
        "needs 'identityColumns'",
    ),
    "reader feature alone": (
        Definition(
            Protocol(min_reader_version=3, min_writer_version=7, reader_features=("newReads",)),
            definition().metadata,
        ),
        "needs 'newReads': this txnlog does not know it",
    ),
    "writer version": (definition(writer=8), "needs 'writer version 8'"),
    "reader version": (definition(reader=4), "needs 'reader version 4'"),
    "UniForm": (
        definition(delta_universalFormat_enabledFormats="iceberg"),
        "unset delta.universalFormat.enabledFormats",
    ),
    "Iceberg": (definition(delta_enableIcebergCompatV2="true"), "delta.enableIcebergCompatV2"),
    "log retention": (
        definition(delta_logRetentionDuration="interval 23 hours"),
        "delta.logRetentionDuration is shorter than 1 days.*raise it",
    ),
    "txn retention": (
        definition(delta_setTransactionRetentionDuration="interval 6 days"),
        "delta.setTransactionRetentionDuration is shorter than 7 days",
    ),
    "no interval": (
        definition(delta_logRetentionDuration="for ever"),
        "delta.logRetentionDuration is 'for ever', which is no interval",
    ),
    "topic": (definition(txnlog_partitions="3"), "a topic or a table of txnlog itself"),
    "format": (
        Definition(
            definition().protocol,
            TableMetadata(
                id="t",
                schema_string=definition().metadata.schema_string,
                partition_columns=(),
                format=Format(provider="orc"),
            ),
        ),
        "'orc', not Parquet",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_table_is_named_with_the_reason(name: str) -> None:
    """Before the decision, abortable, with URL and version."""
    table, wanted = REFUSED[name]
    with pytest.raises(TableFeatureError, match=wanted) as caught:
        check_enlistable(state_of(table))
    assert f"{URL} cannot take part in a transaction, as of version 4" in str(caught.value)
    assert caught.value.abortable


def test_each_reason_is_in_one_message() -> None:
    """So that an operator mends all before the next attempt."""
    table = definition(features=("catalogManaged", "newer"), txnlog_partitions="1")
    with pytest.raises(TableFeatureError, match=r"catalogManaged.*newer.*topic"):
        check_enlistable(state_of(table))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("interval 30 days", 30 * 86_400_000),
        ("INTERVAL 1 WEEK", 7 * 86_400_000),
        ("2 days 3 hours", 51 * 3_600_000),
        ("interval 90 seconds 5 milliseconds", 90_005),
        ("interval 168 hours", 7 * 86_400_000),
    ],
)
def test_interval_is_read_as_spark_does(text: str, wanted: int) -> None:
    table = definition(delta_logRetentionDuration=text)
    assert retention_ms(table, "delta.logRetentionDuration") == wanted


@pytest.mark.parametrize("text", ["interval", "1 month", "days", "1day", "1 day,", "9" * 99])
def test_no_interval_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no interval"):
        retention_ms(definition(delta_logRetentionDuration=text), "delta.logRetentionDuration")


def test_retentions_have_deltas_defaults() -> None:
    found: Any = [
        retention_ms(definition(), f"delta.{name}Duration")
        for name in ("logRetention", "deletedFileRetention", "setTransactionRetention")
    ]
    assert found == [30 * 86_400_000, 7 * 86_400_000, None]
