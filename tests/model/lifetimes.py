"""Names that outlive what they named: topics created again, and transactional.ids that expired.

P is an eager producer that looks its topic up again when the topic was created again,
and then adds that one to the same transaction. D deletes the topic and creates it again. Q stages
for the topic as it is, takes the id over, and publishes. E forgets the idle id. S times out, H
finishes, each from one read of the row, which may be stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

from tests.model.recovery import DEAD, Pc, Recovery
from tests.model.values import (
    Stored,
    Wrote,
    staged,
    undecided,
)
from tests.model.world import World
from txnlog.protocol.metadata import Holder, Manifest, Owner, TopicPartitions
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.topics import TopicCommit, TopicState, end_app_id
from txnlog.protocol.transitions import (
    prepare_add_partitions,
    prepare_end,
    prepare_expire,
    prepare_init,
)

TOPIC = "x"
FIRST_ID = "m"

Step = tuple[str, Stored, Pc]


class State(NamedTuple):
    """Everything there is."""

    stored: Stored
    places: tuple[Pc, ...]


class Lifetimes:
    """The model; `actors` is a string of the letters P, Q, D, E, S, H.

    `second_id` is the id of the topic when it is created again: both orders matter.
    """

    def __init__(
        self, actors: str, *, second_id: str = "z", broken: frozenset[str] = frozenset()
    ) -> None:
        self.actors = actors
        self.second_id = second_id
        self.world = World(("id0",), (TOPIC,), broken)
        self.recovery = Recovery(self.world, "")
        self._judged: dict[Stored, str | None] = {}

    def initial(self) -> State:
        state = TopicState()
        state.set_topic(FIRST_ID, {"partitions": "1"})
        stored = self.world.empty()._replace(topics=(self.world.topics.put(state),))
        first = {"P": ("init",), "Q": ("stage",), "D": ("delete",), "E": ("expire",)}
        return State(stored, tuple(first.get(actor, ("look",)) for actor in self.actors))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            for label, stored, after in self._step(state.stored, actor, state.places[number]):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield f"{actor} {label}", State(stored, places)

    def _step(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        row = self.world.row(stored, 0)
        if pc[0] in Recovery.NAMES:
            yield from self.recovery.steps(stored, pc)
        elif actor == "D":
            yield from self._create_again(stored, pc)
        elif actor == "E" and pc != DEAD and row is not None and row.state.is_idle:
            wrote = self.world.transition(
                stored, 0, "expire", lambda now: prepare_expire(now, now_ms=0)
            )
            yield "forgets the id", wrote.stored, DEAD
        elif pc[0] == "look":
            met = self.recovery.meet_prepared(stored, 0, DEAD)
            if met is not None:
                yield "reads a decided row", stored, met
            if actor == "S" and row is not None and row.state is TransactionState.ONGOING:
                yield (
                    "reads an Ongoing row",
                    stored,
                    ("time out", row.txn_epoch, row.producer_id),
                )
        elif pc[0] == "time out":
            wrote = self.world.time_out(stored, 0, pc[2], pc[1])
            met = self.recovery.meet_prepared(wrote.stored, 0, DEAD)
            yield f"times out e{pc[1]}", wrote.stored, met or DEAD
        elif actor in "PQ" and pc != DEAD:
            yield from self._produce(stored, actor, pc)

    def _create_again(self, stored: Stored, pc: Pc) -> Iterator[Step]:
        if pc[0] == "delete":
            yield "deletes the topic", self._set_topic(stored, FIRST_ID, deleted=True), ("create",)
        elif pc[0] == "create":
            made = self._set_topic(stored, self.second_id, deleted=False)
            yield "creates the topic again", made, DEAD

    def _set_topic(self, stored: Stored, topic_id: str, *, deleted: bool) -> Stored:
        """TopicLog.delete and TopicLog.create."""
        state = deepcopy(self._topic(stored))
        config = {"partitions": "1", **({"deleted": "true"} if deleted else {})}
        state.set_topic(topic_id, config)
        if deleted:
            ends = {end_app_id(0): state.high_watermark(0)}
            gone = tuple(state.by_path)
            TopicCommit(operation="DELETE TOPIC", removes=gone, txns=ends).apply(state)
        return stored._replace(topics=(self.world.topics.put(state),))

    def _produce(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        topic = self._topic(stored)
        known = topic.topic_id
        if pc[0] == "stage":
            if not topic.deleted:
                yield f"stages for topic {known}", stored, ("init", known)
        elif pc[0] == "init":
            met = self.recovery.meet_prepared(stored, 0, pc)
            if met is not None:
                yield "meets a decided row", stored, met
                return
            wrote = self._init(stored, actor)
            row = self.world.row(wrote.stored, 0)
            after = DEAD if wrote.error else pc
            if not wrote.error and row is not None and row.state.is_idle:
                name = "look up" if actor == "P" else "publish"
                after = (name, row.producer_id, row.producer_epoch, *pc[1:])
            yield f"inits: {wrote.error or after[0]}", wrote.stored, after
        elif pc[0] == "look up":
            if not topic.deleted:
                yield f"looks up topic {known}", stored, ("add", *pc[1:3], known)
        elif pc[0] == "add":
            wrote = self._add(stored, actor, pc)
            after = DEAD if wrote.error else ("append", *pc[1:])
            yield f"adds topic {pc[3]} e{pc[2]}: {wrote.error}", wrote.stored, after
        elif pc[0] == "append":
            batch = staged(TOPIC, 0, f"P{pc[2]}for{pc[3]}", topic_id=pc[3])
            wrote = self.world.append(stored, 0, pc[1], pc[2], batch)
            again = wrote.error == "UnknownTopicIdError"
            after = ("look up", *pc[1:3]) if again else ("end", *pc[1:])
            if not wrote.error and batch.path not in self._topic(wrote.stored).by_path:
                after = ("false report",)
            yield f"appends e{pc[2]}: {wrote.error}", wrote.stored, after
        else:
            results = (TransactionResult.COMMIT, TransactionResult.ABORT)
            for result in results if pc[0] == "end" else results[:1]:
                wrote = self._end(stored, actor, pc, result)
                met = self.recovery.meet_prepared(wrote.stored, 0, DEAD)
                label = f"PREPARE {result.name} e{pc[2]}: {wrote.error}"
                yield label, wrote.stored, DEAD if wrote.error else met or DEAD

    def _topic(self, stored: Stored) -> TopicState:
        return self.world.topics[stored.topics[0]]

    def _init(self, stored: Stored, actor: str) -> Wrote:
        return self.world.transition(
            stored,
            0,
            ("init", actor),
            lambda row: prepare_init(
                row,
                transactional_id="id0",
                new_producer_id={"P": 10, "Q": 20}[actor],
                owner=Owner(run_id=actor),
                timeout_ms=1,
                now_ms=0,
            ),
        )

    def _add(self, stored: Stored, actor: str, pc: Pc) -> Wrote:
        named = TopicPartitions(topic=TOPIC, topic_id=pc[3], partitions=(0,))
        return self.world.transition(
            stored,
            0,
            ("add", actor, *pc[1:]),
            lambda row: prepare_add_partitions(
                row,
                holder=Holder(
                    transactional_id="id0",
                    producer_id=pc[1],
                    producer_epoch=pc[2],
                    run_id=actor,
                ),
                partitions=(named,),
                now_ms=0,
            ),
        )

    def _end(self, stored: Stored, actor: str, pc: Pc, result: TransactionResult) -> Wrote:
        manifest = None
        if pc[0] == "publish":
            file = staged(TOPIC, 1, f"Q{pc[2]}for{pc[3]}", topic_id=pc[3])
            manifest = Manifest(batches=(file,))
        return self.world.transition(
            stored,
            0,
            ("end", actor, *pc[1:], result),
            lambda row: prepare_end(
                row,
                holder=Holder(
                    transactional_id="id0",
                    producer_id=pc[1],
                    producer_epoch=pc[2],
                    run_id=actor,
                ),
                result=result,
                manifest=manifest,
                now_ms=0,
            ),
        )

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if ("false report",) in after.places:
            return "an append is acknowledged, and the batch is not in the topic"
        old, new = self._topic(before.stored), self._topic(after.stored)
        if not new.deleted and old.topic_id == new.topic_id:
            what = self.world.broken_history(before.stored, after.stored)
            if what is not None:
                return what
        if new.high_watermark(0) < old.high_watermark(0):
            return "the end of a partition goes back"
        if after.stored not in self._judged:
            self._judged[after.stored] = self._judge(after.stored)
        return self._judged[after.stored]

    def _judge(self, stored: Stored) -> str | None:
        clean = self.recovery.recovered(stored)
        state = self._topic(clean)
        if undecided(state):
            return f"after recovery: {undecided(state)} are undecided for ever"
        for path in state.by_path:
            if not path.endswith(f"for{state.topic_id}"):
                return f"{path} is in topic {state.topic_id}"
        row = self.world.row(stored, 0)
        if row is None or row.state is not TransactionState.COMPLETE_COMMIT:
            return None
        missing = row.producer_id not in state.markers and not state.deleted
        if missing and state.topic_id == FIRST_ID:
            return f"producer {row.producer_id} has committed, and has no marker in the topic"
        return None

    def stuck(self, state: State) -> str | None:
        return None
