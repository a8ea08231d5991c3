"""Why a group waits, what became of a transactional.id, and which transaction wrote a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import GroupTicket, Owner, TransactionMetadata
from txnlog.protocol.problems import Problem, ProblemKind, RootState, who_of
from txnlog.protocol.stories import RowChange, Sentence, tell
from txnlog.protocol.transitions import TAKEN_OVER, TIMED_OUT
from txnlog.protocol.waiting import last_stable_offset

DAMAGES = (ProblemKind.DAMAGE, ProblemKind.TOPIC_MISSING, ProblemKind.FILE_DAMAGED)


def count_of(problems: Sequence[Problem]) -> str:
    """The verdict about a root, a group or an id."""
    return f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"


# --- Groups ---------------------------------------------------------------------------------------


class PartitionLag(NamedTuple):
    """Where a group is in a partition; None where it has no offset, or there is no partition.

    `stable` is where read_committed readers stop now.
    """

    topic: str
    partition: int
    committed: int | None
    stable: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)

    @property
    def waits(self) -> bool:
        """Whether it has read all before the last stable offset, and there is more."""
        is_at_stable = self.committed is not None and self.committed >= (self.stable or 0)
        return bool(self.lag) and is_at_stable


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExplanation:
    """Why a group waits or lags: the problems that it meets."""

    group_id: str
    verdict: str
    partitions: Sequence[PartitionLag]
    problems: Sequence[Problem]


def explain_group(state: RootState, group: Group) -> GroupExplanation:
    """`state` may be of its topics alone; young transactions count, since it waits for them."""
    partitions = _lags(state, group)
    ids = {one.transactional_id for one in group.tickets.holders}
    problems = concerning(find_problems(state, patience_ms=0), state, group)
    records = sum(state.unread.get((group.group_id, *one[:2]), 0) for one in partitions)
    left = f"{records} record{'s are' if records > 1 else ' is'} left to read"
    readers = len(group.members) + len(ids)
    if problems:
        verdict = count_of(problems)
    elif not records:
        verdict = "no problems: it has read everything"
    elif readers:
        verdict = f"no problems: {left}, and nothing blocks it"
    else:
        verdict = (
            f"no problems: {left}, and nobody reads: it has no member, and no query or producer "
            "has registered"
        )
    return GroupExplanation(
        group_id=group.group_id, verdict=verdict, partitions=partitions, problems=problems
    )


def concerning(problems: Sequence[Problem], state: RootState, group: Group) -> list[Problem]:
    """Those that keep the readers of a group back."""
    partitions = _lags(state, group)
    ids = {one.transactional_id for one in group.tickets.holders}
    return [one for one in problems if _concerns(one, group.group_id, partitions, ids)]


def _lags(state: RootState, group: Group) -> list[PartitionLag]:
    positions = group.positions()
    named = {(topic, number) for topic, numbers in positions.items() for number in numbers}
    for assigned in (*group.assignment.values(), *(h.partitions for h in group.tickets.holders)):
        named.update((topic, number) for topic, numbers in assigned.items() for number in numbers)
    found = []
    for topic, number in sorted(named):
        facts = state.topics.get(topic)
        stable = end = None
        if facts is not None and not facts.is_deleted and number < len(facts.ends):
            stable, end = last_stable_offset(facts, number), facts.ends[number]
        committed = positions.get(topic, {}).get(number)
        found.append(PartitionLag(topic, number, committed, stable, end))
    return found


def _concerns(
    problem: Problem, group_id: str, partitions: Sequence[PartitionLag], ids: set[str]
) -> bool:
    read = {(one.topic, one.partition): one for one in partitions}
    for place in problem.places:
        found = read.get((place.topic, place.partition))
        is_waited_for = found is not None and (place.start_offset is None or found.waits)
        if group_id in place.groups or (is_waited_for and not place.groups):
            return True
    if problem.kind in (ProblemKind.STUCK_QUERY, ProblemKind.FENCED, ProblemKind.TAKEN_OVER):
        return problem.subject in ids
    if problem.kind is ProblemKind.DEAD_MEMBER:
        return problem.subject == group_id
    is_damage = problem.kind in DAMAGES and not problem.places
    return is_damage and problem.subject in {group_id, *ids, *(one.topic for one in partitions)}


# --- Ids ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IdExplanation:
    """What became of a transactional.id; `row` is None if it has none any more.

    `story` is from the history that the log still has.
    """

    transactional_id: str
    verdict: str
    advice: str
    row: TransactionMetadata | None
    problems: Sequence[Problem]
    story: Sequence[Sentence]


def explain_id(
    state: RootState,
    transactional_id: str,
    row: TransactionMetadata | None,
    changes: Sequence[RowChange],
) -> IdExplanation:
    """`row` is as operators see it, `changes` are all that the log has of the id."""
    story = tell(changes)
    problems = [
        problem
        for problem in find_problems(state, patience_ms=0)
        # A fenced owner is the verdict.
        if problem.subject == transactional_id and problem.kind is not ProblemKind.FENCED
    ]
    if row is None:
        verdict = story[-1].text if story else "It has no row."
        advice = "A producer that uses it gets a new producer id, by init_transactions."
    else:
        verdict, advice = _of_owner(row, state.now_ms)
    return IdExplanation(
        transactional_id=transactional_id,
        verdict=verdict,
        advice=advice,
        row=row,
        problems=problems,
        story=story,
    )


def _of_owner(row: TransactionMetadata, now_ms: int) -> tuple[str, str]:
    """Who fenced its owner last and why, and what to do."""
    last, owner = row.owner.fenced, row.owner.describe()
    if last is None and row.owner.last_batch is not None:
        batch_id, age_s = row.owner.last_batch.batch_id, max(0, now_ms - row.updated_ms) // 1000
        return (
            f"Nobody has fenced it: its owner is {owner}; its last batch, {batch_id}, is {age_s} s "
            "old.",
            "Nothing; if it has had input since then, look at its driver.",
        )
    if last is None:
        return f"Nobody has fenced it: its owner is {owner}.", "Nothing."
    if row.owner.run_id in row.owner.former_runs:
        return (
            f"Its owner, {owner}, was fenced by {last.by}: {last.reason}.",
            "Nobody owns it now: start its program again.",
        )
    if last.reason == TAKEN_OVER:
        return (
            f"Its former owner was fenced by {last.by}: a newer start took it over.",
            "Nothing after a restart. If both were meant to run, give each an id of its own (a "
            "Spark query: a checkpoint of its own).",
        )
    advice = "Its owner goes on: it aborts, and begins again from the committed positions."
    if last.reason.startswith(TIMED_OUT):
        advice = (
            "Its owner goes on after init_transactions. Commit sooner, or raise "
            f"transaction.timeout.ms={row.timeout_ms}."
        )
    return f"The transaction of {owner} was aborted by {last.by}: {last.reason}.", advice


# --- Records --------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """What a transaction wrote to a partition; offsets are -1 where compaction hides them, or it is
    not there yet.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    files: tuple[str, ...]
    num_records: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTrace:
    """Which transaction wrote the record at an offset, and what else it did.

    `status`: committed, ongoing, aborted or none (no transaction); "compacted, unknown" where
    neither the batch nor the log's history shows its producer any more; "removed", "not written".
    `owner` and `offsets` are those of the decision, known as long as the log has it. `read_by` are
    the groups that have committed an offset past it.
    """

    topic: str
    partition: int
    offset: int
    status: str
    file: str = ""
    transactional_id: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    owner: Owner | None = None
    batch_id: int | None = None
    decided_ms: int = -1
    pieces: Sequence[Piece] = ()
    offsets: Sequence[GroupTicket] = ()
    read_by: Sequence[str] = field(default=())

    def to_values(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "status": self.status,
            "file": self.file or None,
            "transactionalId": self.transactional_id or None,
            "producerId": None if self.producer_id < 0 else self.producer_id,
            "producerEpoch": None if self.producer_epoch < 0 else self.producer_epoch,
            "owner": who_of(self.owner),
            "batchId": self.batch_id,
            "decidedMs": None if self.decided_ms < 0 else self.decided_ms,
            "pieces": [
                {
                    "topic": piece.topic,
                    "partition": piece.partition,
                    "firstOffset": None if piece.first_offset < 0 else piece.first_offset,
                    "lastOffset": None if piece.last_offset < 0 else piece.last_offset,
                    "files": list(piece.files),
                }
                for piece in self.pieces
            ],
            "offsets": {one.group_id: msgspec.to_builtins(one.offsets) for one in self.offsets},
            "readBy": list(self.read_by),
        }
