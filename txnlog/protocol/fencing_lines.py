"""Log lines of fencing: who was fenced by whom, from which epoch or generation to which, and why.

Pure: a change of a row in, lines for the logger `txnlog` out. A line is a WARNING where work is
lost: an open transaction is aborted, or a member is taken for dead. Otherwise it is INFO.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from txnlog.protocol.group_metadata import Group, Member
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import Transition


class Line(NamedTuple):
    """One line of a log; `is_warning`: at WARNING, else at INFO."""

    text: str
    is_warning: bool = False


def row_line(change: Transition, *, by: str = "") -> Line | None:
    """What a change of a state row says about its former owner; None if nothing.

    `by` is who made the change, where the row does not say it.
    """
    before, after = change.previous, change.next
    line = row_change(change, by=by)
    if before is None or line is None:
        return None
    name = f"transactional.id {before.transactional_id!r}, "
    if after.state is TransactionState.DEAD:
        name += f"producer id {before.producer_id}, "
    epochs = f"epoch {before.producer_epoch}"
    if after.producer_epoch != before.producer_epoch:
        epochs += f" -> {after.producer_epoch}"
    return line._replace(text=f"{name}{epochs}: {line.text}")


def row_change(change: Transition, *, by: str = "") -> Line | None:
    """As `row_line`, without the id and its epochs."""
    before, after = change.previous, change.next
    if before is None:
        return None
    if after.state is TransactionState.DEAD:
        return _expired(before)
    note = after.owner.fenced
    if note is not None and note != before.owner.fenced:
        text = f"{before.owner.describe()} was fenced by {note.by}: {note.reason}"
        if before.state is TransactionState.ONGOING and after.state is not before.state:
            text += f"; its open transaction of epoch {before.txn_epoch} is aborted"
            return Line(text, is_warning=True)
        if after.decider is not None:
            text += f"; a table, {after.decider.name!r}, decides that of epoch {before.txn_epoch}"
        if after.state is TransactionState.PREPARE_COMMIT:
            text += f"; its decided transaction of epoch {before.txn_epoch} will be published"
        return Line(text)
    raised = sorted(
        group for group, floor in after.owner.floors.items()
        if floor > before.owner.floors.get(group, 0)
    )  # fmt: skip
    if not raised:
        return None
    groups = ", ".join(f"{group!r} below ticket {after.owner.floors[group]}" for group in raised)
    return Line(
        f"{before.owner.describe()} may no longer commit offsets of group {groups}: fenced by "
        f"{by or 'a reader of the group'}",
    )


def _expired(before: TransactionMetadata) -> Line | None:
    if before.owner.one_off:
        return None
    return Line(
        "expired, since nothing was written under it for transactional.id.expiration.ms; its last "
        f"owner was {before.owner.describe()}",
    )


def group_lines(before: Group | None, after: Group, *, by: str) -> list[Line]:
    """What a change of a group's row says about its members and its generation.

    `by` is who made it: a member, the housekeeping, or who began a generation from outside.
    """
    known = {} if before is None else before.members
    generation = 0 if before is None else before.generation
    name = f"Group {after.group_id!r}"
    lines = []
    for member_id in sorted(known.keys() - after.members.keys()):
        member = known[member_id]
        successor = _successor(member, member_id, after)
        if successor:
            text = (
                f"static member {member_id} (group.instance.id={member.instance_id!r}) was fenced "
                f"by its successor {successor}"
            )
            lines.append(Line(text))
        elif member_id == by:
            lines.append(Line(f"member {member_id} leaves"))
        else:
            text = (
                f"member {member_id} on {member.host or 'an unknown host'} was expelled by {by}: "
                f"no heartbeat for session.timeout.ms={member.session_timeout_ms}, or a rebalance "
                f"was not followed for max.poll.interval.ms={member.rebalance_timeout_ms}"
            )
            lines.append(Line(text, is_warning=True))
    lines += [
        Line(f"member {member_id} joins")
        for member_id in sorted(after.members.keys() - known.keys())
    ]
    if after.generation != generation:
        lines.append(_begun(generation, after, by))
    return [line._replace(text=f"{name}, generation {generation}: {line.text}") for line in lines]


def _begun(generation: int, after: Group, by: str) -> Line:
    is_of_members = set(after.assignment) == set(after.members)
    if is_of_members:
        return Line(f"generation {after.generation} begins with {_listed(after.members)}, by {by}")
    # A process that is no member began it; members were not asked.
    return Line(
        f"generation {after.generation} was begun by {by}, from outside: it fences "
        f"{_listed(after.members)}, to rejoin",
        is_warning=True,
    )


def _successor(member: Member, member_id: str, after: Group) -> str:
    """The id of the member that replaced a static one, "" if none did."""
    for other_id, other in after.members.items():
        if member.instance_id and other.instance_id == member.instance_id:
            return other_id
    return ""


def _listed(members: Iterable[str]) -> str:
    names = sorted(members)
    if not names:
        return "no members"
    return f"{len(names)} member{'s' * (len(names) > 1)} ({', '.join(names)})"
