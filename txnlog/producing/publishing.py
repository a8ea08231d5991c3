"""The three ways in which a producer's batches get into topics.

    Idempotent   without transactional.id: appended at once, final, under a new producer id
    Eager        in a transaction: appended at once as `ongoing`, settled by the transaction's end
    Deferred     in a transaction: staged as files, which the commit adds to the topics

A file costs more than its records, so a deferred transaction writes one per partition, at the
commit, and earlier only from FILE_BYTES_MAX on or where the buffer is full.

The first two are in txnlog.producing.requests. Callers hold the producer's io lock; nothing here
sleeps or starts threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging
from txnlog.errors import (
    CommitStateUnknownError,
    TransactionAbortedError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.process.failures import Failures, parts_of, unexpected
from txnlog.process.retries import place_of
from txnlog.producing.batching import Batch, stage
from txnlog.producing.deliveries import Deliveries
from txnlog.protocol.appends import check_topic_id
from txnlog.protocol.metadata import StagedBatch

FILE_BYTES_MAX = 16 << 20
"""Bytes of a partition's records in a deferred transaction that are written to a file at once."""
_AT_COMMIT = "with the next records, and at the latest by commit_transaction()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """What every publication needs. `release` frees the memory of batches, once."""

    cluster: Cluster
    deliveries: Deliveries
    release: Callable[[Iterable[Batch]], None]
    compression: str | None
    memory_bytes: int
    delivery_timeout_ms: int


class Publication(Protocol):
    """Sends a producer's batches. After an interrupt each method may be called again.

    `error` is the first error that is not retriable, `last_error` the newest error.
    """

    error: TxnLogError | None
    last_error: TxnLogError | None

    @property
    def waiting(self) -> int:
        """Number of records that `pump` has not finished."""

    def add(self, batch: Batch) -> None:
        """Take a batch, unless it is taken; no I/O."""

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        """Fail the delivery of a batch that cannot be sent, and so its transaction."""

    def pump(self) -> None:
        """Send what can be sent. Batches with a retriable error remain for the next call."""

    def discard(self, error: TxnLogError) -> None:
        """Discard batches that are not sent; the delivery of each record fails with `error`."""

    def purge(self, error: TxnLogError, *, in_queue: bool, in_flight: bool) -> None:
        """Discard batches not sent yet, sent without a reply, or both, and fail the transaction."""


@dataclass(slots=True)
class _DeferredPartition:
    """One partition of a deferred transaction: waiting batches, and the files staged so far."""

    waiting: list[Batch] = field(default_factory=list)
    waiting_bytes: int = 0
    files: list[tuple[StagedBatch, list[Batch]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        first = self.waiting[0]
        return f"{first.topic}-{first.partition}"


class Deferred:
    """For one transaction. No record is in a topic before the commit.

    batch.size and linger.ms have no effect: a partition's records become one file at the commit.
    Earlier files are written only when a partition has FILE_BYTES_MAX, or when all partitions
    together have buffer.memory: then the largest ones, until half of it is free.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._cluster = outlet.cluster
        self._deliveries = outlet.deliveries
        self._release = outlet.release
        self._memory_bytes = outlet.memory_bytes
        self._compression = outlet.compression
        self._buffers: dict[tuple[str, str, int], _DeferredPartition] = {}
        self.error: TxnLogError | None = None
        self.last_error: TxnLogError | None = None

    @property
    def waiting(self) -> int:
        """Always 0: no record can be delivered before the commit."""
        return 0

    def add(self, batch: Batch) -> None:
        key = (batch.topic, batch.topic_id, batch.partition)
        buffer = self._buffers.setdefault(key, _DeferredPartition())
        if not batch.is_taken:
            end, size_bytes = len(buffer.waiting), buffer.waiting_bytes + batch.size_bytes
            buffer.waiting[end:], buffer.waiting_bytes, batch.is_taken = [batch], size_bytes, True

    def refuse(self, batch: Batch, error: TxnLogError) -> None:
        self.error = self.error or error
        self._deliveries.add(batch, error)
        self._release([batch])

    def pump(self) -> None:
        """Stage large partitions. A retriable error is raised by `stage_all` only."""
        try:
            self._stage(self._too_large())
        except Exception as error:
            self.last_error = failed = unexpected(error, "Writing a file of the transaction")
            if not failed.retriable:
                self.error = failed
                return
            for one in parts_of(failed):
                self._cluster.store.retries.failed(
                    place_of(one), "Writing a file of the transaction", one, until=_AT_COMMIT
                )

    def _too_large(self) -> list[_DeferredPartition]:
        largest_first = sorted(self._buffers.values(), key=lambda each: -each.waiting_bytes)
        left_bytes = sum(buffer.waiting_bytes for buffer in largest_first)
        is_memory_full = left_bytes >= self._memory_bytes
        found = []
        for buffer in largest_first:
            is_full = buffer.waiting_bytes >= FILE_BYTES_MAX
            if is_full or (is_memory_full and left_bytes > self._memory_bytes // 2):
                found.append(buffer)
                left_bytes -= buffer.waiting_bytes
        return found

    @property
    def staging(self) -> Staging:
        """The files of all records, for the commit to write."""
        return Staging(frozenset(topic for topic, _, _ in self._buffers), self.stage_all)

    def stage_all(self) -> list[StagedBatch]:
        """Stage all waiting batches; every staged file, by topic and partition, in order.

        Raises StorageError: call it again. Files that were written are kept.
        """
        self._stage([buffer for buffer in self._buffers.values() if buffer.waiting])
        return [file for _, buffer in sorted(self._buffers.items()) for file, _ in buffer.files]

    def report(self) -> None:
        """Report the deliveries after the commit, with the offsets that it assigned.

        Where these are not known the record is committed, and its report is an error that says so.
        """
        for (topic, _, _), buffer in sorted(self._buffers.items()):
            self._deliveries.sent.add(file for file, _ in buffer.files)
            for file, batches in buffer.files:
                if any(batch.callbacks for batch in batches):
                    outcome = self._outcome(topic, file)
                    for batch in batches:
                        self._deliveries.add(batch, outcome)
                        if isinstance(outcome, int):
                            outcome += batch.num_records
        self._buffers.clear()

    def discard(self, error: TxnLogError) -> None:
        for buffer in self._buffers.values():
            left = (file.num_records for file, batches in buffer.files if not batches)
            self._deliveries.sent.failed_records += sum(left)
            for batch in [*(b for _, batches in buffer.files for b in batches), *buffer.waiting]:
                self._deliveries.add(batch, error)
            self._release(buffer.waiting)
        self._buffers.clear()

    def purge(self, error: TxnLogError, *, in_queue: bool, in_flight: bool) -> None:
        """Discard the transaction if `in_queue`: before the commit no record is in flight."""
        if in_queue and self._buffers:
            # First, or an interrupt would leave a transaction that commits without them.
            self.error = error
            self.discard(error)

    def _stage(self, buffers: Sequence[_DeferredPartition]) -> None:
        """Write a file for each partition, together; raises after all have been tried."""
        if not buffers:
            return
        store = self._cluster.store
        failures = Failures("Writing the files of the transaction", logging.DEBUG)

        def write(buffer: _DeferredPartition) -> tuple[_DeferredPartition, StagedBatch]:
            return buffer, stage(store, buffer.waiting, self._compression)

        calls = [(buffer.name, partial(write, buffer)) for buffer in buffers]
        for buffer, staged in failures.together(store.together, calls):
            self._keep(buffer, staged)
        failures.check()

    def _keep(self, buffer: _DeferredPartition, staged: StagedBatch) -> None:
        # Only delivery reports need the records again.
        kept = buffer.waiting if any(batch.callbacks for batch in buffer.waiting) else []
        # First: it may be repeated, and a batch that is no longer waiting would not be released.
        self._release(buffer.waiting)
        end = len(buffer.files)
        # One statement, or an interrupt would let the next call stage the same records again.
        buffer.files[end:], buffer.waiting, buffer.waiting_bytes = [(staged, kept)], [], 0

    def _outcome(self, topic: str, file: StagedBatch) -> int | TxnLogError:
        """The first offset of a committed file, or why it is not known."""
        log = self._cluster.topic_log(topic)
        header = log.view.by_path.get(file.path)
        if header is None:
            # Another process wrote the marker.
            try:
                log.refresh()
                check_topic_id(log.view, topic=topic, topic_id=file.topic_id)
            except UnknownTopicIdError as error:
                return error
            except TxnLogError as error:
                return _committed(error.message)
            header = log.view.by_path.get(file.path)
        return _committed(_REPLACED) if header is None else header.base_offset


_REPLACED = "Another process made it visible, and compaction or retention has replaced its file."


def _committed(why: str) -> CommitStateUnknownError:
    """The error of the records of a committed transaction whose offsets are not known."""
    return CommitStateUnknownError(
        f"The record is committed: do not produce it again. Its offset is not known. {why}",
        retriable=False,
    )


def aborted(transactional_id: str) -> TransactionAbortedError:
    """The error of the records of an aborted transaction."""
    return TransactionAbortedError(
        f"The record was discarded: its transaction of {transactional_id!r} was aborted. Produce "
        "it again in another transaction.",
        transactional_id=transactional_id,
    )
