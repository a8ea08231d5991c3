"""When markers of transactions expire: `settle_ms` after the announcement."""

from __future__ import annotations

from txnlog.protocol.producer_expiry import ExpiryLimits, prepare_expiry
from txnlog.protocol.txn_memory import EXPIRED_TRANSACTIONS, EXPIRING_TRANSACTIONS, TxnMemory


def test_markers_expire_no_sooner_than_announced() -> None:
    """A helper that has read the row before would publish once more (D41)."""
    limits = ExpiryLimits()
    memory = TxnMemory()
    memory.set_txn(EXPIRING_TRANSACTIONS, 100, 1_000)
    due_ms = 1_000 + limits.settle_ms
    early = prepare_expiry(memory, living=(), now_ms=due_ms - 1, limits=limits)
    assert EXPIRED_TRANSACTIONS not in (early or {})
    due = prepare_expiry(memory, living=(), now_ms=due_ms, limits=limits)
    assert due is not None
    assert due[EXPIRED_TRANSACTIONS] == 100
