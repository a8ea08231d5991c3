"""Who may write what under a transactional.id; errors say who fenced a producer, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from txnlog.errors import (
    RESTORE_ALL,
    ConcurrentTransactionsError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    LogGapError,
    ProducerFencedError,
)
from txnlog.protocol.metadata import (
    FORMER_RUNS_MAX,
    Fenced,
    GroupTicket,
    Holder,
    Manifest,
    Owner,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult


def fenced(row: TransactionMetadata, who: str) -> ProducerFencedError:
    """The error for a fenced run: who owns the id now, who fenced it and when."""
    now = f"it is owned by {row.owner.describe()}"
    advice = "Stop this one, or give it a transactional.id of its own."
    if row.owner.query_id:
        advice = "Stop this one: another driver runs the query."
    if row.owner.run_id in row.owner.former_runs:
        now = "its owner was fenced, and it has no new owner yet,"
        advice = "Close this one, and start it again."
    return ProducerFencedError(
        f"{who} may no longer write under transactional.id {row.transactional_id!r}: {now} "
        f"at epoch {row.producer_epoch}{fenced_note(row)}. {advice}",
        transactional_id=row.transactional_id,
        owner=row.owner.describe(),
        actual_epoch=row.producer_epoch,
    )


def fenced_note(row: TransactionMetadata) -> str:
    """A clause for error messages; "" if no producer was ever fenced from the row."""
    last = row.owner.fenced
    if last is None:
        return ""
    at = datetime.fromtimestamp(last.at_ms / 1000, tz=timezone.utc).isoformat("T", "seconds")
    return f" (last fenced at {at} by {last.by}: {last.reason})"


def check_holder(row: TransactionMetadata | None, holder: Holder) -> TransactionMetadata:
    """The row, if the holder owns it at this epoch.

    Raises ProducerFencedError, InvalidProducerIdMappingError, InvalidProducerEpochError.
    """
    transactional_id, run_id = holder.transactional_id, holder.run_id
    if row is not None and row.owner.run_id != run_id:
        raise fenced(row, f"run {run_id}")
    if row is None or row.producer_id != holder.producer_id:
        found = "no row" if row is None else f"producer id {row.producer_id}"
        raise InvalidProducerIdMappingError(
            f"transactional.id {transactional_id!r} has {found}, not producer id "
            f"{holder.producer_id}: it expired, and may have had another owner since. This attempt "
            "committed nothing. Abort, read the input positions again, and begin another "
            "transaction.",
            transactional_id=transactional_id,
        )
    refuse_former(row, run_id)
    if row.producer_epoch != holder.producer_epoch:
        raise InvalidProducerEpochError(
            f"{transactional_id!r} is at epoch {row.producer_epoch}, not {holder.producer_epoch}"
            f"{fenced_note(row)}. Abort, and call init_transactions again.",
            transactional_id=transactional_id,
            expected_epoch=row.producer_epoch,
            actual_epoch=holder.producer_epoch,
        )
    return row


def ended_otherwise(
    row: TransactionMetadata, holder: Holder, result: TransactionResult
) -> InvalidTxnStateError:
    """The error of an end that comes after the opposite one."""
    refuse_former(row, holder.run_id)
    return InvalidTxnStateError(
        f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} was already "
        f"ended as {row.state.name}{fenced_note(row)}; it cannot end as {result.name} too. "
        "Begin a new transaction.",
        transactional_id=row.transactional_id,
        state=row.state.name,
    )


def check_tickets(row: TransactionMetadata, tickets: Sequence[GroupTicket]) -> None:
    """Raises IllegalGenerationError for a ticket below its floor, or of another producer id.

    That proves that the transaction was never decided, also after a lost reply, if the same row was
    asked first whether it is.
    """
    for one in tickets:
        floor = row.owner.floors.get(one.group_id, 0)
        if one.ticket < floor or one.producer_id != row.producer_id:
            raise IllegalGenerationError(
                f"Another process reads for group {one.group_id!r} since: ticket {one.ticket} of "
                f"{row.transactional_id!r}, producer id {one.producer_id}, is below {floor}, or "
                f"the id has another producer id ({row.producer_id}). This transaction committed "
                "nothing. Abort it, register again, and read the input positions again.",
                group_id=one.group_id,
                ticket=one.ticket,
            )


def check_markers(
    transactional_id: str, transaction: tuple[int, int], markers: Mapping[str, int]
) -> None:
    """Refuse a transaction that tables have a marker of, or of a later one of its producer id.

    `markers`: table -> the newest epoch of this producer id that has ended there, read before the
    row. A row that knows nothing of such a marker is an old one: it would be taken for the one of
    this transaction, and what that publishes would be lost (D131). Raises LogGapError.
    """
    producer_id, epoch = transaction
    for table, marker in sorted(markers.items()):
        if marker >= epoch:
            raise LogGapError(
                f"Nothing was committed: table {table!r} has the marker of epoch {marker} of "
                f"producer id {producer_id}, and the next transaction of "
                f"{transactional_id!r} would have epoch {epoch}. So the newest commits "
                "of its state row, or of __cluster, are lost, as after a restore of one table "
                f"alone: see `txnlog verify`. {RESTORE_ALL} Where records may come twice, another "
                "transactional.id goes on at once.",
                transactional_id=transactional_id,
                table=table,
            )


def check_manifest(row: TransactionMetadata, manifest: Manifest | None) -> None:
    """A repeated end must have the same batches; a completed row no longer has them."""
    if manifest is None or row.state.is_idle:
        return
    # A repeated end may have another ticket: what is decided is what it carries.
    known = {one.group_id: one for one in row.pending.tickets}
    if not all(_carries(known.get(one.group_id), one) for one in manifest.tickets):
        raise _ended_with(row, "other offsets than those given now")
    if row.pending.prepared_by_client and not manifest.batches and not manifest.tables:
        return
    if manifest.batches != row.pending.batches:
        known_batches = len(row.pending.batches)
        given = f"{known_batches} other batches than the {len(manifest.batches)} given now"
        raise _ended_with(row, given)
    parts = [(table.url, table.first or table.part) for table in row.pending.tables]
    if parts != [(table.url, table.part) for table in manifest.tables]:
        raise _ended_with(row, "other parts of tables than those given now")


def _ended_with(row: TransactionMetadata, what: str) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} is "
        f"{row.state.name} with {what}. Repeat a commit with what it had, or begin a new "
        "transaction.",
        transactional_id=row.transactional_id,
        state=row.state.name,
    )


def _carries(decided: GroupTicket | None, given: GroupTicket) -> bool:
    """Whether the decision has these offsets; it may have more, of pieces sent before."""
    if decided is None or decided.generation != given.generation:
        return False
    return all(
        decided.offsets.get(topic, {}).get(partition) == offset
        for topic, offsets in given.offsets.items()
        for partition, offset in offsets.items()
    )


def refuse_former(row: TransactionMetadata, run_id: str) -> None:
    """Raises ProducerFencedError for a run that was fenced."""
    if run_id in row.owner.former_runs:
        raise fenced(row, f"run {run_id}")


def refuse_prepared(row: TransactionMetadata) -> None:
    """Raises ConcurrentTransactionsError if a decided transaction must be finished first, or one
    that a table decides.
    """
    if row.is_ending:
        raise ConcurrentTransactionsError(
            f"The transaction of {row.transactional_id!r} at epoch {row.txn_epoch} is "
            f"{row.state.name} and must be finished first; try again.",
            transactional_id=row.transactional_id,
        )


def add_former_run(owner: Owner) -> tuple[str, ...]:
    """The fenced runs, with that of this owner."""
    if not owner.run_id or owner.run_id in owner.former_runs:
        return owner.former_runs
    return (*owner.former_runs, owner.run_id)[-FORMER_RUNS_MAX:]


def taken_over(former: Owner, new_owner: Owner, *, now_ms: int, reason: str) -> Owner:
    """The new owner. Floors go with the run that they refuse: its tickets are unusable."""
    is_same = new_owner.run_id == former.run_id
    return replace(
        new_owner,
        former_runs=former.former_runs if is_same else add_former_run(former),
        last_batch=former.last_batch,
        floors=former.floors if is_same else {},
        fenced=Fenced(by=new_owner.describe(), at_ms=now_ms, reason=reason),
        since_ms=now_ms,
    )
