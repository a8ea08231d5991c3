"""Whether files that were staged under one definition of a table fit another one."""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.protocol.enlisted.actions import AddFile, Definition
from txnlog.protocol.enlisted.parts import Part


def incompatible(was: Definition, now: Definition, adds: Sequence[AddFile]) -> str | None:
    """Why `adds`, staged under `was`, may not be added under `now`; None if they may.

    Both have the same metaData.id: with another one the table was dropped and made again.
    """
    raise NotImplementedError


def unpublishable(part: Part, now: Definition) -> str | None:
    """As `incompatible`, of a whole part: an append-only table takes no overwrite."""
    raise NotImplementedError
