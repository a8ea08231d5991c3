"""Leases: of many processes that could do the same work, one does it.

A lease is a holder and a counter that the holder raises. Nobody compares clocks: an observer takes
the lease over when the counter has not changed for the lease time on the observer's own clock, and
a holder believes in it for a part of that time only, counted from before its write was sent (R34).
Every write is one compare-and-swap, so two observers never both get it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txnlog.errors import CorruptLogError
from txnlog.protocol.decoding import Int64
from txnlog.protocol.extensible import Codec, Extensible

NOBODY = ""


class Lease(Extensible, frozen=True, kw_only=True):
    """Who does the work. `holder` is NOBODY after a release, `by` names it for people.

    `lease_ms` is the holder's promise: whoever else wants the lease waits for so long.
    """

    holder: str = NOBODY
    counter: Int64 = 0
    lease_ms: Int64
    by: str = ""

    @property
    def belief_ms(self) -> int:
        """How long the holder may believe in it; the rest is for clocks that run unevenly."""
        return self.lease_ms * 3 // 4


@dataclass(frozen=True, slots=True)
class Sighting:
    """A lease as one observer saw it, and since when it has been so, by the observer's clock."""

    lease: Lease | None
    since_ms: int

    def look(self, lease: Lease | None, *, now_ms: int) -> Sighting:
        """The sighting after another look."""
        return self if lease == self.lease else Sighting(lease, now_ms)


@dataclass(frozen=True, slots=True)
class HeldByAnother:
    """The lease is another's; it may be asked for again after `wait_ms`."""

    lease: Lease
    wait_ms: int


def prepare_take(
    lease: Lease | None, seen: Sighting, *, holder: str, by: str, lease_ms: int, now_ms: int
) -> Lease | HeldByAnother:
    """Take the lease, or renew it: the lease to write, or why not.

    `seen` is what this observer knew of it before; `now_ms` its own clock, never set back.
    """
    if lease is not None and lease.holder not in (NOBODY, holder):
        seen = seen.look(lease, now_ms=now_ms)
        wait_ms = seen.since_ms + lease.lease_ms - now_ms
        if wait_ms > 0:
            return HeldByAnother(lease, wait_ms)
    before = lease if lease is not None else Lease(lease_ms=lease_ms)
    return msgspec.structs.replace(
        before, holder=holder, counter=before.counter + 1, lease_ms=lease_ms, by=by
    )


def prepare_release(lease: Lease | None, *, holder: str) -> Lease | None:
    """Give the lease up, so that the next one need not wait; None when it is not `holder`'s."""
    if lease is None or lease.holder != holder:
        return None
    return msgspec.structs.replace(lease, holder=NOBODY, counter=lease.counter + 1, by="")


def encode_lease(lease: Lease) -> str:
    """The lease as a table property."""
    return _CODEC.encode(lease)


def decode_lease(value: str, *, source: str) -> Lease:
    """Read a table property back. Raises CorruptLogError naming `source`."""
    try:
        return _CODEC.decode(value)
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
        raise CorruptLogError(
            f"{source}: the lease {value[:200]!r} cannot be read ({error}). It was written by a "
            "newer txnlog or is damaged; upgrade, or restore the table.",
            file=source,
        ) from error


_CODEC: Codec[Lease] = Codec(Lease)
