"""Every decision about a transaction state row, as pure functions: (row, request) -> Transition.

The caller persists `Transition.next` by compare-and-swap and only then relies on it. A request that
has already been carried out gives Done, so that it can be repeated after a lost reply. Mirrors
the prepare* methods of org.apache.kafka.coordinator.transaction.TransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from txnlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
)
from txnlog.protocol.fencing import (
    add_former_run,
    check_holder,
    check_manifest,
    check_markers,
    check_tickets,
    ended_otherwise,
    fenced,
    refuse_former,
    refuse_prepared,
    taken_over,
)
from txnlog.protocol.metadata import (
    Fenced,
    GroupTicket,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    StagedTable,
    TopicPartitions,
    TransactionMetadata,
    merge_partitions,
    merge_tickets,
)
from txnlog.protocol.states import VALID_PREVIOUS, TransactionResult, TransactionState

TIMEOUT_MS_DEFAULT = 60_000
TIMEOUT_MS_MAX = 900_000

TAKEN_OVER = "taken over by a newer start"
TIMED_OUT = "timed out"
EXPIRE = "EXPIRE TRANSACTIONAL ID"


class Transition(Struct, frozen=True, kw_only=True):
    """A checked transition of one row; `next.state` DEAD means that the row is removed."""

    operation: str
    previous: TransactionMetadata | None
    next: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to write: the row is already as requested (None: completed and removed)."""

    metadata: TransactionMetadata | None


def prepare_init(
    row: TransactionMetadata | None,
    *,
    transactional_id: str,
    new_producer_id: int,
    owner: Owner,
    timeout_ms: int,
    now_ms: int,
    keep_prepared: bool = False,
    take_over: bool = True,
    markers: Mapping[str, int] = {},
) -> Transition | Done:
    """InitProducerId: make `owner` the owner under a new epoch (R26, R27, R28).

    A new id starts at epoch 0 with `new_producer_id`. An Ongoing transaction of the former owner
    goes to PREPARE_ABORT in the same write, and a decided one stays as it is: the caller finishes
    it and repeats the request. So a former owner that decides one transaction after the other
    delays nobody. With `keep_prepared` one that its client has prepared is kept under its
    txn_epoch, and only the owner and the producer epoch change (KIP-939). Without `take_over` the
    row must be missing, or owned by this run. `markers` are those of tables that will be written.
    Raises ProducerFencedError if this run has been fenced, ConcurrentTransactionsError if a decided
    transaction of its own, or of a batch write, must be finished first, and as `check_markers`.
    """
    if not transactional_id:
        raise InvalidProducerIdMappingError("transactional.id is empty; give the producer a name.")
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise InvalidTxnTimeoutError(
            f"transaction.timeout.ms={timeout_ms} of {transactional_id!r} must be above 0 and at "
            f"most transaction.max.timeout.ms={TIMEOUT_MS_MAX}; lower the one or raise the other.",
            timeout_ms=timeout_ms,
            timeout_ms_max=TIMEOUT_MS_MAX,
        )
    if row is None:
        if new_producer_id < 0:
            raise ConcurrentTransactionsError(
                f"{transactional_id!r} has just expired and needs a new producer id; try again.",
                transactional_id=transactional_id,
            )
        return Transition(
            operation="INIT PRODUCER ID",
            previous=None,
            next=TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=new_producer_id,
                producer_epoch=0,
                timeout_ms=timeout_ms,
                owner=replace(owner, since_ms=now_ms),
                updated_ms=now_ms,
            ),
        )
    refuse_former(row, owner.run_id)
    is_own = row.owner.run_id == owner.run_id
    if not take_over and not is_own:
        raise fenced(row, f"run {owner.run_id}")
    if is_own or row.owner.one_off:
        refuse_prepared(row)
    kept = keep_prepared and row.pending.prepared_by_client
    if is_own and (row.state.is_idle or kept):
        return Done(row)
    # Before the epoch is raised: else a client that restarts would get past these markers.
    undecided = row.txn_epoch + (row.state is not TransactionState.ONGOING)
    check_markers(transactional_id, (row.producer_id, undecided), markers)
    new_owner = taken_over(row.owner, owner, now_ms=now_ms, reason=TAKEN_OVER)
    if row.is_ending:
        return _beside_decision(row, owner=new_owner, timeout_ms=timeout_ms)
    operation, state = "INIT PRODUCER ID", TransactionState.EMPTY
    if kept:
        state = TransactionState.ONGOING
    elif row.state is TransactionState.ONGOING:
        operation, state = "FENCE", TransactionState.PREPARE_ABORT
    return _transition(
        row, operation, state, now_ms, owner=new_owner, bump=True, timeout_ms=timeout_ms
    )


