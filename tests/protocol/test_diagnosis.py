"""The one decision about what is wrong in a root, on a table of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from txnlog.protocol.diagnosis import (
    DAY_MS,
    FREE_BYTES_MIN,
    SMALL_FILES_MIN,
    TAKEOVERS_MS,
    find_problems,
)
from txnlog.protocol.duties import DutyRun
from txnlog.protocol.group_metadata import (
    CommittedOffset,
    Group,
    GroupTickets,
    Member,
    TicketHolder,
)
from txnlog.protocol.metadata import (
    Fenced,
    GroupTicket,
    LastBatch,
    Manifest,
    Owner,
    StagedBatch,
    StagedTable,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.problems import PATIENCE_MS, ProblemKind, RootState, Upkeep, problem_values
from txnlog.protocol.states import TransactionState
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.verification.findings import Finding, FindingKind
from txnlog.protocol.verification.topics import TopicFacts, Undecided

K = ProblemKind
NOW_MS = 1_700_000_000_000
OWNER = Owner(run_id="run", query_id="q", query_name="hourly", host="h", pid=7)
BATCH = StagedBatch(
    topic="t", topic_id="id", partition=0, path="part-0-a.parquet", size_bytes=1, num_records=1,
    timestamp_min_us=0, timestamp_max_us=0, staged_ms=0,
)  # fmt: skip
OPEN = TransactionMetadata(
    transactional_id="tx", producer_id=1, producer_epoch=3, txn_epoch=3,
    state=TransactionState.ONGOING, timeout_ms=60_000, owner=OWNER,
    partitions=(TopicPartitions(topic="t", topic_id="id", partitions=(0,)),),
    started_ms=NOW_MS - 40_000, updated_ms=NOW_MS - 40_000,
)  # fmt: skip
IDLE = replace(OPEN, state=TransactionState.COMPLETE_COMMIT, partitions=())
DECIDED = replace(
    OPEN, state=TransactionState.PREPARE_COMMIT, partitions=(), pending=Manifest(batches=(BATCH,)),
    owner=replace(OWNER, last_batch=LastBatch(batch_id=5)),
)  # fmt: skip
MERGE = StagedTable(
    name="silver", url="u", table_id="i", part="p", size_bytes=1, digest="", mode="merge",
    num_files=1, num_records=1, staged_ms=0,
)  # fmt: skip
ASKED = replace(OPEN, pending=Manifest(tables=(MERGE,)))
UNDECIDED = Undecided(1, 3, 0, 4, 9, "part-0-a.parquet")
TICKET = GroupTicket(group_id="g", producer_id=1, ticket=2, generation=1, offsets={"t": {0: 4}})
MEMBER = Member(topics=("t",), session_timeout_ms=9_000, heartbeat_ms=NOW_MS - 12_001, host="h")
HOLDER = TicketHolder(
    transactional_id="tx", producer_id=1, run_id="run", ticket=2, generation=1,
    partitions={"t": (0,)},
)  # fmt: skip


def topic(*undecided: Undecided, marker: int = -1, **changes: Any) -> TopicFacts:
    txns = TxnMemory()
    txns.markers.put(1, marker, None)
    facts: dict[str, Any] = {"topic_id": "id", "starts": [0], "ends": [10], **changes}
    return TopicFacts(name="t", txns=txns, undecided=list(undecided), **facts)


def state(*rows: TransactionMetadata, **read: Any) -> RootState:
    found = {"now_ms": NOW_MS, "topics": {"t": topic()}, **read}
    return RootState(rows=rows, **found)


def of(*undecided: Undecided, **changes: Any) -> dict[str, TopicFacts]:
    return {"t": topic(*undecided, **changes)}


def read_to(offset: int, **changes: Any) -> dict[str, Group]:
    """A group whose holder is the query `tx`."""
    committed = {"t": {0: CommittedOffset(offset, 1, 1)}}
    tickets = GroupTickets(newest=2, holders=(HOLDER,))
    return {"g": Group(group_id="g", offsets=committed, tickets=tickets, **changes)}


def beats(every_ms: int, *, quiet_ms: int, count: int = 8) -> dict[str, list[int]]:
    return {"tx": [NOW_MS - quiet_ms - every_ms * number for number in range(count)]}


def fenced(ago_ms: int, reason: str = "why not") -> TransactionMetadata:
    note = Fenced(by="ops", at_ms=NOW_MS - ago_ms, reason=reason)
    return replace(IDLE, owner=replace(OWNER, former_runs=("run",), fenced=note))


QUIET = replace(IDLE, updated_ms=NOW_MS - 200_000)
LEFT = {("g", "t", 0): 6}
UNREADABLE = {"t": "it is truncated"}
BEHIND = Finding(kind=FindingKind.ROW_BEHIND_MARKER, table="s", subject="tx", what="it is old")
GONE = Finding(kind=FindingKind.LOG_MISSING, table="t", what="its folder is gone")

STATES: list[tuple[str, RootState, list[tuple[ProblemKind, str]]]] = [
    ("nothing", state(), []),
    ("open, holds the LSO", state(OPEN, topics=of(UNDECIDED)), [(K.OPEN, "tx")]),
    (
        "open, young",
        state(replace(OPEN, started_ms=NOW_MS - PATIENCE_MS + 1), topics=of(UNDECIDED)),
        [],
    ),
    ("open, nobody waits", state(OPEN), []),
    (
        "open, with offsets of a group",
        state(replace(OPEN, pending=Manifest(tickets=(TICKET,)))),
        [(K.OPEN, "tx")],
    ),
    (
        "open, its offsets are refused",
        state(
            replace(
                OPEN,
                pending=Manifest(tickets=(TICKET,)),
                owner=replace(OWNER, floors={"g": 3}),
            )
        ),
        [],
    ),
    ("decided, not published", state(DECIDED), [(K.DECIDED, "tx")]),
    ("decided, published", state(DECIDED, topics=of(marker=3)), []),
    ("decided, in a deleted topic", state(DECIDED, topics=of(is_deleted=True)), []),
    ("decided, in a topic created again", state(DECIDED, topics=of(topic_id="other")), []),
    (
        "decided as an abort, not settled",
        state(replace(OPEN, state=TransactionState.PREPARE_ABORT), topics=of(UNDECIDED)),
        [(K.DECIDED, "tx")],
    ),
    (
        "decided, offsets not moved",
        state(
            replace(DECIDED, pending=Manifest(tickets=(TICKET,))),
            offsets={"__consumer_offsets-0": TxnMemory()},
        ),
        [(K.DECIDED, "tx")],
    ),
    (
        "decided, a table takes it no more",
        state(DECIDED, topics=of(marker=3), waiting_parts={(1, 3): {"silver": "column x is gone"}}),
        [(K.TABLE_BLOCKED, "tx")],
    ),
    (
        "decided, a table does not have it yet",
        state(DECIDED, topics=of(marker=3), waiting_parts={(1, 3): {"silver": ""}}),
        [(K.DECIDED, "tx")],
    ),
    ("a table is to decide", state(ASKED, topics=of(marker=3)), [(K.DECIDED, "tx")]),
    (
        "a table that cannot be read is to decide",
        state(ASKED, waiting_parts={(1, 3): {"silver": "there is no Delta table"}}),
        [(K.TABLE_BLOCKED, "tx")],
    ),
    (
        "decided, the topic is gone",
        state(DECIDED, topics={}, gone=["t"], findings=[GONE]),
        [(K.TOPIC_MISSING, "tx")],
    ),
    (
        "decided, the topic cannot be read",
        state(DECIDED, topics={}, unreadable=UNREADABLE),
        [(K.DAMAGE, "t")],
    ),
    (
        "decided, a file is missing",
        state(DECIDED, damaged_files={"t/part-0-a.parquet": "is missing"}),
        [(K.FILE_DAMAGED, "tx")],
    ),
    (
        "a file that a group reads next is cut",
        state(damaged_files={"t/part-0-b.parquet": "has 1 bytes, and 2 were written"}),
        [(K.FILE_DAMAGED, "t")],
    ),
    ("hanging", state(topics=of(UNDECIDED)), [(K.HANGING, "producer 1, epoch 3")]),
    (
        "hanging, the row went on",
        state(replace(OPEN, txn_epoch=4), topics=of(UNDECIDED)),
        [(K.HANGING, "producer 1, epoch 3")],
    ),
    ("fenced by an operator", state(fenced(1_000)), [(K.FENCED, "tx")]),
    ("fenced long ago", state(fenced(DAY_MS + 1)), []),
    (
        "taken over and over",
        state(IDLE, takeovers={"tx": [NOW_MS - n for n in (3_000, 2_000, 1_000)]}),
        [(K.TAKEN_OVER, "tx")],
    ),
    (
        "taken over now and then",
        state(IDLE, takeovers={"tx": [NOW_MS - TAKEOVERS_MS - 1, NOW_MS - 2_000, NOW_MS - 1]}),
        [],
    ),
    (
        "dead member",
        state(groups={"g": Group(group_id="g", members={"m": MEMBER})}),
        [(K.DEAD_MEMBER, "g")],
    ),
    (
        "late heartbeat",
        state(
            groups={
                "g": Group(
                    group_id="g", members={"m": replace(MEMBER, heartbeat_ms=NOW_MS - 11_000)}
                )
            }
        ),
        [],
    ),
    (
        "query without batches",
        state(QUIET, unread=LEFT, groups=read_to(4), batches=beats(10_000, quiet_ms=200_000)),
        [(K.STUCK_QUERY, "tx")],
    ),
    (
        "query that has read all",
        state(QUIET, groups=read_to(10), batches=beats(10_000, quiet_ms=200_000)),
        [],
    ),
    (
        "query that waits for an open transaction",
        state(
            QUIET,
            replace(OPEN, transactional_id="other", producer_id=2),
            topics=of(UNDECIDED._replace(producer_id=2)),
            groups=read_to(4),
            batches=beats(10_000, quiet_ms=200_000),
        ),
        [(K.OPEN, "other")],
    ),
    (
        "query with slow batches",
        state(QUIET, unread=LEFT, groups=read_to(4), batches=beats(90_000, quiet_ms=200_000)),
        [],
    ),
    (
        "query without a rhythm",
        state(
            QUIET, unread=LEFT, groups=read_to(4), batches=beats(10_000, quiet_ms=200_000, count=4)
        ),
        [],
    ),
    ("damaged log", state(unreadable=UNREADABLE), [(K.DAMAGE, "t")]),
    ("restored shard", state(IDLE, findings=[BEHIND]), [(K.DAMAGE, "tx")]),
    ("topic of a reader is gone", state(topics={}, findings=[GONE]), [(K.TOPIC_MISSING, "t")]),
    ("small files", state(small_files={"t": SMALL_FILES_MIN, "u": 9}), [(K.SMALL_FILES, "t")]),
    ("vacuum overdue", state(unvacuumed={"t": NOW_MS - DAY_MS}), [(K.VACUUM_OVERDUE, "t")]),
    (
        "housekeeping runs",
        state(upkeep=Upkeep("process 7 on h", 60_000, NOW_MS - 100_000)),
        [],
    ),
    (
        "housekeeping died",
        state(upkeep=Upkeep("process 7 on h", 60_000, NOW_MS - 200_000)),
        [(K.NO_HOUSEKEEPING, "the root")],
    ),
    ("housekeeping by cron", state(upkeep=Upkeep("", 60_000, NOW_MS - DAY_MS + 1)), []),
    (
        "no housekeeping",
        state(upkeep=Upkeep("", 0, NOW_MS - DAY_MS - 1)),
        [(K.NO_HOUSEKEEPING, "the root")],
    ),
    (
        "duties fail and work",
        state(
            upkeep=Upkeep(
                "process 7 on h",
                60_000,
                NOW_MS,
                duties={
                    "compact": DutyRun(at_ms=NOW_MS - 9, due_ms=NOW_MS, error="no space left"),
                    "vacuum": DutyRun(at_ms=NOW_MS - 9, due_ms=NOW_MS),
                },
            )
        ),
        [(K.DUTY_FAILED, "compact")],
    ),
    ("disk full", state(free_bytes=FREE_BYTES_MIN - 1), [(K.DISK_FULL, "the disk of the root")]),
    ("room on the disk", state(free_bytes=FREE_BYTES_MIN), []),
]


@pytest.mark.parametrize(
    ("found", "expected"), [one[1:] for one in STATES], ids=[one[0] for one in STATES]
)
def test_state_has_these_problems_and_no_others(
    found: RootState, expected: list[tuple[ProblemKind, str]]
) -> None:
    """A problem that is missed costs hours, and one that is none costs trust."""
    assert [(one.kind, one.subject) for one in find_problems(found)] == expected


def test_every_kind_is_in_the_table() -> None:
    """A kind that no state shows may never be found."""
    assert {kind for _, _, expected in STATES for kind, _ in expected} == set(ProblemKind)


@pytest.mark.parametrize("found", [one[1] for one in STATES], ids=[one[0] for one in STATES])
def test_problem_says_what_ends_it(found: RootState) -> None:
    """Text without an end is no advice; and each has its values for programs."""
    for problem in find_problems(found):
        assert problem.why
        assert problem.ends
        assert problem.command.startswith("txnlog ") or problem.kind is K.DISK_FULL
        values = problem_values(problem)
        assert values["kind"] == problem.kind.name


@pytest.mark.parametrize(
    ("change", "until", "says"),
    [
        (lambda row: row, OPEN.started_ms + 60_000, "its time-out, unless"),
        (lambda row: replace(row, timeout_ms=1_000), OPEN.started_ms + 1_000, "is over"),
        (lambda row: replace(row, pending=Manifest(prepared_by_client=True)), None, "its client"),
    ],
)
def test_open_transaction_says_until_when(
    change: Callable[[TransactionMetadata], TransactionMetadata], until: int | None, says: str
) -> None:
    """An operator decides whether to wait or to abort it."""
    [problem] = find_problems(state(change(OPEN), topics=of(UNDECIDED)))
    assert problem.until_ms == until
    assert says in problem.ends
    assert (problem.who, problem.host) == (OWNER.describe(), "h")
    assert problem.command == "txnlog transactions abort --transactional-id=tx"


@pytest.mark.parametrize(("row", "is_advised"), [(DECIDED, True), (ASKED, False)])
def test_restaging_is_advised_where_it_can_be_done(
    row: TransactionMetadata, is_advised: bool
) -> None:
    """What a table is to decide depends on what was read: no other rows can take its place."""
    [problem] = find_problems(
        state(row, topics=of(marker=3), waiting_parts={(1, 3): {"silver": "it is gone"}})
    )
    assert ("txnlog tables restage" in problem.ends) == is_advised


def test_decided_batch_of_a_query_has_its_number() -> None:
    """An open one has none yet: that in the row is the batch before."""
    [problem] = find_problems(state(DECIDED))
    assert problem.batch_id == 5
    last = replace(OPEN, owner=DECIDED.owner)
    [problem] = find_problems(state(last, topics=of(UNDECIDED)))
    assert problem.batch_id is None
