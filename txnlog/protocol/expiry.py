"""When a transactional.id that nobody uses any more is forgotten (R35)."""

from __future__ import annotations

from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.transitions import Done, Transition, prepare_expire

TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT = 604_800_000
PRODUCER_ID_EXPIRATION_MS_DEFAULT = 86_400_000
"""producer.id.expiration.ms: idempotent producers that wrote nothing for so long are forgotten."""


def is_old(row: TransactionMetadata, *, expiration_ms: int, now_ms: int) -> bool:
    """Whether the row says that nothing happened for so long, by the clock of whoever wrote it."""
    return row.state.is_idle and now_ms - row.updated_ms >= expiration_ms


def prepare_expire_unchanged(
    row: TransactionMetadata | None, seen: TransactionMetadata, *, now_ms: int
) -> Transition | Done:
    """Remove the row if it is still as it was seen, idle, and no streaming query's."""
    if row != seen:
        return Done(row)
    return prepare_expire(row, now_ms=now_ms)
