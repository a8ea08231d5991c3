"""The transaction coordinator: any process may do this for any transactional.id.

Each method decides with a pure function of txnlog.protocol, persists by compare-and-swap, and
only then continues. Tests kill the process between any two writes, at each `failpoint.reach`; see
ARCHITECTURE.md.

    ticket  groups.tickets         once per run, before its first offsets: in the group's row
    step 1  PREPARE_COMMIT         the decision, with all that is needed to finish; where a part
                                   depends on what was read, an Ongoing row with the same, and that
                                   table's commit before it
    step 2  marker commits         one per topic: data and marker appear together
    step 3  offsets marker         the group's row gets the offsets; the commit returns
    step 4  COMPLETE_COMMIT        a new epoch, manifest cleared: in one write with the id's next
                                   decision, or by a sweep, close() or the next init
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from txnlog.coordinator.fencing import transition
from txnlog.coordinator.finishing import complete, decide, finish, publish_own
from txnlog.coordinator.groups import GroupCoordinator
from txnlog.coordinator.phases import Phases
from txnlog.coordinator.producer_ids import markers_for, markers_of, unknown_producer_id
from txnlog.coordinator.readiness import get_held_ready, get_ready
from txnlog.coordinator.root import Root
from txnlog.coordinator.staged_files import Staging, check_ages
from txnlog.coordinator.state_rows import describe
from txnlog.coordinator.tables import parts_of
from txnlog.errors import (
    ConcurrentTransactionsError,
    IllegalGenerationError,
    InvalidTxnStateError,
    TxnLogError,
)
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.process.failpoint import reach
from txnlog.process.failures import caught
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.fencing import check_holder
from txnlog.protocol.groups import GroupOffsets, unstable
from txnlog.protocol.metadata import (
    GroupTicket,
    LastBatch,
    Manifest,
    Owner,
    StagedBatch,
    StagedTable,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import (
    TIMEOUT_MS_DEFAULT,
    Done,
    Transition,
    as_completed,
    prepare_add_partitions,
    prepare_end,
    prepare_init,
)
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.enlisted_log import conflict_error

T = TypeVar("T")


class TransactionCoordinator:
    """Transitions of state rows, marker commits, and finishing transactions of other processes."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._store = root.store
        self._groups = GroupCoordinator(root)

    # -- rows ------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """The newest state row of an id, None if it has none."""
        return describe(self._root, transactional_id)

    def guess(self, transactional_id: str) -> TransactionMetadata | None:
        """As `describe`, in one round if the shard's newest commit is this process's own.

        Only for a decision that ends in a commit to the shard, which proves the row.
        """
        shard = self._root.shard_for(transactional_id)
        shard.get_ready()
        return shard.view.rows.get(transactional_id)

    def init_producer_id(
        self,
        transactional_id: str,
        owner: Owner,
        *,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        keep_prepared: bool = False,
        take_over: bool = True,
        topics: Sequence[str] = (),
    ) -> TransactionMetadata:
        """Make `owner` the owner, after ending the former owner's transaction (R27).

        A repeated call with the same run id changes nothing (R28). `keep_prepared` returns an
        Ongoing row that its client has prepared; without `take_over` another owner's row is not
        changed. `topics` are those that will be written, if known, and were just read. Raises
        ProducerFencedError if this run has been fenced, and as `check_markers`.
        """
        new_producer_id: list[int] = []

        def decide(row: TransactionMetadata | None) -> Transition | Done:
            return prepare_init(
                row,
                transactional_id=transactional_id,
                new_producer_id=new_producer_id[0] if new_producer_id else -1,
                owner=owner,
                timeout_ms=timeout_ms,
                now_ms=self._now_ms(),
                keep_prepared=keep_prepared,
                take_over=take_over,
                markers={} if row is None else markers_of(self._root, row.producer_id, topics),
            )

        for attempt in range(OPERATION_ATTEMPTS_MAX):
            row = self.describe(transactional_id)
            if row is None and not new_producer_id:
                new_producer_id.append(unknown_producer_id(self._root, topics))
            try:
                row = transition(self._root, transactional_id, decide)
            except ConcurrentTransactionsError:
                row = self.describe(transactional_id)
                if row is None or not row.is_ending:
                    self._store.back_off(attempt)
            else:
                reach("take_over.after")
                if row is not None and not row.is_ending:
                    return row
            if row is not None:
                finish(self._root, row)
        raise ConcurrentTransactionsError(
            f"{transactional_id!r}: other processes keep taking this id over; try again, and make "
            "sure that only one producer or query uses it.",
            transactional_id=transactional_id,
        )

    def add_partitions(
        self,
        row: TransactionMetadata,
        partitions: Sequence[TopicPartitions] = (),
        *,
        offsets: Sequence[GroupOffsets] = (),
    ) -> TransactionMetadata:
        """AddPartitionsToTxn for eager publication; call it before the first append (R30).

        `offsets` are those sent so far, or some of them.
        """
        return self._add(self._completed(row), tuple(partitions), offsets, None)

    def _add(
        self,
        row: TransactionMetadata,
        partitions: tuple[TopicPartitions, ...],
        offsets: Sequence[GroupOffsets],
        manifest: Manifest | None,
    ) -> TransactionMetadata:
        """Add to the Ongoing transaction; a `manifest` prepares it."""

        def add(tickets: tuple[GroupTicket, ...]) -> TransactionMetadata:
            return self._add_under(row, partitions, tickets, manifest)

        return self._under(self._groups.tickets(row, offsets), row, offsets, add)

    def _add_under(
        self,
        row: TransactionMetadata,
        partitions: tuple[TopicPartitions, ...],
        tickets: tuple[GroupTicket, ...],
        manifest: Manifest | None,
    ) -> TransactionMetadata:
        def decide(now: TransactionMetadata | None) -> Transition | Done:
            decision = prepare_add_partitions(
                now,
                holder=row.holder,
                partitions=partitions,
                manifest=manifest,
                tickets=tickets,
                markers={} if manifest is None else markers_for(self._root, row, manifest, tickets),
                now_ms=self._now_ms(),
            )
            if manifest is not None and isinstance(decision, Transition):
                check_ages(self._root, manifest.batches, manifest.tables)
            return decision

        return self._transition(row, decide)

    # -- ends ------------------------------------------------------------------------------------

    def commit(
        self,
        row: TransactionMetadata,
        batches: Sequence[StagedBatch] | Staging = (),
        *,
        offsets: Sequence[GroupOffsets] = (),
        last_batch: LastBatch | None = None,
        phases: Phases | None = None,
    ) -> TransactionMetadata:
        """Steps 1 to 3: commit staged batches and group offsets as one transaction.

        Returns the row afterwards, which another owner may have taken: PREPARE_COMMIT, with its
        COMPLETE left. As `row` of the next commit it is completed by the write of that decision;
        any other call completes it first. `last_batch` of a streaming query is recorded with the
        decision; `phases` measures the times. Before the decision, raises what fences or refuses
        the transaction; TableConflictError: then the row, read again, can begin another one. An
        error after it has `decided` in its context: a repeated call writes what is missing, or any
        other process does.
        """
        given, row = row, as_completed(row)
        measured = phases or Phases()
        staging = batches if isinstance(batches, Staging) else Staging.done(batches)
        staged: Sequence[StagedBatch] = ()
        tickets: tuple[GroupTicket, ...] = ()
        try:
            with measured.measure("tail"):
                if row.pending.prepared_by_client:
                    staged = staging.write()
                    get_held_ready(self._root, row, offsets)
                else:
                    staged = get_ready(self._root, row, staging, offsets)
            if offsets:
                with measured.measure("tickets"):
                    tickets = self._groups.tickets(row, offsets)
                reach("tickets.after")
        except TxnLogError:
            # A repeated call: a decided transaction can no longer be refused (R36).
            if not self.is_committed(row):
                raise
            # What was decided was staged: this writes nothing, and names the same files.
            staged = staging.write()
            for change in staging.tables:
                change.write(self._root)
        reach("prepare_commit.before")

        def end(tickets: tuple[GroupTicket, ...]) -> TransactionMetadata:
            tables = tuple(change.staged for change in staging.tables)
            manifest = Manifest(batches=tuple(staged), tickets=tickets, tables=tables)
            result, parts = TransactionResult.COMMIT, parts_of(staging.tables)
            return self._end(given, result, measured, manifest, last_batch, parts)

        return self._under(tickets, row, offsets, end)

    def prepare(
        self,
        row: TransactionMetadata,
        batches: Sequence[StagedBatch] | Staging = (),
        *,
        offsets: Sequence[GroupOffsets] = (),
    ) -> TransactionMetadata:
        """Prepare of a two-phase commit: keep the transaction, without timeout, until it is ended.

        Its tickets are checked here: the commit of what is prepared can no longer be refused.
        """
        row = self._completed(row)
        staging = batches if isinstance(batches, Staging) else Staging.done(batches)
        staged = get_ready(self._root, row, staging, offsets)
        tables = tuple(change.staged for change in staging.tables)
        return self._add(row, (), offsets, Manifest(batches=tuple(staged), tables=tables))

    def abort(self, row: TransactionMetadata) -> TransactionMetadata:
        """Abort the row's transaction; a deferred one needs no write."""
        ended = self._end(self._completed(row), TransactionResult.ABORT, Phases())
        return (complete(self._root, ended) or ended) if ended.state.is_prepared else ended

    def _end(
        self,
        row: TransactionMetadata,
        result: TransactionResult,
        phases: Phases,
        manifest: Manifest | None = None,
        last_batch: LastBatch | None = None,
        parts: Mapping[str, Part] = {},
    ) -> TransactionMetadata:
        """Step 1, and what makes it visible; the row afterwards, prepared if COMPLETE is left.

        A prepared `row` is that of the transaction before: the same write completes it. `parts` are
        those of the manifest's tables.
        """
        former = row if row.state.is_prepared else None
        row = as_completed(row)
        ending = _ending(row)
        fresh = Manifest()
        if manifest is not None and not row.pending.prepared_by_client:
            fresh = manifest

        def decide(now: TransactionMetadata | None) -> Transition | Done:
            decision = prepare_end(
                now,
                holder=row.holder,
                result=result,
                manifest=manifest,
                last_batch=last_batch,
                txn_epoch=ending,
                follows=None if former is None else former.transaction,
                markers=markers_for(self._root, row, manifest or Manifest()),
                now_ms=self._now_ms(),
            )
            if isinstance(decision, Transition):
                check_ages(self._root, fresh.batches, fresh.tables)
            return decision

        reading = Reading.begin(self._store.clock)
        parameters = {} if phases.before is None else phases.before.parameters()
        with phases.measure("prepare"):
            ended = self._transition(row, decide, parameters)
        if (table := ended.decider) is not None:
            reach("ongoing.after")
            with phases.measure("prepare"):
                ended = self._decided(row, ended, table, reading, parts)
        if not ended.state.is_prepared:
            return ended
        reach("prepare_commit.after")
        try:
            if publish_own(self._root, ended, reading=reading, phases=phases, parts=parts):
                return ended
            # Another process has finished it; what the id has decided since is not to be completed.
            return as_completed(self.describe(row.transactional_id) or ended)
        except TxnLogError as error:
            # A repeated call may not learn it, as the row may have another owner by then.
            error.context["decided"] = result
            raise

    def _decided(
        self,
        asked: TransactionMetadata,
        row: TransactionMetadata,
        table: StagedTable,
        reading: Reading,
        parts: Mapping[str, Part],
    ) -> TransactionMetadata:
        """The row when its table has decided. Raises TableConflictError for an abort."""
        now, why = decide(self._root, row, reading=reading, parts=parts)
        is_empty = now is not None and now.state is TransactionState.EMPTY
        if now is None or is_empty or now.transaction != row.transaction:
            # Ended by others, and gone on since.
            return check_holder(now, asked.holder)
        if not now.state.is_aborted:
            # Whatever is in the place of the table that has decided.
            return now
        caught(partial(finish, self._root, now), f"Ending {row.transactional_id!r}")
        raise conflict_error(table.url, why or "another process has found a conflict")

    # -- inside ----------------------------------------------------------------------------------

    def _completed(self, row: TransactionMetadata) -> TransactionMetadata:
        """The row for the next transaction: one that `commit` has returned is completed first."""
        if not row.state.is_prepared:
            return row
        complete(self._root, row)
        return as_completed(row)

    def _under(
        self,
        tickets: tuple[GroupTicket, ...],
        row: TransactionMetadata,
        offsets: Sequence[GroupOffsets],
        act: Callable[[tuple[GroupTicket, ...]], T],
    ) -> T:
        """Act with the tickets, and with others when they were fenced meanwhile.

        A fenced run registers again, unless it may no longer read.
        """
        for attempt in range(OPERATION_ATTEMPTS_MAX):
            try:
                return act(tickets)
            except IllegalGenerationError:
                former = tickets
                tickets = self._groups.tickets(row, offsets)
                if tickets == former:
                    raise
                self._store.back_off(attempt)
        raise unstable(offsets[0].group_id, ())

    def is_committed(self, row: TransactionMetadata) -> bool:
        """Whether the transaction that an end of this row would end is decided as a commit, or was
        asked for, and a table decides.
        """
        now = self.describe(row.transactional_id)
        if now is None or now.producer_id != row.producer_id:
            return False
        decided = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        is_asked = now.state in decided or now.decider is not None
        return now.txn_epoch == _ending(row) and is_asked

    def _transition(
        self,
        row: TransactionMetadata,
        decide: Callable[[TransactionMetadata | None], Transition | Done],
        parameters: Mapping[str, str] = {},
    ) -> TransactionMetadata:
        shard = self._root.shard_for(row.transactional_id)
        moved = shard.transition(row.transactional_id, decide, parameters=lambda: parameters)
        if moved is None:
            raise InvalidTxnStateError(
                f"The state row of {row.transactional_id!r} is gone. Call init_transactions again.",
                transactional_id=row.transactional_id,
            )
        return moved

    def _now_ms(self) -> int:
        return self._store.clock.now_ms()


def _ending(row: TransactionMetadata) -> int:
    """Epoch of the transaction that an end of this row ends: a kept one has a former epoch."""
    return row.txn_epoch if row.state is TransactionState.ONGOING else row.producer_epoch
