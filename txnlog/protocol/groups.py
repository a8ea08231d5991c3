"""Decisions about a group's row: its generation, and committed offsets.

Pure decisions, as in org.apache.kafka.coordinator.group.OffsetMetadataManager. Who may commit
offsets in transactions is decided in txnlog.protocol.tickets; joining and leaving are in
txnlog.protocol.membership.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from txnlog.errors import (
    IllegalGenerationError,
    UnknownMemberIdError,
    UnstableOffsetCommitError,
)
from txnlog.protocol.cooperation import Partitions, current_generation, find_taken
from txnlog.protocol.group_metadata import (
    GROUP_COLUMNS,
    CommittedOffset,
    Group,
    GroupTickets,
    Positions,
    TicketHolder,
)

__all__ = [
    "GROUP_COLUMNS",
    "CommittedOffset",
    "Group",
    "GroupOffsets",
    "OffsetsCommit",
    "Partitions",
    "Positions",
    "prepare_fetch",
    "prepare_generation",
    "prepare_offset_commit",
    "prepare_reset",
    "unstable",
]

_NONE: Partitions = {}


class OffsetsCommit(Struct, frozen=True, kw_only=True):
    """One commit to `__consumer_offsets-<n>`: rows to write, transactional markers to set."""

    operation: str
    groups: tuple[Group, ...] = ()
    txns: Mapping[int, int] = {}


class GroupOffsets(Struct, frozen=True, kw_only=True):
    """The offsets of one group that a transaction commits.

    `start` is where the transaction's input begins (Spark batches: a run is refused if the group is
    past it under the same generation), `end` the next offsets to read. `member_id` is that
    of a consumer with a subscription, otherwise "".
    """

    group_id: str
    generation: int
    start: Positions
    end: Positions
    topic_ids: Mapping[str, str] = {}
    member_id: str = ""


def prepare_generation(group: Group | None, *, group_id: str, now_ms: int) -> OffsetsCommit:
    """Bump the generation, which fences all users of the old one, members included."""
    row = group if group is not None else Group(group_id=group_id)
    bumped = replace(row, generation=row.generation + 1, assignment={}, updated_ms=now_ms)
    return OffsetsCommit(operation="JOIN GROUP", groups=(bumped,))


def prepare_fetch(
    group: Group | None, *, group_id: str, generation: int | None, member_id: str = ""
) -> dict[str, dict[int, int]]:
    """Committed positions, valid only under this generation and for this member, if given (R46).

    A static member that was replaced must not fence its successor. Raises IllegalGenerationError,
    UnknownMemberIdError.
    """
    if generation:
        check_member(group, group_id=group_id, generation=generation, member_id=member_id)
    elif generation is not None and group is not None and group.generation:
        raise _illegal_generation(group_id, generation, group.generation)
    return {} if group is None else group.positions()


def prepare_offset_commit(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    offsets: Positions,
    metadata: Mapping[str, Mapping[int, str]],
    version: int,
    now_ms: int,
) -> OffsetsCommit | None:
    """OffsetCommit of a consumer, outside of transactions; None if the row has it already.

    It counts as a heartbeat, at `now_ms` by the store's clock. Raises IllegalGenerationError,
    UnknownMemberIdError (R48).
    """
    row = check_member(
        group,
        group_id=group_id,
        generation=generation,
        member_id=member_id,
        partitions=offsets,
    )
    # That of the group: the one given may be a little older.
    generation = row.generation
    merged = {topic: dict(known) for topic, known in row.offsets.items()}
    changed = False
    for topic, partitions in offsets.items():
        known = merged.setdefault(topic, {})
        for partition, offset in partitions.items():
            note = metadata.get(topic, {}).get(partition, "")
            there = known.get(partition, CommittedOffset(-1, -1, -1))
            if (there.offset, there.generation, there.metadata) == (offset, generation, note):
                continue
            known[partition] = CommittedOffset(offset, generation, version, note)
            changed = True
    if not changed:
        return None
    members = row.members
    if member_id:
        alive = members[member_id]
        beats = alive.heartbeat + 1
        members = {**members, member_id: replace(alive, heartbeat=beats, heartbeat_ms=now_ms)}
    put = replace(row, offsets=merged, members=members, updated_ms=now_ms)
    return OffsetsCommit(operation="OFFSET COMMIT", groups=(put,))


def with_starts(
    group: Group, *, member_id: str, offsets: Positions, starts: Positions
) -> dict[str, dict[int, int]]:
    """What a consumer commits: `offsets`, and where it started in its other partitions.

    Those only where the group has no offset, and where no other member has the partition by now.
    """
    wanted = {topic: dict(partitions) for topic, partitions in offsets.items()}
    for topic, partitions in starts.items():
        for partition, offset in partitions.items():
            is_known = partition in group.offsets.get(topic, {})
            asked = {topic: (partition,)}
            if not is_known and not find_taken(group, member_id=member_id, partitions=asked):
                wanted.setdefault(topic, {}).setdefault(partition, offset)
    return wanted


def reads_already(committed: Positions, topic: str, is_alike: Callable[[str], bool]) -> bool:
    """Whether a group with these offsets reads a topic, or one that its pattern selects, too.

    Then a partition of the topic without an offset has appeared since (consumers commit where they
    start, too: `with_starts`), and none of it was read. It starts at the log start, whatever
    auto.offset.reset says (D135).
    """
    return any(known and (name == topic or is_alike(name)) for name, known in committed.items())


def check_member(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    member_id: str,
    partitions: Partitions = _NONE,
) -> Group:
    """The group, if it still has this generation and member, and no other these partitions (R48).

    Only cooperative members are asked about partitions, and may be late by one generation.
    Raises IllegalGenerationError, UnknownMemberIdError.
    """
    current = 0 if group is None else group.generation
    asked = current_generation(group, member_id=member_id, generation=generation)
    if group is None or current != asked:
        raise _illegal_generation(group_id, generation, current)
    if member_id and member_id not in group.members:
        raise UnknownMemberIdError(
            f"Group {group_id!r} has no member {member_id!r}: it left, or was removed after "
            "session.timeout.ms without a heartbeat or max.poll.interval.ms without a poll. "
            "Records read since its last commit will be read again; it rejoins at its next poll.",
            group_id=group_id,
            member_id=member_id,
        )
    taken = find_taken(group, member_id=member_id, partitions=partitions)
    if taken is not None:
        raise IllegalGenerationError(
            f"Partition {taken.partition} of topic {taken.topic!r} is assigned to member "
            f"{taken.member_id!r} in generation {current} of group {group_id!r}: {member_id!r} has "
            "revoked it, and may no longer commit it. Commit in on_revoke, or leave it out.",
            group_id=group_id,
            topic=taken.topic,
            partition=taken.partition,
            expected_generation=current,
            actual_generation=generation,
        )
    return group


def prepare_reset(
    group: Group | None,
    *,
    group_id: str,
    generation: int,
    done: Collection[int],
    positions: Positions,
    version: int,
    now_ms: int,
) -> OffsetsCommit:
    """An operator sets positions under the generation that it began, after all are fenced.

    `done` are their tickets. Raises IllegalGenerationError if another one has begun since.
    """
    row = check_member(group, group_id=group_id, generation=generation, member_id="")
    offsets = {topic: dict(known) for topic, known in row.offsets.items()}
    for topic, partitions in positions.items():
        for partition, offset in partitions.items():
            known = CommittedOffset(offset, generation, version)
            offsets.setdefault(topic, {})[partition] = known
    moved = replace(row, offsets=offsets, tickets=without(row.tickets, done), updated_ms=now_ms)
    return OffsetsCommit(operation="ALTER CONSUMER GROUP OFFSETS", groups=(moved,))


def without(tickets: GroupTickets, done: Collection[int]) -> GroupTickets:
    """Without these tickets: fenced and finished by this process, or its own, if idle."""
    kept = tuple(one for one in tickets.holders if one.ticket not in done)
    return replace(tickets, holders=kept)


def _illegal_generation(group_id: str, generation: int, current: int) -> IllegalGenerationError:
    return IllegalGenerationError(
        f"Group {group_id!r} is at generation {current}, not {generation}: another consumer or "
        "query joined or left it, or an operator reset it. A consumer with a subscription gets its "
        "partitions again at its next poll; stop anything else, or restart it (a Spark query "
        "with startingOffsets=committed and a new checkpointLocation).",
        group_id=group_id,
        expected_generation=current,
        actual_generation=generation,
    )


def unstable(group_id: str, holders: Sequence[TicketHolder]) -> UnstableOffsetCommitError:
    """The error for offsets in open transactions of these holders."""
    names = ", ".join(sorted({one.transactional_id for one in holders}))
    return UnstableOffsetCommitError(
        f"Group {group_id!r} has offsets in open transactions of {names}; they will be settled "
        "when those end. Try again, or end them with an admin client.",
        group_id=group_id,
    )
