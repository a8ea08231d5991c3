"""What is wrong in a root, as data: the state that is judged, and the problems that are found.

txnlog.protocol.diagnosis finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from txnlog.protocol.duties import DutyRun
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import Owner, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.verification.findings import Finding
from txnlog.protocol.verification.topics import TopicFacts

PATIENCE_MS = 30_000
"""What live clients end by themselves in this time, as sweepers do, is no problem."""

HOUSEKEEPING = "txnlog housekeeping"
ONCE = f"{HOUSEKEEPING} --once"


class ProblemKind(Enum):
    """Every kind of problem; the value is its name in the output."""

    OPEN = "open transaction"
    DECIDED = "decided, not published"
    HANGING = "hanging transaction"
    FENCED = "owner fenced"
    TAKEN_OVER = "taken over repeatedly"
    DEAD_MEMBER = "member without heartbeat"
    STUCK_QUERY = "query without batches"
    TABLE_BLOCKED = "table blocked"
    TOPIC_MISSING = "topic missing"
    FILE_DAMAGED = "file damaged"
    DAMAGE = "damage"
    SMALL_FILES = "small files"
    VACUUM_OVERDUE = "vacuum overdue"
    NO_HOUSEKEEPING = "housekeeping not running"
    DUTY_FAILED = "housekeeping fails"
    DISK_FULL = "disk full"


UPKEEP = (
    ProblemKind.SMALL_FILES,
    ProblemKind.VACUUM_OVERDUE,
    ProblemKind.NO_HOUSEKEEPING,
    ProblemKind.DUTY_FAILED,
    ProblemKind.DISK_FULL,
)
"""What housekeeping has left to do, or cannot do."""
BLOCKING = (ProblemKind.OPEN, ProblemKind.DECIDED, ProblemKind.HANGING)
"""What readers wait for, and `find-hanging` lists."""


class Place(NamedTuple):
    """A partition in which readers wait.

    With a `start_offset` a transaction holds the last stable offset there, by the files `paths`, of
    which the first was written at `since_ms` (-1: it is missing). Without one its records are
    decided and not in the partition yet; or it is to commit offsets of it for `groups`.
    """

    topic: str
    partition: int
    since_ms: int
    start_offset: int | None = None
    last_offset: int = -1
    paths: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. `subject` is a transactional.id, a group, a topic, a table, a duty
    of housekeeping or the root.

    `since_ms` is -1 if it is unknown; `until_ms` is when it ends by itself, None if it does not.
    `ends` says what ends it, `command` does, without the options of the root; "" if none does.
    `who` is the owner, or the member. `transaction` has the `row`, unless that is gone.
    """

    kind: ProblemKind
    subject: str
    why: str
    ends: str
    since_ms: int = -1
    until_ms: int | None = None
    command: str = ""
    who: str = ""
    host: str = ""
    transaction: ProducerIdAndEpoch | None = None
    row: TransactionMetadata | None = None
    places: tuple[Place, ...] = ()

    @property
    def is_prepared_by_client(self) -> bool:
        """Whether only its client ends the open transaction (two-phase commit)."""
        row = self.row
        is_open = row is not None and row.state is TransactionState.ONGOING
        return is_open and row is not None and row.pending.prepared_by_client

    @property
    def batch_id(self) -> int | None:
        """The micro-batch that a decided transaction of a Spark query is."""
        row = self.row
        if row is None or row.owner.last_batch is None or not row.state.is_prepared:
            return None
        return row.owner.last_batch.batch_id


class Upkeep(NamedTuple):
    """The lease of the housekeeping: who holds it ("": nobody), for how long it is taken, and when
    it last changed, or the earliest time that the log still shows; since when it is held, or free,
    -1 if that is unknown; and the last runs of the duties, by the store's clock.
    """

    holder: str
    lease_ms: int
    changed_ms: int
    since_ms: int = -1
    duties: Mapping[str, DutyRun] = {}

    @property
    def slack_ms(self) -> int:
        """So old may be what is known of a holder that works."""
        return 2 * self.lease_ms + PATIENCE_MS

    def overdue(self, now_ms: int) -> list[str]:
        """The duties that should have run, and have not."""
        runs = self.duties.items()
        return [n for n, run in runs if run.is_overdue(now_ms=now_ms, slack_ms=self.slack_ms)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootState:
    """What was read of a root; what is not in it is not judged.

    `unread`: (group, topic, partition) -> records that a read_committed reader has left to read.
    `oldest_ms`: about the timestamp of the first of these, else of the first that an open
    transaction holds back; -1 if it is unknown.
    `gone`: tables that rows refer to, and that have no log. `written_ms`: file -> when it was
    written, of the first files of `held`. `damaged_files`: file of a decision, or that a group
    reads next -> what is wrong. `waiting_parts`: decided transaction -> name of a table of others
    that does not have its part -> why, "" if nothing prevents it.
    `unreadable`: table -> why. `later` are topics that have not been read yet. `findings` are those
    of verify's checks across tables. `takeovers` and `batches`: id -> the times of its newest
    changes of owner, and of its newest decisions. `small_files`: topic -> how many can be merged.
    `unvacuumed`: topic -> since when nothing has referred to a file that is old enough to go.
    """

    now_ms: int
    rows: Sequence[TransactionMetadata] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    offsets: Mapping[str, TxnMemory] = field(default_factory=dict)
    offsets_shards: int = 1
    unread: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    oldest_ms: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    gone: Collection[str] = ()
    written_ms: Mapping[str, int] = field(default_factory=dict)
    damaged_files: Mapping[str, str] = field(default_factory=dict)
    waiting_parts: Mapping[ProducerIdAndEpoch, Mapping[str, str]] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    later: Collection[str] = ()
    findings: Sequence[Finding] = ()
    takeovers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batches: Mapping[str, Sequence[int]] = field(default_factory=dict)
    small_files: Mapping[str, int] = field(default_factory=dict)
    unvacuumed: Mapping[str, int] = field(default_factory=dict)
    upkeep: Upkeep | None = None
    free_bytes: int | None = None


def problem_of(row: TransactionMetadata, *, places: Sequence[Place] = (), **fields: Any) -> Problem:
    """A problem of the owner of a row."""
    return Problem(
        subject=row.transactional_id,
        who=row.owner.describe(),
        host=row.owner.host,
        transaction=row.transaction,
        row=row,
        places=tuple(places),
        **fields,
    )


def who_of(owner: Owner | None) -> dict[str, Any] | None:
    """An owner for JSON."""
    if owner is None:
        return None
    return {
        "host": owner.host,
        "pid": owner.pid,
        "runId": owner.run_id,
        "queryId": owner.query_id or None,
        "queryName": owner.query_name or None,
        "sinceMs": owner.since_ms,
    }


def problem_values(problem: Problem) -> dict[str, Any]:
    """A problem for JSON."""
    transaction, row = problem.transaction, problem.row
    return {
        "kind": problem.kind.name,
        "subject": problem.subject,
        "transactionalId": None if row is None else row.transactional_id,
        "producerId": None if transaction is None else transaction.producer_id,
        "producerEpoch": None if transaction is None else transaction.epoch,
        "who": problem.who or None,
        "owner": None if row is None else who_of(row.owner),
        "host": problem.host or None,
        "batchId": problem.batch_id,
        "sinceMs": None if problem.since_ms < 0 else problem.since_ms,
        "untilMs": problem.until_ms,
        "why": problem.why,
        "ends": problem.ends,
        "command": problem.command or None,
        "blocks": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "offset": place.start_offset,
                "groups": list(place.groups),
            }
            for place in problem.places
        ],
    }
