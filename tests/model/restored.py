"""Clients of one transactional.id, whose shard of the transaction log is restored alone.

A and B are clients, one after the other or at once: each owns the id, reads the topics, decides,
publishes in each topic, and is told that its transaction is committed. Each may die anywhere, and
finishes what it finds decided. R puts an older row back; with `at_rest` only while no client is at
work, as its documentation asks. What a client was told must be in every topic, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from tests.model.rules import DECIDES_UNSEEN, MARKER_IS_OWN
from tests.model.search import Pool
from tests.model.values import Row, row_key, staged, topic_key
from txnlog.errors import TxnLogError
from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.metadata import Holder, Manifest, Owner
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicState
from txnlog.protocol.transitions import (
    Done,
    Transition,
    prepare_complete,
    prepare_end,
    prepare_init,
)

TOPICS = ("x", "y")
UNITS = {"A": 2, "B": 1}
DEAD = ("dead",)

Pc = tuple[Any, ...]
"""("start",), ("read", unit, epoch), ("decide", unit, epoch, markers), ("publish", row, topic,
back), where `back` is the place after COMPLETE, ("told", unit) at first of an own transaction."""


class State(NamedTuple):
    """Everything there is: `rows` are all that the shard ever had, the newest last."""

    rows: tuple[int, ...]
    topics: tuple[int, ...]
    places: tuple[Pc, Pc]
    told: frozenset[str] = frozenset()
    restores: int = 1


class Restored:
    """The model."""

    def __init__(self, *, at_rest: bool, broken: frozenset[str] = frozenset()) -> None:
        self._at_rest = at_rest
        self._broken = broken
        self._rows: Pool[Row] = Pool(row_key)
        self._topics: Pool[TopicState] = Pool(topic_key)

    def initial(self) -> State:
        topics = []
        for name in TOPICS:
            state = TopicState()
            state.set_topic(f"{name}-id", {"partitions": "1"})
            topics.append(self._topics.put(state))
        return State((self._rows.put(None),), tuple(topics), (("start",), ("start",)))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate("AB"):
            pc = state.places[number]
            if pc == DEAD:
                continue
            label, after, place = self._step(state, actor, pc)
            yield f"{actor} {label}", _moved(after, number, place)
            if pc != ("start",):
                yield f"{actor} dies", _moved(state, number, DEAD)
        is_at_rest = all(pc in (DEAD, ("start",)) for pc in state.places)
        if state.restores and (is_at_rest or not self._at_rest):
            for before in range(len(state.rows) - 1):
                rows = state.rows[: before + 1]
                left = state.restores - 1
                yield f"R restores row {before}", state._replace(rows=rows, restores=left)

    def _step(self, state: State, actor: str, pc: Pc) -> tuple[str, State, Pc]:
        if pc[0] == "start":
            return self._init(state, actor)
        if pc[0] == "read":
            return "reads the topics", state, ("decide", *pc[1:], self._markers(state))
        if pc[0] == "decide":
            return self._decide(state, actor, *pc[1:])
        return self._publish(state, *pc[1:])

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
        )
        now = self._rows[after.rows[-1]]
        if now is not None and now.state.is_prepared:
            return "meets a decided row", after, ("publish", after.rows[-1], 0, ("start",))
        if error or now is None:
            return f"is refused: {error}", after, DEAD
        return "owns the id", after, ("read", 0, now.producer_epoch)

    def _markers(self, state: State) -> tuple[int, ...]:
        return tuple(self._topics[number].markers.get(0, -1) for number in state.topics)

    def _decide(
        self, state: State, actor: str, unit: int, epoch: int, markers: tuple[int, ...]
    ) -> tuple[str, State, Pc]:
        files = tuple(staged(topic, unit, actor) for topic in TOPICS)
        seen: Mapping[str, int] = dict(zip(TOPICS, markers, strict=True))
        error, after = self._write(
            state,
            prepare_end,
            self._rows[state.rows[-1]],
            holder=Holder(transactional_id="id", producer_id=0, producer_epoch=epoch, run_id=actor),
            result=TransactionResult.COMMIT,
            manifest=Manifest(batches=files),
            markers={} if DECIDES_UNSEEN in self._broken else seen,
        )
        if error:
            return f"decides: {error}", after, DEAD
        return "decides", after, ("publish", after.rows[-1], 0, ("told", unit, actor))

    def _publish(self, state: State, number: int, at: int, back: Pc) -> tuple[str, State, Pc]:
        row = self._rows[number]
        assert row is not None
        if at == len(TOPICS):
            return self._complete(state, row, back)
        topic = TOPICS[at]
        found = self._topics[state.topics[at]]
        made = prepare_marker(
            found,
            topic_id=f"{topic}-id",
            transaction=row.transaction,
            result=TransactionResult.COMMIT,
            batches=[batch for batch in row.pending.batches if batch.topic == topic],
        )
        further = ("publish", number, at + 1, back)
        if isinstance(made, Settled):
            if made.missing and MARKER_IS_OWN not in self._broken:
                return f"finds another marker in {topic}", state, DEAD
            return f"finds its marker in {topic}", state, further
        written = deepcopy(found)
        made.apply(written)
        topics = (*state.topics[:at], self._topics.put(written), *state.topics[at + 1 :])
        return f"publishes in {topic}", state._replace(topics=topics), further

    def _complete(self, state: State, row: Any, back: Pc) -> tuple[str, State, Pc]:
        """COMPLETE; an own transaction's client is told."""
        now = self._rows[state.rows[-1]]
        _, after = self._write(state, prepare_complete, now, transaction=row.transaction)
        if back[0] != "told":
            return "completes", after, back
        unit, actor = back[1:]
        told = state.told | {batch.path for batch in row.pending.batches}
        is_last = unit + 1 == UNITS[actor]
        following = DEAD if is_last else ("read", unit + 1, row.txn_epoch + 1)
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
        lost = sorted(after.told - there)
        if lost:
            return f"told, and in no topic: {lost}"
        row = self._rows[after.rows[-1]]
        is_checked = self._at_rest and MARKER_IS_OWN not in self._broken
        if is_checked and row is not None and row.state.is_prepared:
            for batch in row.pending.batches:
                marker = states[TOPICS.index(batch.topic)].markers.get(0, -1)
                if marker >= row.txn_epoch and batch.path not in there:
                    return f"decided, and never to be published: {batch.path}"
        return None

    def stuck(self, state: State) -> str | None:
        return None


def _moved(state: State, number: int, place: Pc) -> State:
    places = (place, state.places[1]) if number == 0 else (state.places[0], place)
    return state._replace(places=places)
