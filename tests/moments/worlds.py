"""A root in memory with real clients, and moments of it that are taken while they work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from tests.staged_files import written_file
from tests.world import PLAIN, process
from txnlog.admin import AdminClient
from txnlog.admin.moments import Moments
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.phases import Phases
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.producer import Producer
from txnlog.protocol.metadata import LastBatch, Owner, StagedBatch
from txnlog.protocol.moments import Moment, with_origins
from txnlog.protocol.problems import Problem
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import SharedMemory

ROOT = "memory://"
EVIL = "<script>alert(1)</script>\u202e\x1b[31m'\""


class Lake:
    """One root; its clock moves only by `later`."""

    def __init__(self, *, settings: LogSettings = PLAIN) -> None:
        self.shared, self.settings = SharedMemory(), settings
        first = self.process()
        for topic in ("orders", "stock"):
            first.create_topic(topic, partitions=1)
        self.later(1_000)

    def process(self) -> Cluster:
        """A process of its own."""
        return process(self.shared, settings=self.settings)

    def moments(self) -> Moments:
        return Moments(self.process())

    def later(self, duration_ms: int) -> None:
        self.shared.clock.advance_ms(duration_ms)

    def producer(self, name: str | None = "tx", **config: object) -> Producer:
        given: dict[str, object] = {"txnlog.root": ROOT, "linger.ms": 0}
        given |= {key.replace("_", "."): value for key, value in config.items()}
        if name is not None:
            given["transactional.id"] = name
        made = Producer(given, cluster=self.process(), background=False)
        if name is not None:
            made.init_transactions()
        return made

    def eager(self, name: str) -> Producer:
        """A producer whose data is in the topics before it commits."""
        return self.producer(name, transaction_publish="eager")

    def consumer(
        self, group: str = "readers", *, cluster: Cluster | None = None, **config: object
    ) -> Consumer:
        given: dict[str, object] = {
            "txnlog.root": ROOT,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        return Consumer(given, cluster=cluster or self.process(), background=False)

    def admin(self) -> AdminClient:
        return AdminClient({"txnlog.root": ROOT}, cluster=self.process())

    def read(self, consumer: Consumer, topic: str = "orders") -> int:
        """Read what is there, and commit it."""
        consumer.subscribe([topic])
        count = 0
        for _ in range(30):
            count += consumer.poll(0) is not None
            self.later(50)
        consumer.commit()
        return count

    def keep_house(self) -> None:
        """Merge all small files, make checkpoints, and delete what nothing refers to any more."""
        cluster = self.process()
        compactor = Compactor(cluster)
        for topic, log in cluster.topics(cluster.list_topics()).items():
            compactor.compact(topic)
            log.refresh()
            live = {f"{topic}/{path}" for path in log.view.by_path}
            files = {item.path for item in cluster.store.list_files(topic)}
            cluster.store.delete(files - live)
        for table in cluster.store.list_folders():
            create_checkpoint(cluster.store, table, trust_ms=self.settings.trust_ms)


def written(producer: Producer, records: Mapping[str, int], *, value: bytes = b"value") -> None:
    """A committed transaction: topic -> number of records."""
    producer.begin_transaction()
    for topic, count in records.items():
        for number in range(count):
            producer.produce(topic, value, key=f"key-{number}".encode())
    producer.commit_transaction()


class Query:
    """A Spark query, as the sink's commits have it."""

    _phases: Phases | None

    def __init__(self, lake: Lake, query_id: str = "q-1", name: str = "hourly") -> None:
        self._cluster, self._phases = lake.process(), None
        owner = Owner(run_id="run", query_id=query_id, query_name=name, host="driver", pid=7)
        self._row = self._cluster.coordinator.init_producer_id(query_id, owner, timeout_ms=60_000)
        self._id = query_id

    def batch(self, number: int, records: int = 3) -> None:
        """A micro-batch of one file."""
        phases = Phases({"queryId": self._id, "batchId": str(number)}, before=self._phases)
        staged = _staged(self._cluster, records)
        self._row = self._cluster.coordinator.commit(
            self._row,
            [staged],
            last_batch=LastBatch(batch_id=number, topics=("orders",)),
            phases=phases,
        )
        self._phases = phases


def _staged(cluster: Cluster, records: int) -> StagedBatch:
    record = {"timestamp": 0, "key": b"k", "value": b"v", "headers": []}
    rows = pa.RecordBatch.from_pylist([record] * records, schema=RECORD_SCHEMA)
    return written_file(cluster, "orders", rows)


def history(lake: Lake) -> Iterator[str]:
    """What clients do, step by step; it stops after each."""
    yield "nothing"
    first = lake.producer("first")
    written(first, {"orders": 5, "stock": 2})
    yield "a transaction"
    opened = lake.eager("opened")
    opened.begin_transaction()
    opened.produce("orders", b"open")
    opened.flush()
    yield "an open one"
    reader = lake.consumer()
    assert lake.read(reader) == 5
    yield "a group has read"
    opened.commit_transaction()
    yield "committed"
    plain = lake.producer(None)
    plain.produce("stock", b"plain")
    plain.flush()
    yield "outside of transactions"
    twin = lake.eager(EVIL)
    twin.begin_transaction()
    twin.produce("stock", EVIL.encode())
    twin.flush()
    yield "another"
    lake.eager(EVIL)
    yield "taken over"
    lake.admin().abort_transaction("opened", reason="it hung").result()
    yield "fenced by an operator"
    query = Query(lake)
    query.batch(0)
    yield "a micro-batch"
    query.batch(1)
    yield "the next one"
    lake.process().create_topic("fresh", partitions=2)
    yield "a new topic"
    lake.process().delete_topic("fresh")
    yield "deleted"
    stuck = lake.eager("stuck")
    stuck.begin_transaction()
    stuck.produce("orders", b"never")
    stuck.flush()
    lake.later(40_000)
    yield "blocked"


def taken(lake: Lake, moments: Moments) -> list[Moment]:
    """The moments after each step."""
    found = []
    for _ in history(lake):
        lake.later(1_000)
        found.append(moments.now())
        lake.later(1_000)
    return found


def comparable(moment: Moment) -> Moment:
    """Without what is of now only, and the times of files, which may be deleted since."""
    moment = with_origins(moment, -1)
    upkeep = moment.upkeep
    return replace(
        moment,
        is_now=True,
        notes=(),
        problems=_without_files(moment.problems),
        waiting=_without_files(moment.waiting),
        groups={
            name: group._replace(blocked_by=_without_files(group.blocked_by))
            for name, group in moment.groups.items()
        },
        upkeep=None if upkeep is None else upkeep._replace(free_bytes=None, changed_ms=-1),
    )


def _without_files(problems: Sequence[Problem]) -> list[Problem]:
    return [
        replace(one, places=tuple(place._replace(since_ms=-1) for place in one.places))
        for one in problems
    ]
