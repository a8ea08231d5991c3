"""The versions of Delta's protocol that our tables have, and refusing any other."""

from __future__ import annotations

from txnlog.errors import UnsupportedProtocolError
from txnlog.protocol.shards import OFFSETS_PREFIX, STATE_PREFIX
from txnlog.storage.delta.actions import Protocol

PROTOCOL = Protocol(1, 2)
CLOSED = Protocol(1, 3)
"""Of a table that no process of format 1 or 2 may read or write: they know `PROTOCOL` only.

For readers and writers of Delta it adds nothing that the table uses.
"""
_SEAL = "txnlog.sealed"
SEALED = Protocol(3, 7, [_SEAL], [_SEAL])
"""Of a table that no version of txnlog, nor any other reader of Delta, may read or write again."""

CLUSTER_TABLE = "__cluster"


def newest_protocol(table: str) -> Protocol:
    """The highest protocol that a table of this name may have."""
    is_ours = table == CLUSTER_TABLE or table.startswith((STATE_PREFIX, OFFSETS_PREFIX))
    return CLOSED if is_ours else PROTOCOL


def is_known(protocol: Protocol, known: Protocol) -> bool:
    """Whether a table of this protocol needs no more than `known` of its readers and writers."""
    return (
        protocol.min_reader_version <= known.min_reader_version
        and protocol.min_writer_version <= known.min_writer_version
        and not protocol.reader_features
        and not protocol.writer_features
    )


def check_protocol(protocol: Protocol, known: Protocol, place: str, *, table: str) -> None:
    """Raise UnsupportedProtocolError for a table that needs more than `known`."""
    if is_known(protocol, known):
        return
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
    raise UnsupportedProtocolError(
        f"{place} is a Delta table of protocol ({reader}, {writer}) with features {features}; "
        f"txnlog knows ({known.min_reader_version}, {known.min_writer_version}) without any. "
        "Upgrade txnlog, or undo the table upgrade that another tool made.",
        table=table,
    )
