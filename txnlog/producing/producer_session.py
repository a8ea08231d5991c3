"""A producer's session at the transaction coordinator: one attempt per call, no waits, no threads.

init      take over the transactional.id; with keep_prepared, its prepared transaction, too
renew     before a begin: take a new producer id if the transactional.id has expired
open      add partitions and groups to the row (eager publication), before the first data
prepare   hold the transaction until an outside database has decided (KIP-939)
commit    steps 1 to 3, with commit.wait=decided step 1; repeated after a retriable error, it
          skips the steps that are done
publish   steps 2 and 3 of a commit that has only decided: before any other write. Step 3 is left
          to the next commit, if that will most likely supersede it (D130)
complete  step 4 of the last commit: in one write with the next one's decision, before any other
          write, or once the producer is idle
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
from typing import Any, TypeVar

from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import Decided, Ended, Published
from txnlog.coordinator.staged_files import Staging, check_held
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
    GroupTicket,
    Owner,
    StagedBatch,
    TopicPartitions,
    TransactionMetadata,
    supersedes,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.settings.config import Config

logger = logging.getLogger("txnlog")

Offsets = tuple[GroupOffsets, ...]

T = TypeVar("T")

IDLE_MS = 1_000
"""After the last commit: a producer that commits more often completes with its next commit."""
OFFSETS_MS = 1_000
"""So long after offsets were moved, commits leave theirs; who is idle then moves them."""


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
        # On a local disk a thread would take longer to wake up than the markers to write.
        self._waits_for_visible = config.get("commit.wait") == "visible" or cluster.store.is_local
        self._decided: Decided | None = None
        self._left: Published | None = None
        self._last_moves: tuple[GroupTicket, ...] = ()
        self._moved_ms = 0
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
        # Whatever was left is published and completed: that comes before an init.
        self._row_read_ms, self._must_renew, self._decided, self._left = read_ms, False, None, None
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
        self.complete()
        self._has_written = True
        self._row = self._coordinator.add_partitions(self.row, partitions, offsets=offsets)
        return self._row

    def add_offsets(
        self, positions: Iterable[TopicPartition], group: ConsumerGroupMetadata, *, eager: bool
    ) -> None:
        """Record positions to commit; calls add up. Raises if the group has a newer generation."""
        together: list[Callable[[], Any]] = [
            partial(self._cluster.groups.describe, group.group_id),
            self._catch_up,
        ]
        row = self._cluster.store.together(together)[0]
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
        self.complete()
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
            check_held(self._cluster, self.row)
        try:
            ended = self._attempt(self._end, staging, offsets)
        except TxnLogError as error:
            if error.retriable or not self._is_decided or self.is_committed():
                raise
            self._must_renew = True
            return
        if isinstance(ended, Decided):
            self._adopt(ended.completed, read_ms, decided=ended)
        else:
            self._adopt(ended.row, read_ms, ended.left)

    def _end(
        self, row: TransactionMetadata, staging: Staging, *, offsets: Offsets
    ) -> Decided | Ended:
        decided = self._coordinator.decide(row, staging, offsets=offsets, former=self._left)
        return self._publish(decided) if self._waits_for_visible else decided

    def _publish(self, decided: Decided | Ended) -> Ended:
        """Offsets are left where those of the last commit were superseded, and not for long.

        Not by an eager transaction: the next one's first write comes after COMPLETE.
        """
        if isinstance(decided, Ended):
            return decided
        moves, now_ms = decided.row.moves, self._clock.boot_ms()
        leaves = (
            bool(self._last_moves)
            and not decided.row.partitions
            and now_ms - self._moved_ms < OFFSETS_MS
            and supersedes(moves, self._last_moves)
        )
        ended = self._coordinator.publish(decided, leave_offsets=leaves)
        self._last_moves, self._moved_ms = moves, self._moved_ms if leaves else now_ms
        return ended

    @property
    def has_ended(self) -> bool:
        """Whether the transaction has ended as asked; a repeated call does nothing."""
        return self._has_ended

    @property
    def is_visible(self) -> bool:
        """Whether readers see all that this session has committed."""
        return self._decided is None

    @property
    def num_invisible(self) -> int:
        """Number of records that the last commit has decided, and no reader sees."""
        decided = self._decided
        return 0 if decided is None else sum(b.num_records for b in decided.row.pending.batches)

    def publish(self) -> None:
        """Make the last commit visible, if it was only decided; a repeated call goes on."""
        decided = self._decided
        if decided is None:
            return
        ended = self._publish(decided)
        # A begin needs no lock, and may come now: nothing of the next transaction is changed here.
        if self._is_ours(ended.row):
            self._row, self._decided, self._left = ended.row, None, ended.left
        else:
            error = fenced(ended.row, f"run {self._owner.run_id}")
            self.fenced_error, self._decided, self._left = error, None, None

    def complete(self) -> None:
        """Publish the last commit, and write the COMPLETE that it has left, if it has.

        Raises ProducerFencedError if the id has another owner since.
        """
        self._catch_up()
        if self._left is not None:
            self._coordinator.complete(self._left)
            self._left = None

    def _catch_up(self) -> None:
        """Publish the last commit. Raises ProducerFencedError if the id has another owner since."""
        self.publish()
        if self.fenced_error is not None:
            raise self.fenced_error

    def complete_when_idle(self) -> None:
        """`complete`, some time after the commit; an error leaves it to the next call."""
        idle_ms = self._clock.boot_ms() - self._row_read_ms
        if self._left is None or self._decided is not None or idle_ms < IDLE_MS:
            return
        try:
            self.complete()
        except TxnLogError as error:
            logger.debug("COMPLETE of %r will be tried again: %s", self.transactional_id, error)

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
                self.complete()
                if self._aborting is None:
                    self._aborting = self._coordinator.add_partitions(self.row)
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
            return end(self.row, Staging(staging.topics, write), offsets=offsets)
        except TxnLogError as error:
            self._is_decided |= error.context.get("decided") is TransactionResult.COMMIT
            is_of_this = "left" not in error.context
            self._is_outcome_unknown |= is_of_this and isinstance(error, CommitStateUnknownError)
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

    def _is_ours(self, row: TransactionMetadata) -> bool:
        return row.owner.run_id == self._owner.run_id

    def _adopt(
        self,
        row: TransactionMetadata,
        read_ms: int,
        left: Published | None = None,
        decided: Decided | None = None,
    ) -> None:
        """Continue with the row that the end wrote, unless it has another owner now."""
        # Each in one statement: an interrupt after it must not commit the same files again.
        if self._is_ours(row):
            self._row, self._row_read_ms, self._decided, self._left, self._has_ended = (
                row, read_ms, decided, left, True
            )  # fmt: skip
        else:
            error = fenced(row, f"run {self._owner.run_id}")
            self.fenced_error, self._decided, self._left, self._has_ended = (
                error, decided, None, True
            )  # fmt: skip
