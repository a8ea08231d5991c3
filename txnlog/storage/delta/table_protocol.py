"""The version of Delta's protocol that our tables have, and refusing a higher one."""

from __future__ import annotations

from txnlog.errors import UnsupportedProtocolError
from txnlog.storage.delta.actions import Protocol

PROTOCOL = Protocol(1, 2)


def is_known(protocol: Protocol) -> bool:
    """Whether a table of this protocol needs no more than `PROTOCOL` of its readers and writers."""
    return (
        protocol.min_reader_version <= PROTOCOL.min_reader_version
        and protocol.min_writer_version <= PROTOCOL.min_writer_version
        and not protocol.reader_features
        and not protocol.writer_features
    )


def check_protocol(protocol: Protocol, place: str, *, table: str) -> None:
    """Raise UnsupportedProtocolError for a table that needs more than `PROTOCOL`."""
    if is_known(protocol):
        return
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
    raise UnsupportedProtocolError(
        f"{place} is a Delta table of protocol ({reader}, {writer}) with features {features}; "
        f"txnlog knows ({PROTOCOL.min_reader_version}, {PROTOCOL.min_writer_version}) without any. "
        "Upgrade txnlog, or undo the table upgrade that another tool made.",
        table=table,
    )
