"""What the models of transactions store, as project objects: their identity and what they mean."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from tests.staged_files import named_file
from txnlog.protocol.batches import ABORTED, COMMITTED, ONGOING
from txnlog.protocol.groups import Group
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.protocol.sequences import ProducerStateEntry
from txnlog.protocol.topics import TopicState
from txnlog.protocol.transitions import Done, Transition

Row = TransactionMetadata | None
NOTHING: tuple[int, ...] = ()


class Stored(NamedTuple):
    """What all processes share: numbers in the World's pools."""

    rows: tuple[int, ...]
    topics: tuple[int, ...]
    offsets: int


class Wrote(NamedTuple):
    """A decision's outcome: the store as it then is, the name of the error if it was refused,
    the holders that are to be fenced, and the ticket that was given."""

    stored: Stored
    error: str = ""
    holders: tuple[int, ...] = NOTHING
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class OffsetsTable:
    """`__consumer_offsets` at one version."""

    version: int = 0
    groups: Mapping[str, Group] = field(default_factory=dict)
    markers: Mapping[int, int] = field(default_factory=dict)


def row_key(row: Row) -> Hashable:
    """What decisions depend on: neither who fenced whom in words, nor the order of former runs."""
    if row is None:
        return None
    former = tuple(sorted(row.owner.former_runs))
    owner = replace(row.owner, fenced=None, former_runs=former)
    return msgspec.json.encode(replace(row, owner=owner))


def forget_run(row: Row, decision: Transition | Done) -> Transition | Done:
    """A fence as it would be if the fenced run did not join the former ones."""
    if isinstance(decision, Done) or row is None:
        return decision
    owner = replace(decision.next.owner, former_runs=row.owner.former_runs)
    moved = replace(decision.next, owner=owner)
    return Transition(operation=decision.operation, previous=row, next=moved)


def offsets_key(table: OffsetsTable) -> Hashable:
    groups = msgspec.json.encode(dict(sorted(table.groups.items())))
    return table.version, groups, tuple(sorted(table.markers.items()))


def topic_key(state: TopicState) -> Hashable:
    """The whole state, warm memory included."""
    partitions = tuple(
        (
            partition.end_offset,
            partition.start_offset,
            partition.last_stable_offset,
            tuple(astuple(batch) for batch in partition.batches),
        )
        for partition in state.partitions
    )
    remembered = tuple((name, _producer(known)) for name, known in sorted(state.sequences.items()))
    markers = tuple(sorted(state.markers.items()))
    return state.topic_id, state.deleted, partitions, remembered, markers


def _producer(known: ProducerStateEntry) -> Hashable:
    return known.producer_epoch, tuple(astuple(batch) for batch in known.recent)


def rebuilt(state: TopicState) -> TopicState:
    """What a reader that starts from a checkpoint has: the live headers in order of offset."""
    fresh = TopicState()
    fresh.set_topic(state.topic_id, state.config)
    for producer_id, epoch in state.markers.items():
        fresh.set_txn(f"txnlog/{producer_id}", epoch)
    for number, partition in enumerate(state.partitions):
        fresh.set_txn(f"txnlog/end/{number}", partition.end_offset)
        for batch in partition.batches:
            fresh.add(batch)
    return fresh


def staged(topic: str, unit: int, by: str, *, topic_id: str = "") -> StagedBatch:
    """A file of one record, the output for input offset `unit`, written by one task attempt."""
    return named_file(f"{topic}-{unit}-{by}", topic, topic_id=topic_id or f"{topic}-id")


def visible_units(state: TopicState) -> tuple[int, ...]:
    """Units that a read_committed reader gets, in order of their offsets."""
    end = state.last_stable_offset(0)
    batches = state.batches(0, state.log_start_offset(0), end, True)
    return tuple(int(batch.path.split("-")[1]) for batch in batches)


def undecided(state: TopicState) -> list[str]:
    """Paths of the headers that are still `ongoing`."""
    return sorted(path for part in state.partitions for path in part.ongoing)


def broken_history(before: TopicState, after: TopicState) -> str | None:
    """What one commit may never do to what readers have seen already (R11, R12, R13, R17)."""
    if after.high_watermark(0) < before.high_watermark(0):
        return "the end of a partition goes back"
    if after.last_stable_offset(0) < before.last_stable_offset(0):
        return "the last stable offset goes back"
    for path, header in before.by_path.items():
        now = after.by_path.get(path)
        if now is None:
            continue
        if now.base_offset != header.base_offset:
            return f"{path} moves from offset {header.base_offset} to {now.base_offset}"
        if header.status in (COMMITTED, ABORTED) and now.status != header.status:
            return f"{path} was {header.status} and is now {now.status}"
    if topic_key(after) != topic_key(rebuilt(after)):
        return "memory kept warm is not memory rebuilt from the log"
    batches = after.partitions[0].batches
    dense = [batch.base_offset for batch in batches] == list(range(len(batches)))
    if batches and batches[0].base_offset == 0 and not dense:
        return f"offsets are not dense: {[batch.base_offset for batch in batches]}"
    if after.deleted:
        return None
    new = [p for p in after.by_path if p not in before.by_path]
    if any(after.by_path[path].status == ONGOING for path in new) and after.last_stable_offset(
        0
    ) > min(after.by_path[path].base_offset for path in new):
        return "the last stable offset is above undecided data"
    return None


def above_newest(rows: Iterable[Row], table: OffsetsTable) -> str | None:
    """Whether a row or a holder has a ticket that its group has not given."""
    newest = {name: group.tickets.newest for name, group in table.groups.items()}
    known = [
        (name, one.ticket) for name, group in table.groups.items() for one in group.tickets.holders
    ]
    for row in rows:
        if row is not None:
            known += [(one.group_id, one.ticket) for one in row.pending.tickets]
            known += [(name, floor - 1) for name, floor in row.owner.floors.items()]
    for name, ticket in known:
        if ticket > newest.get(name, 0):
            return f"ticket {ticket} of {name!r} was never given"
    return None
