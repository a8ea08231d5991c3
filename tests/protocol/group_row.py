"""A group's row under compare-and-swap, and tickets, for tests of decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from txnlog.protocol.group_metadata import Group, Member, TicketHolder
from txnlog.protocol.groups import OffsetsCommit, prepare_generation, prepare_offset_commit
from txnlog.protocol.membership import (
    GroupObservation,
    prepare_heartbeat,
    prepare_join,
    prepare_leave,
)
from txnlog.protocol.metadata import GroupTicket

COUNTS = {"t": 3, "u": 2}
SESSION_MS = 1_000
REBALANCE_MS = 3_000


def a_ticket(group_id: str = "g", number: int = 3, offset: int = 5, **more: Any) -> GroupTicket:
    """Offsets of a transaction of producer id 7."""
    given = {"producer_id": 7, "generation": 1, "offsets": {"in": {0: offset}}, **more}
    return GroupTicket(group_id=group_id, ticket=number, **given)


def a_holder(number: int = 3, partitions: tuple[int, ...] = (0,), **more: Any) -> TicketHolder:
    """A run of the id "id", under producer id 7."""
    given = {"transactional_id": "id", "producer_id": 7, "run_id": "run", "generation": 1, **more}
    return TicketHolder(ticket=number, partitions={"in": partitions}, **given)


def a_member(*topics: str, assignors: tuple[str, ...] = ("sticky",)) -> Member:
    return Member(
        topics=topics or ("t",),
        assignors=assignors,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=REBALANCE_MS,
    )


@dataclass
class Row:
    """The group's row under compare-and-swap: every decision is made on the newest version."""

    group: Group | None = None
    version: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict(COUNTS))

    def write(self, decision: OffsetsCommit | None) -> bool:
        if decision is None:
            return False
        self.version += 1
        self.group = decision.groups[0]
        return True

    @property
    def now(self) -> Group:
        assert self.group is not None
        return self.group

    def join(
        self,
        member_id: str,
        released: int = -1,
        member: Member | None = None,
        *,
        now_ms: int = 0,
    ) -> bool:
        decision = prepare_join(
            self.group,
            group_id="g",
            member_id=member_id,
            member=member or a_member(),
            released=released,
            counts=self.counts,
            now_ms=now_ms,
        )
        return self.write(decision)

    def leave(self, member_id: str) -> bool:
        decision = prepare_leave(self.group, member_id=member_id, counts=self.counts, now_ms=0)
        return self.write(decision)

    def beat(
        self,
        member_id: str,
        observation: GroupObservation,
        *,
        beat: bool = True,
        now_ms: int = 0,
    ) -> bool:
        decision = prepare_heartbeat(
            self.group,
            group_id="g",
            member_id=member_id,
            beat=beat,
            observation=observation,
            counts=self.counts,
            now_ms=now_ms,
        )
        return self.write(decision)

    def bump(self) -> None:
        self.write(prepare_generation(self.group, group_id="g", now_ms=0))

    def commit(
        self,
        member_id: str,
        generation: int,
        topic: str,
        number: int,
        at: int,
        *,
        now_ms: int = 0,
    ) -> None:
        decision = prepare_offset_commit(
            self.group,
            group_id="g",
            generation=generation,
            member_id=member_id,
            offsets={topic: {number: at}},
            metadata={},
            version=self.version + 1,
            now_ms=now_ms,
        )
        self.write(decision)


def partitions_of(group: Group, member_id: str) -> set[tuple[str, int]]:
    topics = group.assignment.get(member_id, {})
    return {(topic, number) for topic, numbers in topics.items() for number in numbers}
