"""What the coordinator's tests share, on a server behind the fault proxy instead of in memory."""

from __future__ import annotations

from tests.stores.proxy import FaultProxy
from tests.stores.servers import Place
from tests.world import GROUP, PLAIN, TOPICS
from txnlog.cluster import Cluster
from txnlog.process.clock import Clock, VirtualClock
from txnlog.testing.faults import FaultyStore, Plan, SharedMemory, no_faults

IMPATIENT = {"max_retries": "1", "init_backoff": "5ms", "max_backoff": "5ms", "timeout": "20s"}
"""By default the store library hides most faults by its own retries."""


class SharedServer(SharedMemory):
    """Stands where a SharedMemory does: the processes of a test, and a clock of their own.

    A store still counts its calls and may crash at one, as over memory; errors come from the proxy.
    """

    def __init__(self, place: Place, proxy: FaultProxy) -> None:
        super().__init__(VirtualClock())
        self._place = place
        self._proxy = proxy

    def open(
        self, *, plan: Plan = no_faults, clock: Clock | None = None, seed: int | None = None
    ) -> FaultyStore:
        """The store of one process; `seed` as in FaultyStore."""
        store, clock = self._place.open(**IMPATIENT)._store, clock or self.clock
        return FaultyStore(store, plan=plan, clock=clock, url=self._place.url, seed=seed)

    def land_late(self) -> list[str]:
        """Wait for puts that land late."""
        self._proxy.land_late()
        return []


def world_on(shared: SharedServer) -> None:
    """A cluster, two topics of two partitions, and a group at generation 1."""
    cluster = Cluster.open(shared.open(), create=True, shards=2, settings=PLAIN)
    for name in TOPICS:
        cluster.create_topic(name, partitions=2)
    cluster.groups.start(GROUP)
