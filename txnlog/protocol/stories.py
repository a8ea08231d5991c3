"""What happened to a transactional.id, in sentences, from the history of its state row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from txnlog.protocol.fencing_lines import row_change
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import EXPIRE, Transition

TOLD_MAX = 4
"""Of more ordinary sentences in a row, the last ones are told, and the others counted."""


class RowChange(NamedTuple):
    """One commit's change of a row; `row` is None when it was removed.

    `parameters` are the commit's `operationParameters`.
    """

    at_ms: int
    version: int
    transactional_id: str
    row: TransactionMetadata | None
    operation: str = ""
    parameters: Mapping[str, str] = {}


class Sentence(NamedTuple):
    """What happened, at a time by the wall clock of the process that did it."""

    at_ms: int
    text: str


def tell(changes: Iterable[RowChange]) -> list[Sentence]:
    """The story of one id, from all changes of its row that the log has, in order."""
    before: TransactionMetadata | None = None
    found: list[tuple[bool, Sentence]] = []
    for change in changes:
        for is_ordinary, text in change_texts(before, change):
            found.append((is_ordinary, Sentence(change.at_ms, text)))
        before = change.row
    told: list[Sentence] = []
    for is_ordinary, run in groupby(found, key=lambda one: one[0]):
        sentences = [sentence for _, sentence in run]
        left_out = len(sentences) - TOLD_MAX
        if is_ordinary and left_out > 1:
            text = f"It went on with its transactions: {left_out} steps without a fence."
            sentences = [Sentence(sentences[0].at_ms, text), *sentences[left_out:]]
        told += sentences
    return told


def change_texts(
    before: TransactionMetadata | None, change: RowChange
) -> Iterator[tuple[bool, str]]:
    """(whether it is ordinary, sentence) of a change."""
    row = change.row
    if row is None:
        yield False, _removed(before, change.operation)
        return
    if before is None:
        yield False, _begun(row, change.operation)
    else:
        line = row_change(Transition(operation=change.operation, previous=before, next=row))
        if line is not None:
            yield False, f"{line.text}."
            return
    step = _step(before, row)
    if step:
        yield before is not None, step


def _removed(before: TransactionMetadata | None, operation: str) -> str:
    if before is None:
        return f"Its row was removed ({operation})."
    if operation == EXPIRE:
        line = row_change(
            Transition(
                operation=operation,
                previous=before,
                next=replace(before, state=TransactionState.DEAD),
            )
        )
        return f"It {line.text}." if line is not None else "It expired."
    if before.owner.one_off:
        return "Its transaction is complete; the id was used once."
    return f"An operator deleted its row ({operation})."


def _begun(row: TransactionMetadata, operation: str) -> str:
    owner = f"{row.owner.describe()}, producer id {row.producer_id}, epoch {row.producer_epoch}"
    if operation == "INIT PRODUCER ID" and row.producer_epoch == 0:
        return f"Its first owner is {owner}."
    return f"The history that the log still has begins; its owner is {owner}."


def _step(before: TransactionMetadata | None, row: TransactionMetadata) -> str:
    """What it did in its own transactions; "" if nothing new."""
    epoch, state = f"epoch {row.txn_epoch}", row.state
    known = before is not None and (before.state, before.transaction) == (state, row.transaction)
    if state is TransactionState.ONGOING:
        if row.pending.prepared_by_client:
            is_new = before is None or not before.pending.prepared_by_client
            return f"Its client prepared the transaction of {epoch}." if is_new else ""
        if row.decider is not None:
            if before is not None and before.decider is not None:
                return ""
            table = f"table {row.decider.name}"
            return f"It left the transaction of {epoch} to {table} to decide{_where(row)}."
        return "" if known else f"It opened the transaction of {epoch}{_where(row)}."
    if known:
        return ""
    decider = None if before is None else before.decider
    who = "It" if decider is None else f"Table {decider.name}"
    if state is TransactionState.PREPARE_COMMIT:
        last = row.owner.last_batch
        batch = f", batch {last.batch_id}" if last is not None and row.owner.query_id else ""
        return f"{who} decided to commit the transaction of {epoch}{batch}{_where(row)}."
    if state is TransactionState.PREPARE_ABORT:
        why = "" if decider is None else ": others have changed what was read there"
        return f"{who} decided to abort the transaction of {epoch}{why}."
    if state is TransactionState.COMPLETE_COMMIT:
        return f"The transaction of {epoch} is complete: committed."
    if state is TransactionState.COMPLETE_ABORT:
        return f"The transaction of {epoch} is complete: aborted."
    return ""


def _where(row: TransactionMetadata) -> str:
    parts = sorted({topic for topic, _ in row.topic_ids})
    parts += [f"table {one.name}" for one in row.pending.tables]
    groups = sorted(one.group_id for one in row.pending.tickets)
    text = f", in {', '.join(parts)}" if parts else ""
    return text + (f", with offsets of group {', '.join(groups)}" if groups else "")
