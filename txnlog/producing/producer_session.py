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
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging, check_there
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


@dataclass(slots=True)
class _Positions:
    """Next offsets to read of one group, as of its last `send_offsets_to_transaction`."""

    generation: int
    member_id: str
    end: dict[str, dict[int, int]] = field(default_factory=dict)


def _request(group_id: str, sent: _Positions) -> GroupOffsets:
    return GroupOffsets(
        group_id=group_id,
        generation=sent.generation,
        start={},
        end=sent.end,
        member_id=sent.member_id,
    )


class ProducerSession:
    """One producer session's row, and what its open transaction has written to it.

    `fenced_error` is why this session cannot continue although its transaction ended as asked.
    """

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._clock = cluster.store.clock
        self._owner = new_owner(config.get("client.id"))
        self._timeout_ms: int = config.get("transaction.timeout.ms")
        self._row: TransactionMetadata | None = None
        self._row_read_ms = 0
        self._must_renew = False
        self.transactional_id: str = config.get("transactional.id")
        self.fenced_error: TxnLogError | None = None
        self.begin()

    @property
    def has_row(self) -> bool:
        """Whether `init` has succeeded."""
        return self._row is not None

    @property
    def row(self) -> TransactionMetadata:
        """The row as this session last read or wrote it, or as its COMPLETE will leave it."""
        row = self._newest
        return as_completed(row) if row.state.is_prepared else row

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

    def init(self, *, keep_prepared: bool, take_over: bool = True) -> bool:
        """Take over the id; whether a prepared transaction is kept."""
        read_ms = self._clock.boot_ms()
        self._row = self._coordinator.init_producer_id(
            self.transactional_id,
            self._owner,
            timeout_ms=self._timeout_ms,
            keep_prepared=keep_prepared,
            take_over=take_over,
        )
        self._row_read_ms, self._must_renew = read_ms, False
        is_kept = self._row.state is TransactionState.ONGOING
        self._has_written, self._has_ended = is_kept, False
        return is_kept

    @property
    def is_stale(self) -> bool:
        """Whether the id may have expired or changed hands: `renew` before the next begin."""
        return self._must_renew or self._clock.boot_ms() - self._row_read_ms >= SEEN_MS_MAX

    def renew(self) -> None:
        """Read the row again; take a new producer id if the row is missing.

        Only before a begin, while no transaction is open: a row that is missing later may have had
        another owner in between, or may be the one whose commit is being repeated (R44). Raises
        ProducerFencedError when another owner has the id.
        """
        self.init(keep_prepared=False, take_over=False)

    def begin(self) -> None:
        """Reset the state of the former transaction; no I/O (R29)."""
        self._offsets: dict[str, _Positions] = {}
        self._has_written = False
        self._is_outcome_unknown = False
        self._is_decided = False
        self._has_ended = False
        self._has_lost_epoch = False
        self._aborting: TransactionMetadata | None = None

    def open(
        self, partitions: Sequence[TopicPartitions], offsets: Offsets = ()
    ) -> TransactionMetadata:
        """AddPartitionsToTxn, and offsets (R30); the row with all that was added so far."""
        self._has_written = True
        self._row = self._coordinator.add_partitions(self._newest, partitions, offsets=offsets)
        return self._row

    def add_offsets(
        self, positions: Iterable[TopicPartition], group: ConsumerGroupMetadata, *, eager: bool
    ) -> None:
        """Record positions to commit; calls add up. Raises if the group has a newer generation."""
        row = self._cluster.groups.describe(group.group_id)
        before = self._offsets.get(group.group_id)
        entry = before or _Positions(group.generation, group.member_id)
        end = {topic: dict(offsets) for topic, offsets in entry.end.items()}
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
        if current(generation=entry.generation) != generation:
            raise IllegalGenerationError(
                f"This transaction has offsets of generation {entry.generation} of group "
                f"{group.group_id!r}, and now of generation {group.generation}. Abort it, and "
                "begin again from the committed positions.",
                group_id=group.group_id,
            )
        sent = replace(entry, end=end, generation=generation)
        if eager:
            self.open((), (_request(group.group_id, sent),))
        # All or none, or the commit after an interrupt would commit some of them.
        self._offsets[group.group_id] = sent

    def is_empty(self, staging: Staging) -> bool:
        """Whether the transaction has nothing to commit, and has written nothing."""
        return not staging.topics and not self._offsets and not self._has_written

    def prepare(self, staging: Staging) -> str:
        """The first of two phases; returns `prepared_state`."""
        self._row = self._attempt(self._coordinator.prepare, staging, self._requests())
        return self.prepared_state

    def commit(self, staging: Staging) -> None:
        """Commit, or continue a commit. Raises what refuses it.

        An attempt with an unknown outcome may have committed, so a later refusal proves nothing:
        OutcomeLostError, unless `is_committed`. After an attempt that decided the commit, a refusal
        means that another process has finished it; the next begin checks who owns the id. Repeated
        after its success, which an interrupt may have hidden, it does nothing.
        """
        if self._has_ended:
            return
        held = self.row.pending.prepared_by_client
        offsets: Offsets = () if held else self._requests()
        read_ms = self._clock.boot_ms()
        if held and not self._is_decided:
            check_there(self._cluster.store, self.row.pending.batches, self.row.transactional_id)
        try:
            self._adopt(self._attempt(self._coordinator.commit, staging, offsets), read_ms)
        except TxnLogError as error:
            if error.retriable or not self._is_decided or self.is_committed():
                raise
            self._must_renew = True

    @property
    def has_ended(self) -> bool:
        """Whether the transaction has ended as asked; a repeated call does nothing."""
        return self._has_ended

    def complete(self) -> None:
        """Write the COMPLETE that the last commit has left, if it has."""
        left = self._row
        if left is not None and left.state.is_prepared:
            self._coordinator.complete(left)
            self._row = as_completed(left)

    def is_committed(self) -> bool:
        """Whether the transaction is decided as a commit, whichever process finishes it."""
        return self._has_written and self._coordinator.is_committed(self.row)

    def abort(self) -> None:
        """Abort, or continue an abort."""
        if not self._has_written and not self._has_lost_epoch:
            return
        try:
            if not self._has_lost_epoch:
                read_ms = self._clock.boot_ms()
                if self._aborting is None:
                    self._aborting = self._coordinator.add_partitions(self._newest)
                self._adopt(self._coordinator.abort(self._aborting), read_ms)
                return
        except InvalidProducerIdMappingError:
            # The commit that removed the row took the version of any put that may be under way.
            self._must_renew = True
            return
        except InvalidProducerEpochError:
            # Another process ended it. Unless the id has another owner, take a new epoch.
            self._has_lost_epoch = True
        self.init(keep_prepared=False, take_over=False)

    def note_failure(self, error: TxnLogError) -> None:
        """Remember that an abort must take a new epoch, after an error that says so."""
        self._has_lost_epoch |= isinstance(error, InvalidProducerEpochError)

    # -- inside ----------------------------------------------------------------------------------

    def _requests(self) -> Offsets:
        return tuple(_request(group_id, sent) for group_id, sent in sorted(self._offsets.items()))

    def _attempt(self, end: Callable[..., T], staging: Staging, offsets: Offsets) -> T:
        """Attempt a deciding write, and record whether one may have landed."""
        self._has_written |= bool(offsets)

        def write() -> Sequence[StagedBatch]:
            files = staging.write()
            # Without the files nothing is decided.
            self._has_written = True
            return files

        try:
            return end(self._newest, Staging(staging.topics, write), offsets=offsets)
        except TxnLogError as error:
            self._is_decided |= error.context.get("decided") is TransactionResult.COMMIT
            self._is_outcome_unknown |= isinstance(error, CommitStateUnknownError)
            # A prepared transaction does not expire: another process committed or aborted it.
            held = self.row.pending.prepared_by_client
            is_gone = held and isinstance(error, InvalidProducerIdMappingError)
            is_certain = (
                error.retriable or self._is_decided or not (self._is_outcome_unknown or is_gone)
            )
            if is_certain or self.is_committed():
                raise
            why = "another process ended it" if is_gone else "an earlier attempt got no reply"
            raise OutcomeLostError(
                f"It is unknown whether the transaction of {self.transactional_id!r} at epoch "
                f"{self.row.producer_epoch} was committed: {why}. The last error: {error.message}",
                transactional_id=self.transactional_id,
            ) from error
        except BaseException:
            # An interrupt: the write may be in the log, or land there later.
            self._is_outcome_unknown |= self._has_written
            raise

    def _adopt(self, row: TransactionMetadata, read_ms: int) -> None:
        """Continue with the row that the end wrote, unless it has another owner now."""
        # Each in one statement: an interrupt after it must not commit the same files again.
        if row.owner.run_id == self._owner.run_id:
            self._row, self._row_read_ms, self._has_ended = row, read_ms, True
        else:
            error = fenced(row, f"run {self._owner.run_id}")
            self.fenced_error, self._has_ended = error, True
