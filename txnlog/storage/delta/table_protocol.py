"""The version of Delta's protocol that our tables have, and refusing any other."""

from __future__ import annotations

from txnlog.errors import UnsupportedProtocolError
from txnlog.storage.delta.actions import Protocol

READER_VERSION = 1
WRITER_VERSION = 2
PROTOCOL = Protocol(READER_VERSION, WRITER_VERSION)
_SEAL = "txnlog.sealed"
SEALED = Protocol(3, 7, [_SEAL], [_SEAL])
"""Of a table that no version of txnlog, nor any other reader of Delta, may read or write again."""


def check_protocol(protocol: Protocol, place: str, *, table: str) -> None:
    """Raise UnsupportedProtocolError for a table that needs more of its readers or writers."""
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    features = [*(protocol.reader_features or []), *(protocol.writer_features or [])]
    if reader > READER_VERSION or writer > WRITER_VERSION or features:
        raise UnsupportedProtocolError(
            f"{place} is a Delta table of protocol ({reader}, {writer}) "
            f"with features {features}; txnlog knows (1, 2) without any. Upgrade txnlog, or "
            "undo the table upgrade that another tool made.",
            table=table,
        )
