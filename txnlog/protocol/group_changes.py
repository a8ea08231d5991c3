"""Decisions of operators and of housekeeping about a group's row.

A group's generation never goes back, also when the group is deleted: a query or consumer that holds
an old one must never be taken for a member of what came after.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from txnlog.errors import NonEmptyGroupError
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.groups import OffsetsCommit, UnstableOffsets
from txnlog.protocol.membership import Sightings

GENERATION_UNKNOWN = 1 << 30


def is_gone(group: Group) -> bool:
    """Whether nothing is left of the group but its generation."""
    return not (group.offsets or group.members or group.pending)


def prepare_delete_offsets(
    group: Group | None, *, partitions: Mapping[str, Collection[int]], now_ms: int
) -> OffsetsCommit | UnstableOffsets | None:
    """Forget the positions of partitions, under a new generation; None when there are none."""
    if group is None:
        return None
    if group.pending:
        return UnstableOffsets(group.pending)
    offsets = {
        topic: {
            number: known
            for number, known in positions.items()
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
    """Forget all of a group but its generation; None when it is gone.

    Raises NonEmptyGroupError for one with members.
    """
    if group is None or is_gone(group):
        return None
    if group.members:
        raise NonEmptyGroupError(
            f"Group {group.group_id!r} has members: {', '.join(sorted(group.members))}. Stop them; "
            "those that died are expelled by `txnlog housekeeping` after session.timeout.ms.",
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
    """Replace a row that cannot be read by a deleted group's; `values` are what is left of it.

    A generation that cannot be read either may have been any: the next one is far above it.
    """
    said = values.get("generation", "")
    known = int(said) if said.isascii() and said.isdigit() else GENERATION_UNKNOWN
    row = Group(
        group_id=group_id,
        generation=min(known, GENERATION_UNKNOWN) + 1,
        updated_ms=now_ms,
        path=path,
    )
    return OffsetsCommit(operation="DELETE CONSUMER GROUP", groups=(row,))


def prepare_expel_all(
    group: Group | None, sightings: Sightings, *, now_ms: int
) -> OffsetsCommit | None:
    """Empty a group all of whose members are dead; with one alive, that one expels the others."""
    if group is None or not group.members or sightings.overdue(group) != set(group.members):
        return None
    row = replace(
        group, members={}, assignment={}, generation=group.generation + 1, updated_ms=now_ms
    )
    return OffsetsCommit(operation="EXPEL MEMBERS", groups=(row,))
