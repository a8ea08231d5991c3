"""Every decision about a transaction state row, as pure functions: (row, request) -> Transition.

The shell persists `Transition.next` by compare-and-swap and only then believes it. A request that
has already been carried out gives Done, so that a lost reply is settled by asking again. Mirrors
the prepare* methods of org.apache.kafka.coordinator.transaction.TransactionMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from txnlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
)
from txnlog.protocol.fencing import (
    check_holder,
    fenced,
    fenced_note,
    refuse_former,
    refuse_prepared,
)
from txnlog.protocol.metadata import (
    FORMER_RUNS_MAX,
    Fenced,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TopicPartitions,
    TransactionMetadata,
    merge_partitions,
)
from txnlog.protocol.query_batches import remember_batch
from txnlog.protocol.states import VALID_PREVIOUS, TransactionResult, TransactionState

TIMEOUT_MS_DEFAULT = 60_000
TIMEOUT_MS_MAX = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A checked move of one row; `next.state` DEAD means that the row is removed."""

    operation: str
    previous: TransactionMetadata | None
    next: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to write: the row already says what was asked for (None: completed and removed)."""

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
) -> Transition | Done:
    """InitProducerId: make `owner` the owner under a new epoch (R26, R27, R28).

    A new id starts at epoch 0 with `new_producer_id`. An Ongoing transaction of the former owner
    goes to PREPARE_ABORT in the same write; the caller finishes it and asks again. With
    `keep_prepared` one that its client has prepared stays as it is, under its txn_epoch, and only
    the owner and the producer epoch change (KIP-939). Without `take_over` only a row that is
    missing, or this run's own, is taken.
    Raises ProducerFencedError when this run was taken over before, ConcurrentTransactionsError
    when a decided transaction must be finished first.
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
    if not take_over and row.owner.run_id != owner.run_id:
        raise fenced(row, f"run {owner.run_id}")
    refuse_prepared(row)
    kept = keep_prepared and row.pending.prepared_by_client
    if row.owner.run_id == owner.run_id and (row.state.is_idle or kept):
        return Done(row)
    heir = _succeed(row.owner, owner, now_ms=now_ms, reason="taken over by a newer start")
    operation, state = "INIT PRODUCER ID", TransactionState.EMPTY
    if kept:
        state = TransactionState.ONGOING
    elif row.state is TransactionState.ONGOING:
        operation, state = "FENCE", TransactionState.PREPARE_ABORT
    return _move(row, operation, state, now_ms, owner=heir, bump=True, timeout_ms=timeout_ms)


