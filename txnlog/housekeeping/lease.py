"""Holding a lease of `__cluster`: taking it, renewing it, believing in it, giving it up."""

from __future__ import annotations

import os
import socket
import uuid

from txnlog.cluster import Cluster
from txnlog.protocol.leases import HeldByAnother, Lease, Sighting, prepare_release, prepare_take

LEASE_MS_DEFAULT = 60_000


class LeaseHolder:
    """One candidate for one lease. The constructor does no I/O."""

    def __init__(self, cluster: Cluster, name: str, *, lease_ms: int = LEASE_MS_DEFAULT) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._name = name
        self._lease_ms = lease_ms
        self._holder = uuid.uuid4().hex
        self._by = f"process {os.getpid()} on {socket.gethostname()}"
        self._seen = Sighting(None, 0)
        self._believed_until_ms: int | None = None
        self.other: Lease | None = None

    @property
    def is_held(self) -> bool:
        """Whether nobody else can hold it yet; costs nothing to ask before each piece of work."""
        until_ms = self._believed_until_ms
        return until_ms is not None and self._clock.boot_ms() < until_ms

    def take(self) -> int:
        """Take or renew the lease; in how many ms to call again. See `is_held` for the outcome.

        `other` is then the lease of whoever has it, if that is not this one. Raises StorageError:
        a lease that was held is still believed in for its time.
        """
        sent_ms = self._clock.boot_ms()

        def decide(lease: Lease | None) -> Lease | HeldByAnother:
            now_ms = self._clock.boot_ms()
            self._seen = self._seen.look(lease, now_ms=now_ms)
            return prepare_take(
                lease,
                self._seen,
                holder=self._holder,
                by=self._by,
                lease_ms=self._lease_ms,
                now_ms=now_ms,
            )

        found = self._cluster.change_lease(self._name, decide)
        if isinstance(found, HeldByAnother):
            self._believed_until_ms, self.other = None, found.lease
            return min(found.wait_ms, self._lease_ms // 3)
        self._believed_until_ms, self.other = sent_ms + found.belief_ms, None
        return self._lease_ms // 3

    def release(self) -> None:
        """Believe in it no more, and let the next one have it at once."""
        if self._believed_until_ms is None:
            return
        self._believed_until_ms = None
        self._cluster.change_lease(
            self._name, lambda lease: prepare_release(lease, holder=self._holder)
        )
