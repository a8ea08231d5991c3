"""A lease of `__cluster`: take it, renew it, rely on it, release it."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping

from txnlog.cluster import Cluster
from txnlog.protocol.duties import DutyRun, told_parameters
from txnlog.protocol.leases import (
    HeldByAnother,
    Lease,
    LeaseObservation,
    prepare_release,
    prepare_take,
)
from txnlog.protocol.sightings import Sighting

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
        self._seen = LeaseObservation(None, 0)
        self._held_until_ms: int | None = None
        self._since_ms = 0
        self.runs: dict[str, DutyRun] = {}
        """The last runs of the holder's duties, by its boot clock; told with each write."""
        self.other: Lease | None = None
        self.seen: Mapping[str, Sighting] = {}

    @property
    def is_held(self) -> bool:
        """Whether no other process can have taken it yet; needs no I/O."""
        until_ms = self._held_until_ms
        return until_ms is not None and self._clock.boot_ms() < until_ms

    def take(self, *, looks_once: bool = False) -> int:
        """Take or renew the lease; returns the ms until the next call. `is_held` is the outcome.

        A process that `looks_once` cannot watch the lease of a dead holder for its time, and goes
        by the store's clock.

        `other` is the lease of another holder, if there is one; `seen` is what was told with the
        lease. Raises StorageError: a lease that was held stays held for its time.
        """
        sent_ms = self._clock.boot_ms()
        if not self.is_held:
            self._since_ms = sent_ms

        def decide(lease: Lease | None) -> Lease | HeldByAnother:
            now_ms = self._clock.boot_ms()
            self._seen = self._seen.observe(lease, now_ms=now_ms)
            return prepare_take(
                lease,
                self._seen,
                holder=self._holder,
                by=self._by,
                lease_ms=self._lease_ms,
                now_ms=now_ms,
            )

        result = self._cluster.change_lease(self._name, decide, self._told)
        if looks_once and isinstance(result, HeldByAnother):
            lease, now_ms = result.lease, self._clock.boot_ms()
            if self._cluster.leases_age_ms() > 2 * lease.lease_ms:
                self._seen = LeaseObservation(lease, now_ms - lease.lease_ms)
                result = self._cluster.change_lease(self._name, decide, self._told)
        if isinstance(result, HeldByAnother):
            self._held_until_ms, self.other = None, result.lease
            return min(result.wait_ms, self._lease_ms // 3)
        self._held_until_ms, self.other = sent_ms + result.trusted_ms, None
        self.seen = result.seen
        return self._lease_ms // 3

    def release(self, seen: Mapping[str, Sighting] | None = None) -> None:
        """Release the lease, so that another process can take it at once; `seen` is told to it."""
        if self._held_until_ms is None:
            return
        self._held_until_ms = None
        self._cluster.change_lease(
            self._name,
            lambda lease: prepare_release(lease, holder=self._holder, seen=seen),
            self._told,
        )

    def _told(self) -> dict[str, str]:
        now_ms = self._clock.boot_ms()
        return told_parameters(self.runs, held_ms=now_ms - self._since_ms, now_ms=now_ms)
