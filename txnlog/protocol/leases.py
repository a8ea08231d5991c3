"""Leases: of several processes that could do the same work, one does it.

A lease is a holder and a counter that the holder increments. Clocks of machines are not compared:
an observer takes the lease over when the counter has not changed for the lease time on its own
clock, and a holder relies on the lease only for a part of that time, counted from before its write
was sent (R34). Every write is one compare-and-swap, so two observers never both take it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from txnlog.protocol.decoding import Codec, Int64, JsonObject, unreadable
from txnlog.protocol.sightings import Sighting

NO_HOLDER = ""
HOUSEKEEPING = "housekeeping"
"""The lease of the process that does the housekeeping."""


class Lease(JsonObject, frozen=True, kw_only=True):
    """Which process does the work. `holder` is NO_HOLDER after a release; `by` is for logs.

    Other processes wait for `lease_ms` before they take the lease over. `seen` is what the last
    holder that ended after one round has seen of groups, for the next one.
    """

    holder: str = NO_HOLDER
    counter: Int64 = 0
    lease_ms: Int64
    by: str = ""
    seen: dict[str, Sighting] = msgspec.field(default_factory=dict)

    @property
    def trusted_ms(self) -> int:
        """How long the holder relies on it; the rest allows for clocks of different speed."""
        return self.lease_ms * 3 // 4


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A lease as one observer read it, and since when it is unchanged, by the observer's clock."""

    lease: Lease | None
    since_ms: int

    def observe(self, lease: Lease | None, *, now_ms: int) -> LeaseObservation:
        """The observation after the lease was read again."""
        return self if lease == self.lease else LeaseObservation(lease, now_ms)


@dataclass(frozen=True, slots=True)
class HeldByAnother:
    """Another process holds the lease; try again after `wait_ms`."""

    lease: Lease
    wait_ms: int


def prepare_take(
    lease: Lease | None, seen: LeaseObservation, *, holder: str, by: str, lease_ms: int, now_ms: int
) -> Lease | HeldByAnother:
    """Take or renew the lease: the lease to write, or why not.

    `seen` is this observer's previous observation; `now_ms` is its own clock, never set back.
    """
    if lease is not None and lease.holder not in (NO_HOLDER, holder):
        seen = seen.observe(lease, now_ms=now_ms)
        wait_ms = seen.since_ms + lease.lease_ms - now_ms
        if wait_ms > 0:
            return HeldByAnother(lease, wait_ms)
    before = lease if lease is not None else Lease(lease_ms=lease_ms)
    return msgspec.structs.replace(
        before, holder=holder, counter=before.counter + 1, lease_ms=lease_ms, by=by
    )


def prepare_release(
    lease: Lease | None, *, holder: str, seen: Mapping[str, Sighting] | None = None
) -> Lease | None:
    """Release the lease, so that the next process need not wait; None if `holder` lacks it.

    `seen` is told to the next process; None: what is told already.
    """
    if lease is None or lease.holder != holder:
        return None
    told = lease.seen if seen is None else dict(seen)
    return msgspec.structs.replace(
        lease, holder=NO_HOLDER, counter=lease.counter + 1, by="", seen=told
    )


def encode_lease(lease: Lease) -> str:
    """The lease as a table property."""
    return _CODEC.encode(lease)


def decode_lease(value: str, *, source: str) -> Lease:
    """Decode a table property. Raises CorruptLogError naming `source`."""
    try:
        return _CODEC.decode(value)
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise unreadable(f"the lease {value[:200]!r}", error, source=source) from error


_CODEC: Codec[Lease] = Codec(Lease)
