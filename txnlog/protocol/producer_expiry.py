"""Expiry of producers in a table: markers of transactions, sequences of idempotent producers.

Mirrors removeExpiredProducers of Kafka's ProducerStateManager. Expiry is a commit (D41), so that
cached and rebuilt state agree at every version (R11): the version of an action `txnlog/expired/...`
is a time, the horizon, and removes all entries last written before it.

A marker refuses further writes of its transaction. It expires when no process can write for that
transaction: its producer id has no state row now, and had none when the expiry was announced, at
least `settle_ms` ago. Producer ids are never reused, so a removed row never returns; and a process
that read the row before its removal reads it again before it writes to a topic, once its copy is
older than half of the log retention. A producer id with a row or an open transaction keeps its
marker: the announcement writes it again.

A sequence expires by age alone: a batch staged before the horizon, by a producer without a
sequence, is refused (`check_remembered`), since an earlier attempt may have been committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from txnlog.errors import UnknownProducerIdError
from txnlog.protocol.expiry import CLOCK_ERROR_MS, PRODUCER_ID_EXPIRATION_MS_DEFAULT
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.txn_memory import (
    EXPIRED_PRODUCERS,
    EXPIRED_TRANSACTIONS,
    EXPIRING_TRANSACTIONS,
    TXN_PREFIX,
    TxnMemory,
)

MARKER_AGE_MS_MIN = 7 * 86_400_000
SETTLE_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryLimits:
    """`marker_age_ms` must exceed half of the vacuum age: the marker identifies a batch write that
    lost the reply to its PREPARE, as long as its files can be committed.
    """

    marker_age_ms: int = MARKER_AGE_MS_MIN
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS_DEFAULT
    settle_ms: int = SETTLE_MS


def prepare_expiry(
    memory: TxnMemory, *, living: Collection[int], now_ms: int, limits: ExpiryLimits
) -> dict[str, int] | None:
    """The `txn` actions of the next commit that expires producers; None if there is nothing to do.

    `living` are the producer ids that have a row in any shard, read before this state, or an open
    transaction in this table. `now_ms` is by the store's clock, from before `living` was read: its
    reader may have slept since. The order matters: horizons come first.
    """
    txns: dict[str, int] = {}
    idle_ms = now_ms - limits.producer_id_expiration_ms
    if memory.sequences.older_than(idle_ms):
        txns[EXPIRED_PRODUCERS] = idle_ms
    due_ms = _due_ms(memory, now_ms, limits)
    if due_ms is not None:
        txns[EXPIRED_TRANSACTIONS] = due_ms
    # A new announcement would restart the wait of an open one.
    if due_ms is not None or memory.expiring_ms <= memory.transactions_expired_ms:
        txns.update(_announcement(memory, living, now_ms - limits.marker_age_ms, due_ms or -1))
    return txns or None


def _due_ms(memory: TxnMemory, now_ms: int, limits: ExpiryLimits) -> int | None:
    """The announced horizon, if it was announced at least `settle_ms` ago."""
    is_open = memory.expiring_ms > memory.transactions_expired_ms
    if is_open and now_ms - memory.announced_ms >= limits.settle_ms:
        return memory.expiring_ms
    return None


def _announcement(
    memory: TxnMemory, living: Collection[int], before_ms: int, due_ms: int
) -> Mapping[str, int]:
    """The next horizon, and the markers below it that stay, to be written again."""
    times_ms = memory.markers.updated_ms
    old = [key for key in memory.markers.older_than(before_ms) if times_ms[key] >= due_ms]
    kept = {key for key in old if key in living}
    if len(kept) == len(old):
        return {}
    stay = {f"{TXN_PREFIX}{key}": memory.markers[key] for key in sorted(kept)}
    return {EXPIRING_TRANSACTIONS: before_ms, **stay}


def check_remembered(
    memory: TxnMemory, batches: Sequence[StagedBatch], *, topic: str, producer_id: int
) -> None:
    """Refuse batches of an expired producer that may already be in the log.

    For producers of which the log has no sequence. Raises UnknownProducerIdError.
    """
    if memory.producers_expired_ms < 0:
        return
    for batch in batches:
        if batch.staged_ms < memory.producers_expired_ms + CLOCK_ERROR_MS:
            raise UnknownProducerIdError(
                f"Topic {topic!r} partition {batch.partition}: producer {producer_id} wrote "
                "nothing for producer.id.expiration.ms and has expired, and these records were "
                "first sent before that: an earlier attempt may have written them. Check the "
                "topic, and send them again if they are missing.",
                topic=topic,
                producer_id=producer_id,
            )
