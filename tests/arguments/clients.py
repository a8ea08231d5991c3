"""The clients that the test of any arguments calls, over one store in memory."""

from __future__ import annotations

from tests.tables import with_table
from tests.world import process, world
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.process.clock import VirtualClock
from txnlog.producer import Producer
from txnlog.testing.faults import SharedMemory

Client = Producer | Consumer | AdminClient | Cluster
CLIENTS = (Producer, Consumer, AdminClient, Cluster)
SLEEPS_MAX = 1_000


class WaitsForEver(BaseException):
    """A call without a time-out would wait longer than a test."""


class BoundedClock(VirtualClock):
    """A clock that raises instead of sleeping for ever."""

    sleeps = 0

    def sleep_ms(self, duration_ms: float) -> None:
        self.sleeps += 1
        if self.sleeps > SLEEPS_MAX:
            raise WaitsForEver
        super().sleep_ms(min(duration_ms, 10_000))


class World:
    """Clients over one store; a client is replaced after a call has closed it."""

    def __init__(self) -> None:
        self.shared: SharedMemory = world()
        with_table(self.shared, process(self.shared))
        self.clock = BoundedClock()
        self._clients: dict[str, Client] = {}
        self.reports: list[Exception | None] = []

    def report(self, error: Exception | None, message: object) -> None:
        """A delivery callback."""
        self.reports.append(error)

    def producers(self) -> list[Producer]:
        """All producers so far."""
        return [found for found in self._clients.values() if isinstance(found, Producer)]

    def client(self, name: str) -> Client:
        self.clock.sleeps = 0
        found = self._clients.get(name)
        if found is None or _is_over(found):
            found = self._clients[name] = self._new(name)
        return found

    def _new(self, name: str) -> Client:
        cluster = process(self.shared, clock=self.clock)
        for topic in ("orders", "stock"):
            # An earlier call may have deleted it.
            cluster.create_topic(topic, partitions=2, exist_ok=True)
        if name == "cluster":
            return cluster
        root = {"txnlog.root": "memory://"}
        if name == "admin":
            return AdminClient(root, cluster=cluster)
        if name in ("reader", "member"):
            given = {**root, "group.id": f"{name}s", "auto.offset.reset": "earliest"}
            consumer = Consumer(given, cluster=cluster, background=False)
            if name == "reader":
                consumer.assign([TopicPartition("orders", 0), TopicPartition("orders", 1)])
            else:
                consumer.subscribe(["orders"])
                consumer.poll(1)
            return consumer
        if name == "idempotent":
            return Producer(root, cluster=cluster, background=False)
        publish = {"transactional.id": name, "transaction.publish": name}
        producer = Producer({**root, **publish}, cluster=cluster, background=False)
        producer.init_transactions()
        producer.begin_transaction()
        if cluster.groups.describe("others") is None:
            # Offsets of this generation are accepted.
            cluster.groups.start("others")
        return producer


def _is_over(client: Client) -> bool:
    if isinstance(client, Consumer):
        return client._is_closed
    return isinstance(client, Producer) and (
        client._lifecycle.is_over or client._lifecycle.state.name in ("FATAL_ERROR", "READY")
    )


NAMES = {
    Producer: ("idempotent", "deferred", "eager"),
    Consumer: ("reader", "member"),
    AdminClient: ("admin",),
    Cluster: ("cluster",),
}
