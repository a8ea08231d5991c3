"""A producer's session at the transaction coordinator: one attempt per call, no waits, no threads.

init      take over the transactional.id; with keep_prepared, its prepared transaction, too
renew     before a begin: take a new producer id if the transactional.id has expired
open      add partitions and groups to the row (eager publication), before the first data
prepare   hold the transaction until an outside database has decided (KIP-939)
commit    steps 1 to 3; repeated after a retriable error, it skips the steps that are done
complete  step 4 of the last commit: in one write with the next one's decision, before any other
          write, and at the end
abort     always writes if a put of the transaction may be under way: that put could land later,
          and open a transaction that no process ends
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.staged_files import Staging, check_there
from txnlog.coordinator.tables import check_parts
from txnlog.errors import (
    CommitStateUnknownError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OutcomeLostError,
    TxnLogError,
)
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.producing.table_writes import TableWrites
from txnlog.protocol.cooperation import current_generation
from txnlog.protocol.expiry import SEEN_MS_MAX
from txnlog.protocol.fencing import fenced
from txnlog.protocol.groups import GroupOffsets, check_member
from txnlog.protocol.metadata import (
    Owner,
    StagedBatch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import as_completed
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

Offsets = tuple[GroupOffsets, ...]

T = TypeVar("T")


def new_owner(client_id: str) -> Owner:
    """The owner of a transactional.id that stands for one producer session."""
    run_id = f"{client_id}-{uuid.uuid4()}"
    return Owner(run_id=run_id, host=socket.gethostname(), pid=os.getpid())


class _Progress(IntEnum):
    """How far the open transaction has come, as far as this process knows."""

    EMPTY = 0
    """Nothing of it is in a log."""
    WRITTEN = 1
    """Its row, its files or its records are, or may be: an abort writes."""
    UNKNOWN = 2
    """An attempt to commit it got no reply: it may be committed."""
    DECIDED = 3
    """It is committed for ever, but not all of it may be visible."""
    ENDED = 4
    """It has ended as asked."""


_EMPTY, _WRITTEN, _UNKNOWN, _DECIDED, _ENDED = _Progress


@dataclass(slots=True)
class _Transaction:
    """The open transaction, or the last one.

    `offsets` are by group, each as of its last `send_offsets_to_transaction`. `has_lost_epoch`:
    another process ended it, so an abort must take a new epoch. `aborting` is the row that an abort
    ends, once it was written.
    """

    tables: TableWrites
    progress: _Progress = _EMPTY
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    has_lost_epoch: bool = False
    aborting: TransactionMetadata | None = None


class ProducerSession:
    """One producer session: its row, and the transaction that is open.

    `_row` is the row as it was last read or written, `_row_read_ms` when that was: None if it must
    be read before the next begin. `fenced_error` is why this session cannot continue although its
    transaction ended as asked.
    """

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._clock = cluster.store.clock
        self._owner = new_owner(config.get("client.id"))
        self._timeout_ms: int = config.get("transaction.timeout.ms")
        self._row: TransactionMetadata | None = None
        self._row_read_ms: int | None = None
        self._transaction = _Transaction(TableWrites(cluster))
        self.transactional_id: str = config.get("transactional.id")
        self.fenced_error: TxnLogError | None = None

    @property
    def has_row(self) -> bool:
        """Whether `init` has succeeded."""
        return self._row is not None

    @property
    def row(self) -> TransactionMetadata:
        """The row as this session last read or wrote it, or as its COMPLETE will leave it."""
        return as_completed(self._newest)

    @property
    def _newest(self) -> TransactionMetadata:
        """The same; after a commit as that has left it, with COMPLETE still to be written."""
        if self._row is None:
            raise InvalidTxnStateError(
                f"{self.transactional_id!r} is not initialised. Call init_transactions first."
            )
        return self._row

    @property
    def prepared_state(self) -> str:
        """The prepared transaction's name, to be stored in an outside database."""
        return f"{self.row.producer_id}:{self.row.txn_epoch}"

    def init(self, *, keep_prepared: bool) -> bool:
        """Take over the id; whether a prepared transaction is kept."""
        return self._init(keep_prepared=keep_prepared, take_over=True)

    @property
    def is_stale(self) -> bool:
        """Whether the id may have expired or changed hands: `renew` before the next begin."""
        read_ms = self._row_read_ms
        return read_ms is None or self._clock.boot_ms() - read_ms >= SEEN_MS_MAX

    def renew(self) -> None:
        """Read the row again; take a new producer id if the row is missing.

        Only before a begin, while no transaction is open: a row that is missing later may have had
        another owner in between, or may be the one whose commit is being repeated (R44). Raises
        ProducerFencedError when another owner has the id.
        """
        self._init(keep_prepared=False, take_over=False)

    def begin(self) -> None:
        """Begin a transaction; no I/O (R29)."""
        self._transaction = _Transaction(TableWrites(self._cluster))

    def open(
        self, partitions: Sequence[TopicPartitions], offsets: Offsets = ()
    ) -> TransactionMetadata:
        """AddPartitionsToTxn, and offsets (R30); the row with all that was added so far."""
        self._note(_WRITTEN)
        self._row = self._coordinator.add_partitions(self._newest, partitions, offsets=offsets)
        return self._row

    def add_offsets(
        self, positions: Iterable[TopicPartition], group: ConsumerGroupMetadata, *, eager: bool
    ) -> None:
        """Record positions to commit; calls add up. Raises if the group has a newer generation."""
        row = self._cluster.groups.describe(group.group_id)
        sent = self._transaction.offsets.get(group.group_id) or GroupOffsets(
            group_id=group.group_id,
            generation=group.generation,
            start={},
            end={},
            member_id=group.member_id,
        )
        end = {topic: dict(offsets) for topic, offsets in sent.end.items()}
        for position in positions:
            end.setdefault(position.topic, {})[position.partition] = position.offset
        check_member(
            row,
            group_id=group.group_id,
            generation=group.generation,
            member_id=group.member_id,
            partitions=end,
        )
        # A cooperative member keeps what it was assigned, and so does its transaction.
        current = partial(current_generation, row, member_id=group.member_id)
        generation = current(generation=group.generation)
        if current(generation=sent.generation) != generation:
            raise IllegalGenerationError(
                f"This transaction has offsets of generation {sent.generation} of group "
                f"{group.group_id!r}, and now of generation {group.generation}. Abort it, and "
                "begin again from the committed positions.",
                group_id=group.group_id,
            )
        sent = replace(sent, end=end, generation=generation)
        if eager:
            self.open((), (sent,))
        # All or none, or the commit after an interrupt would commit some of them.
        self._transaction.offsets[group.group_id] = sent

    @property
    def tables(self) -> TableWrites:
        """What the open transaction writes to tables of others."""
        return self._transaction.tables

    def is_empty(self, staging: Staging) -> bool:
        """Whether the transaction has nothing to commit, and has written nothing."""
        txn = self._transaction
        return not (staging.topics or txn.offsets or txn.tables) and txn.progress is _EMPTY

    def prepare(self, staging: Staging) -> str:
        """The first of two phases; returns `prepared_state`."""
        self._row = self._attempt(self._coordinator.prepare, staging, self._offsets())
        return self.prepared_state

    def commit(self, staging: Staging) -> None:
        """Commit, or continue a commit. Raises what refuses it.

        An attempt with an unknown outcome may have committed, so a later refusal proves nothing:
        OutcomeLostError, unless `is_committed`. After an attempt that decided the commit, a refusal
        means that another process has finished it; the next begin checks who owns the id. Repeated
        after its success, which an interrupt may have hidden, it does nothing.
        """
        txn = self._transaction
        if txn.progress is _ENDED:
            return
        held = self.row.pending.prepared_by_client
        offsets: Offsets = () if held else self._offsets()
        read_ms = self._clock.boot_ms()
        if held and txn.progress < _DECIDED:
            check_there(self._cluster.store, self.row.pending.batches, self.row.transactional_id)
            check_parts(self._cluster, self.row)
        try:
            self._adopt(self._attempt(self._coordinator.commit, staging, offsets), read_ms)
        except TxnLogError as error:
            if error.retriable or txn.progress < _DECIDED or self.is_committed():
                raise
            self._row_read_ms = None

    @property
    def has_ended(self) -> bool:
        """Whether the transaction has ended as asked; a repeated call does nothing."""
        return self._transaction.progress is _ENDED

    @property
    def may_be_committed(self) -> bool:
        """Whether the transaction is committed, or may be, as far as this process knows."""
        return self._transaction.progress >= _UNKNOWN or self.row.pending.prepared_by_client

    def complete(self) -> None:
        """Write the COMPLETE that the last commit has left, if it has."""
        left = self._row
        if left is not None and left.state.is_prepared:
            complete(self._cluster, left)
            self._row = as_completed(left)

    def is_committed(self) -> bool:
        """Whether the transaction is decided as a commit, whichever process finishes it."""
        has_written = self._transaction.progress > _EMPTY
        return has_written and self._coordinator.is_committed(self.row)

    def abort(self) -> None:
        """Abort, or continue an abort."""
        txn = self._transaction
        if txn.progress is _EMPTY and not txn.has_lost_epoch:
            return
        try:
            if not txn.has_lost_epoch:
                read_ms = self._clock.boot_ms()
                if txn.aborting is None:
                    txn.aborting = self._coordinator.add_partitions(self._newest)
                self._adopt(self._coordinator.abort(txn.aborting), read_ms)
                return
        except InvalidProducerIdMappingError:
            # The commit that removed the row took the version of any put that may be under way.
            self._row_read_ms = None
            return
        except InvalidProducerEpochError:
            # Another process ended it. Unless the id has another owner, take a new epoch.
            txn.has_lost_epoch = True
        self.renew()

    def note_failure(self, error: TxnLogError) -> None:
        """Remember that an abort must take a new epoch, after an error that says so."""
        self._transaction.has_lost_epoch |= isinstance(error, InvalidProducerEpochError)

    # -- inside ----------------------------------------------------------------------------------

    def _init(self, *, keep_prepared: bool, take_over: bool) -> bool:
        read_ms = self._clock.boot_ms()
        row = self._coordinator.init_producer_id(
            self.transactional_id,
            self._owner,
            timeout_ms=self._timeout_ms,
            keep_prepared=keep_prepared,
            take_over=take_over,
        )
        is_kept = row.state is TransactionState.ONGOING
        kept = _Transaction(TableWrites(self._cluster), _WRITTEN if is_kept else _EMPTY)
        self._row, self._row_read_ms, self._transaction = row, read_ms, kept
        return is_kept

    def _offsets(self) -> Offsets:
        return tuple(sent for _, sent in sorted(self._transaction.offsets.items()))

    def _note(self, progress: _Progress) -> None:
        self._transaction.progress = max(self._transaction.progress, progress)

    def _attempt(self, end: Callable[..., T], staging: Staging, offsets: Offsets) -> T:
        """Attempt a deciding write, and record whether one may have landed."""
        txn = self._transaction
        if offsets:
            self._note(_WRITTEN)

        def write() -> Sequence[StagedBatch]:
            files = staging.write()
            # Without the files nothing is decided.
            self._note(_WRITTEN)
            return files

        try:
            staged = Staging(staging.topics, write, txn.tables.changes())
            return end(self._newest, staged, offsets=offsets)
        except TxnLogError as error:
            if error.context.get("decided") is TransactionResult.COMMIT:
                self._note(_DECIDED)
            elif isinstance(error, CommitStateUnknownError):
                self._note(_UNKNOWN)
            # A prepared transaction does not expire: another process committed or aborted it.
            held = self.row.pending.prepared_by_client
            is_gone = held and isinstance(error, InvalidProducerIdMappingError)
            is_lost = txn.progress is _UNKNOWN or (is_gone and txn.progress < _UNKNOWN)
            if error.retriable or not is_lost or self.is_committed():
                raise
            why = "another process ended it" if is_gone else "an earlier attempt got no reply"
            raise OutcomeLostError(
                f"It is unknown whether the transaction of {self.transactional_id!r} at epoch "
                f"{self.row.producer_epoch} was committed: {why}. The last error: {error.message}",
                transactional_id=self.transactional_id,
            ) from error
        except BaseException:
            # An interrupt: the write may be in the log, or land there later.
            if txn.progress is _WRITTEN:
                txn.progress = _UNKNOWN
            raise

    def _adopt(self, row: TransactionMetadata, read_ms: int) -> None:
        """Continue with the row that the end wrote, unless it has another owner now."""
        txn = self._transaction
        # Each in one statement: an interrupt after it must not commit the same files again.
        if row.owner.run_id == self._owner.run_id:
            self._row, self._row_read_ms, txn.progress = row, read_ms, _ENDED
        else:
            error = fenced(row, f"run {self._owner.run_id}")
            self.fenced_error, txn.progress = error, _ENDED
