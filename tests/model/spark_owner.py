"""Spark queries with deferred publication: steps 0 to 3 of a micro-batch, as spark_sink commits it.

Step 4, COMPLETE, is one write with the decision of the same run's next batch.

A and B are two runs of one query on one checkpoint, C is a new query of the same group that has
lost the checkpoint and starts from the committed positions under its own query id, H is a helper
with one read of a decided row that may be long out of date, S a sweeper that lets the group forget
a holder, R is an operator's reset, F an operator's fencing. All of them may stop anywhere, and
start at any time. Every query copies input offsets 0, 1, ... to each output topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.recovery import DEAD, Pc, Recovery, fencing
from tests.model.rules import (
    FENCE_BY_EPOCH,
    FENCE_FORGETS_RUN,
    START_FENCES_NOBODY,
)
from tests.model.spark_state import Actor, Checkpoint, State, Step
from tests.model.values import (
    Row,
    Stored,
    Wrote,
    above_newest,
    broken_history,
    forget_run,
    staged,
    visible_units,
)
from tests.model.world import World
from txnlog.errors import TxnLogError
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import (
    GroupTicket,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    TransactionMetadata,
)
from txnlog.protocol.micro_batches import goes_on, is_committed
from txnlog.protocol.revocation import prepare_revoke
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import Done, Transition, as_completed, prepare_end, prepare_init

GROUP = "g"
INPUT = "in"
REGISTRATIONS_MAX = 2  # of one commit: two runs could fence each other for ever
FETCH_BEFORE_BUMP = "a start reads the position and then bumps the generation"
LEAVES_A_MARKER = "a batch leaves a marker to the next one, too"
FORGET_BATCHES = "the last batch id is not kept with the decision"


class SparkOwner:
    """The model; `actors` is a string of the letters of A, B, C, H, S, R, F that take part.

    `grouped`: the source offsets are committed with the output; without them C makes no sense.
    """

    def __init__(
        self,
        actors: str = "ABC",
        *,
        batches: int = 1,
        grouped: bool = True,
        lost_replies: bool = False,
        topics: tuple[str, ...] = ("x", "y"),
        broken: frozenset[str] = frozenset(),
    ) -> None:
        ids = ("id0", "id1") if "C" in actors else ("id0",)
        self.actors = tuple(Actor(letter, int(letter == "C")) for letter in actors)
        self.batches = batches
        self.grouped = grouped
        self.lost_replies = lost_replies
        self.broken = broken
        self.world = World(ids, topics, broken)
        self.recovery = Recovery(self.world, GROUP)
        self._judged: dict[Stored, str | None] = {}
        self._histories: dict[tuple[int, int], str | None] = {}

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        first = {"H": ("look",), "S": ("see",), "R": ("reset",), "F": ("expel",)}
        places = tuple(first.get(actor.name, ("start",)) for actor in self.actors)
        return State(self.world.empty(), (Checkpoint(), Checkpoint()), places)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            pc = state.places[number]
            for label, stored, checkpoints, after in self._step(state, actor, pc):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield f"{actor.name} {label}", State(stored, checkpoints, places)
                lost = self._lost_reply(pc)
                if self.lost_replies and stored != state.stored and lost is not None:
                    places = (*state.places[:number], lost, *state.places[number + 1 :])
                    yield f"{actor.name} {label} (reply lost)", State(stored, checkpoints, places)

    def _lost_reply(self, pc: Pc) -> Pc | None:
        """Where it is without a reply; a generation begun again and again has no end."""
        if pc[0] == "register":
            return (*pc[:5], pc[5] + 1, *pc[6:]) if pc[5] < REGISTRATIONS_MAX else None
        return None if pc[0] in ("start", "bump", "reset") else pc

    def _step(self, state: State, actor: Actor, pc: Pc) -> Iterator[Step]:
        stored, checkpoints, _ = state
        if pc[0] == "fin" and pc[4][0] == "ack" and self._is_left(pc):
            yield "leaves COMPLETE", stored, checkpoints, pc[4]
        elif pc[0] in Recovery.NAMES:
            for label, after, place in self.recovery.steps(stored, pc):
                yield label, after, checkpoints, place
        elif pc[0] == "look":
            for which in range(len(self.world.ids)):
                met = self.recovery.meet_prepared(stored, which, DEAD)
                if met is not None:
                    yield "reads a decided row", stored, checkpoints, met
        elif pc[0] == "see":
            for label, after, place in self.recovery.look_at_holders(stored):
                yield label, after, checkpoints, place
        elif pc[0] in ("reset", "set"):
            yield from self._reset(state, pc)
        elif pc[0] == "expel":
            yield from self._expel(state, pc)
        elif pc[0] in ("start", "fetch", "bump", "first", "plan", "ack"):
            yield from self._query(state, actor, pc)
        elif pc[0] in ("own", "register", "prepare"):
            yield from self._commit(state, actor, pc)

    def _is_left(self, pc: Pc) -> bool:
        """Whether what is left of the run's own transaction waits for its next decision."""
        what = self.world.plan(pc[2])[pc[3]][0]
        return what == "complete" or (LEAVES_A_MARKER in self.broken and pc[3] > 0)

    def _reset(self, state: State, pc: Pc) -> Iterator[Step]:
        """groups.reset: begin a generation, fence all, write under it, or begin again."""
        stored, checkpoints, _ = state
        if pc[0] == "reset":
            wrote = self.world.begin(stored, GROUP)
            generation = self._generation(wrote.stored)
            after = fencing(wrote.holders, ("set", generation))
            yield f"resets under generation {generation}", wrote.stored, checkpoints, after
            return
        # To where it is: no input is repeated.
        wrote = self.world.reset(stored, GROUP, INPUT, self._position(stored), pc[1])
        after = ("reset",) if wrote.error else DEAD
        yield f"sets the committed position{wrote.error}", wrote.stored, checkpoints, after

    def _generation(self, stored: Stored) -> int:
        group = self.world.group(stored, GROUP)
        assert group is not None
        return group.generation

    def _expel(self, state: State, pc: Pc) -> Iterator[Step]:
        """fence_producers: look whose the row is, and refuse that run, whatever it did since."""
        stored, checkpoints, _ = state
        row = self.world.row(stored, 0)
        if row is None:
            return
        if len(pc) == 1:
            seen = ("expel", row.owner.run_id, row.producer_epoch)
            yield f"finds run {row.owner.run_id}", stored, checkpoints, seen
            return
        _, run_id, epoch = pc
        if FENCE_BY_EPOCH in self.world.broken:
            wrote = self.world.fence(stored, 0, epoch)
        else:
            wrote = self._revoke(stored, run_id)
        after = self.world.row(wrote.stored, 0)
        assert after is not None
        left: Pc = ("expelled", run_id, after.producer_epoch - 1)
        left = self.recovery.meet_prepared(wrote.stored, 0, left) or left
        yield f"fences run {run_id}", wrote.stored, checkpoints, left

    def _revoke(self, stored: Stored, run_id: str) -> Wrote:
        def decide(row: Row) -> Transition | Done:
            decision = prepare_revoke(row, run_id=run_id, by="", reason="", now_ms=0)
            forgets = FENCE_FORGETS_RUN in self.world.broken
            return forget_run(row, decision) if forgets else decision

        return self.world.transition(stored, 0, ("revoke", run_id), decide)

    def _query(self, state: State, actor: Actor, pc: Pc) -> Iterator[Step]:
        """The source's start and Spark's own checkpoint."""
        stored, checkpoints, _ = state
        mine = checkpoints[actor.query]

        def put(checkpoint: Checkpoint) -> tuple[Checkpoint, ...]:
            others = list(checkpoints)
            others[actor.query] = checkpoint
            return tuple(others)

        if pc[0] == "start":
            if mine.offsets:
                yield "starts from its checkpoint", stored, checkpoints, ("plan",)
            elif not self.grouped:
                yield "starts", stored, checkpoints, ("first", 0, 0)
            elif FETCH_BEFORE_BUMP in self.broken:
                yield "starts", stored, checkpoints, ("fetch", None, None)
            else:
                yield from self._bump(state, None)
        elif pc[0] == "fetch":
            yield from self._fetch(state, pc)
        elif pc[0] == "bump":
            yield from self._bump(state, pc[1])
        elif pc[0] == "first":
            if mine.offsets:
                yield "finds offsets/0 written, dies", stored, checkpoints, DEAD
            else:
                begun = Checkpoint(((pc[1], pc[1] + 1, pc[2]),), 0)
                yield f"writes offsets/0 from {pc[1]}", stored, put(begun), ("own", 0)
        elif pc[0] == "plan":
            if mine.commits < len(mine.offsets):
                batch = len(mine.offsets) - 1
                yield f"replays batch {batch}", stored, checkpoints, ("own", batch)
            elif mine.offsets[-1][1] < self.batches:
                _, end, generation = mine.offsets[-1]
                grown = (*mine.offsets, (end, end + 1, generation))
                batch = len(mine.offsets)
                planned = put(Checkpoint(grown, mine.commits))
                yield f"writes offsets/{batch}", stored, planned, ("own", batch)
        elif pc[0] == "ack":
            done = put(Checkpoint(mine.offsets, max(mine.commits, pc[1] + 1)))
            yield f"writes commits/{pc[1]}", stored, done, ("plan",)

    def _bump(self, state: State, offset: int | None) -> Iterator[Step]:
        """groups.start; `offset` was read before if that is what is broken."""
        wrote = self.world.begin(state.stored, GROUP)
        generation = self._generation(wrote.stored)
        then: Pc = ("fetch", generation, None)
        if offset is not None:
            then = ("first", offset, generation)
        after = then if START_FENCES_NOBODY in self.broken else fencing(wrote.holders, then)
        yield f"bumps the generation to {generation}", wrote.stored, state.checkpoints, after

    def _fetch(self, state: State, pc: Pc) -> Iterator[Step]:
        stored, checkpoints, _ = state
        if START_FENCES_NOBODY in self.broken:
            found: tuple[str, Pc] | int = self._position(stored)
        else:
            found = self.recovery.fetch(stored, pc, pc[1])
        if not isinstance(found, int):
            yield f"fetches: {found[0]}", stored, checkpoints, found[1]
            return
        then: Pc = ("bump", found) if pc[1] is None else ("first", found, pc[1])
        after = then if found < self.batches else DEAD
        yield f"fetches position {found}", stored, checkpoints, after

    def _position(self, stored: Stored) -> int:
        return self.recovery.position(stored)

    def _commit(self, state: State, actor: Actor, pc: Pc) -> Iterator[Step]:
        """commit_micro_batch."""
        stored, checkpoints, _ = state
        batch = pc[1]
        start, end, generation = checkpoints[actor.query].offsets[batch]
        if pc[0] == "own":
            row = self.world.row(stored, actor.query)
            if row is not None and goes_on(row, actor.name, batch):
                after = as_completed(row) if row.state.is_prepared else row
                decides = self._decide(after, batch, follows=row.state.is_prepared)
                yield f"goes on with batch {batch}", stored, checkpoints, decides
                return
            met = self.recovery.meet_prepared(stored, actor.query, pc)
            if met is not None:
                yield "meets PREPARE", stored, checkpoints, met
            wrote = self._init(stored, actor)
            # It may be decided between that reading and this write: then it owns the id beside.
            if wrote.error and met is not None:
                return
            beside = self.recovery.meet_prepared(wrote.stored, actor.query, pc)
            row = self.world.row(wrote.stored, actor.query)
            after = DEAD if wrote.error or row is None else beside or self._decide(row, batch)
            owns = "owns" if wrote.stored == stored else "takes over, and owns"
            note = f"{owns} batch {batch}: {wrote.error or after[0]}"
            yield note, wrote.stored, checkpoints, after
            return
        if pc[0] == "register":
            yield from self._register(state, actor, pc)
            return
        wrote = self._prepare(stored, actor, pc, (start, end, generation))
        done = ("ack", batch)
        after = self.recovery.meet_prepared(wrote.stored, actor.query, done) or done
        if wrote.error:
            row = self.world.row(stored, actor.query)
            floor = row.owner.floors.get(GROUP, 0) if row is not None else 0
            again = wrote.error == "IllegalGenerationError" and pc[5] < REGISTRATIONS_MAX
            after = ("register", *pc[1:4], floor, pc[5], frozenset(), pc[6]) if again else DEAD
        note = f"PREPARE: {wrote.error or f'batch {batch} e{pc[3]}'}"
        yield note, wrote.stored, checkpoints, after

    def _register(self, state: State, actor: Actor, pc: Pc) -> Iterator[Step]:
        """groups.tickets; a run whose ticket was refused since comes here again."""
        stored, checkpoints, _ = state
        _, batch, producer_id, epoch, floor, times, fenced, follows = pc
        start, end, generation = checkpoints[actor.query].offsets[batch]
        request = GroupOffsets(
            group_id=GROUP,
            generation=generation,
            start={INPUT: {0: start}},
            end={INPUT: {0: end}},
        )
        holder = self._holder(actor, producer_id, epoch)
        wrote = self.world.register(stored, holder, request, floor=floor, fenced=fenced)
        after: Pc = ("prepare", batch, producer_id, epoch, wrote.ticket, times + 1, follows)
        note = wrote.error or f"ticket {wrote.ticket}"
        if wrote.error:
            after = DEAD
        elif not wrote.ticket:
            met = {self.world.holders[number].ticket for number in wrote.holders}
            after = fencing(wrote.holders, (*pc[:6], fenced | met, follows))
            note = f"meets {len(met)} holders"
        yield f"registers: {note}", wrote.stored, checkpoints, after

    def _holder(self, actor: Actor, producer_id: int, epoch: int) -> Holder:
        return Holder(
            transactional_id=self.world.ids[actor.query],
            producer_id=producer_id,
            producer_epoch=epoch,
            run_id=actor.name,
        )

    def _init(self, stored: Stored, actor: Actor) -> Wrote:
        owner = Owner(run_id=actor.name, query_id=f"q{actor.query}")
        return self.world.transition(
            stored,
            actor.query,
            ("init", actor.name),
            lambda row: prepare_init(
                row,
                transactional_id=self.world.ids[actor.query],
                new_producer_id=10 + actor.query,
                owner=owner,
                timeout_ms=1,
                now_ms=0,
            ),
        )

    def _decide(self, row: TransactionMetadata, batch: int, *, follows: bool = False) -> Pc:
        """What commit_micro_batch does with the row that it owns now, and that is idle."""
        try:
            done = is_committed(row, batch_id=batch, digest="")
        except TxnLogError:
            return DEAD
        if done:
            return ("ack", batch)
        txn = (batch, row.producer_id, row.producer_epoch)
        if not self.grouped:
            return ("prepare", *txn, 0, REGISTRATIONS_MAX, follows)
        return ("register", *txn, row.owner.floors.get(GROUP, 0), 0, frozenset(), follows)

    def _prepare(
        self, stored: Stored, actor: Actor, pc: Pc, planned: tuple[int, int, int]
    ) -> Wrote:
        _, batch, producer_id, epoch, ticket, _, follows = pc
        start, end, generation = planned
        carried = GroupTicket(
            group_id=GROUP,
            producer_id=producer_id,
            ticket=ticket,
            generation=generation,
            offsets={INPUT: {0: end}},
        )
        files = tuple(staged(t, start, actor.name) for t in self.world.topic_names)
        manifest = Manifest(batches=files, tickets=(carried,) if self.grouped else ())
        last = None
        if FORGET_BATCHES not in self.broken:
            last = LastBatch(batch_id=batch)
        return self.world.transition(
            stored,
            actor.query,
            ("end", actor.name, batch, epoch, ticket, planned, follows),
            lambda row: prepare_end(
                row,
                holder=self._holder(actor, producer_id, epoch),
                result=TransactionResult.COMMIT,
                manifest=manifest,
                last_batch=last,
                follows=ProducerIdAndEpoch(producer_id, epoch - 1) if follows else None,
                now_ms=0,
            ),
        )

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        for old, new in zip(before.stored.topics, after.stored.topics, strict=True):
            if old != new and (what := self._history(old, new)) is not None:
                return what
        if self._position(after.stored) < self._position(before.stored):
            return "the group's position goes back"
        if (what := self._lost(after)) is not None:
            return what
        for pc in after.places:
            row = self.world.row(after.stored, 0)
            if pc[0] != "expelled" or row is None or not row.state.is_prepared:
                continue
            if row.owner.run_id == pc[1] and row.txn_epoch > pc[2]:
                return f"run {pc[1]} was fenced, and decides a transaction"
        return self._judge(after.stored)

    def _history(self, old: int, new: int) -> str | None:
        if (old, new) not in self._histories:
            topics = self.world.topics
            self._histories[old, new] = broken_history(topics[old], topics[new])
        return self._histories[old, new]

    def _lost(self, state: State) -> str | None:
        """Spark has recorded a batch as done: its output must be there for every reader."""
        for checkpoint in state.checkpoints:
            for start, _, _ in checkpoint.offsets[: checkpoint.commits]:
                for number in state.stored.topics:
                    if start not in visible_units(self.world.topics[number]):
                        return f"input {start} is acknowledged, its output is not there"
        return None

    def _judge(self, stored: Stored) -> str | None:
        """If all stop here: what is visible now, and what a reader sees after recovery."""
        if stored not in self._judged:
            self._judged[stored] = self._judge_visible(stored) or self._judge_recovered(stored)
        return self._judged[stored]

    def _judge_visible(self, stored: Stored) -> str | None:
        for name, number in zip(self.world.topic_names, stored.topics, strict=True):
            units = visible_units(self.world.topics[number])
            if len(set(units)) < len(units):
                return f"topic {name} holds output twice: {units}"
        rows = [self.world.rows[number] for number in stored.rows]
        return above_newest(rows, self.world.offsets[stored.offsets])

    def _judge_recovered(self, stored: Stored) -> str | None:
        clean = self.recovery.recovered(stored)
        held = [visible_units(self.world.topics[number]) for number in clean.topics]
        if (what := self._judge_visible(clean)) is not None:
            return f"after recovery: {what}"
        if any(sorted(units) != sorted(held[0]) for units in held):
            return f"after recovery: torn, the topics hold {held}"
        if sorted(held[0]) != list(range(len(held[0]))):
            return f"after recovery: input was skipped, the topics hold {held[0]}"
        if self.grouped and self._position(clean) != len(held[0]):
            return f"after recovery: position {self._position(clean)}, the topics hold {held[0]}"
        return None

    def stuck(self, state: State) -> str | None:
        return None
