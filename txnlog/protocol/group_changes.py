"""Changes of a group's row by operators and by housekeeping.

A group's generation never decreases, not even when the group is deleted: a query or consumer with
an old generation must never pass for a member of a later one (D35).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from txnlog.errors import NonEmptyGroupError
from txnlog.protocol.decoding import INT64_MAX
from txnlog.protocol.group_metadata import CommittedOffset, Group, GroupTickets, read_tickets
from txnlog.protocol.groups import OffsetsCommit, check_member, without
from txnlog.protocol.membership import GroupObservation

GENERATION_UNKNOWN = 1 << 30
TICKET_UNKNOWN = 1 << 30

Offsets = dict[str, dict[int, CommittedOffset]]


def is_gone(group: Group) -> bool:
    """Whether the group is deleted: only its generation, and its newest ticket, are left."""
    return not (group.offsets or group.members or group.tickets.holders)


def offsets_without(group: Group, partitions: Mapping[str, Collection[int]]) -> Offsets:
    """The committed offsets of all other partitions."""
    offsets = {
        topic: {
            number: offset
            for number, offset in positions.items()
            if number not in partitions.get(topic, ())
        }
        for topic, positions in group.offsets.items()
    }
    return {topic: positions for topic, positions in offsets.items() if positions}


def prepare_delete_offsets(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    done: Collection[int],
    partitions: Mapping[str, Collection[int]],
    now_ms: int,
) -> OffsetsCommit:
    """Delete committed offsets under the generation that the operator began, after all are fenced.

    `done` are their tickets. Raises IllegalGenerationError if another one has begun since.
    """
    found = check_member(group, group_id=group_id, generation=generation, member_id="")
    row = replace(
        found,
        offsets=offsets_without(found, partitions),
        tickets=without(found.tickets, done),
        updated_ms=now_ms,
    )
    return OffsetsCommit(operation="DELETE CONSUMER GROUP OFFSETS", groups=(row,))


def check_empty(group: Group) -> None:
    """Raises NonEmptyGroupError for a group with members."""
    if group.members:
        raise NonEmptyGroupError(
            f"Group {group.group_id!r} has members: {', '.join(sorted(group.members))}. Stop them; "
            "`txnlog housekeeping` expels dead members after session.timeout.ms.",
            group_id=group.group_id,
        )


def prepare_delete_group(
    group: Group | None, *, group_id: str, generation: int, done: Collection[int], now_ms: int
) -> OffsetsCommit:
    """Delete everything but the generation, which the operator began, and the newest ticket.

    Raises NonEmptyGroupError, and IllegalGenerationError if another generation has begun since.
    """
    found = check_member(group, group_id=group_id, generation=generation, member_id="")
    check_empty(found)
    row = replace(found, offsets={}, assignment={}, tickets=without(found.tickets, done))
    put = replace(row, updated_ms=now_ms)
    return OffsetsCommit(operation="DELETE CONSUMER GROUP", groups=(put,))


def prepare_give_up_group(
    group_id: str, values: Mapping[str, str], *, path: str, now_ms: int
) -> OffsetsCommit:
    """Replace an unreadable row by that of a deleted group; `values` are the row's raw columns.

    What can be read of it stays: the generation, and the tickets, whose holders are fenced next. If
    the generation is unreadable, the new one is higher than any group has reached; so is the newest
    ticket, and then its holders are unknown, and not fenced.
    """
    text = values.get("generation", "")
    generation = int(text) if text.isascii() and text.isdigit() else GENERATION_UNKNOWN
    row = Group(
        group_id=group_id,
        generation=min(generation, INT64_MAX - 1) + 1,
        tickets=read_tickets(values) or GroupTickets(newest=TICKET_UNKNOWN),
        updated_ms=now_ms,
        path=path,
    )
    return OffsetsCommit(operation="DELETE CONSUMER GROUP", groups=(row,))


def prepare_expel_all(
    group: Group | None, observation: GroupObservation, *, now_ms: int
) -> OffsetsCommit | None:
    """Expel all members if all have expired; a member that is alive expels the others itself."""
    if group is None or not group.members:
        return None
    if observation.expired_members(group) != set(group.members):
        return None
    row = replace(
        group, members={}, assignment={}, generation=group.generation + 1, updated_ms=now_ms
    )
    return OffsetsCommit(operation="EXPEL MEMBERS", groups=(row,))
