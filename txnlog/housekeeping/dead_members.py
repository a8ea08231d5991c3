"""Expelling the members of groups all of whose members are dead; a live one expels the others."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping

from txnlog.cluster import Cluster
from txnlog.process.failures import Failures
from txnlog.protocol.group_changes import prepare_expel_all
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.membership import GroupObservation
from txnlog.protocol.sightings import Sighting, is_silent, look_again_ms, sight


class DeadMembers:
    """Of one cluster. The constructor does no I/O.

    `seen` is what `expel_once` has seen; None before.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._looks: dict[str, GroupObservation] = {}
        self.seen: Mapping[str, Sighting] | None = None

    def expel(self) -> int:
        """Empty the groups whose members this process has watched for long enough."""
        now_ms = self._cluster.store.clock.boot_ms()
        looks: dict[str, GroupObservation] = {}
        dead: dict[str, GroupObservation] = {}
        failures = _expelling()
        for group_id, group in self._groups(failures).items():
            known = self._looks.get(group_id, GroupObservation())
            looks[group_id] = look = known.observe(group, now_ms=now_ms)
            if look.expired_members(group) == set(group.members):
                dead[group_id] = look
        # What could not be read is watched on.
        self._looks = {**self._looks, **looks} if failures else looks
        return self._expel_all(dead, failures)

    def expel_once(self, before: Mapping[str, Sighting], wait: Callable[[int], bool]) -> int:
        """Empty the groups whose counters are still those of `before`, or of the last call.

        For a process that ends. `wait` takes ms, and returns whether this process may go on:
        members that seem silent are looked at again, for the store's clock may have been set, or a
        machine may have slept.
        """
        failures = _expelling()
        groups = self._groups(failures)
        before = before if self.seen is None else self.seen
        now_ms = self._cluster.store.now_ms() if groups else 0
        self.seen = seen = sight(groups.values(), before, now_ms=now_ms)
        silent = [
            groups[group_id]
            for group_id, one in seen.items()
            if is_silent(groups[group_id], one, now_ms=now_ms)
        ]
        if silent and not wait(max(map(look_again_ms, silent))):
            silent = []
        dead = {one.group_id: GroupObservation.of_silent(one) for one in silent}
        return self._expel_all(dead, failures)

    def _groups(self, failures: Failures) -> dict[str, Group]:
        """The groups with members, refreshed."""
        logs = self._cluster.offsets_shards(failures)
        found = [group for log in logs for group in log.view.rows.values()]
        return {group.group_id: group for group in found if group.members}

    def _expel_all(self, dead: Mapping[str, GroupObservation], failures: Failures) -> int:
        """Empty these groups, unless a counter has changed since; returns how many."""
        expelled = 0
        for group_id, look in dead.items():
            with failures.of(f"group {group_id!r}"):
                expelled += self._expel(group_id, look)
        failures.check()
        return expelled

    def _expel(self, group_id: str, look: GroupObservation) -> bool:
        store = self._cluster.store
        written = self._cluster.groups.change_members(
            group_id,
            lambda group: prepare_expel_all(group, look, now_ms=store.now_ms()),
            by=f"the housekeeping of process {os.getpid()} on {socket.gethostname()}",
        )
        return written is not None


def _expelling() -> Failures:
    return Failures("Expelling members", logging.DEBUG)
