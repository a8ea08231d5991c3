"""Clients of one transactional.id, whose shard of the transaction log is restored alone.

A and B are clients, one after the other or at once: each owns the id, reads the topics, decides,
publishes in each topic, and is told that its transaction is committed. Each may die anywhere, and
finishes what it finds decided. R puts an older row back; with `at_rest` only while no client is at
work, as its documentation asks. What a client was told must be in every topic, once.

With `of_topic` it is topic x that is restored alone, with its data: what a client was told is then
lost there, but no header of a topic may name a file that is gone, since readers stop at it.

`in_two_phases` each transaction is prepared first, and then committed or aborted, by its client or
by the successor that keeps it. With `unread` one topic may be away then, and is not asked for its
marker: what is decided may be refused there, for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from tests.model.rules import COMMITS_UNSEEN, DECIDES_UNSEEN, MARKER_IS_OWN, PUBLISHES_UNSEEN
from tests.model.search import Pool
from tests.model.values import Row, row_key, staged, topic_key
from txnlog.errors import TxnLogError
from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.metadata import Holder, Manifest, Owner
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.topics import TopicState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_init,
)

TOPICS = ("x", "y")
UNITS = {"A": 2, "B": 1}
DEAD = ("dead",)
UNREAD = -1
"""The marker that a topic seems to have which was not read."""

Pc = tuple[Any, ...]
"""("start",), ("read", unit, epoch), ("decide", unit, epoch, markers), ("publish", row, topic,
back), where `back` is the place after COMPLETE, ("told", unit) at first of an own transaction. In
two phases also ("prepare", unit, epoch, markers), ("held", unit, epoch, txn_epoch) and ("end",
unit, epoch, txn_epoch, markers)."""


class State(NamedTuple):
    """Everything there is: `rows` are all that the shard ever had, the newest last, and `backups`
    what topic x was, with its files.
    """

    rows: tuple[int, ...]
    topics: tuple[int, ...]
    places: tuple[Pc, Pc]
    told: frozenset[str] = frozenset()
    restores: int = 1
    files: frozenset[str] = frozenset()
    backups: tuple[tuple[int, frozenset[str]], ...] = ()


class Restored:
    """The model."""

    def __init__(
        self,
        *,
        at_rest: bool,
        in_two_phases: bool = False,
        unread: bool = False,
        of_topic: bool = False,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self._at_rest = at_rest
        self._in_two_phases = in_two_phases
        self._away = TOPICS if unread else ()
        self._of_topic = of_topic
        self._broken = broken
        self._rows: Pool[Row] = Pool(row_key)
        self._topics: Pool[TopicState] = Pool(topic_key)

    def initial(self) -> State:
        topics = []
        for name in TOPICS:
            state = TopicState()
            state.set_topic(f"{name}-id", {"partitions": "1"})
            topics.append(self._topics.put(state))
        first = State((self._rows.put(None),), tuple(topics), (("start",), ("start",)))
        return first._replace(backups=((topics[0], frozenset()),) if self._of_topic else ())

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate("AB"):
            pc = state.places[number]
            if pc == DEAD:
                continue
            for label, after, place in self._steps(state, actor, pc):
                yield f"{actor} {label}", _moved(after, number, place)
            if pc != ("start",):
                yield f"{actor} dies", _moved(state, number, DEAD)
        is_at_rest = all(pc in (DEAD, ("start",)) for pc in state.places)
        if state.restores and (is_at_rest or not self._at_rest):
            yield from self._restore(state)

    def _restore(self, state: State) -> Iterator[tuple[str, State]]:
        left = state._replace(restores=state.restores - 1)
        for topic, files in state.backups:
            of_others = {path for path in state.files if not path.startswith(TOPICS[0])}
            topics = (topic, *state.topics[1:])
            restored = left._replace(topics=topics, files=files | of_others)
            yield f"R restores topic {topic} with {sorted(files)}", restored
        if not self._of_topic:
            for before in range(len(state.rows) - 1):
                yield f"R restores row {before}", left._replace(rows=state.rows[: before + 1])

    def _steps(self, state: State, actor: str, pc: Pc) -> Iterator[tuple[str, State, Pc]]:
        kind, *rest = pc
        seen = self._markers(state)
        if kind == "start":
            yield self._init(state, actor)
        elif kind == "read":
            following = "prepare" if self._in_two_phases else "decide"
            yield "reads the topics", state, (following, *rest, seen)
        elif kind == "decide":
            yield self._decide(state, actor, *rest)
        elif kind == "prepare":
            yield self._prepare(state, actor, *rest)
        elif kind == "held":
            yield "reads the topics", state, ("end", *rest, seen)
            for at, topic in enumerate(self._away):
                unread = (*seen[:at], UNREAD, *seen[at + 1 :])
                yield f"cannot read {topic}", state, ("end", *rest, unread)
            yield self._end(state, actor, *rest, None)
        elif kind == "end":
            yield self._end(state, actor, *rest)
        else:
            yield self._publish(state, *rest)

    def _init(self, state: State, actor: str) -> tuple[str, State, Pc]:
        row = self._rows[state.rows[-1]]
        error, after = self._write(
            state,
            prepare_init,
            row,
            transactional_id="id",
            new_producer_id=0,
            owner=Owner(run_id=actor),
            timeout_ms=1,
            keep_prepared=True,
        )
        now = self._rows[after.rows[-1]]
        if now is not None and now.state.is_prepared:
            return "meets a decided row", after, ("publish", after.rows[-1], 0, ("start",))
        if error or now is None:
            return f"is refused: {error}", after, DEAD
        if now.state is TransactionState.ONGOING:
            place = ("held", 0, now.producer_epoch, now.txn_epoch)
            return "keeps what is prepared", after, place
        return "owns the id", after, ("read", 0, now.producer_epoch)

    def _markers(self, state: State) -> tuple[int, ...]:
        return tuple(self._topics[number].markers.get(0, -1) for number in state.topics)

    def _decide(
        self, state: State, actor: str, unit: int, epoch: int, markers: tuple[int, ...]
    ) -> tuple[str, State, Pc]:
        error, after = self._write(
            state,
            prepare_end,
            self._rows[state.rows[-1]],
            holder=_holder(actor, epoch),
            result=TransactionResult.COMMIT,
            manifest=_manifest(actor, unit),
            markers=self._asked(markers),
        )
        if error:
            return f"decides: {error}", after, DEAD
        written = {batch.path for batch in _manifest(actor, unit).batches}
        after = after._replace(files=after.files | written)
        return "decides", after, ("publish", after.rows[-1], 0, ("told", unit, actor))

    def _asked(self, markers: tuple[int, ...]) -> Mapping[str, int]:
        is_blind = DECIDES_UNSEEN in self._broken
        return {} if is_blind else dict(zip(TOPICS, markers, strict=True))

    def _prepare(
        self, state: State, actor: str, unit: int, epoch: int, markers: tuple[int, ...]
    ) -> tuple[str, State, Pc]:
        error, after = self._write(
            state,
            prepare_add_partitions,
            self._rows[state.rows[-1]],
            holder=_holder(actor, epoch),
            manifest=_manifest(actor, unit),
            markers=self._asked(markers),
        )
        if error:
            return f"prepares: {error}", after, DEAD
        return "prepares", after, ("held", unit, epoch, epoch)

    def _end(
        self,
        state: State,
        actor: str,
        unit: int,
        epoch: int,
        txn_epoch: int,
        markers: tuple[int, ...] | None,
    ) -> tuple[str, State, Pc]:
        """Commit what is prepared; abort it without `markers`."""
        result = TransactionResult.ABORT if markers is None else TransactionResult.COMMIT
        is_blind = markers is None or COMMITS_UNSEEN in self._broken
        error, after = self._write(
            state,
            prepare_end,
            self._rows[state.rows[-1]],
            holder=_holder(actor, epoch),
            result=result,
            manifest=Manifest(),
            txn_epoch=txn_epoch,
            markers={} if is_blind or markers is None else self._asked(markers),
        )
        if error:
            return f"ends: {error}", after, DEAD
        back = ("told", unit, actor)
        return f"decides {result.name}", after, ("publish", after.rows[-1], 0, back)

    def _publish(self, state: State, number: int, at: int, back: Pc) -> tuple[str, State, Pc]:
        row = self._rows[number]
        assert row is not None
        if at == len(TOPICS) or not row.pending.batches:
            return self._complete(state, row, back)
        topic = TOPICS[at]
        found = self._topics[state.topics[at]]
        batches = [batch for batch in row.pending.batches if batch.topic == topic]
        made = prepare_marker(
            found,
            topic_id=f"{topic}-id",
            transaction=row.transaction,
            result=TransactionResult.of(row.state),
            batches=batches,
        )
        further = ("publish", number, at + 1, back)
        if isinstance(made, Settled):
            if made.missing and MARKER_IS_OWN not in self._broken:
                return f"finds another marker in {topic}", state, DEAD
            return f"finds its marker in {topic}", state, further
        looks = back[0] != "told" and PUBLISHES_UNSEEN not in self._broken
        if looks and not state.files.issuperset(batch.path for batch in batches):
            return f"misses a file of {topic}", state, DEAD
        written = deepcopy(found)
        made.apply(written)
        topics = (*state.topics[:at], self._topics.put(written), *state.topics[at + 1 :])
        after = state._replace(topics=topics)
        if self._of_topic and at == 0:
            after = after._replace(backups=(*after.backups, (topics[0], after.files)))
        return f"publishes in {topic}", after, further

    def _complete(self, state: State, row: Any, back: Pc) -> tuple[str, State, Pc]:
        """COMPLETE; an own transaction's client is told."""
        now = self._rows[state.rows[-1]]
        _, after = self._write(state, prepare_complete, now, transaction=row.transaction)
        if back[0] != "told":
            return "completes", after, back
        unit, actor = back[1:]
        told = state.told | {batch.path for batch in row.pending.batches}
        is_last = unit + 1 == UNITS[actor]
        following = DEAD if is_last else ("read", unit + 1, row.producer_epoch + 1)
        return "is told", after._replace(told=told), following

    def _write(self, state: State, decide: Any, row: Row, **given: Any) -> tuple[str, State]:
        """A compare-and-swap of the row; the name of its error."""
        try:
            decision: Transition | Done = decide(row, **given, now_ms=0)
        except TxnLogError as error:
            return type(error).__name__, state
        if isinstance(decision, Done):
            return "", state
        return "", state._replace(rows=(*state.rows, self._rows.put(decision.next)))

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        states = [self._topics[number] for number in after.topics]
        there = {path for state in states for path in state.by_path}
        if self._of_topic:
            gone = sorted(there - after.files)
            return f"a reader stops at {gone}" if gone else None
        lost = sorted(after.told - there)
        if lost:
            return f"told, and in no topic: {lost}"
        row = self._rows[after.rows[-1]]
        is_checked = self._at_rest and MARKER_IS_OWN not in self._broken and not self._away
        if is_checked and row is not None and row.state.is_prepared:
            for batch in row.pending.batches:
                marker = states[TOPICS.index(batch.topic)].markers.get(0, -1)
                if marker >= row.txn_epoch and batch.path not in there:
                    return f"decided, and never to be published: {batch.path}"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _holder(run: str, epoch: int) -> Holder:
    return Holder(transactional_id="id", producer_id=0, producer_epoch=epoch, run_id=run)


def _manifest(actor: str, unit: int) -> Manifest:
    return Manifest(batches=tuple(staged(topic, unit, actor) for topic in TOPICS))


def _moved(state: State, number: int, place: Pc) -> State:
    places = (place, state.places[1]) if number == 0 else (state.places[0], place)
    return state._replace(places=places)