def prepare_add_partitions(
    row: TransactionMetadata | None,
    *,
    holder: Holder,
    partitions: tuple[TopicPartitions, ...] = (),
    groups: tuple[str, ...] = (),
    manifest: Manifest | None = None,
    now_ms: int,
) -> Transition | Done:
    """AddPartitionsToTxn: start or widen an Ongoing transaction (R29, R30).

    `manifest` turns it into a prepared two-phase transaction, which never times out, and which
    nothing can be added to any more: InvalidTxnStateError.
    """
    row = check_holder(row, holder)
    refuse_prepared(row)
    started = row.state is TransactionState.ONGOING
    merged = merge_partitions(row.partitions if started else (), partitions)
    pending = row.pending
    if manifest is not None:
        named = _union(pending.groups, manifest.groups, groups)
        pending = replace(manifest, groups=named, prepared_by_client=True, unknown=pending.unknown)
    elif not set(groups) <= set(pending.groups):
        pending = replace(pending, groups=_union(pending.groups, groups))
    if started and merged == row.partitions and pending == row.pending:
        return Done(row)
    if started and row.pending.prepared_by_client:
        raise InvalidTxnStateError(
            f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} is prepared; "
            "nothing can be added to it. Commit or abort it first.",
            transactional_id=row.transactional_id,
            state=row.state.name,
        )
    return _move(
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
    batch: tuple[str, LastBatch] | None = None,
    txn_epoch: int | None = None,
    now_ms: int,
) -> Transition | Done:
    """EndTxn: decide the transaction of this epoch; PREPARE_* is the point of no return (R31).

    Deferred data goes straight from an idle state to PREPARE_COMMIT with its `manifest`; a
    deferred abort has nothing to write. `batch` (query id, LastBatch) is remembered in the same
    write. `txn_epoch` is the transaction's where it is not the holder's: one prepared under an
    owner before. Raises InvalidTxnStateError for the opposite of what was decided, or for other
    batches, ProducerFencedError or InvalidProducerEpochError for a producer that was fenced.
    """
    ending = holder.producer_epoch if txn_epoch is None else txn_epoch
    if row is not None and row.transaction == (holder.producer_id, ending):
        if row.state in (result.prepared, result.complete):
            _check_manifest(row, manifest)
            return Done(row)
        if row.state not in (TransactionState.ONGOING, TransactionState.EMPTY):
            refuse_former(row, holder.run_id)
            raise InvalidTxnStateError(
                f"The transaction of {row.transactional_id!r} at epoch {ending} was already "
                f"ended as {row.state.name}{fenced_note(row)}; it cannot end as "
                f"{result.name} too. Begin a new transaction.",
                transactional_id=row.transactional_id,
                state=row.state.name,
            )
    row = check_holder(row, holder)
    refuse_prepared(row)
    ongoing = row.state is TransactionState.ONGOING
    if not ongoing and (result is TransactionResult.ABORT or manifest is None):
        return Done(row)
    pending = row.pending
    if result is TransactionResult.ABORT:
        pending = replace(row.pending, batches=())
    elif manifest is not None and not row.pending.prepared_by_client:
        # What the client prepared is what it commits; groups named earlier have entries by now.
        named = _union(pending.groups, manifest.groups)
        pending = replace(manifest, groups=named, unknown=pending.unknown)
    else:
        _check_manifest(row, manifest)
    owner = row.owner if batch is None else remember_batch(row.owner, *batch)
    return _move(
        row,
        result.prepared.name,
        result.prepared,
        now_ms,
        txn_epoch=ending,
        pending=pending,
        owner=owner,
        partitions=row.partitions if ongoing else (),
        started_ms=row.started_ms if ongoing else now_ms,
    )


