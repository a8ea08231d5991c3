"""Makes the roots of earlier formats in this folder, with the code that wrote them.

    for pair in "1 dbfcc5a^" "2 eb3df0a"; do
        set -- $pair; rm -rf /tmp/old && mkdir /tmp/old
        git archive $2 txnlog | tar -x -C /tmp/old
        PYTHONPATH=/tmp/old python tests/upgrade/make_old_roots.py $1
    done

Each is an archive of all objects, and of `made.json`: what prepare_transaction returned for each
transactional.id. Every transaction has groups of its own, which start at offset 5 of `input` and
would get offset 30. What became of them is in tests/upgrade/roots.py.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import ConsumerGroupMetadata, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Manifest, Owner
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import prepare_end
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, FaultyStore, SharedMemory, SimulatedCrash

ROOT = {"txnlog.root": "memory://"}
SETTINGS = LogSettings(checkpoint_interval=6, checkpoint_mode="inline")
Crash = Callable[[list[str]], bool]
"""Whether to die before a put, by the paths of all puts till then, it included."""


class Maker:
    def __init__(self, root_format: int) -> None:
        self._format = root_format
        self._shared = SharedMemory()
        self.prepared: dict[str, str] = {}

    def make(self) -> None:
        first = self._open()
        first.create_topic("input", partitions=2)
        for name in ("orders", "stock"):
            first.create_topic(name, partitions=1)
        with Producer(ROOT, cluster=self._open(), background=False) as producer:
            for number in range(100):
                producer.produce("input", value=f"in {number}", partition=number % 2)
        self._member()
        for number in range(7):
            self._group(first, f"plain {number}", {0: number, 1: 7})
        self._transaction("complete", lambda puts: False)
        self._transaction("decided", lambda puts: puts[-1].startswith("orders/_delta_log"))
        self._transaction("half moved", self._is_half_moved)
        self._transaction("undecided", self._is_decision)
        self._transaction("aborted", lambda puts: False, end="abort", eager=True)
        self._transaction("open", lambda puts: False, end="", eager=True)
        self._transaction("aborting", self._is_abort, end="abort", eager=True)
        self._transaction("prepared", lambda puts: False, end="prepare")
        self._transaction("prepared eagerly", lambda puts: False, end="prepare", eager=True)
        self._transaction("prepared twice", lambda puts: False, end="prepare")
        self._overtaken(first)

    def save(self, path: Path) -> None:
        store = self._shared.open()
        objects = {meta.path: store.get(meta.path) for meta in store.list("")}
        objects["made.json"] = json.dumps(self.prepared).encode()
        with tarfile.open(path, "w:xz") as file:
            for name, data in sorted(objects.items()):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))

    def _open(self) -> Cluster:
        shards = {} if self._format == 1 else {"offsets_shards": 4}
        return Cluster.open(self._shared.open(), create=True, shards=4, settings=SETTINGS, **shards)

    def _member(self) -> None:
        """A consumer with a subscription, that has not left."""
        consumer = Consumer(
            ROOT
            | {"group.id": "members", "auto.offset.reset": "earliest", "enable.auto.commit": False},
            cluster=self._open(),
        )
        consumer.subscribe(["input"])
        messages = [consumer.poll(0) for _ in range(20)]
        assert any(messages)
        consumer.commit()

    def _group(self, cluster: Cluster, name: str, positions: dict[int, int]) -> int:
        generation = cluster.groups.start(name)
        cluster.groups.commit(name, generation, {"input": positions})
        return generation

    def _transaction(
        self, name: str, crash: Crash, *, end: str = "commit", eager: bool = False
    ) -> None:
        """A producer's transaction with the offsets of three groups; it dies at the end."""
        cluster = self._open()
        names = [f"{name} {number}" for number in range(3)]
        generations = {group: self._group(cluster, group, {0: 5, 1: 5}) for group in names}
        config = ROOT | {"transactional.id": name}
        if eager:
            config["transaction.publish"] = "eager"
        producer = Producer(config, cluster=cluster, background=False)
        producer.init_transactions()
        producer.begin_transaction()
        for topic in ("orders", "stock"):
            producer.produce(topic, value=name)
        if eager:
            producer.flush()
        for group, generation in generations.items():
            metadata = ConsumerGroupMetadata(group, generation)
            producer.send_offsets_to_transaction([TopicPartition("input", 0, 30)], metadata)
        store = cluster.store
        assert isinstance(store, FaultyStore)
        puts: list[str] = []

        def plan(verb: str, path: str) -> Fault:
            if verb != "put":
                return Fault.NONE
            puts.append(path)
            return Fault.CRASH_BEFORE if crash(puts) else Fault.NONE

        store.plan = plan
        with suppress(SimulatedCrash):
            if end == "commit":
                producer.commit_transaction()
            elif end == "abort":
                producer.abort_transaction()
            elif end == "prepare":
                self.prepared[name] = producer.prepare_transaction()
        # The process dies: nothing is closed.
        store.plan = lambda verb, path: Fault.CRASH_BEFORE

    def _is_half_moved(self, puts: list[str]) -> bool:
        """Format 2: before the second shard gets the offsets; format 1: before its one log does."""
        if not any(path.startswith("stock/_delta_log") for path in puts):
            return False
        moved = [path for path in puts if path.startswith("__consumer_offsets") and "json" in path]
        after = [path for path in moved if puts.index(path) > self._last(puts, "stock/_delta_log")]
        return len(after) == (1 if self._format == 1 else 2)

    @staticmethod
    def _last(puts: list[str], prefix: str) -> int:
        return max(n for n, path in enumerate(puts) if path.startswith(prefix))

    @staticmethod
    def _is_decision(puts: list[str]) -> bool:
        return puts[-1].startswith("__transaction_state") and "_delta_log" in puts[-1]

    @staticmethod
    def _is_abort(puts: list[str]) -> bool:
        return puts[-1].startswith(("orders/_delta_log", "stock/_delta_log"))

    def _overtaken(self, cluster: Cluster) -> None:
        """A consumer commits one of two partitions after the entry; the transaction is decided."""
        generation = self._group(cluster, "overtaken 0", {0: 5, 1: 5})
        row = cluster.coordinator.init_producer_id("overtaken", Owner(run_id="r"))
        wanted = GroupOffsets(
            group_id="overtaken 0",
            generation=generation,
            start={},
            end={"input": {0: 30, 1: 30}},
        )
        cluster.groups.add_pending(row, [wanted])
        cluster.groups.commit("overtaken 0", generation, {"input": {0: 40}})
        cluster.shard_for("overtaken").transition(
            "overtaken",
            lambda now: prepare_end(
                now,
                holder=row.holder,
                result=TransactionResult.COMMIT,
                manifest=Manifest(groups=("overtaken 0",)),
                now_ms=cluster.store.clock.now_ms(),
            ),
        )


def main() -> None:
    root_format = int(sys.argv[1])
    maker = Maker(root_format)
    maker.make()
    path = Path(__file__).with_name(f"format_{root_format}.tar.xz")
    maker.save(path)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