def prepare_add_partitions(
    row: TransactionMetadata | None,
    *,
    holder: Holder,
    partitions: tuple[TopicPartitions, ...] = (),
    manifest: Manifest | None = None,
    tickets: tuple[GroupTicket, ...] = (),
    markers: Mapping[str, int] = {},
    now_ms: int,
) -> Transition | Done:
    """AddPartitionsToTxn: start an Ongoing transaction, or add partitions to it (R29, R30).

    `tickets` are those of offsets sent so far. `manifest` turns it into a prepared two-phase
    transaction, which never times out: it checks the `markers`, too. Raises InvalidTxnStateError
    for additions to one that is prepared already, IllegalGenerationError for a ticket below its
    floor, and as `check_markers`.
    """
    row = check_holder(row, holder)
    refuse_prepared(row)
    started = row.state is TransactionState.ONGOING
    merged = merge_partitions(row.partitions if started else (), partitions)
    pending = row.pending
    if manifest is not None:
        carried = merge_tickets(pending.tickets, manifest.tickets)
        pending = replace(manifest, tickets=carried, prepared_by_client=True)
    if tickets:
        pending = replace(pending, tickets=merge_tickets(pending.tickets, tickets))
    if started and merged == row.partitions and pending == row.pending:
        return Done(row)
    if started and row.pending.prepared_by_client:
        raise InvalidTxnStateError(
            f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} is prepared; "
            "nothing can be added to it. Commit or abort it first.",
            transactional_id=row.transactional_id,
            state=row.state.name,
        )
    check_tickets(row, pending.tickets)
    check_markers(row.transactional_id, (row.producer_id, row.producer_epoch), markers)
    return _transition(
        row,
        "ADD PARTITIONS TO TXN",
        TransactionState.ONGOING,
        now_ms,
        txn_epoch=row.producer_epoch,
        partitions=merged,
        pending=pending,
        started_ms=row.started_ms if started else now_ms,
    )


def prepare_end(
    row: TransactionMetadata | None,
    *,
    holder: Holder,
    result: TransactionResult,
    manifest: Manifest | None = None,
    last_batch: LastBatch | None = None,
    txn_epoch: int | None = None,
    follows: ProducerIdAndEpoch | None = None,
    markers: Mapping[str, int] = {},
    now_ms: int,
) -> Transition | Done:
    """EndTxn: decide the transaction of this epoch; PREPARE_* is the point of no return (R31).

    A deferred transaction goes straight from an idle state to PREPARE_COMMIT with its `manifest`; a
    deferred abort needs no write. `last_batch` of a streaming query is recorded in the same write.
    `txn_epoch` is given if it is not the holder's, for a transaction prepared by a former owner.
    `follows` is the holder's transaction before, whose markers it has seen land: its COMPLETE and
    this decision are one write. `markers` are of all tables that a commit will write. Raises as
    `check_holder` and `check_markers`; InvalidTxnStateError for the opposite or for other batches.
    """
    ending = holder.producer_epoch if txn_epoch is None else txn_epoch
    if row is not None and row.transaction == (holder.producer_id, ending):
        if row.state in (result.prepared, result.complete) or _is_asked(row, result):
            check_manifest(row, manifest)
            return Done(row)
        if row.state not in (TransactionState.ONGOING, TransactionState.EMPTY):
            raise ended_otherwise(row, holder, result)
    found, row = row, _after(row, follows, now_ms)
    row = check_holder(row, holder)
    refuse_prepared(row)
    ongoing = row.state is TransactionState.ONGOING
    if not ongoing and (result is TransactionResult.ABORT or manifest is None):
        return Done(found)
    pending = row.pending
    if result is TransactionResult.ABORT:
        pending = replace(row.pending, batches=(), tickets=(), tables=())
    elif manifest is not None and not row.pending.prepared_by_client:
        # A client commits exactly what it prepared.
        carried = merge_tickets(pending.tickets, manifest.tickets)
        pending = replace(manifest, tickets=carried)
    else:
        check_manifest(row, manifest)
    if result is TransactionResult.COMMIT:
        check_tickets(row, () if row.pending.prepared_by_client else pending.tickets)
        check_markers(row.transactional_id, (row.producer_id, ending), markers)
    decided = _transition(
        row,
        result.prepared.name,
        result.prepared,
        now_ms,
        txn_epoch=ending,
        pending=pending,
        owner=row.owner if last_batch is None else replace(row.owner, last_batch=last_batch),
        partitions=row.partitions if ongoing else (),
        started_ms=row.started_ms if ongoing else now_ms,
    )
    if any(table.mode == "merge" for table in pending.tables):
        decided = _asked(decided, row.owner, last_batch)
    return replace(decided, previous=found)


