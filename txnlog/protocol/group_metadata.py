"""The group row: committed offsets, who may commit them in transactions, and the members.

A row is in `__consumer_offsets-<n>`; values are frozen, a decision makes new ones. Mirrors the
state of a classic group in org.apache.kafka.coordinator.group.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txnlog.protocol.decoding import (
    Codec,
    Int64,
    JsonObject,
    PartitionNumber,
    check_columns,
    to_int64,
    unreadable,
)
from txnlog.protocol.metadata import Holder

Positions = Mapping[str, Mapping[int, int]]
Assignment = Mapping[str, Mapping[str, tuple[int, ...]]]


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Next offset to read, under which generation and at which log version it was written."""

    offset: Int64
    generation: Int64
    version: Int64
    metadata: str = ""


class TicketHolder(JsonObject, frozen=True, kw_only=True):
    """One run of a transactional.id that may commit offsets of these partitions, by its ticket.

    `generation` and `member_id` are those under which it registered.
    """

    transactional_id: str
    producer_id: Int64
    run_id: str
    ticket: Int64
    generation: Int64
    member_id: str = ""
    partitions: dict[str, tuple[PartitionNumber, ...]]

    def is_of(self, holder: Holder) -> bool:
        """Whether it stands for this run under this producer id."""
        mine = holder.transactional_id, holder.producer_id, holder.run_id
        return (self.transactional_id, self.producer_id, self.run_id) == mine


class GroupTickets(JsonObject, frozen=True, kw_only=True):
    """Who may commit offsets of the group in transactions, see txnlog.protocol.tickets.

    `newest` is the highest ticket ever given; it survives whatever happens to the group, since
    transactional.ids keep floors for its tickets.
    """

    newest: Int64 = 0
    holders: tuple[TicketHolder, ...] = ()


class Member(JsonObject, frozen=True, kw_only=True):
    """A consumer of the group. It is alive as long as its `heartbeat`, a counter, changes.

    `heartbeat_ms` is when it did, by the store's clock; it is only shown.
    `joined` is the generation whose assignment it has revoked: it waits for the next one. `topics`
    are its subscription, `assignors` the names of its assignors in order of preference. A static
    member (`instance_id`) replaces the former member with that id. `revoking`: what a cooperative
    member no longer has in this generation, and is the owner of until it has rejoined.
    """

    topics: tuple[str, ...]
    heartbeat: Int64 = 0
    heartbeat_ms: Int64 = -1
    joined: Int64 = -1
    assignors: tuple[str, ...] = ("range",)
    session_timeout_ms: Int64 = 45_000
    rebalance_timeout_ms: Int64 = 300_000
    client_id: str = ""
    host: str = ""
    instance_id: str = ""
    revoking: dict[str, tuple[PartitionNumber, ...]] = msgspec.field(default_factory=dict)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `__consumer_offsets-<n>`.

    `assignment` is that of the generation, member id -> topic -> partitions; empty when the
    generation was started by a process that is no member.
    """

    group_id: str
    generation: int = 0
    offsets: dict[str, dict[int, CommittedOffset]] = {}
    tickets: GroupTickets = GroupTickets()
    members: dict[str, Member] = {}
    assignment: dict[str, dict[str, tuple[int, ...]]] = {}
    updated_ms: int = -1
    path: str = ""

    def positions(self) -> dict[str, dict[int, int]]:
        """topic -> partition -> next offset to read."""
        return {
            topic: {partition: known.offset for partition, known in partitions.items()}
            for topic, partitions in self.offsets.items()
        }

    def to_values(self) -> dict[str, str]:
        """The row as Delta partition values."""
        return {
            "group_id": self.group_id,
            "generation": str(self.generation),
            "offsets": _OFFSETS.encode(self.offsets),
            "tickets": _TICKETS.encode(self.tickets),
            "members": _MEMBERS.encode(self.members),
            "assignment": _ASSIGNMENT.encode(self.assignment),
            "updated_ms": str(self.updated_ms),
        }

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, path: str, source: str) -> Group:
        """Parse a row. Raises CorruptLogError naming `source`."""
        try:
            check_columns(values, GROUP_COLUMNS)
            return cls(
                group_id=values["group_id"],
                generation=to_int64(values["generation"]),
                offsets=_OFFSETS.decode(values["offsets"]),
                tickets=_TICKETS.decode(values["tickets"]),
                members=_MEMBERS.decode(values["members"]),
                assignment=_ASSIGNMENT.decode(values["assignment"]),
                updated_ms=to_int64(values["updated_ms"]),
                path=path,
            )
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
            what = f"the row of group {values.get('group_id')!r}"
            raise unreadable(what, error, source=source) from error


def read_tickets(values: Mapping[str, str]) -> GroupTickets | None:
    """The tickets of a row that may be unreadable otherwise; None if they are, too."""
    try:
        return _TICKETS.decode(values["tickets"])
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
        return None


GROUP_COLUMNS: Mapping[str, str] = {
    "group_id": "string",
    "generation": "long",
    "offsets": "string",
    "tickets": "string",
    "members": "string",
    "assignment": "string",
    "updated_ms": "long",
}

_OFFSETS: Codec[dict[str, dict[int, CommittedOffset]]] = Codec(
    dict[str, dict[PartitionNumber, CommittedOffset]]
)
_TICKETS: Codec[GroupTickets] = Codec(GroupTickets)
_MEMBERS: Codec[dict[str, Member]] = Codec(dict[str, Member])
_ASSIGNMENT: Codec[dict[str, dict[str, tuple[int, ...]]]] = Codec(
    dict[str, dict[str, tuple[PartitionNumber, ...]]]
)
