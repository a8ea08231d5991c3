"""What a fenced producer is told: who fenced it, when, and who owns its transactional.id now."""

from __future__ import annotations

from datetime import datetime, timezone

from txnlog.errors import ProducerFencedError
from txnlog.protocol.metadata import TransactionMetadata


def fenced(row: TransactionMetadata, who: str) -> ProducerFencedError:
    """The error for a run that was taken over: who owns the id now, who fenced it and when."""
    return ProducerFencedError(
        f"{who} may no longer write under transactional.id {row.transactional_id!r}: it is owned "
        f"by {row.owner.describe()} at epoch {row.producer_epoch}{fenced_note(row)}. Stop this "
        "one, or give it a transactional.id of its own.",
        transactional_id=row.transactional_id,
        owner=row.owner.describe(),
        actual_epoch=row.producer_epoch,
    )


def fenced_note(row: TransactionMetadata) -> str:
    """A clause for error messages, "" for a row that nobody was fenced from."""
    last = row.owner.fenced
    if last is None:
        return ""
    at = datetime.fromtimestamp(last.at_ms / 1000, tz=timezone.utc).isoformat("T", "seconds")
    return f" (last fenced at {at} by {last.by}: {last.reason})"
