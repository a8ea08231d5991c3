"""The `txn` actions of a table about producers and vacuum, with the times of their writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K")

TXN_PREFIX = "txnlog/"
EXPIRED_TRANSACTIONS = "txnlog/expired/transactions"
EXPIRED_PRODUCERS = "txnlog/expired/producers"
EXPIRING_TRANSACTIONS = "txnlog/expiring/transactions"
VACUUM_AGE = "txnlog/vacuum/age"
APPLICATION_RECORDS = "txnlog/records/"
"""With a txnAppId: how many records the write of its newest txnVersion has here."""

VACUUM_AGE_MS_DEFAULT = 7 * 86_400_000
"""Unreferenced files older than this are deleted; staged ones older than half are rejected."""

NEVER_EXPIRES_MS = 2**63 - 1
"""Time of an action without one: another tool wrote it, and it stays."""


class AgedVersions(dict[K, int]):
    """Key -> version; `updated_ms` has the time of each by the store's clock."""

    __slots__ = ("updated_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.updated_ms: dict[K, int] = {}

    def put(self, key: K, version: int, updated_ms: int | None) -> None:
        self[key] = version
        self.updated_ms[key] = NEVER_EXPIRES_MS if updated_ms is None else updated_ms

    def older_than(self, before_ms: int) -> list[K]:
        """Keys last written before a time."""
        return [key for key, at_ms in self.updated_ms.items() if at_ms < before_ms]

    def expire(self, before_ms: int) -> None:
        """Remove keys last written before a time."""
        for key in self.older_than(before_ms):
            del self[key]
            del self.updated_ms[key]

    def clear(self) -> None:
        super().clear()
        self.updated_ms.clear()


@dataclass(slots=True)
class TxnMemory:
    """State of all `txn` actions, applied in log order; of a checkpoint, horizons come first.

    `markers` maps producer id -> newest transaction epoch that has ended here, `sequences`
    (producer id, partition) -> last sequence, `applications` txnAppId -> txnVersion,
    `application_records` txnAppId -> records of that txnVersion. An `expired`
    action removes entries last written before its version, a time, but no txnVersion; see
    txnlog.protocol.producer_expiry and app_transactions. `vacuum_age_ms` is the smallest age that
    any vacuum of this table has used, `vacuumed_ms` the store's time of the newest vacuum.
    """

    markers: AgedVersions[int] = field(default_factory=AgedVersions)
    applications: AgedVersions[str] = field(default_factory=AgedVersions)
    application_records: dict[str, int] = field(default_factory=dict)
    sequences: AgedVersions[tuple[int, int]] = field(default_factory=AgedVersions)
    transactions_expired_ms: int = -1
    producers_expired_ms: int = -1
    expiring_ms: int = -1
    announced_ms: int = -1
    vacuum_age_ms: int = VACUUM_AGE_MS_DEFAULT
    vacuumed_ms: int = -1

    def set_txn(self, app_id: str, version: int, updated_ms: int | None) -> None:
        """Apply one action; actions about anything else change nothing."""
        key = producer_key(app_id)
        if isinstance(key, int):
            self.markers.put(key, version, updated_ms)
        elif key is not None:
            self.sequences.put(key, version, updated_ms)
        elif not app_id.startswith(TXN_PREFIX):
            self.applications.put(app_id, version, updated_ms)
        elif app_id.startswith(APPLICATION_RECORDS):
            self.application_records[app_id[len(APPLICATION_RECORDS) :]] = version
        elif app_id == EXPIRED_TRANSACTIONS:
            self.transactions_expired_ms = version
            self.markers.expire(version)
        elif app_id == EXPIRED_PRODUCERS:
            self.producers_expired_ms = version
            self.sequences.expire(version)
        elif app_id == EXPIRING_TRANSACTIONS:
            self.expiring_ms = version
            self.announced_ms = -1 if updated_ms is None else updated_ms
        elif app_id == VACUUM_AGE:
            self.vacuum_age_ms = version
            self.vacuumed_ms = max(self.vacuumed_ms, -1 if updated_ms is None else updated_ms)


def producer_key(app_id: str) -> int | tuple[int, int] | None:
    """Producer id of a marker, (producer id, partition) of a sequence, None for other actions."""
    if not app_id.startswith(TXN_PREFIX):
        return None
    first, dash, number = app_id[len(TXN_PREFIX) :].partition("-")
    if not _is_number(first):
        return None
    if not dash:
        return int(first)
    return (int(first), int(number)) if _is_number(number) else None


def _is_number(text: str) -> bool:
    """Whether it has the digits of an id that txnlog can have given out."""
    return text.isdecimal() and len(text) <= 18


def is_horizon(app_id: str) -> bool:
    """Whether an action expires others: those written before it, never those after it."""
    return app_id in (EXPIRED_TRANSACTIONS, EXPIRED_PRODUCERS)


def is_expired(
    app_id: str, updated_ms: int | None, *, transactions_ms: int, producers_ms: int
) -> bool:
    """Whether one of the two horizons expires this action."""
    key = producer_key(app_id)
    if key is None or updated_ms is None:
        return False
    return updated_ms < (transactions_ms if isinstance(key, int) else producers_ms)
