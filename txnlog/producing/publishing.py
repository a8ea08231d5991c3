"""The three ways from a producer's batches into topics.

    Idempotent   without transactional.id: appended at once, final, under a fresh producer id
    Eager        in a transaction: appended at once as `ongoing`, settled by the transaction's end
    Deferred     in a transaction: files that nobody sees, named by the commit

The first two are in txnlog.producing.requests. Callers hold the producer's io lock; nothing here
sleeps or knows of threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from txnlog.cluster import Cluster
from txnlog.errors import TransactionAbortedError, TxnLogError, unexpected
from txnlog.producing.batching import Batch, stage
from txnlog.producing.deliveries import Deliveries
from txnlog.protocol.metadata import StagedBatch

logger = logging.getLogger("txnlog")

FILE_BYTES_MAX = 16 << 20
"""Records of a partition that a deferred transaction gathers before it writes a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """What every publication works with. `release` tells the accumulator of bytes that are gone."""

    cluster: Cluster
    deliveries: Deliveries
    release: Callable[[int], None]
    compression: str | None
    memory_bytes: int
    delivery_timeout_ms: int


class Publication(Protocol):
    """What a producer does with batches.

    `error` is the first that was not retriable, `last_error` the newest one.
    """

    error: TxnLogError | None
    last_error: TxnLogError | None

    @property
    def waiting(self) -> int:
        """Records that `pump` still has to do something about."""

    def add(self, batch: Batch) -> None:
        """Take a batch; no I/O."""

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        """Fail the delivery of a batch that cannot be sent; then a transaction has failed."""

    def pump(self) -> None:
        """Send what can be sent. What fails and may be tried again is left for the next call."""

    def discard(self, error: TxnLogError) -> None:
        """Throw away what is not sent; each record's delivery fails with `error`."""

    def purge(self, error: TxnLogError, *, in_queue: bool, in_flight: bool) -> None:
        """The same for what was not tried yet, was tried, or both; then a transaction failed."""


@dataclass(slots=True)
class _Lane:
    """One partition of a deferred transaction: what waits, and the files written before."""

    waiting: list[Batch] = field(default_factory=list)
    waiting_bytes: int = 0
    files: list[tuple[StagedBatch, list[Batch]]] = field(default_factory=list)


class Deferred:
    """Inside a transaction; made anew for each one. Nothing is in a topic before the commit.

    batch.size and linger.ms have no meaning: a partition's records become one file at the commit.
    Files are written before only when a partition has FILE_BYTES_MAX, or all of them together
    buffer.memory: then the largest, until half of it is free.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._cluster = outlet.cluster
        self._deliveries = outlet.deliveries
        self._release = outlet.release
        self._memory_bytes = outlet.memory_bytes
        self._compression = outlet.compression
        self._lanes: dict[tuple[str, str, int], _Lane] = {}
        self._waiting_bytes = 0
        self.error: TxnLogError | None = None
        self.last_error: TxnLogError | None = None

    @property
    def waiting(self) -> int:
        """Nothing can be delivered before the commit, so nothing is worth waiting for."""
        return 0

    def add(self, batch: Batch) -> None:
        lane = self._lanes.setdefault((batch.topic, batch.topic_id, batch.partition), _Lane())
        lane.waiting.append(batch)
        lane.waiting_bytes += batch.size_bytes
        self._waiting_bytes += batch.size_bytes

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        self._deliveries.add(batch, None, error)
        self._release(batch.size_bytes)
        self.error = self.error or error

    def pump(self) -> None:
        """Write files where too much waits. A retriable error is raised by `stage_all` only."""
        try:
            lanes = sorted(self._lanes.values(), key=lambda lane: -lane.waiting_bytes)
            too_much = self._waiting_bytes >= self._memory_bytes
            for lane in lanes:
                full = lane.waiting_bytes >= FILE_BYTES_MAX
                if full or (too_much and self._waiting_bytes > self._memory_bytes // 2):
                    self._stage(lane)
        except Exception as error:
            if not isinstance(error, TxnLogError):
                logger.exception("Records of a transaction cannot be written to a file")
            self.last_error = failed = unexpected(error, "Writing a file of the transaction")
            if not failed.retriable:
                self.error = failed

    def stage_all(self) -> list[StagedBatch]:
        """Write what waits, and name every file, by topic and partition, in order.

        Raises StorageError: call it again. Files that were written stay.
        """
        for lane in self._lanes.values():
            if lane.waiting:
                self._stage(lane)
        return [file for _, lane in sorted(self._lanes.items()) for file, _ in lane.files]

    def report(self) -> None:
        """After the commit: delivery reports, with the offsets that the commit gave out."""
        for (topic, _, _), lane in sorted(self._lanes.items()):
            for file, batches in lane.files:
                if any(batch.callbacks for batch in batches):
                    offset = self._base_offset(topic, file.path)
                    for batch in batches:
                        self._deliveries.add(batch, offset)
                        if offset is not None:
                            offset += batch.num_records
        self._lanes.clear()

    def discard(self, error: TxnLogError) -> None:
        for lane in self._lanes.values():
            self._release(lane.waiting_bytes)
            for batch in [*(b for _, batches in lane.files for b in batches), *lane.waiting]:
                self._deliveries.add(batch, None, error)
        self._waiting_bytes = 0
        self._lanes.clear()

    def purge(self, error: TxnLogError, *, in_queue: bool, in_flight: bool) -> None:
        """Nothing of it is on its way before the commit."""
        if in_queue and self._lanes:
            self.discard(error)
            self.error = error

    def _stage(self, lane: _Lane) -> None:
        staged = stage(self._cluster.store, lane.waiting, self._compression)
        # Without callbacks nobody asks for these records again.
        kept = [batch for batch in lane.waiting if batch.callbacks]
        lane.files.append((staged, lane.waiting if kept else []))
        self._waiting_bytes -= lane.waiting_bytes
        self._release(lane.waiting_bytes)
        lane.waiting, lane.waiting_bytes = [], 0

    def _base_offset(self, topic: str, path: str) -> int | None:
        log = self._cluster.topic_log(topic)
        header = log.view.by_path.get(path)
        if header is None:
            # Somebody else wrote the marker; or the file is gone already, or cannot be asked for.
            try:
                log.refresh()
            except TxnLogError:
                return None
            header = log.view.by_path.get(path)
        return None if header is None else header.base_offset


def aborted(transactional_id: str) -> TransactionAbortedError:
    """What the records of an aborted transaction are told."""
    return TransactionAbortedError(
        f"The record was thrown away: its transaction of {transactional_id!r} was aborted. Produce "
        "it again in another transaction.",
        transactional_id=transactional_id,
    )
