"""Members join, leave, die and wake up in any order, each with its own clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.protocol.group_row import Row, a_member, partitions_of
from txnlog.errors import IllegalGenerationError, UnknownMemberIdError
from txnlog.protocol.cooperation import is_member_of
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.membership import (
    GroupObservation,
    MembershipStatus,
    is_assignment_outdated,
    is_rebalancing,
    membership_status,
)


@dataclass
class Actor:
    """A consumer: its assignment, and the last row of its heartbeat thread."""

    name: str
    clock_ms: int
    rate: float
    released: int = -1
    held: int = -1
    wants: bool = False
    dead: bool = False
    seen: Group | None = None
    observation: GroupObservation = field(default_factory=GroupObservation)
    life: int = 0

    @property
    def member_id(self) -> str:
        return f"{self.name}{self.life}"


class MembershipMachine(RuleBasedStateMachine):
    """Members join, leave, die and wake up in any order; reads and writes are separate steps."""

    actors: list[Actor]

    @initialize(
        offsets=st.lists(st.integers(0, 10**9), min_size=3, max_size=3),
        rates=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=3, max_size=3),
    )
    def begin(self, offsets: list[int], rates: list[float]) -> None:
        self.row = Row()
        self.actors = [
            Actor(name, offset, rate)
            for name, offset, rate in zip("abc", offsets, rates, strict=True)
        ]
        self.owners: dict[tuple[int, str, int], str] = {}
        self.generation = 0
        self.position = 0
        self.calm_down()

    @rule()
    def calm_down(self) -> None:
        """All live members observe, send heartbeats and poll until they have assignments."""
        for _ in range(3):
            for number, actor in enumerate(self.actors):
                self.look(number)
                self.beat(number)
                self.poll(actor)

    @rule(who=st.integers(0, 2))
    def step(self, who: int) -> None:
        """One poll."""
        self.poll(self.actors[who])

    def poll(self, actor: Actor) -> None:
        if actor.dead:
            return
        actor.wants = True
        if actor.held >= 0:
            if membership_status(actor.seen, member_id=actor.member_id, generation=actor.held) is (
                MembershipStatus.STABLE
            ):
                return
            actor.released, actor.held = actor.held, -1
        group = self.row.group
        if not is_member_of(group, actor.member_id, after=actor.released):
            self.row.join(actor.member_id, actor.released, a_member("t", "u"))
            group = self.row.group
        if is_member_of(group, actor.member_id, after=actor.released):
            actor.held = self.row.now.generation

    @rule(who=st.integers(0, 2))
    def look(self, who: int) -> None:
        """The read of a heartbeat; its write may come much later."""
        actor = self.actors[who]
        if not actor.dead and actor.wants and self.row.group is not None:
            actor.seen = self.row.group
            actor.observation = actor.observation.observe(self.row.now, now_ms=actor.clock_ms)

    @rule(who=st.integers(0, 2))
    def beat(self, who: int) -> None:
        actor = self.actors[who]
        if actor.dead or not actor.wants:
            return
        try:
            self.row.beat(actor.member_id, actor.observation)
        except UnknownMemberIdError:
            assert self.row.group is None or actor.member_id not in self.row.now.members

    @rule(who=st.integers(0, 2))
    def leave(self, who: int) -> None:
        actor = self.actors[who]
        if not actor.dead and actor.wants:
            self.row.leave(actor.member_id)
            actor.wants, actor.held, actor.released = False, -1, -1
            actor.life += 1

    @rule(who=st.integers(0, 2))
    def die(self, who: int) -> None:
        """It may wake up, and then acts on its old assignment."""
        self.actors[who].dead = not self.actors[who].dead

    @rule(duration_ms=st.sampled_from([100, 400, 900, 3_000]))
    def wait(self, duration_ms: int) -> None:
        for actor in self.actors:
            actor.clock_ms += int(duration_ms * actor.rate)

    @rule()
    def bump(self) -> None:
        self.row.bump()

    @precondition(lambda self: self.row.group is not None)
    @rule(who=st.integers(0, 2), number=st.integers(0, 2))
    def commit(self, who: int, number: int) -> None:
        """Dead members commit, too: a zombie does not know that it is one."""
        actor = self.actors[who]
        if actor.held < 0:
            return
        mine = self.owned(actor)
        self.position += 1
        group = self.row.now
        fresh = actor.held == group.generation and actor.member_id in group.members
        try:
            self.row.commit(actor.member_id, actor.held, "t", number, self.position)
        except (IllegalGenerationError, UnknownMemberIdError):
            assert not fresh
            return
        assert fresh
        if ("t", number) in mine:
            key = (actor.held, "t", number)
            assert self.owners.setdefault(key, actor.member_id) == actor.member_id

    def owned(self, actor: Actor) -> set[tuple[str, int]]:
        group = self.row.now
        return partitions_of(group, actor.member_id) if group.generation == actor.held else set()

    @invariant()
    def one_owner(self) -> None:
        group = self.row.group if hasattr(self, "row") else None
        if group is None:
            return
        assert group.generation >= self.generation
        self.generation = group.generation
        held = [p for member in group.assignment for p in partitions_of(group, member)]
        assert len(held) == len(set(held))
        holders = [a for a in self.actors if a.held == group.generation]
        read = [p for a in holders for p in partitions_of(group, a.member_id)]
        assert len(read) == len(set(read))

    def teardown(self) -> None:
        """At the end exactly the live members have assignments."""
        if not hasattr(self, "row") or self.row.group is None:
            return
        alive = [a for a in self.actors if not a.dead and a.wants]
        for _ in range(60):
            for actor in alive:
                actor.clock_ms += int(300 * actor.rate)
                self.look(self.actors.index(actor))
                self.beat(self.actors.index(actor))
                self.poll(actor)
        if not alive:
            return
        group = self.row.now
        assert set(group.members) == {a.member_id for a in alive}
        assert not is_rebalancing(group)
        assert not is_assignment_outdated(group, self.row.counts)
        assert {a.held for a in alive} == {group.generation}
        sizes = [len(partitions_of(group, a.member_id)) for a in alive]
        assert max(sizes) - min(sizes) <= 1


TestMembership: Any = MembershipMachine.TestCase
