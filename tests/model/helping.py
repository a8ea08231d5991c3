"""Owners that publish what others have decided with their own, in one topic (D149).

A and B decide one transaction after the other. Each owner reads the rows, then the topic, and puts
the markers of all that is decided at the next version, if that is absent; it may stop anywhere, for
ever or until its rows and its head are old, and does not learn whether its put has landed. The
topic may be deleted and created again, then B writes to the new one if it is `renewed`, and forgets
markers of what was completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from tests.model.search import Pool
from txnlog.protocol.appends import Settled, has_marker, prepare_marker
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.helping import unmarked, with_markers
from txnlog.protocol.metadata import (
    Manifest,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.topics import TopicCommit, TopicState

UNDECIDED = "rows that are not decided are published, too"
UNPLACED = "offsets of the others begin at the end that the topic had before the commit"
REPEATED = "whether the topic has the marker is not asked"
OLD = "rows count though the topic has forgotten markers since they were read"
ANY_ID = "the id of the topic is not compared"
ON_TOP = "a put replaces what is there"

T = TypeVar("T")

OWNERS = "AB"


class Publisher(NamedTuple):
    """What an owner has read: the rows, when it had tailed the topic to `view`; then its `head`."""

    rows: tuple[int, ...] = ()
    view: int = 0
    head: int = -1


class State(NamedTuple):
    """Rows are numbers: 2n is idle with n transactions done, 2n+1 has decided number n; `opened`
    have written a row that is not decided.
    """

    log: tuple[int, ...] = ()
    rows: tuple[int, ...] = (0, 0)
    opened: tuple[bool, ...] = (False, False)
    publishers: tuple[Publisher, ...] = (Publisher(), Publisher())


def _row(owner: int, stage: int, opened: bool, topic_id: str) -> TransactionMetadata:
    epoch = stage // 2
    state = TransactionState.PREPARE_COMMIT if stage % 2 else TransactionState.COMPLETE_COMMIT
    if opened and not stage % 2:
        state = TransactionState.ONGOING
    batch = StagedBatch(
        topic="t", topic_id=topic_id, partition=0, path=f"{OWNERS[owner]}{epoch}", size_bytes=1,
        num_records=2, timestamp_min_us=0, timestamp_max_us=0, staged_ms=0,
    )  # fmt: skip
    return TransactionMetadata(
        transactional_id=OWNERS[owner],
        producer_id=owner,
        producer_epoch=epoch,
        txn_epoch=epoch,
        state=state,
        timeout_ms=1,
        pending=Manifest(batches=(batch,)) if state is not TransactionState.COMPLETE_COMMIT
        else Manifest(),
    )  # fmt: skip


class Helping:
    """The model; see tests.model.search. `broken` are rules that it leaves out."""

    def __init__(
        self,
        *broken: str,
        epochs: int = 2,
        opens: bool = False,
        deletes: bool = False,
        renewed: bool = False,
        forgets: bool = False,
    ) -> None:
        self._broken = broken
        self._opens = opens or UNDECIDED in broken
        self._epochs, self._deletes, self._forgets = epochs, deletes, forgets
        self._ids = ("x", "y" if renewed else "x")
        self._commits: Pool[TopicCommit | str] = Pool(repr)

    def initial(self) -> State:
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        topic = self._replay(state.log)
        entries = [self._commits[number] for number in state.log]
        for owner, name in enumerate(OWNERS):
            stage = state.rows[owner]
            if (
                not stage % 2
                and stage < 2 * self._epochs
                and (self._ids[owner] == "x" or "C" in entries)
            ):
                rows = _with(state.rows, owner, stage + 1)
                opened = _with(state.opened, owner, False)
                yield f"{name} decides", state._replace(rows=rows, opened=opened)
                if self._opens and not state.opened[owner]:
                    yield f"{name} opens", state._replace(opened=_with(state.opened, owner, True))
            if stage % 2 and has_marker(
                topic, self._ids[owner], _row(owner, stage, False, "x").transaction
            ):
                rows = _with(state.rows, owner, stage + 1)
                yield f"{name} is completed", state._replace(rows=rows)
            yield from self._publish(state, owner)
        if self._deletes and "C" not in entries:
            what = "C" if "D" in entries else "D"
            yield f"the topic gets {what}", state._replace(log=self._put(state.log, what))
        if self._forgets and "F" not in entries and not any(stage % 2 for stage in state.rows):
            yield "markers are forgotten", state._replace(log=self._put(state.log, "F"))

    def _publish(self, state: State, owner: int) -> Iterator[tuple[str, State]]:
        name, one = OWNERS[owner], state.publishers[owner]

        def after(log: tuple[int, ...], publisher: Publisher) -> State:
            return state._replace(log=log, publishers=_with(state.publishers, owner, publisher))

        if state.rows[owner] % 2:
            rows = tuple(
                stage + 100 * opened for stage, opened in zip(state.rows, state.opened, strict=True)
            )
            yield f"{name} reads rows", after(state.log, Publisher(rows, max(one.head, 0)))
        if not one.rows:
            return
        if one.head != len(state.log):
            yield f"{name} tails", after(state.log, one._replace(head=len(state.log)))
        made = self._decide(state, owner, one) if one.head >= 0 else None
        if made is not None and (one.head == len(state.log) or ON_TOP in self._broken):
            yield f"{name} puts", after(self._put(state.log[: one.head], made), Publisher())

    def _decide(self, state: State, owner: int, one: Publisher) -> TopicCommit | None:
        topic = self._replay(state.log[: one.head])
        since = [self._commits[number] for number in state.log[one.view : one.head]]
        if "F" in since and OLD not in self._broken:
            return None
        rows = [
            _row(number, stage % 100, stage >= 100, self._ids[number])
            for number, stage in enumerate(one.rows)
        ]
        mine = rows[owner]
        made = prepare_marker(
            topic,
            topic_id=self._ids[owner],
            transaction=mine.transaction,
            result=TransactionResult.COMMIT,
            batches=mine.pending.batches,
        )
        if isinstance(made, Settled):
            return None
        return self._with_markers(topic, made, [row for row in rows if row is not mine])

    def _with_markers(
        self, topic: TopicState, mine: TopicCommit, rows: list[TransactionMetadata]
    ) -> TopicCommit:
        """The real decision, or one without a rule."""
        if UNDECIDED in self._broken:
            state = TransactionState.PREPARE_COMMIT
            rows = [replace(row, state=state) if row.topics else row for row in rows]
        if ANY_ID in self._broken:
            rows = [_of(row, topic.topic_id) for row in rows]
        if REPEATED in self._broken:
            topic.txns.markers.clear()
        if UNPLACED not in self._broken:
            return with_markers(topic, mine, "t", rows)
        made = mine
        for row in unmarked(topic, "t", rows):
            other = prepare_marker(
                topic,
                topic_id="x",
                transaction=row.transaction,
                result=TransactionResult.COMMIT,
                batches=row.pending.batches,
            )
            assert isinstance(other, TopicCommit)
            made = replace(made, adds=made.adds + other.adds, txns={**made.txns, **other.txns})
        return made

    def _put(self, log: tuple[int, ...], entry: TopicCommit | str) -> tuple[int, ...]:
        return (*log, self._commits.put(entry))

    def _replay(self, log: tuple[int, ...]) -> TopicState:
        topic = TopicState()
        topic.set_topic("x", {"partitions": "1"})
        for number in log:
            entry = self._commits[number]
            if isinstance(entry, TopicCommit):
                entry.apply(topic)
            elif entry == "D":
                topic.set_topic("x", {"partitions": "1", "deleted": "true"})
            elif entry == "C":
                topic.set_topic("y", {"partitions": "1"})
            else:
                topic.txns.markers.clear()
        return topic

    def unsafe(self, before: State, after: State) -> str | None:
        entries = [self._commits[number] for number in after.log]
        adds: list[BatchHeader] = []
        for number, entry in enumerate(entries):
            if isinstance(entry, TopicCommit):
                adds += entry.adds
                is_old = any(self._ids[OWNERS.index(add.path[0])] == "x" for add in entry.adds)
                if is_old and "D" in entries[:number]:
                    return "a record of a topic that was deleted"
        paths = [add.path for add in adds]
        if len(set(paths)) < len(paths):
            return "published twice"
        end = 0
        for add in adds:
            if add.base_offset != end:
                return "offsets are not dense"
            end = add.last_offset + 1
        for owner, name in enumerate(OWNERS):
            stage = after.rows[owner]
            decided = {f"{name}{epoch}" for epoch in range((stage + 1) // 2)}
            published = [path for path in paths if path[0] == name]
            if not decided.issuperset(published):
                return "visible without a decision"
            if published != sorted(published):
                return "not in the order of the owner's decisions"
            completed = {f"{name}{epoch}" for epoch in range(stage // 2)}
            if ("D" not in entries or self._ids[owner] == "y") and not completed.issubset(
                published
            ):
                return "completed and lost"
        return None

    def stuck(self, state: State) -> str | None:
        return "decided, and can never be finished" if any(n % 2 for n in state.rows) else None


def _of(row: TransactionMetadata, topic_id: str) -> TransactionMetadata:
    batches = tuple(replace(batch, topic_id=topic_id) for batch in row.pending.batches)
    return replace(row, pending=replace(row.pending, batches=batches))


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])
