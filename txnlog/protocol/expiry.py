"""When an unused transactional.id expires (R35)."""

from __future__ import annotations

from txnlog.errors import ConfigError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.transitions import TIMEOUT_MS_MAX, Done, Transition, prepare_expire

CLOCK_ERROR_MS = 60_000
"""Upper bound of the difference between two readings of the store's clock."""

SEEN_MS_MAX = 60_000
"""A producer that read its row longer ago reads it again before it begins a transaction."""

DELIVERY_TIMEOUT_MS_DEFAULT = 120_000
"""delivery.timeout.ms: how long a staged batch is retried."""

TRANSACTIONAL_ID_EXPIRATION_MS_DEFAULT = 604_800_000
TRANSACTIONAL_ID_EXPIRATION_MS_MIN = SEEN_MS_MAX + TIMEOUT_MS_MAX + CLOCK_ERROR_MS
"""A deferred transaction writes nothing before its commit, so its row is idle meanwhile."""

PRODUCER_ID_EXPIRATION_MS_DEFAULT = 86_400_000
"""producer.id.expiration.ms: idempotent producers expire if they write nothing for this time."""

PRODUCER_ID_EXPIRATION_MS_MIN = DELIVERY_TIMEOUT_MS_DEFAULT + 2 * CLOCK_ERROR_MS
"""A new producer's first batch, still in flight, must be younger than what has expired: by the
clock error that `check_remembered` allows for, and by that between the two clocks."""


def check_transactional_id_expiration(expiration_ms: int) -> None:
    """Raises ConfigError for a setting that would expire active producers."""
    if expiration_ms < TRANSACTIONAL_ID_EXPIRATION_MS_MIN:
        raise ConfigError(
            f"transactional.id.expiration.ms={expiration_ms} is below "
            f"{TRANSACTIONAL_ID_EXPIRATION_MS_MIN}: a deferred transaction writes nothing to its "
            f"row for up to transaction.max.timeout.ms={TIMEOUT_MS_MAX}, its producer may have "
            f"seen the row {SEEN_MS_MAX} ms before it began, and clocks may differ by "
            f"{CLOCK_ERROR_MS} ms. Set it higher.",
            option="transactional.id.expiration.ms",
        )


def check_producer_id_expiration(expiration_ms: int) -> None:
    """Raises ConfigError for a setting that would refuse batches of new producers."""
    if expiration_ms < PRODUCER_ID_EXPIRATION_MS_MIN:
        raise ConfigError(
            f"producer.id.expiration.ms={expiration_ms} is below {PRODUCER_ID_EXPIRATION_MS_MIN}: "
            f"a batch may be in flight for delivery.timeout.ms={DELIVERY_TIMEOUT_MS_DEFAULT}, and "
            f"clocks may differ by {CLOCK_ERROR_MS} ms twice; a new producer's batch would be "
            "refused as an expired one's. Set it higher.",
            option="producer.id.expiration.ms",
        )


def is_old(row: TransactionMetadata, *, expiration_ms: int, now_ms: int) -> bool:
    """Whether the row has been idle for `expiration_ms`, by the clock of its writer."""
    return row.state.is_idle and now_ms - row.updated_ms >= expiration_ms


def prepare_expire_unchanged(
    row: TransactionMetadata | None, seen: TransactionMetadata, *, now_ms: int
) -> Transition | Done:
    """Remove the row if it is unchanged, idle, and not a streaming query's."""
    if row != seen:
        return Done(row)
    return prepare_expire(row, now_ms=now_ms)
