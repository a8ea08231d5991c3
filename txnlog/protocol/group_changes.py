"""Changes of a group's row by operators and by housekeeping.

A group's generation never decreases, not even when the group is deleted: a query or consumer with
an old generation must never pass for a member of a later one (D35).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from txnlog.errors import NonEmptyGroupError
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.groups import OffsetsCommit, UnstableOffsets
from txnlog.protocol.membership import GroupObservation

GENERATION_UNKNOWN = 1 << 30


def is_gone(group: Group) -> bool:
    """Whether the group is deleted: only its generation is left."""
    return not (group.offsets or group.members or group.pending)


def prepare_delete_offsets(
    group: Group | None, *, partitions: Mapping[str, Collection[int]], now_ms: int
) -> OffsetsCommit | UnstableOffsets | None:
    """Delete committed offsets under a new generation; None when there are none."""
    if group is None:
        return None
    if group.pending:
        return UnstableOffsets(group.pending)
    offsets = {
        topic: {
            number: offset
            for number, offset in positions.items()
            if number not in partitions.get(topic, ())
        }
        for topic, positions in group.offsets.items()
    }
    offsets = {topic: positions for topic, positions in offsets.items() if positions}
    if offsets == group.offsets:
        return None
    row = replace(
        group,
        offsets=offsets,
        generation=group.generation + 1,
        assignment={},
        updated_ms=now_ms,
    )
    return OffsetsCommit(operation="DELETE CONSUMER GROUP OFFSETS", groups=(row,))


def prepare_delete_group(
    group: Group | None, *, now_ms: int
) -> OffsetsCommit | UnstableOffsets | None:
    """Delete everything but the generation; None when the group is deleted already.

    Raises NonEmptyGroupError for a group with members.
    """
    if group is None or is_gone(group):
        return None
    if group.members:
        raise NonEmptyGroupError(
            f"Group {group.group_id!r} has members: {', '.join(sorted(group.members))}. Stop them; "
            "`txnlog housekeeping` expels dead members after session.timeout.ms.",
            group_id=group.group_id,
        )
    if group.pending:
        return UnstableOffsets(group.pending)
    row = replace(
        group, offsets={}, generation=group.generation + 1, assignment={}, updated_ms=now_ms
    )
    return OffsetsCommit(operation="DELETE CONSUMER GROUP", groups=(row,))


def prepare_give_up_group(
    group_id: str, values: Mapping[str, str], *, path: str, now_ms: int
) -> OffsetsCommit:
    """Replace an unreadable row by that of a deleted group; `values` are the row's raw columns.

    If the generation is unreadable too, the new one is higher than any group has reached.
    """
    text = values.get("generation", "")
    generation = int(text) if text.isascii() and text.isdigit() else GENERATION_UNKNOWN
    row = Group(
        group_id=group_id,
        generation=min(generation, GENERATION_UNKNOWN) + 1,
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
