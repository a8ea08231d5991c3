"""Which Delta tables may be enlisted: features and properties that are refused, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from txnlog.errors import TableFeatureError
from txnlog.protocol.enlisted.actions import Definition, Protocol, TableState
from txnlog.protocol.enlisted.schemas import IDENTITY, fields_below, schema_of

READER_VERSION_MAX = 3
WRITER_VERSION_MAX = 7

KNOWN = frozenset(
    {
        "allowColumnDefaults", "appendOnly", "changeDataFeed", "checkConstraints",
        "checkpointProtection", "clustering", "columnMapping", "deletionVectors",
        "domainMetadata", "generatedColumns", "inCommitTimestamp", "invariants", "rowTracking",
        "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint",
        "vacuumProtocolCheck", "variantType",
    }
)  # fmt: skip
"""Features under which a file that was staged by the table's rules may be added."""

_LEGACY = {
    2: {"appendOnly", "invariants"},
    3: {"checkConstraints"},
    4: {"changeDataFeed", "generatedColumns"},
    5: {"columnMapping"},
    6: {"identityColumns"},
}
"""Writer version below 7 -> the features that it adds to those of the versions before."""

_CATALOG = "its commits go through a catalog, which alone decides what is in the table"
_ICEBERG = (
    "each commit would have to write Iceberg's metadata, too; unset "
    "delta.universalFormat.enabledFormats and drop the feature"
)
_REASONS = {
    "catalogManaged": _CATALOG,
    "catalogOwned-preview": _CATALOG,
    "coordinatedCommits-preview": _CATALOG,
    "managedCommit-dev": _CATALOG,
    "icebergCompatV1": _ICEBERG,
    "icebergCompatV2": _ICEBERG,
    "icebergCompatV3": _ICEBERG,
    "icebergWriterCompatV1": _ICEBERG,
    "identityColumns": "each append would have to change the table's metadata, and fail every "
    "other writer; replace identity columns",
}
_UPGRADE = "this txnlog does not know it; upgrade, or drop the feature"

_PROPERTIES = {
    "delta.coordinatedCommits.commitCoordinator-preview": _CATALOG,
    "delta.managedCommits.commitOwner-dev": _CATALOG,
    "delta.universalFormat.enabledFormats": _ICEBERG,
    "delta.enableIcebergCompatV1": _ICEBERG,
    "delta.enableIcebergCompatV2": _ICEBERG,
    "delta.enableIcebergCompatV3": _ICEBERG,
}

DAY_MS = 86_400_000
LOG_RETENTION = "delta.logRetentionDuration"
TXN_RETENTION = "delta.setTransactionRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"
_DEFAULTS_MS = {LOG_RETENTION: 30 * DAY_MS, FILE_RETENTION: 7 * DAY_MS}
_RETENTIONS_MIN_MS = {LOG_RETENTION: DAY_MS, TXN_RETENTION: 7 * DAY_MS}

_UNIT_MS = {
    "microsecond": 0.001, "millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000,
    "day": DAY_MS, "week": 7 * DAY_MS,
}  # fmt: skip
_SPAN = re.compile(rf"(\d{{1,12}})\s+({'|'.join(_UNIT_MS)})s?(?:\s+|\Z)")


def check_enlistable(state: TableState) -> None:
    """Raise TableFeatureError for a table that txnlog may not write; says what to do.

    Asked when a table is enlisted, and again before each decision.
    """
    reasons = list(_refusals(state.definition))
    if reasons:
        raise TableFeatureError(
            f"{state.url} cannot take part in a transaction, as of version {state.version}: "
            f"{'. '.join(reasons)}. Nothing was written.",
            url=state.url,
        )


def features_of(protocol: Protocol) -> frozenset[str]:
    """The features that writers of a table must support."""
    if protocol.min_writer_version >= WRITER_VERSION_MAX:
        return frozenset(protocol.writer_features or ())
    versions = range(protocol.min_writer_version + 1)
    return frozenset().union(*(_LEGACY.get(version, ()) for version in versions))


def unknown_features(definition: Definition) -> list[str]:
    """The features of a table under which txnlog may not add a file."""
    protocol = definition.protocol
    found = set(features_of(protocol) - KNOWN)
    # Writers of version 6 support the feature; only a column of it needs more of them.
    if "identityColumns" in found and not _has_identity(definition):
        found.discard("identityColumns")
    if protocol.min_reader_version > READER_VERSION_MAX:
        found.add(f"reader version {protocol.min_reader_version}")
    if protocol.min_writer_version > WRITER_VERSION_MAX:
        found.add(f"writer version {protocol.min_writer_version}")
    # What an unknown reader feature asks of writers is unknown, too.
    found.update(set(protocol.reader_features or ()) - KNOWN)
    return sorted(found)


def retention_ms(definition: Definition, name: str) -> float | None:
    """How long a table keeps something, by its property or Delta's default; None: for ever.

    Raises ValueError for a property that is no interval.
    """
    text = definition.metadata.get(name)
    if not text:
        return _DEFAULTS_MS.get(name)
    wanted = text.strip().lower().removeprefix("interval").strip()
    spans = list(_SPAN.finditer(wanted))
    if not spans or "".join(span[0] for span in spans) != wanted:
        raise ValueError(f"{name} is {text!r}, which is no interval such as 'interval 30 days'")
    return sum(int(span[1]) * _UNIT_MS[span[2]] for span in spans)


def _has_identity(definition: Definition) -> bool:
    return any(
        key.startswith(IDENTITY)
        for field in fields_below(schema_of(definition))
        for key in field.metadata
    )


def _refusals(definition: Definition) -> Iterator[str]:
    """A sentence for each reason, without its full stop."""
    metadata = definition.metadata
    for name in unknown_features(definition):
        yield f"It needs {name!r}: {_REASONS.get(name, _UPGRADE)}"
    for name, why in _PROPERTIES.items():
        if metadata.get(name).lower() not in ("", "false"):
            yield f"It has {name}={metadata.get(name)!r}: {why}"
    if metadata.format.provider != "parquet":
        yield f"Its files are {metadata.format.provider!r}, not Parquet"
    if any(name.startswith("txnlog.") for name in metadata.configuration):
        yield "It is a topic or a table of txnlog itself: produce to the topic instead"
    for name, least_ms in _RETENTIONS_MIN_MS.items():
        try:
            kept_ms = retention_ms(definition, name)
        except ValueError as error:
            yield f"Its property {error}"
            continue
        if kept_ms is not None and kept_ms < least_ms:
            yield (
                f"Its {name} is shorter than {least_ms // DAY_MS} days, so that a decided "
                "transaction could be forgotten before it is finished: raise it"
            )
