"""A snapshot beside writers, helpers, compaction and key compaction, on the project's decisions.

Every read of a log is a step of its own, and anything may happen between two of them. A topic's log
has publications, and two commits that remove files: compaction, which merges all batches into a
segment without their names, and key compaction, which removes the records that newer ones supersede
and leaves the newer ones' batches as they are. A table's log, with a capital letter, has
publications, and commits of other writers: a checkpoint, before which a reader that reads the log
for the first time sees only the newest publication of each producer; a change under which nothing
can be published, and its end. Where a table decides, the shard says before that it is asked, and
after that it is decided, or refused. A shard has decisions, rewritten decided rows (a
floor was raised), and completions; a completion may also be part of the id's next decision.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal, NamedTuple

from msgspec.structs import replace

from tests.staged_files import named_file
from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.batches import NONE, BatchHeader
from txnlog.protocol.enlisted.actions import Protocol, TableMetadata, TableState, Txn
from txnlog.protocol.enlisted.parts import app_id_of
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import GroupTicket, Manifest, StagedTable, TransactionMetadata
from txnlog.protocol.snapshots import (
    Snapshot,
    TableVersion,
    TopicRead,
    TopicVersion,
    decided,
    drawn_in,
    is_past,
    is_taken_over,
    maybe_decided,
    offsets_of,
    table_version,
    unpublished,
    version_of,
    without_part,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import prepare_carried_offsets
from txnlog.protocol.topics import TopicState

NO_HELP = "what is decided at the second read of the shards is not published"
HEADS_FIRST = "the topics are read before the shards"
NO_LAST = "the shards are not read after the topics: nothing is left out"
ROWS_ONLY = "the last read compares rows, and reads no commits"
REWRITTEN = "a decided row that is written again counts as a new decision"
REMOVED_UNSEEN = "files that were removed from a topic are ignored"
LIVE_IS_ENOUGH = "a batch that is live is left out, whatever else was removed"
KNOWN_LATE = "a topic's version before is read after the shards"
NO_S0 = "the shards are not read before the groups"
GROUPS_LAST = "the groups are read after the topics"
MOVED_ONLY = "offsets are those of the groups' rows"
REAPPLIED = "markers of the groups are ignored: tickets go over a row that has moved on"
BY_ID = "tickets are applied in the order of producer ids"
NO_OFFSETS = "offsets are not compared with what is left out"
NO_TICKETS = "tickets are not compared with those of what is left out"
TABLE_HEADS = "tables are shown as of their heads"
CROSSED = "what was published in a table before something that is shown is not shown, too"
SAME_ID = "what is shown, too, is shown without what its id has done before"
DRAWN_UNMOVED = "the offsets of what is shown, too, are not"
UNKNOWN = "a publication that is left out is ignored if its version is not known"
TABLE_UNHELPED = "parts of tables are not published"
TABLE_OLD = "a table is shown as it was before the first publication since the reader began"
ASKED_IGNORED = "what a table is to decide counts as undecided"
ASKED_OLD = "what a table was to decide before is left out, too"
BLOCKED_SHOWN = "a table that does not take a part is shown without it"

COMPACT, CLEAN = "compact", "clean"
MADE, CHECKPOINT, CHANGE, UNDO = "made", "checkpoint", "change", "undo"
TABLE_WORK = (CHECKPOINT, CHANGE, UNDO)
CLUSTER = "c"
TRIES_MAX = 2


class Tx(NamedTuple):
    """A transaction: what it writes, and what came before it was decided.

    `cause` was read from its first topic, `after` has also moved its offsets. `over`: its records
    supersede those of another. With a `ticket` it moves its group in one partition. `is_rewritten`:
    its decided row may be written again. `decides`: one of its tables does. Without topics it is a
    commit outside of transactions.
    Capital letters among the topics are tables.
    """

    shard: int
    topics: str
    producer_id: int
    epoch: int = 0
    cause: str = ""
    after: str = ""
    over: str = ""
    ticket: int = 0
    partition: int = 0
    is_rewritten: bool = False
    decides: str = ""


class State(NamedTuple):
    """The logs, and what the reader of the snapshot has read: lengths of them.

    `begun` are the lengths of the topics' and tables' logs then, `missing` tables that did not take
    a part, `drawn` what is shown though it was decided later. `found` is (versions and exclusions,
    offsets) at the end; () until then.
    """

    shards: tuple[tuple[str, ...], ...]
    topics: tuple[tuple[str, ...], ...]
    moved: tuple[str, ...] = ()
    phase: int = 0
    tries: int = 0
    before: tuple[int, ...] = ()
    s0: tuple[int, ...] = ()
    groups: int = -1
    s1: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    s2: tuple[int, ...] = ()
    must: frozenset[str] | None = None
    begun: tuple[int, ...] = ()
    missing: str = ""
    drawn: frozenset[str] = frozenset()
    found: tuple[object, ...] = ()


class Snapshots:
    """The model: one reader among the transactions of a world."""

    def __init__(
        self,
        world: Mapping[str, Tx],
        *,
        removes: tuple[str, ...] = (),
        broken: frozenset[str] = frozenset(),
        is_cold: bool = False,
    ) -> None:
        self._world = world
        self._is_cold = is_cold
        self._topics = "".join(sorted({topic for tx in world.values() for topic in tx.topics}))
        self._shards = 1 + max(tx.shard for tx in world.values())
        self._removes = removes
        self._broken = broken
        self._rows = {name: self._row(name) for name in world}
        self._names = {row.transaction: name for name, row in self._rows.items()}
        self._others = {
            f"{name} {what}": replace(self._rows[name], state=state)
            for name, tx in world.items()
            if tx.decides
            for what, state in (
                ("asked", TransactionState.ONGOING),
                ("refused", TransactionState.PREPARE_ABORT),
            )
        }
        self._states: dict[tuple[str, tuple[str, ...]], TopicState] = {}
        self._has_offsets = any(tx.ticket for tx in world.values())

    @cached_property
    def plan(self) -> list[str]:
        plan = ["before", "s1", "heads", "publish", "s2", "end"]
        if self._has_offsets:
            plan[1:1] = ["groups"] if NO_S0 in self._broken else ["s0", "groups"]
        if self._others and ASKED_OLD not in self._broken:
            first = [] if self._has_offsets else ["s0"]
            plan[1 : 1 + self._has_offsets] = [*plan[1 : 1 + self._has_offsets], *first, "settle"]
        if HEADS_FIRST in self._broken:
            plan = ["before", "heads", "s1", "publish", "s2", "end"]
        if KNOWN_LATE in self._broken:
            plan.remove("before")
            plan.insert(plan.index("heads"), "before")
        if GROUPS_LAST in self._broken:
            plan.remove("groups")
            plan.insert(plan.index("end"), "groups")
        return plan

    def initial(self) -> State:
        logs = [(MADE,) if topic.isupper() else () for topic in self._topics]
        return State(((),) * self._shards, tuple(logs))

    # -- what writers do ---------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for name, tx in self._world.items():
            yield from self._write(state, name, tx)
        for at, log in enumerate(state.topics):
            for what in self._removes:
                if self._may_work(self._topics[at], log, what):
                    yield f"{what} in {self._topics[at]}", self._append(state, at, what)
        if state.phase < len(self.plan) and not state.found:
            yield from self._read(state, self.plan[state.phase])

    def _may_work(self, topic: str, log: tuple[str, ...], what: str) -> bool:
        if not log or what in log or topic.isupper() != (what in TABLE_WORK):
            return False
        if what in (CLEAN, UNDO):
            return bool(self._superseded(log)) if what == CLEAN else CHANGE in log
        return True

    def _write(self, state: State, name: str, tx: Tx) -> Iterator[tuple[str, State]]:
        if not tx.topics:
            if name not in state.moved and self._may_decide(state, tx):
                yield f"{name} is committed", state._replace(moved=(*state.moved, name))
            return
        if name not in state.shards[tx.shard]:
            if tx.decides:
                yield from self._ask(state, name, tx)
            elif self._may_decide(state, tx):
                yield f"{name} is decided", _commit(state, tx.shard, name)
            return
        left = [topic for topic in tx.topics if name not in self._log(state, topic)]
        for topic in left:
            if not _is_blocked(self._log(state, topic)):
                yield f"{name} appears in {topic}", self._publish(state, name, topic)
        if not self._is_pending(state.shards[tx.shard], name):
            return
        if tx.is_rewritten and f"{name} again" not in state.shards[tx.shard]:
            yield f"{name}'s row is written again", _commit(state, tx.shard, f"{name} again")
        if not left and tx.ticket and name not in state.moved:
            yield f"the offsets of {name} move", state._replace(moved=(*state.moved, name))
        elif not left:
            yield f"{name} is completed", _commit(state, tx.shard, f"{name} done")

    def _ask(self, state: State, name: str, tx: Tx) -> Iterator[tuple[str, State]]:
        shard = state.shards[tx.shard]
        if name in self._log(state, tx.decides):
            yield f"{name} is decided", _commit(state, tx.shard, name)
        elif f"{name} asked" not in shard:
            if self._may_decide(state, tx):
                yield f"{name} is asked for", _commit(state, tx.shard, f"{name} asked")
        elif f"{name} refused" not in shard:
            yield f"{name} appears in {tx.decides}", self._publish(state, name, tx.decides)
            yield f"{name} is refused", _commit(state, tx.shard, f"{name} refused")

    def _settle(self, state: State, name: str) -> State:
        """As any process: the table decides, then the row says so."""
        tx = self._world[name]
        shard = state.shards[tx.shard]
        if name in shard or f"{name} refused" in shard:
            return state
        if name not in self._log(state, tx.decides):
            state = self._publish(state, name, tx.decides)
        return _commit(state, tx.shard, name)

    def _asked(self, state: State, read: tuple[int, ...]) -> list[TransactionMetadata]:
        return [
            self._others[f"{name} asked"]
            for name, tx in self._world.items()
            if tx.decides
            and self._newest(state.shards[tx.shard][: read[tx.shard]], name) == "asked"
        ]

    def _newest(self, log: tuple[str, ...], name: str) -> str:
        """What a shard's newest row of the id says of a transaction."""
        id_ = self._world[name].producer_id
        of_id = [one for one in log if self._world[one.split()[0]].producer_id == id_]
        return of_id[-1].removeprefix(f"{name} ") if of_id else ""

    def _may_decide(self, state: State, tx: Tx) -> bool:
        if tx.after:
            before = self._world[tx.after]
            if before.ticket and tx.after not in state.moved:
                return False
            if any(tx.after not in self._log(state, topic) for topic in before.topics):
                return False
        return not tx.cause or tx.cause in self._log(state, self._world[tx.cause].topics[0])

    def _is_pending(self, log: tuple[str, ...], name: str) -> bool:
        """Whether a shard's newest row of the id says that the transaction is decided."""
        id_ = self._world[name].producer_id
        of_id = [one for one in log if self._world[one.split()[0]].producer_id == id_]
        return bool(of_id) and of_id[-1] in (name, f"{name} again")

    def _log(self, state: State, topic: str) -> tuple[str, ...]:
        return state.topics[self._topics.index(topic)]

    def _publish(self, state: State, name: str, topic: str) -> State:
        return self._append(state, self._topics.index(topic), name)

    def _append(self, state: State, at: int, what: str) -> State:
        log = (*state.topics[at], what)
        return state._replace(topics=(*state.topics[:at], log, *state.topics[at + 1 :]))

    def _superseded(self, log: tuple[str, ...]) -> set[str]:
        return {self._world[name].over for name in log if name in self._world} & set(log)

    # -- what the reader does ----------------------------------------------------------------------

    def _read(self, state: State, what: str) -> Iterator[tuple[str, State]]:
        if state.must is None:
            now = frozenset(name for log in state.shards for name in log if name in self._world)
            state = state._replace(must=now, begun=tuple(map(len, state.topics)))
        further = state._replace(phase=state.phase + 1)
        if what == "before":
            versions = tuple(len(log) - 1 for log in state.topics)
            yield "reader begins", further._replace(before=versions)
        elif what == "groups":
            yield "reader reads the groups", further._replace(groups=len(state.moved))
        elif what == "publish":
            yield self._publish_pending(state, further)
        elif what == "end":
            yield self._end(state)
        elif what == "settle":
            for row in self._asked(state, state.s0):
                further = self._settle(further, self._names[row.transaction])
            yield "reader settles", further
        elif what == "s2" and NO_LAST in self._broken:
            yield "reader reads no more", further._replace(s2=state.s1)
        else:
            logs = state.topics if what == "heads" else state.shards
            yield from self._read_each(state, further, what, logs)

    def _read_each(
        self, state: State, further: State, what: str, logs: tuple[tuple[str, ...], ...]
    ) -> Iterator[tuple[str, State]]:
        read = getattr(state, what) or (-1,) * len(logs)
        for at in [at for at, length in enumerate(read) if length < 0]:
            now = (*read[:at], len(logs[at]), *read[at + 1 :])
            after = further if min(now) >= 0 else state
            yield f"reader reads {what} {at}", after._replace(**{what: now})

    def _pending(self, state: State, read: tuple[int, ...]) -> list[TransactionMetadata]:
        return [
            self._rows[name]
            for name, tx in self._world.items()
            if self._is_pending(state.shards[tx.shard][: read[tx.shard]], name)
        ]

    def _publish_pending(self, state: State, further: State) -> tuple[str, State]:
        """Publish one that is missing, then read the heads again."""
        if NO_HELP in self._broken or HEADS_FIRST in self._broken:
            return "reader goes on", further
        for row in self._unpublished(state, self._shown(state)):
            after = state._replace(phase=self.plan.index("heads"), heads=())
            name = self._names[row.transaction]
            for topic in self._world[name].topics:
                if name in self._log(state, topic):
                    continue
                if _is_blocked(self._log(state, topic)):
                    after = after._replace(missing="".join(sorted({*after.missing, topic})))
                else:
                    after = self._publish(after, name, topic)
            return f"reader publishes {name}", after
        return "reader goes on", further

    def _unpublished(
        self, state: State, rows: list[TransactionMetadata]
    ) -> list[TransactionMetadata]:
        heads = {
            topic: self._log(state, topic)[:length]
            for topic, length in zip(self._topics, state.heads, strict=True)
        }
        topics = {name: self._state(name, log) for name, log in heads.items() if name.islower()}
        found = unpublished(rows, topics)
        for name, log in heads.items():
            if name.isupper() and name not in state.missing and TABLE_UNHELPED not in self._broken:
                found += without_part(rows, self._table(name, log, 0), CLUSTER)
        return found

    def _commits(
        self, state: State, since: tuple[int, ...], to: tuple[int, ...]
    ) -> list[TransactionMetadata]:
        """The rows in the commits of the shards, but for completions."""
        rows = self._rows | self._others
        return [
            rows[name]
            for log, low, high in zip(state.shards, since, to, strict=True)
            for name in (entry.removesuffix(" again") for entry in log[low:high])
            if name in rows
        ]

    def _end(self, state: State) -> tuple[str, State]:
        shown_rows = decided(self._shown(state))
        rows = [*self._asked(state, state.s1), *self._commits(state, state.s1, state.s2)]
        later = decided(rows) if ASKED_IGNORED in self._broken else maybe_decided(rows)
        if ROWS_ONLY in self._broken:
            later = decided(self._pending(state, state.s2))
        if REWRITTEN not in self._broken:
            later = {name: row for name, row in later.items() if name not in shown_rows}
        drawn = [] if CROSSED in self._broken else self._drawn_in(state, later.values())
        if drawn:
            names = state.drawn | {self._names[row.transaction] for row in drawn}
            again = state._replace(phase=self.plan.index("heads"), heads=(), s2=(), drawn=names)
            for row in (row for row in drawn if row.decider is not None):
                name = self._names[row.transaction]
                again = self._settle(again, name)
                if name not in again.shards[self._world[name].shard]:
                    again = again._replace(drawn=again.drawn - {name})
            return f"reader shows {', '.join(sorted(names))}, too", again
        is_after = is_taken_over(self._unmoved(state), later.values())
        if is_after and NO_TICKETS not in self._broken:
            return self._begin_again(state)
        snapshot = Snapshot(cluster_id="", at_ms=0, topics={}, offsets=self._offsets(state))
        for at, topic in enumerate(self._topics):
            if topic in state.missing and BLOCKED_SHOWN not in self._broken:
                continue
            if topic.isupper():
                version = self._table_version(state, at, later.values())
                if version is None:
                    return self._begin_again(state)
                snapshot.tables[topic] = TableVersion(url="", table_id="", version=version)
                continue
            read = self._topic_read(state, at)
            found = version_of(topic, read, later.values())
            if found is None:
                return self._begin_again(state)
            snapshot.topics[topic] = found
            is_ahead = is_past(snapshot.offsets, topic, read.state, found)
            if NO_OFFSETS not in self._broken and is_ahead:
                return self._begin_again(state)
        positions = tuple(
            (topic, tuple(sorted(known.items())))
            for topic, known in sorted(snapshot.offsets.get("g", {}).items())
        )
        shown = (
            *((topic, one.version, one.excluded) for topic, one in snapshot.topics.items()),
            *((table, found.version, ()) for table, found in snapshot.tables.items()),
        )
        return "reader ends", state._replace(found=(shown, positions))

    def _table_version(
        self, state: State, at: int, later: Collection[TransactionMetadata]
    ) -> int | None:
        table = self._table_read(state, at)
        if TABLE_HEADS in self._broken:
            return table.version
        if TABLE_OLD in self._broken:
            return min([version for version, _, _ in table.recent], default=table.version + 1) - 1
        names = {(app_id_of(CLUSTER, row.producer_id), row.txn_epoch): row for row in later}
        if UNKNOWN in self._broken:
            later = [names[one[1:]] for one in table.recent if one[1:] in names]
        return table_version(table, CLUSTER, later)

    def _table_read(self, state: State, at: int) -> TableState:
        log = state.topics[at][: state.heads[at]]
        known = state.before[at] + 1
        if self._is_cold and not state.tries:
            known = 1 + max((n for n, what in enumerate(log) if what == CHECKPOINT), default=-1)
        return self._table(self._topics[at], log, known)

    def _drawn_in(
        self, state: State, later: Iterable[TransactionMetadata]
    ) -> list[TransactionMetadata]:
        tables = [
            self._table_read(state, at)
            for at, topic in enumerate(self._topics)
            if topic.isupper() and topic not in state.missing
        ]
        if SAME_ID in self._broken:
            later = [replace(row, transactional_id=str(row.transaction)) for row in later]
            found = {row.transaction for row in drawn_in(tables, CLUSTER, later)}
            return [row for row in self._rows.values() if row.transaction in found]
        return drawn_in(tables, CLUSTER, later)

    def _shown(self, state: State) -> list[TransactionMetadata]:
        drawn = [self._rows[name] for name in sorted(state.drawn)]
        return [*self._pending(state, state.s1), *drawn]

    def _begin_again(self, state: State) -> tuple[str, State]:
        again = state._replace(phase=0, tries=state.tries + 1)
        again = again._replace(s0=(), groups=-1, s1=(), heads=(), s2=(), missing="")
        again = again._replace(drawn=frozenset())
        if again.tries == TRIES_MAX:
            return "reader gives up", again._replace(phase=len(self.plan))
        return "reader begins again", again

    def _topic_read(self, state: State, at: int) -> TopicRead:
        log = state.topics[at][: state.heads[at]]
        found = self._state(self._topics[at], log)
        removed = [number for number, what in enumerate(log) if what in (COMPACT, CLEAN)]
        removed_at = max(removed, default=-1)
        if REMOVED_UNSEEN in self._broken:
            removed_at = -1
        if LIVE_IS_ENOUGH in self._broken and COMPACT not in log:
            removed_at = -1
        return TopicRead(found, len(log) - 1, removed_at, state.before[at])

    def _offsets(self, state: State) -> dict[str, dict[str, dict[int, int]]]:
        if not self._has_offsets:
            return {}
        groups = {"g": Group(group_id="g")}
        markers: dict[int, int] = {}
        for version, name in enumerate(state.moved[: state.groups]):
            row = self._rows[name]
            made = prepare_carried_offsets(
                groups, markers, row.moves, transaction=row.transaction, version=version, now_ms=0
            )
            assert made is not None
            groups |= {group.group_id: group for group in made.groups}
            markers |= made.txns if self._world[name].topics else {}
        rows = self._unmoved(state)
        if MOVED_ONLY in self._broken:
            rows = []
        if BY_ID in self._broken:
            rows = [_without_order(row) for row in rows]
        return offsets_of(groups, {} if REAPPLIED in self._broken else markers, rows)

    def _unmoved(self, state: State) -> list[TransactionMetadata]:
        """What was decided, and not completed, when the groups were read, and since."""
        if not self._has_offsets:
            return []
        s0 = state.s1 if NO_S0 in self._broken else state.s0
        drawn = [] if DRAWN_UNMOVED in self._broken else sorted(state.drawn)
        since = decided(self._commits(state, s0, state.s1)).values()
        found = [*self._pending(state, s0), *since]
        return found + [self._rows[name] for name in drawn]

    # -- values of the project ---------------------------------------------------------------------

    def _row(self, name: str) -> TransactionMetadata:
        tx = self._world[name]
        ticket = GroupTicket(
            group_id="g",
            producer_id=tx.producer_id,
            ticket=tx.ticket,
            generation=1,
            offsets={self._input(tx): {tx.partition: self._end_offset(name)}},
        )
        return TransactionMetadata(
            transactional_id=str(tx.producer_id),
            producer_id=tx.producer_id,
            producer_epoch=tx.epoch,
            txn_epoch=tx.epoch,
            state=TransactionState.PREPARE_COMMIT,
            timeout_ms=1,
            pending=Manifest(
                batches=tuple(
                    named_file(name, topic, topic_id=topic)
                    for topic in tx.topics
                    if topic.islower()
                ),
                tables=tuple(
                    _staged(topic, "merge" if topic == tx.decides else "append")
                    for topic in tx.topics
                    if topic.isupper()
                ),
                tickets=(ticket,) if tx.ticket else (),
            ),
        )

    def _input(self, tx: Tx) -> str:
        return self._world[tx.cause].topics[0] if tx.cause else "in"

    def _end_offset(self, name: str) -> int:
        return 1 if self._world[name].cause else 1 + list(self._world).index(name)

    def _state(self, topic: str, log: tuple[str, ...]) -> TopicState:
        """The topic after these commits; a segment's path names what it holds."""
        if (topic, log) in self._states:
            return self._states[topic, log]
        state = TopicState()
        state.set_topic(topic, {"partitions": "1"})
        for at, what in enumerate(log):
            if what == COMPACT:
                merged = list(state.by_path)
                state.remove(merged)
                last = state.high_watermark(0) - 1
                state.add(BatchHeader("+".join(merged), 0, 0, last, -1, -1, -1, NONE, 1, ""))
            elif what == CLEAN:
                state.remove(self._superseded(log[:at]))
            else:
                made = prepare_marker(
                    state,
                    topic_id=topic,
                    transaction=self._rows[what].transaction,
                    result=TransactionResult.COMMIT,
                    batches=[b for b in self._rows[what].pending.batches if b.topic == topic],
                )
                assert not isinstance(made, Settled)
                made.apply(state)
        self._states[topic, log] = state
        return state

    def _table(self, name: str, log: tuple[str, ...], known: int) -> TableState:
        """The table after these commits, of which those from `known` on were read one by one."""
        protocol = Protocol(min_reader_version=1, min_writer_version=2)
        metadata = TableMetadata(id=name, schema_string="", partition_columns=())
        state = TableState(name, protocol=protocol, metadata=metadata)
        for version, what in enumerate(log):
            row = self._rows.get(what)
            txns = []
            if row is not None:
                app_id = app_id_of(CLUSTER, row.producer_id)
                txns = [Txn(app_id=app_id, version=row.txn_epoch)]
            state.apply(version, txns, is_checkpoint=version < known)
        return state

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, state: State) -> str | None:
        if not state.found:
            return None
        topics, offsets = state.found
        shown: dict[str, set[str]] = {name: set() for name in self._world}
        for topic, version, excluded in topics:  # type: ignore[attr-defined]
            log = self._log(state, topic)[: version + 1]
            if topic.isupper():
                if len(log) < state.begun[self._topics.index(topic)]:
                    return f"{topic} is older than the snapshot"
                for name in set(log) & set(self._world):
                    shown[name].add(topic)
                continue
            one = TopicVersion(version=max(version, 0), excluded=excluded)
            for header in self._state(topic, log).by_path.values():
                if not one.hides(header):
                    for name in header.path.split("+"):
                        shown[name].add(topic)
        for name, tx in reversed(self._world.items()):
            if tx.over:
                shown[tx.over] |= shown[name] & set(self._world[tx.over].topics)
        for name, tx in self._world.items():
            there = {topic for topic, _, _ in topics}  # type: ignore[attr-defined]
            if shown[name] and shown[name] != set(tx.topics) & there:
                return f"{name} is half visible"
            if name in (state.must or ()) and not shown[name] and set(tx.topics) & there:
                return f"{name} was decided before, and is missing"
            if shown[name] and tx.cause and not shown[tx.cause]:
                return f"{name} is visible without its cause"
            if shown[name] and tx.after and not shown[tx.after]:
                return f"{name} is visible without what its id, or its group, has done before"
        expected: dict[str, dict[int, int]] = {}
        for name, tx in self._world.items():
            is_shown = shown[name] if tx.topics else name in state.moved[: state.groups]
            if tx.ticket and is_shown:
                at = expected.setdefault(self._input(tx), {})
                at[tx.partition] = self._end_offset(name)
        found = {topic: dict(known) for topic, known in offsets}  # type: ignore[attr-defined]
        if found != expected:
            return f"the topics are at {expected}, the offsets at {found}"
        return None

    def stuck(self, state: State) -> str | None:
        return None if state.found or state.tries == TRIES_MAX else "the reader does not end"


def _is_blocked(log: tuple[str, ...]) -> bool:
    return CHANGE in log and UNDO not in log


def _staged(name: str, mode: Literal["append", "merge"]) -> StagedTable:
    return StagedTable(
        name=name,
        url=name,
        table_id=name,
        part="p",
        size_bytes=1,
        digest="",
        mode=mode,
        num_files=1,
        num_records=1,
        staged_ms=0,
    )


def _commit(state: State, shard: int, what: str) -> State:
    log = (*state.shards[shard], what)
    return state._replace(shards=(*state.shards[:shard], log, *state.shards[shard + 1 :]))


def _without_order(row: TransactionMetadata) -> TransactionMetadata:
    tickets = tuple(replace(ticket, ticket=1) for ticket in row.pending.tickets)
    return replace(row, pending=replace(row.pending, tickets=tickets))
