"""Eager and two-phase transactions with group offsets, as a producer client drives them.

P is a producer; Q its successor under the same transactional.id, or another producer of the same
group; S a sweeper that times P's or Q's transaction out and reads the decided rows once, which
may be out of date when it acts; L another process that finishes what it saw once. A
producer reads input offset u of its group, writes it to every topic, and commits both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.recovery import DEAD, Pc, Recovery
from tests.model.values import (
    Stored,
    Wrote,
    broken_history,
    revived_entry,
    staged,
    undecided,
    visible_units,
)
from tests.model.world import World
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Holder, Manifest, Owner, TopicPartitions
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import prepare_add_partitions, prepare_end, prepare_init

GROUP = "g"
INPUT = "in"
APPEND_BEFORE_ADD = "data is written before the row names its partitions"

Step = tuple[str, Stored, Pc]


class State(NamedTuple):
    """Everything there is."""

    stored: Stored
    places: tuple[Pc, ...]


class Eager:
    """The model; `actors` is a string of the letters P, Q, S, L.

    `two_phase`: P stages, prepares its transaction (KIP-939) and then commits; it is never killed
    by its own choice, so once prepared no process may abort it. `units`: inputs there are.
    """

    def __init__(
        self,
        actors: str = "PQS",
        *,
        units: int = 1,
        same_id: bool = False,
        two_phase: bool = False,
        lost_replies: bool = False,
        named_groups: bool = True,
        topics: tuple[str, ...] = ("x", "y"),
        broken: frozenset[str] = frozenset(),
    ) -> None:
        ids = ("id0",) if same_id else ("id0", "id1")
        self.actors = actors
        self.units = units
        self.which = {"P": 0, "Q": len(ids) - 1}
        self.two_phase = two_phase
        self.lost_replies = lost_replies
        self.named_groups = named_groups
        self.broken = broken
        self.world = World(ids, topics, broken)
        self.recovery = Recovery(self.world, GROUP)
        self._judged: dict[Stored, str | None] = {}
        self._histories: dict[tuple[int, int], str | None] = {}

    # -- what may happen ---------------------------------------------------------------------------

    def initial(self) -> State:
        places = tuple(("init",) if name in "PQ" else ("look",) for name in self.actors)
        return State(self.world.empty(), places)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, actor in enumerate(self.actors):
            pc = state.places[number]
            for label, stored, after in self._step(state.stored, actor, pc):
                places = (*state.places[:number], after, *state.places[number + 1 :])
                yield f"{actor} {label}", State(stored, places)
                # A generation that is bumped again and again makes the space infinite.
                if self.lost_replies and stored != state.stored and pc[0] != "bump":
                    yield f"{actor} {label} (reply lost)", State(stored, state.places)

    def _step(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        if pc[0] in Recovery.NAMES:
            yield from self.recovery.steps(stored, pc)
        elif pc[0] == "look":
            yield from self._sweep(stored, actor)
        elif pc[0] == "time out":
            wrote = self.world.time_out(stored, pc[1], pc[3], pc[2])
            met = self.recovery.meet_prepared(wrote.stored, pc[1], DEAD)
            yield f"times out e{pc[2]}", wrote.stored, met or DEAD
        elif pc[0] in ("init", "bump", "fetch"):
            yield from self._start(stored, actor, pc)
        elif pc[0] != "dead":
            yield from self._transact(stored, actor, pc)

    def _sweep(self, stored: Stored, actor: str) -> Iterator[Step]:
        for which in range(len(self.world.ids)):
            met = self.recovery.meet_prepared(stored, which, DEAD)
            if met is not None:
                yield "reads a decided row", stored, met
            row = self.world.row(stored, which)
            if actor == "S" and row is not None and row.state is TransactionState.ONGOING:
                yield (
                    "reads an Ongoing row",
                    stored,
                    ("time out", which, row.txn_epoch, row.producer_id),
                )

    def _start(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        which = self.which[actor]
        if pc[0] == "init":
            met = self.recovery.meet_prepared(stored, which, pc)
            if met is not None:
                yield "meets a decided row", stored, met
                return
            row = self.world.row(stored, which)
            kept = row is not None and row.pending.prepared_by_client
            if kept and self.two_phase and row is not None and row.owner.run_id != actor:
                return
            wrote = self._init(stored, actor)
            row = self.world.row(wrote.stored, which)
            after: Pc = pc
            if wrote.error:
                after = DEAD
            elif row is not None and row.state.is_idle:
                after = ("bump", row.producer_id, row.producer_epoch)
            yield f"inits: {wrote.error or after[0]}", wrote.stored, after
        elif pc[0] == "bump":
            wrote = self.world.bump_generation(stored, GROUP)
            group = self.world.group(wrote.stored, GROUP)
            assert group is not None
            number = group.generation
            yield f"bumps the generation to {number}", wrote.stored, ("fetch", *pc[1:], number)
        else:
            wrote = self.world.fetch(stored, GROUP, pc[3])
            unit = self._position(stored)
            for entry in wrote.entries:
                name = self.recovery.describe(entry)
                yield f"meets the entry {name}", stored, ("settle", entry, pc)
            if not wrote.entries:
                go_on = not wrote.error and unit < self.units
                after = (self._order(actor)[0], *pc[1:], unit) if go_on else DEAD
                yield f"fetches: {wrote.error or unit}", stored, after

    def _transact(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        which = self.which[actor]
        name, producer_id, epoch, generation, unit = pc
        rest = pc[1:]
        order = self._order(actor)
        following = order[order.index(name) + 1] if name != order[-1] else ""
        if name == "begin":
            wrote = self._add(stored, actor, producer_id, epoch, None)
        elif name == "step 0":
            request = GroupOffsets(
                group_id=GROUP,
                generation=generation,
                start={INPUT: {0: unit}},
                end={INPUT: {0: unit + 1}},
            )
            wrote = self.world.add_pending(stored, which, producer_id, epoch, request)
            for entry in wrote.entries:
                label = f"step 0 meets {self.recovery.describe(entry)}"
                yield label, stored, ("settle", entry, pc)
            if wrote.entries:
                return
        elif name == "prepare transaction":
            wrote = self._add(stored, actor, producer_id, epoch, self._manifest(actor, unit))
        elif name == "end":
            yield from self._end(stored, actor, pc)
            return
        else:
            topic = name.removeprefix("append ")
            wrote = self.world.append(
                stored,
                self.world.topic_names.index(topic),
                producer_id,
                epoch,
                staged(topic, unit, f"{actor}{epoch}"),
            )
        after = (following, *rest)
        if wrote.error:
            # A fenced or failed client stops, or aborts what it can.
            after = ("end", *rest) if name.startswith("append") else DEAD
        yield f"{name} e{epoch}{': ' * bool(wrote.error)}{wrote.error}", wrote.stored, after

    def _order(self, actor: str) -> list[str]:
        if self.two_phase and actor == "P":
            return ["step 0", "prepare transaction", "end"]
        appends = [f"append {topic}" for topic in self.world.topic_names]
        if APPEND_BEFORE_ADD in self.broken:
            return [appends[0], "begin", *appends[1:], "step 0", "end"]
        return ["begin", *appends, "step 0", "end"]

    def _init(self, stored: Stored, actor: str) -> Wrote:
        which = self.which[actor]
        return self.world.transition(
            stored,
            which,
            ("init", actor),
            lambda row: prepare_init(
                row,
                transactional_id=self.world.ids[which],
                new_producer_id=10 + which,
                owner=Owner(run_id=actor),
                timeout_ms=1,
                now_ms=0,
            ),
        )

    def _manifest(self, actor: str, unit: int) -> Manifest:
        files = tuple(staged(topic, unit, actor) for topic in self.world.topic_names)
        return Manifest(batches=files, groups=(GROUP,))

    def _add(
        self, stored: Stored, actor: str, producer_id: int, epoch: int, manifest: Manifest | None
    ) -> Wrote:
        which = self.which[actor]
        named = () if manifest is not None else self.world.topic_names
        touched = tuple(
            TopicPartitions(topic=topic, topic_id=f"{topic}-id", partitions=(0,)) for topic in named
        )
        return self.world.transition(
            stored,
            which,
            ("add", actor, epoch, repr(manifest)),
            lambda row: prepare_add_partitions(
                row,
                holder=Holder(
                    transactional_id=self.world.ids[which],
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    run_id=actor,
                ),
                partitions=touched,
                groups=(GROUP,) if self.named_groups else (),
                manifest=manifest,
                now_ms=0,
            ),
        )

    def _end(self, stored: Stored, actor: str, pc: Pc) -> Iterator[Step]:
        """Commit, or abort by choice; the next unit follows under the epoch that comes back."""
        which = self.which[actor]
        _, producer_id, epoch, generation, unit = pc
        promised = self.two_phase and actor == "P"
        for result in (TransactionResult.COMMIT, TransactionResult.ABORT):
            if promised and result is TransactionResult.ABORT:
                continue
            if result is TransactionResult.COMMIT and not self._complete(stored, actor, epoch):
                continue
            wrote = self._prepare(stored, actor, pc, result)
            following: Pc = ("fetch", producer_id, epoch + 1, generation)
            if unit + 1 >= self.units:
                following = DEAD
            met = self.recovery.meet_prepared(wrote.stored, which, following)
            if promised and wrote.error:
                met = ("promise broken",)
            after = DEAD if wrote.error and not promised else met or following
            label = f"PREPARE {result.name} e{epoch}{': ' * bool(wrote.error)}{wrote.error}"
            yield label, wrote.stored, after

    def _complete(self, stored: Stored, actor: str, epoch: int) -> bool:
        """A client commits only when all of its sends were acknowledged (R40)."""
        if self.two_phase and actor == "P":
            return True
        mark = f"-{actor}{epoch}"
        states = [self.world.topics[number] for number in stored.topics]
        return all(any(path.endswith(mark) for path in state.by_path) for state in states)

    def _prepare(self, stored: Stored, actor: str, pc: Pc, result: TransactionResult) -> Wrote:
        which = self.which[actor]
        _, producer_id, epoch, _, _ = pc
        manifest = None
        if result is TransactionResult.COMMIT:
            manifest = Manifest(groups=(GROUP,))
        return self.world.transition(
            stored,
            which,
            ("end", actor, epoch, result),
            lambda row: prepare_end(
                row,
                holder=Holder(
                    transactional_id=self.world.ids[which],
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    run_id=actor,
                ),
                result=result,
                manifest=manifest,
                now_ms=0,
            ),
        )

    def _position(self, stored: Stored) -> int:
        group = self.world.group(stored, GROUP)
        return 0 if group is None else group.positions().get(INPUT, {}).get(0, 0)

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        if any(pc[0] == "promise broken" for pc in after.places):
            return "a prepared two-phase transaction was ended by another process"
        for pair in zip(before.stored.topics, after.stored.topics, strict=True):
            if pair not in self._histories:
                old, new = (self.world.topics[number] for number in pair)
                self._histories[pair] = broken_history(old, new)
            if self._histories[pair] is not None:
                return self._histories[pair]
        if self._position(after.stored) < self._position(before.stored):
            return "the group's position goes back"
        if after.stored not in self._judged:
            self._judged[after.stored] = self._judge(after.stored)
        return self._judged[after.stored]

    def _judge(self, stored: Stored) -> str | None:
        what = revived_entry(self.world.offsets[stored.offsets])
        if what is not None:
            return what
        clean = self.recovery.recovered(stored)
        states = [self.world.topics[number] for number in clean.topics]
        held = [sorted(visible_units(state)) for state in states]
        if any(len(set(units)) < len(units) for units in held):
            return f"after recovery: output is there twice: {held}"
        if any(units != held[0] for units in held):
            return f"after recovery: torn, the topics hold {held}"
        if self._position(clean) != len(held[0]):
            return f"after recovery: position {self._position(clean)}, the topics hold {held[0]}"
        shards_swept = self.recovery.recovered(stored, entries=False)
        group = self.world.group(shards_swept, GROUP)
        if group is not None and group.pending and self.named_groups and not self.two_phase:
            return "after the end of its transaction an entry is still there"
        for state in states:
            if undecided(state):
                return f"after recovery: {undecided(state)} are undecided for ever"
        return None

    def stuck(self, state: State) -> str | None:
        return None