def prepare_one_off_commit(
    row: TransactionMetadata | None,
    *,
    transactional_id: str,
    producer_id: int,
    manifest: Manifest,
    owner: Owner,
    now_ms: int,
) -> Transition | Done:
    """PREPARE_COMMIT of an id used once (a batch write): the row is born decided."""
    if row is not None:
        return Done(row)
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

    An id that expired starts again at epoch 0 under another producer id: that is another
    transaction.
    """
    if row is None or not row.state.is_prepared or row.transaction != transaction:
        return Done(row)
    result = TransactionResult.of(row.state)
    if row.owner.one_off:
        dead = replace(row, state=TransactionState.DEAD, updated_ms=now_ms)
        return Transition(operation=result.complete.name, previous=row, next=dead)
    return _move(
        row,
        result.complete.name,
        result.complete,
        now_ms,
        bump=True,
        partitions=(),
        pending=Manifest(),
    )


def prepare_time_out(
    row: TransactionMetadata | None, *, transaction: ProducerIdAndEpoch, by: str, now_ms: int
) -> Transition | Done:
    """End an Ongoing transaction that took too long: epoch and PREPARE_ABORT in one write (R32).

    Two-phase transactions (prepared by their client) and anything decided are left alone.
    """
    if row is None or row.state is not TransactionState.ONGOING or row.transaction != transaction:
        return Done(row)
    if row.pending.prepared_by_client:
        return Done(row)
    reason = f"timed out (transaction.timeout.ms={row.timeout_ms})"
    owner = replace(row.owner, fenced=Fenced(by=by, at_ms=now_ms, reason=reason))
    return _move(row, "TIME OUT", TransactionState.PREPARE_ABORT, now_ms, owner=owner, bump=True)


def prepare_fence(
    row: TransactionMetadata | None,
    *,
    above_epoch: int,
    by: str,
    reason: str,
    now_ms: int,
    spare_two_phase: bool = False,
) -> Transition | Done:
    """Raise the row's epoch above `above_epoch`, so that its holder can decide nothing any more.

    The owner's run joins the former ones: a fresh commit worker of that run must not adopt the
    raised epoch. An Ongoing transaction goes to PREPARE_ABORT in the same write; with
    `spare_two_phase` one that its client has prepared is left alone, as whoever meets a pending
    entry must: it may have been prepared after that caller looked.
    """
    if row is None or row.producer_epoch > above_epoch:
        return Done(row)
    refuse_prepared(row)
    if spare_two_phase and row.pending.prepared_by_client:
        return Done(row)
    owner = replace(
        row.owner,
        former_runs=_remember(row.owner),
        fenced=Fenced(by=by, at_ms=now_ms, reason=reason),
    )
    state = TransactionState.EMPTY
    if row.state is TransactionState.ONGOING:
        state = TransactionState.PREPARE_ABORT
    return _move(row, "FENCE", state, now_ms, owner=owner, bump=True)


def prepare_expire(row: TransactionMetadata | None, *, now_ms: int) -> Transition | Done:
    """Forget an idle id (R35); rows that a streaming query owns are never forgotten."""
    if row is None or not row.state.is_idle:
        return Done(row)
    if row.owner.query_id or row.owner.batches or row.owner.forgotten:
        return Done(row)
    return _move(row, "EXPIRE TRANSACTIONAL ID", TransactionState.DEAD, now_ms)


def _move(
    row: TransactionMetadata,
    operation: str,
    state: TransactionState,
    now_ms: int,
    *,
    bump: bool = False,
    **changes: object,
) -> Transition:
    """The one place where a row changes state; the table of valid predecessors holds here (R25)."""
    if row.state not in VALID_PREVIOUS[state]:
        raise InvalidTxnStateError(
            f"{row.transactional_id!r} cannot go from {row.state.name} to {state.name}.",
            transactional_id=row.transactional_id,
            state=row.state.name,
        )
    epoch = row.producer_epoch + 1 if bump else row.producer_epoch
    moved = replace(row, state=state, producer_epoch=epoch, updated_ms=now_ms, **changes)
    return Transition(operation=operation, previous=row, next=moved)


def _check_manifest(row: TransactionMetadata, manifest: Manifest | None) -> None:
    """Whoever repeats an end must mean the same batches; once completed they are not known."""
    if manifest is None or row.state.is_idle:
        return
    if row.pending.prepared_by_client and not manifest.batches:
        return
    if manifest.batches != row.pending.batches:
        raise InvalidTxnStateError(
            f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} is "
            f"{row.state.name} with {len(row.pending.batches)} other batches than the "
            f"{len(manifest.batches)} given now. Repeat a commit with what it had, or begin a "
            "new transaction.",
            transactional_id=row.transactional_id,
            state=row.state.name,
        )


def _union(*names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set().union(*names)))


def _remember(owner: Owner) -> tuple[str, ...]:
    if not owner.run_id or owner.run_id in owner.former_runs:
        return owner.former_runs
    return (*owner.former_runs, owner.run_id)[-FORMER_RUNS_MAX:]


def _succeed(former: Owner, heir: Owner, *, now_ms: int, reason: str) -> Owner:
    return replace(
        heir,
        former_runs=former.former_runs if heir.run_id == former.run_id else _remember(former),
        batches=former.batches,
        forgotten=former.forgotten,
        unknown=former.unknown,
        fenced=Fenced(by=heir.describe(), at_ms=now_ms, reason=reason),
        since_ms=now_ms,
    )
