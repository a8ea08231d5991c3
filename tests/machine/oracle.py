"""The end of a history: a new process settles everything, and the result is checked."""

from __future__ import annotations

from collections.abc import Sequence

from tests.machine.world import COPIERS, FREE, JOBS, World
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.protocol.metadata import Owner
from txnlog.testing.invariants import check_cluster


def settle(world: World, ids: Sequence[str], *warm: Cluster) -> None:
    """No client continues; a sweeper finishes their work (R73), and a cold reader reads the same.

    `warm`: memory that must equal that of a cold start (R11).
    """
    world.shared.land_late()
    cluster = world.process(0).open()
    for name in ids:
        row = cluster.coordinator.describe(name)
        if row is not None and row.pending.prepared_by_client:
            cluster.coordinator.init_producer_id(name, Owner(run_id="successor"))
    sweeper = Sweeper(cluster, interval_ms=120_000)
    for _ in range(3):
        sweeper.sweep()
        world.shared.clock.advance_ms(120_000)
    for known in (world.cluster, *warm):
        check_cluster(known, settled=True)
    world.look()
    positions = {
        group: {
            (topic, number): offset
            for topic, numbers in cluster.groups.fetch(group).items()
            for number, offset in numbers.items()
        }
        for group in (COPIERS, JOBS)
    }
    world.auditor.finish(positions, world.log_starts)
    _check_free(world, cluster.groups.fetch(FREE))
    world.check_cold()


def _check_free(world: World, positions: dict[str, dict[int, int]]) -> None:
    """The free group is at the offset of a transaction that may have committed (R45)."""
    position = positions.get("elsewhere", {}).get(0)
    if position is None:
        assert not [txn for txn in world.free if txn.committed]
    else:
        may = [offset for txn, offset in world.free.items() if txn.committed is not False]
        assert position in may, f"{position} is of no transaction that may have committed: {may}"
