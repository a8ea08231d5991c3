"""The part of one transaction in one enlisted table, and the commit that publishes it.

Staged files are listed in a part file before the decision: with it and the table's log any process
can publish them. Row ids, versions and timestamps are filled in then, from the log only.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from txnlog.protocol.enlisted.actions import AddFile, Definition, TableState

STAGING = "_txnlog"
"""Folder of a table for staged files and part files, by cluster id; VACUUM of others leaves it."""

Mode = Literal["append", "overwrite"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add; with mode overwrite, what is live in `partitions` then (None: all) is removed.

    `partitions` are partition values as an add has them. `definition` is the table's when the files
    were staged, at version `read_version`.
    """

    mode: Mode
    partitions: tuple[dict[str, str | None], ...] | None = None
    read_version: int
    definition: Definition
    adds: tuple[AddFile, ...]

    @property
    def num_records(self) -> int:
        raise NotImplementedError


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What the decided transaction says of its parts. `decided_ms` is by the root's store.

    `is_blind`: the application says that its data does not depend on the table.
    """

    app_id: str
    epoch: int
    is_blind: bool
    decided_ms: int


def app_id_of(cluster_id: str, producer_id: int) -> str:
    """The appId of a producer in every enlisted table; its version is the transaction's epoch."""
    return f"txnlog/{cluster_id}/{producer_id}"


def staging_folder(cluster_id: str) -> str:
    """Where a cluster stages files of a table, below the table's folder."""
    return f"{STAGING}/{cluster_id}"


def encode_part(part: Part) -> bytes:
    """The part file."""
    raise NotImplementedError


def decode_part(data: bytes, *, source: str) -> Part:
    """Parse a part file. Raises CorruptLogError naming `source` if it is invalid."""
    raise NotImplementedError


def publication(
    part: Part, state: TableState, decided: Decided, *, write_id: str, engine: str, now_ms: int
) -> list[dict[str, Any]]:
    """The actions of the commit that publishes a part as the next version after `state`.

    The part is compatible with the state; an overwrite needs `state.files`.
    """
    raise NotImplementedError
