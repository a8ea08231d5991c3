"""Cooperative members of one group that join, hand over partitions, stall, and are expelled.

A, B and C join, follow their group, revoke, leave and come back, each step being one read or one
write; R restarts A with its instance id while A lives on; S is no member and begins a generation.
An expulsion may come at any moment, also of a member that is well; a member that makes no more
steps is dead. The members' own decisions are those of txnlog.protocol.cooperation.

Judged: whatever members believe, a partition that one of them reads and may commit is one that no
other may commit, and who is asked to revoke one may commit it until then. What a member has sent
before it lost its partitions is refused: it reads them again. From every state, whoever has died,
the living come to rest with each partition held by exactly one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from msgspec.structs import replace

from tests.model.search import Pool
from txnlog.errors import TxnLogError
from txnlog.protocol.assignors import assign_sticky
from txnlog.protocol.cooperation import (
    COOPERATIVE,
    Key,
    hand_over,
    is_member_of,
    keeps_partitions,
)
from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.groups import OffsetsCommit, check_member, prepare_generation
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_assignment_outdated,
    is_fenced,
    is_rebalancing,
    membership_status,
    prepare_heartbeat,
    prepare_join,
    prepare_leave,
)
from txnlog.protocol.watching import Watch

GROUP = "g"
TOPIC = "in"
NOTHING = -1

MOVES_AT_ONCE = "a partition that moves is assigned to its new owner in the same generation"
JOINS_BLINDLY = "a member rejoins without a look at what it still has"
KEEPS_AFTER_A_GAP = "a member keeps its partitions whatever generations it has missed"
LATE_IN_ANY_GENERATION = "a member may be late by one generation, whoever began that one"
REJOINS_FIRST = "a member rejoins before it has revoked"
NEVER_REJOINS = "a member that has revoked does not rejoin"
COMMITS_WHAT_IT_REVOKED = "a commit asks for the generation only, not for the partition"
KEEPS_ITS_ID = "a member that has lost its partitions joins again as the same member"
SUCCESSOR_FORGETS = "a restarted instance does not know what the former one was revoking"

ROUNDS_MAX = 40


class Life(NamedTuple):
    """One member: `joins` and `leaves` are what is left of its budget.

    `generation` is that of what it holds, NOTHING without one; `released` all up to this one are
    given up. `held`: the partitions that it reads. `losses` is how often it has lost them, and
    become another member; `lost` is the generation and the partitions of the last time.
    """

    place: str
    joins: int
    leaves: int
    generation: int = NOTHING
    released: int = NOTHING
    held: tuple[Key, ...] = ()
    losses: int = 0
    lost: tuple[int, tuple[Key, ...]] = (NOTHING, ())


class State(NamedTuple):
    """The group's row by number, the members, and what is left of outsiders' budgets.

    `begun`: the generation that S began; it reads everything.
    """

    row: int
    lives: tuple[Life, ...]
    expulsions: int
    starts: int
    begun: int = NOTHING


Step = tuple[str, int, Life]


class Cooperative:
    """The model; `actors` are letters of A, B, C, R, S."""

    def __init__(
        self,
        actors: str = "AB",
        *,
        partitions: int = 2,
        joins: int = 4,
        leaves: int = 0,
        expulsions: int = 1,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.names = tuple(name for name in actors if name != "S")
        self.counts = {TOPIC: partitions}
        self.joins, self.leaves, self.expulsions = joins, leaves, expulsions
        self.starts = int("S" in actors)
        self.has_instances = "R" in actors
        self.broken = broken
        self.rows: Pool[Group | None] = Pool(_key)
        self._known: dict[tuple[int, int, Life], list[Step]] = {}
        self._rests: dict[tuple[int, tuple[Life, ...], frozenset[int]], str | None] = {}

    def initial(self) -> State:
        lives = tuple(Life("out", self.joins, self.leaves) for _ in self.names)
        return State(self.rows.put(None), lives, self.expulsions, self.starts)

    # -- what may happen ---------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for number, life in enumerate(state.lives):
            for label, row, after in self._moves(state.row, number, life):
                lives = (*state.lives[:number], after, *state.lives[number + 1 :])
                yield label, state._replace(row=row, lives=lives)
        group = self.rows[state.row]
        if state.starts:
            begun = self._write(prepare_generation(group, group_id=GROUP, now_ms=0), state.row)
            after = self.rows[begun]
            assert after is not None
            yield (
                "S begins a generation",
                state._replace(row=begun, starts=0, begun=after.generation),
            )
        if state.expulsions and group is not None:
            for name in sorted(group.members):
                row = self._expelled(state.row, name)
                if row != state.row:
                    left = state.expulsions - 1
                    yield f"{name} is expelled", state._replace(row=row, expulsions=left)

    def _id(self, name: str, losses: int) -> str:
        return f"{name}{losses}" if losses > 0 and KEEPS_ITS_ID not in self.broken else name

    def _moves(self, row: int, number: int, life: Life) -> list[Step]:
        """What one member may do, whatever the others are about to do."""
        key = (row, number, life)
        if key not in self._known:
            self._known[key] = list(self._member(*key))
        return self._known[key]

    def _member(self, row: int, number: int, life: Life) -> Iterator[Step]:
        name, group = self.names[number], self.rows[row]
        if self._is_fenced(group, name, life):
            yield f"{name} is fenced", row, Life("fenced", 0, 0)
        elif life.place in ("out", "ask"):
            is_blind = JOINS_BLINDLY in self.broken
            if not is_blind and group is not None and self._has_lost(group, name, life):
                yield f"{name} has lost its partitions", row, _lost(life)
            elif life.joins > 0:
                spent = life._replace(place="wait", joins=life.joins - 1)
                yield f"{name} joins", self._joined(row, name, life), spent
        elif life.place == "wait":
            yield from self._wait(row, name, life)
        elif life.place == "revoke":
            yield from self._revoke(row, name, life)
        elif life.place == "read":
            mine = self._id(name, life.losses)
            status = membership_status(group, member_id=mine, generation=life.generation)
            if status is MembershipStatus.LOST:
                yield f"{name} has lost its partitions", row, _lost(life)
            elif status is MembershipStatus.REBALANCING:
                yield f"{name} sees a rebalance", row, _asks(life)
            elif self._is_asked_again(group, life):
                yield f"{name} sees partitions without an owner", row, _asks(life)
            if life.leaves > 0:
                out = Life("out", life.joins, life.leaves - 1, losses=life.losses)
                yield f"{name} leaves", self._left(row, mine), out

    def _is_asked_again(self, group: Group | None, life: Life) -> bool:
        """What the heartbeat thread looks for; it is slow, so other steps come first."""
        if group is None or life.generation != group.generation:
            return False
        return is_assignment_outdated(group, self.counts)

    def _wait(self, row: int, name: str, life: Life) -> Iterator[Step]:
        """One look at the row, as the poll of a member that has asked for an assignment."""
        group = self.rows[row]
        assert group is not None
        if self._has_lost(group, name, life):
            yield f"{name} has lost its partitions", row, _lost(life)
            return
        mine = self._id(name, life.losses)
        if is_member_of(group, mine, after=life.released):
            yield f"{name} gets its part", row, self._given(group, mine, life)
            return
        member = group.members.get(mine)
        if member is None or member.joined != group.generation:
            yield f"{name} is not waited for any more", row, life._replace(place="ask")

    def _has_lost(self, group: Group, name: str, life: Life) -> bool:
        if not life.held or KEEPS_AFTER_A_GAP in self.broken:
            return False
        return not self._keeps(group, name, life)

    def _keeps(self, group: Group | None, name: str, life: Life) -> bool:
        if LATE_IN_ANY_GENERATION in self.broken and group is not None:
            return group.generation <= life.generation + 1
        mine = self._id(name, life.losses)
        return keeps_partitions(group, member_id=mine, generation=life.generation)

    def _is_fenced(self, group: Group | None, name: str, life: Life) -> bool:
        has_joined = life.place not in ("out", "fenced") and life.joins < self.joins
        mine = {self._id(name, max(0, life.losses - before)) for before in (0, 1)}
        instance_id = self._instance_of(name)
        return has_joined and all(
            is_fenced(group, member_id=one, instance_id=instance_id) for one in mine
        )

    def _instance_of(self, name: str) -> str:
        return "a" if self.has_instances and name in "AR" else ""

    def _given(self, group: Group, mine: str, life: Life) -> Life:
        """The member adopts the generation. What it revokes goes first, see _revoke."""
        assigned = group.assignment[mine]
        _revoked, added = hand_over(life.held, assigned)
        held = tuple(sorted({*life.held, *added}))
        given = life._replace(place="read", generation=group.generation, held=held)
        if not group.members[mine].revoking:
            return given
        if REJOINS_FIRST in self.broken:
            return given._replace(place="ask", released=group.generation)
        return given._replace(place="revoke")

    def _revoke(self, row: int, name: str, life: Life) -> Iterator[Step]:
        group = self.rows[row]
        assert group is not None
        if self._has_lost(group, name, life):
            yield f"{name} has lost its partitions", row, _lost(life)
            return
        mine = self._id(name, life.losses)
        assigned = group.assignment.get(mine, {}) if group.generation == life.generation else {}
        kept = tuple(key for key in life.held if key[1] in assigned.get(key[0], ()))
        left = life._replace(held=kept)
        if NEVER_REJOINS in self.broken:
            yield f"{name} revokes", row, left._replace(place="read")
        else:
            yield f"{name} revokes", row, _asks(left)

    # -- writes ------------------------------------------------------------------------------------

    def _joined(self, row: int, name: str, life: Life) -> int:
        group, mine = self.rows[row], self._id(name, life.losses)
        member = Member(
            topics=(TOPIC,),
            assignors=(COOPERATIVE,),
            session_timeout_ms=1,
            instance_id=self._instance_of(name),
        )
        decision = prepare_join(
            group,
            group_id=GROUP,
            member_id=mine,
            member=member,
            released=life.released,
            counts=self.counts,
            now_ms=0,
            former="" if mine == name else self._id(name, life.losses - 1),
        )
        if SUCCESSOR_FORGETS in self.broken and decision is not None and name == "R":
            put = decision.groups[0]
            members = {**put.members, mine: replace(put.members[mine], revoking={})}
            decision = OffsetsCommit(operation="", groups=(replace(put, members=members),))
        return self._write(decision, row)

    def _left(self, row: int, mine: str) -> int:
        group = self.rows[row]
        return self._write(prepare_leave(group, member_id=mine, counts=self.counts, now_ms=0), row)

    def _expelled(self, row: int, name: str) -> int:
        """Another member expels it; the last one is expelled by the housekeeping."""
        group = self.rows[row]
        assert group is not None
        others = sorted(set(group.members) - {name})
        if not others:
            return self._left(row, name)
        seen = {name: (group.members[name].heartbeat, Watch(0, watched_ms=1))}
        decision = prepare_heartbeat(
            group,
            group_id=GROUP,
            member_id=others[0],
            beat=False,
            observation=GroupObservation(heartbeats=seen),
            counts=self.counts,
            now_ms=0,
        )
        return self._write(decision, row)

    def _write(self, decision: OffsetsCommit | None, row: int) -> int:
        before = self.rows[row]
        if decision is None:
            return row
        put = decision.groups[0]
        begins = before is not None and before.generation != put.generation and put.assignment
        if MOVES_AT_ONCE in self.broken and before is not None and begins:
            topics = {name: one.topics for name, one in put.members.items()}
            found = assign_sticky(topics, self.counts, before.assignment)
            put = replace(put, assignment={name: dict(one) for name, one in found.items()})
        return self.rows.put(put)

    # -- what must hold ----------------------------------------------------------------------------

    def unsafe(self, before: State, after: State) -> str | None:
        group = self.rows[after.row]
        for number, life in enumerate(after.lives):
            for key in life.held:
                if not self._may_commit(group, number, life, key):
                    continue
                others = [
                    self.names[other]
                    for other, its in enumerate(after.lives)
                    if other != number and self._may_commit(group, other, its, key)
                ]
                if group is not None and after.begun == group.generation:
                    others.append("S")
                if others:
                    names = " and ".join(sorted((self.names[number], others[0])))
                    return f"{names} may both commit partition {key[1]}"
            generation, keys = life.lost
            former = life._replace(generation=generation, losses=life.losses - 1)
            for key in keys:
                if self._may_commit(group, number, former, key):
                    return f"{self.names[number]} may commit what it read before it lost {key[1]}"
            if life.place == "revoke" and self._is_followed(group, number, life):
                for key in life.held:
                    if not self._may_commit(group, number, life, key):
                        return f"{self.names[number]} may not commit what it revokes"
        dead = (frozenset(some) for n in range(len(after.lives)) for some in self._some(n))
        return next((what for one in dead if (what := self._unrest(after, one))), None)

    def _some(self, count: int) -> Iterable[tuple[int, ...]]:
        return combinations(range(len(self.names)), count)

    def _is_followed(self, group: Group | None, number: int, life: Life) -> bool:
        """Whether the member is one, and as its group is."""
        name = self.names[number]
        is_member = group is not None and self._id(name, life.losses) in group.members
        return is_member and self._keeps(group, name, life)

    def _may_commit(self, group: Group | None, number: int, life: Life, key: Key) -> bool:
        """Whether a commit of this partition would be accepted, read or not."""
        if life.generation == NOTHING:
            return False
        generation = life.generation
        if LATE_IN_ANY_GENERATION in self.broken and group is not None:
            generation = max(generation, min(generation + 1, group.generation))
        partitions = {} if COMMITS_WHAT_IT_REVOKED in self.broken else {key[0]: (key[1],)}
        try:
            check_member(
                group,
                group_id=GROUP,
                generation=generation,
                member_id=self._id(self.names[number], life.losses),
                partitions=partitions,
            )
        except TxnLogError:
            return False
        return True

    def stuck(self, state: State) -> str | None:
        return None

    # -- everybody alive goes on, and the dead are expelled ----------------------------------------

    def _unrest(self, state: State, dead: frozenset[int]) -> str | None:
        """What is wrong once the living have come to rest; None if nothing."""
        lives = tuple(_rich(life) for life in state.lives)
        key = (state.row, lives, dead)
        if key not in self._rests:
            self._rests[key] = self._rest(state.row, list(lives), dead)
        return self._rests[key]

    def _rest(self, row: int, lives: list[Life], dead: frozenset[int]) -> str | None:
        gone = ("out", "fenced")
        living = [n for n in range(len(lives)) if n not in dead and lives[n].place not in gone]
        if not living:
            return None
        for _ in range(ROUNDS_MAX):
            moved = False
            for number in living:
                if steps := self._moves(row, number, lives[number]):
                    moved = True
                    _label, row, life = steps[0]
                    lives[number] = _rich(life)
            group = self.rows[row]
            for name in sorted(group.members) if group is not None else ():
                if name not in {
                    self._id(self.names[n], lives[n].losses)
                    for n in living
                    if lives[n].place != "fenced"
                }:
                    row, moved = self._expelled(row, name), True
            if not moved:
                left = [lives[n] for n in living if lives[n].place != "fenced"]
                return self._wrong_at_rest(row, left) if left else None
        return "the group never comes to rest"

    def _wrong_at_rest(self, row: int, lives: list[Life]) -> str | None:
        group = self.rows[row]
        current = [one for one in lives if group is not None and one.generation == group.generation]
        held = sorted(key for life in current for key in life.held)
        wanted = [(TOPIC, number) for number in range(self.counts[TOPIC])]
        if group is None or is_rebalancing(group):
            return "the group is at rest in the middle of a rebalance"
        if held != wanted:
            return f"at rest the members hold {held}"
        return None


def _rich(life: Life) -> Life:
    """A member that may go on: it has a budget, and has joined before."""
    return life._replace(joins=1, leaves=0, lost=(NOTHING, ()))


def _asks(life: Life) -> Life:
    return life._replace(place="ask", released=life.generation)


def _lost(life: Life) -> Life:
    """It drops all at once, and asks for another assignment."""
    return life._replace(
        place="ask",
        released=life.generation,
        generation=NOTHING,
        held=(),
        losses=life.losses + 1,
        lost=(life.generation, life.held),
    )


def _key(group: Group | None) -> object:
    """Heartbeats and times decide nothing here."""
    if group is None:
        return None
    members = tuple(
        sorted((name, one.joined, str(one.revoking)) for name, one in group.members.items())
    )
    parts = tuple(sorted((name, str(topics)) for name, topics in group.assignment.items()))
    return group.generation, members, parts