def _is_asked(row: TransactionMetadata, result: TransactionResult) -> bool:
    return row.decider is not None and result is TransactionResult.COMMIT


def _asked(decided: Transition, owner: Owner, last_batch: LastBatch | None) -> Transition:
    """Ongoing in place of a decision that is a table's: see `prepare_decided`."""
    pending = replace(decided.next.pending, last_batch=last_batch)
    row = replace(decided.next, state=TransactionState.ONGOING, pending=pending, owner=owner)
    return replace(decided, operation="ADD PARTITIONS TO TXN", next=row)


def prepare_decided(
    row: TransactionMetadata | None,
    *,
    transaction: ProducerIdAndEpoch,
    result: TransactionResult,
    now_ms: int,
) -> Transition | Done:
    """PREPARE_* of a transaction that a table has decided, by its change or by a fence (R77).

    Any process may write it: the table's log, where one of the two was put, lets all find the same.
    Done: another process has.
    """
    if row is None or row.decider is None or row.transaction != transaction:
        return Done(row)
    pending, owner = replace(row.pending, last_batch=None), row.owner
    if result is TransactionResult.ABORT:
        pending = Manifest()
    elif row.pending.last_batch is not None:
        owner = replace(owner, last_batch=row.pending.last_batch)
    return _transition(
        row, result.prepared.name, result.prepared, now_ms, pending=pending, owner=owner
    )


def _after(
    row: TransactionMetadata | None, follows: ProducerIdAndEpoch | None, now_ms: int
) -> TransactionMetadata | None:
    """The row as COMPLETE of the transaction before leaves it."""
    if follows is None:
        return row
    completed = prepare_complete(row, transaction=follows, now_ms=now_ms)
    return completed.next if isinstance(completed, Transition) else completed.metadata


def prepare_one_off_commit(
    row: TransactionMetadata | None,
    *,
    transactional_id: str,
    producer_id: int,
    manifest: Manifest,
    owner: Owner,
    markers: Mapping[str, int] = {},
    now_ms: int,
) -> Transition | Done:
    """PREPARE_COMMIT of an id used once (a batch write): its first row is decided."""
    if row is not None:
        return Done(row)
    check_markers(transactional_id, (producer_id, 0), markers)
    if manifest.tickets:
        raise InvalidTxnStateError(
            f"A batch write carries no offsets of groups: {transactional_id!r} is used once.",
            transactional_id=transactional_id,
        )
    return Transition(
        operation=TransactionState.PREPARE_COMMIT.name,
        previous=None,
        next=TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=0,
            txn_epoch=0,
            state=TransactionState.PREPARE_COMMIT,
            timeout_ms=TIMEOUT_MS_MAX,
            pending=manifest,
            owner=replace(owner, one_off=True),
            started_ms=now_ms,
            updated_ms=now_ms,
        ),
    )


def prepare_complete(
    row: TransactionMetadata | None, *, transaction: ProducerIdAndEpoch, now_ms: int
) -> Transition | Done:
    """After the last marker: a new epoch, manifest cleared (KIP-890). Any process may do it.

    An id that expired starts again at epoch 0 under another producer id, so that its transactions
    have other names.
    """
    if row is None or not row.state.is_prepared or row.transaction != transaction:
        return Done(row)
    result = TransactionResult.of(row.state)
    if row.owner.one_off:
        dead = replace(row, state=TransactionState.DEAD, updated_ms=now_ms)
        return Transition(operation=result.complete.name, previous=row, next=dead)
    return _transition(
        row,
        result.complete.name,
        result.complete,
        now_ms,
        bump=True,
        partitions=(),
        pending=Manifest(),
    )


def prepare_restage(
    row: TransactionMetadata | None,
    *,
    transaction: ProducerIdAndEpoch,
    old: StagedTable,
    new: StagedTable,
) -> Transition | Done:
    """Name other files with the rows of a part that its table does not take any more (R76).

    The transaction keeps its name: whichever files are published first, its `txn` refuses the
    others. Done: it has ended, or another process has restaged this part.
    """
    is_decided = row is not None and row.state is TransactionState.PREPARE_COMMIT
    if row is None or not is_decided or row.transaction != transaction or old not in row.tables:
        return Done(row)
    new = replace(new, first=old.first or old.part)
    tables = tuple(new if table == old else table for table in row.tables)
    changed = replace(row, pending=replace(row.pending, tables=tables))
    return Transition(operation="RESTAGE", previous=row, next=changed)


