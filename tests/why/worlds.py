"""A root on a local disk, and an operator who looked at it before time passed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tests.world import PLAIN
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.process.clock import VirtualClock
from txnlog.producer import Producer
from txnlog.protocol.problems import Problem
from txnlog.storage.store.objects import ObjectStore

TOPICS = ("orders", "stock")
MINUTE_MS = 60_000


class Disk:
    """One root; the clock of all its processes stands still, unless `later` moves it."""

    def __init__(self, folder: Path, *, age_ms: int = 0) -> None:
        self.folder = folder
        self.clock = VirtualClock(start_ms=time.time_ns() // 1_000_000 - age_ms)
        first = self.process()
        for topic in TOPICS:
            first.create_topic(topic, partitions=1)
        self.clock.step_wall_ms(age_ms)
        self.operator = self.process()
        # The times of files are those of the machine's clock, which nobody moves.
        self.operator.store.now_ms()

    def process(self) -> Cluster:
        """A process of its own."""
        store = ObjectStore.from_url(str(self.folder), {"fsync": "false"}, clock=self.clock)
        return Cluster.open(store, create=True, shards=1, offsets_shards=1, settings=PLAIN)

    @property
    def root(self) -> dict[str, object]:
        return {"txnlog.root": str(self.folder)}

    def later(self, duration_ms: int) -> None:
        self.clock.advance_ms(duration_ms)

    def producer(self, name: str = "tx", **config: object) -> Producer:
        """A transactional producer that owns its id."""
        given = {**self.root, "transactional.id": name, **_dotted(config)}
        found = Producer(given, cluster=self.process(), background=False)
        found.init_transactions()
        return found

    def consumer(self, group: str = "readers", **config: object) -> Consumer:
        given = {**self.root, "group.id": group, "auto.offset.reset": "earliest", **_dotted(config)}
        return Consumer(given, cluster=self.process(), background=False)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"client.id": "ops"}, cluster=self.operator)

    def problems(self) -> list[Problem]:
        """What the operator is told now."""
        return self.admin.find_problems().result()


def _dotted(config: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in config.items()}


def produce(disk: Disk, name: str = "tx", *, records: int = 1, **config: object) -> Producer:
    """A committed transaction with records in both topics."""
    made = disk.producer(name, **config)
    made.begin_transaction()
    for topic in TOPICS:
        for number in range(records):
            made.produce(topic, f"{number}", key=f"key-{number}")
    made.commit_transaction()
    return made
