"""What observers that look only once have seen of groups, kept from one to the next (D61).

A long-running observer watches heartbeat counters by its own clock. One that ends soon compares
them with what an earlier one saw, by the store's clock. That clock may be set meanwhile, and a
machine with members may sleep. So it looks again before it expels members: a live one raises its
counter in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from txnlog.protocol.decoding import Int64, JsonObject
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.membership import BEATS_PER_SESSION

GROUPS_MAX = 1_000
"""Groups that one observer tells the next about."""


class Sighting(JsonObject, frozen=True, kw_only=True):
    """A group's heartbeat counters, as `counters_of`, and when they were first seen to be so, by
    the store's clock.
    """

    counters: str
    since_ms: Int64


def counters_of(group: Group) -> str:
    """A digest of the ids and heartbeat counters of all members."""
    counters = sorted((name, member.heartbeat) for name, member in group.members.items())
    return blake2b(msgspec.json.encode(counters), digest_size=8).hexdigest()


def sight(
    groups: Iterable[Group], before: Mapping[str, Sighting], *, now_ms: int
) -> dict[str, Sighting]:
    """What is seen now of groups with members; `before` is what the last observer has seen.

    Of more than GROUPS_MAX the oldest are kept, which are those of dead members.
    """
    seen: dict[str, tuple[Sighting, int]] = {}
    for group in groups:
        counters = counters_of(group)
        known = before.get(group.group_id)
        is_same = known is not None and known.counters == counters
        # A clock that was set back shows an earlier time.
        since_ms = min(known.since_ms, now_ms) if known is not None and is_same else now_ms
        seen[group.group_id] = Sighting(counters=counters, since_ms=since_ms), group.updated_ms
    oldest = sorted(seen.items(), key=lambda item: (item[1][0].since_ms, item[1][1], item[0]))
    return {group_id: sighting for group_id, (sighting, _) in oldest[:GROUPS_MAX]}


def is_silent(group: Group, sighting: Sighting, *, now_ms: int) -> bool:
    """Whether no counter has changed for longer than any member's session and one interval."""
    silent_ms = now_ms - sighting.since_ms
    sessions_ms = [member.session_timeout_ms for member in group.members.values()]
    return silent_ms > max(one_ms + one_ms // BEATS_PER_SESSION for one_ms in sessions_ms)


def look_again_ms(group: Group) -> int:
    """When to look at a silent group again: after one interval, and half of one for a late beat."""
    longest_ms = max(member.session_timeout_ms for member in group.members.values())
    return longest_ms * 3 // (2 * BEATS_PER_SESSION)