def as_completed(row: TransactionMetadata) -> TransactionMetadata:
    """The row as COMPLETE will leave it, if it is prepared; but for its time."""
    after = prepare_complete(row, transaction=row.transaction, now_ms=row.updated_ms)
    return after.next if isinstance(after, Transition) else row


def prepare_time_out(
    row: TransactionMetadata | None, *, transaction: ProducerIdAndEpoch, by: str, now_ms: int
) -> Transition | Done:
    """Time out an Ongoing transaction: new epoch and PREPARE_ABORT in one write (R32).

    Two-phase transactions prepared by their client do not change, nor those that are decided, or
    that a table decides.
    """
    if row is None or row.state is not TransactionState.ONGOING or row.transaction != transaction:
        return Done(row)
    if row.pending.prepared_by_client or row.is_ending:
        return Done(row)
    reason = f"{TIMED_OUT} (transaction.timeout.ms={row.timeout_ms})"
    return prepare_abort_ongoing(row, by=by, reason=reason, now_ms=now_ms, operation="TIME OUT")


def prepare_abort_ongoing(
    row: TransactionMetadata,
    *,
    by: str,
    reason: str,
    now_ms: int,
    floors: Mapping[str, int] | None = None,
    operation: str = "FENCE",
) -> Transition:
    """End an Ongoing transaction from outside: new epoch and PREPARE_ABORT in one write."""
    note = Fenced(by=by, at_ms=now_ms, reason=reason)
    owner = replace(row.owner, fenced=note, floors={**row.owner.floors, **(floors or {})})
    state = TransactionState.PREPARE_ABORT
    return _transition(row, operation, state, now_ms, owner=owner, bump=True)


def prepare_fence(
    row: TransactionMetadata | None,
    *,
    above_epoch: int,
    by: str,
    reason: str,
    now_ms: int,
) -> Transition | Done:
    """Raise the row's epoch above `above_epoch`, so that its holder can decide nothing more.

    The owner's run joins `former_runs`: a new commit worker of that run must not adopt the new
    epoch. An Ongoing transaction goes to PREPARE_ABORT in the same write; a decided one stays as it
    is, for the caller to finish.
    """
    if row is None or row.producer_epoch > above_epoch:
        return Done(row)
    owner = replace(
        row.owner,
        former_runs=add_former_run(row.owner),
        fenced=Fenced(by=by, at_ms=now_ms, reason=reason),
    )
    found, row = row, replace(row, producer_epoch=above_epoch)
    state = TransactionState.EMPTY
    if row.state is TransactionState.ONGOING:
        state = TransactionState.PREPARE_ABORT
    fence = (
        _beside_decision(row, owner=owner)
        if row.is_ending
        else _transition(row, "FENCE", state, now_ms, owner=owner, bump=True)
    )
    return replace(fence, previous=found)


def prepare_expire(row: TransactionMetadata | None, *, now_ms: int) -> Transition | Done:
    """Expire an idle id (R35); rows of a streaming query never expire."""
    if row is None or not row.state.is_idle:
        return Done(row)
    if row.owner.query_id or row.owner.last_batch is not None:
        return Done(row)
    return _transition(row, EXPIRE, TransactionState.DEAD, now_ms)


def _transition(
    row: TransactionMetadata,
    operation: str,
    state: TransactionState,
    now_ms: int,
    *,
    bump: bool = False,
    **changes: object,
) -> Transition:
    """The only way to change a row's state; checks the table of valid predecessors (R25)."""
    if row.state not in VALID_PREVIOUS[state]:
        raise InvalidTxnStateError(
            f"{row.transactional_id!r} cannot go from {row.state.name} to {state.name}.",
            transactional_id=row.transactional_id,
            state=row.state.name,
        )
    epoch = row.producer_epoch + 1 if bump else row.producer_epoch
    changed = replace(row, state=state, producer_epoch=epoch, updated_ms=now_ms, **changes)
    return Transition(operation=operation, previous=row, next=changed)


def _beside_decision(row: TransactionMetadata, **changes: object) -> Transition:
    """A new owner and epoch; what is decided, or a table decides, keeps its name, manifest, state
    and time.
    """
    raised = replace(row, producer_epoch=row.producer_epoch + 1, **changes)
    return Transition(operation="FENCE", previous=row, next=raised)
