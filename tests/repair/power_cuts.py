"""A history that is synced up to a moment, power cuts after it, and the clients that go on.

Of each file that was written after that moment the name and the content survive or not, by a seed,
in no order. Every record has a value of its own, so it can be counted.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.staged_files import record_columns, written_file
from txnlog.admin import AdminClient, NewTopic
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.one_off import commit_one_off
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.checkpointer import wait_for_background
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings

TOPICS = ("a", "b")
INPUT = "in"
GROUP, READERS = "copiers", "readers"
IDS = ("deferred", "eager", "copier")
PARTITIONS = 2
TRUST_MS = LogSettings().trust_ms


@dataclass
class History:
    """Values of acknowledged records, and of aborted ones; `half` by transaction of the late part:
    its id and its records. `committed`: synced offsets of READERS.
    """

    synced: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    transactions: list[tuple[str, set[str]]] = field(default_factory=list)
    copied: set[str] = field(default_factory=set)
    readers_at: int = 0
    before: dict[str, bytes] = field(default_factory=dict)


class Clients:
    """One producer of each kind, a copier with a group, and a plain consumer."""

    def __init__(self, root: str, *, ids: tuple[str, ...] = IDS) -> None:
        self.config = {"txnlog.root": root, "client.id": "test"}
        self.root = root
        self.plain = Producer({**self.config, "enable.idempotence": True})
        self.producers = {
            name: Producer(
                {
                    **self.config,
                    "transactional.id": name,
                    "transaction.publish": "eager" if name == "eager" else "deferred",
                }
            )
            for name in ids
        }
        for producer in self.producers.values():
            producer.init_transactions()
        reading = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        self.source = Consumer({**self.config, **reading, "group.id": GROUP})
        self.source.assign([TopicPartition(INPUT, 0)])
        self.readers = Consumer({**self.config, **reading, "group.id": READERS})
        self.readers.assign([TopicPartition(INPUT, 0)])

    def close(self) -> None:
        for client in (self.source, self.readers, self.plain, *self.producers.values()):
            client.close()


def build(root: str, seed: int, *, synced: int = 12, late: int = 25) -> History:
    """Write a history; `before` are the files that were synced."""
    rng, history = random.Random(seed), History()
    shards = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2}
    admin = AdminClient({"txnlog.root": root, **shards})
    for name in (*TOPICS, INPUT):
        admin.create_topics([NewTopic(name, PARTITIONS)])[name].result()
    clients = Clients(root)
    for number in range(synced):
        step(clients, rng, history, history.synced, f"s{number}")
    history.copied = {value for value in history.synced if value.startswith("copy-")}
    committed = clients.readers.committed([TopicPartition(INPUT, 0)])[0].offset
    history.readers_at = max(committed, 0)
    for producer in clients.producers.values():
        producer.flush()
    wait_for_background()
    history.before = {os.path.relpath(path, root): path.read_bytes() for path in files_below(root)}
    late_id = Producer({**clients.config, "transactional.id": "late"})
    late_id.init_transactions()
    clients.producers["late"] = late_id
    for number in range(late):
        step(clients, rng, history, history.late, f"l{number}")
    wait_for_background()
    return history


def step(
    clients: Clients, rng: random.Random, history: History, acked: set[str], name: str
) -> None:
    """One thing that a client does."""
    what = rng.choice([*IDS, *IDS, "late", "plain", "commit", "batch", "checkpoint", "topic"])
    values = {f"{what}-{name}-{topic}-{n}" for topic in TOPICS for n in range(rng.randint(1, 3))}
    if what == "plain":
        _send(clients.plain, values)
        clients.plain.produce(INPUT, f"input-{name}", partition=0)
        clients.plain.flush()
        acked |= {*values, f"input-{name}"}
    elif what == "checkpoint":
        wait_for_background()
        store = Cluster.open(clients.root).store
        table = rng.choice(sorted(t for t in store.list_folders() if store.list(f"{t}/_delta_log")))
        create_checkpoint(store, table, trust_ms=TRUST_MS)
    elif what == "topic" and name.startswith("l"):
        admin = AdminClient(clients.config)
        admin.create_topics([NewTopic(f"new-{name}", 1)])[f"new-{name}"].result()
    elif what == "commit":
        message = clients.readers.poll(0.05)
        if message is not None and message.error() is None:
            clients.readers.commit(message=message, asynchronous=False)
    elif what == "batch":
        cluster = Cluster.open(clients.root)
        topic = rng.choice(TOPICS)
        cluster.topic(topic).refresh()
        value = f"{what}-{name}"
        records = record_columns(timestamp=[0], key=[None], value=[value.encode()])
        commit_one_off(cluster, [written_file(cluster, topic, records)], Owner())
        acked.add(value)
        history.transactions.append(("_batch", {value}))
    elif what == "copier":
        _copy(clients, history, acked)
    elif what in clients.producers:
        producer = clients.producers[what]
        producer.begin_transaction()
        _send(producer, values)
        if rng.random() < 0.2:
            producer.abort_transaction()
            history.aborted |= values
        else:
            producer.commit_transaction()
            acked |= values
            if name.startswith("l"):
                history.transactions.append((what, values))


def _send(producer: Producer, values: set[str]) -> None:
    for number, value in enumerate(sorted(values)):
        topic = value.split("-")[2]
        producer.produce(topic, value, partition=number % PARTITIONS)


def _copy(clients: Clients, history: History, acked: set[str]) -> None:
    message = clients.source.poll(0.05)
    if message is None or message.error() is not None:
        return
    value = f"copy-{message.value().decode()}"
    producer = clients.producers["copier"]
    producer.begin_transaction()
    producer.produce("b", value, partition=0)
    position = TopicPartition(INPUT, 0, message.offset() + 1)
    producer.send_offsets_to_transaction([position], clients.source.consumer_group_metadata())
    producer.commit_transaction()
    acked.add(value)


def files_below(root: str) -> list[Path]:
    """All files, without temporary ones."""
    found = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sorted(path for path in found if "#" not in path.name)


# --- Damage ---------------------------------------------------------------------------------------


def cut_power(root: str, history: History, seed: int) -> list[str]:
    """Damage what was written late; returns what was done, for the message of a failure."""
    rng, done = random.Random(seed), []
    late = []
    for path in files_below(root):
        name = os.path.relpath(path, root)
        if history.before.get(name) != path.read_bytes():
            late.append((name, path))
    kind = seed % 4
    if kind == 0:
        # The newest files of some tables have no names.
        for table in sorted({name.split("/")[0] for name, _ in late}):
            mine = [(n, p) for n, p in late if n.startswith(f"{table}/_delta_log/")]
            mine.sort(key=lambda item: item[1].stat().st_mtime_ns)
            count = rng.choice([0, 0, 1, 2, 5, len(mine)])
            for name, path in mine[len(mine) - min(count, len(mine)) :]:
                _lose(name, path, history, done)
    else:
        share = (0.03, 0.2, 1.0)[kind - 1]
        for name, path in late:
            if rng.random() < share:
                _damage(name, path, history, rng, done)
    return done


def _damage(name: str, path: Path, history: History, rng: random.Random, done: list[str]) -> None:
    data = path.read_bytes()
    how = rng.choice(["name", "empty", "empty", "half", "zeros", "flip", "content"])
    if how == "name":
        _lose(name, path, history, done)
        return
    if how == "empty" or not data:
        damaged = b""
    elif how == "half":
        damaged = data[: rng.randrange(len(data))]
    elif how == "zeros":
        damaged = bytes(len(data))
    elif how == "content":
        return
    else:
        at = rng.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    path.write_bytes(damaged)
    done.append(f"{how} {name}")


def _lose(name: str, path: Path, history: History, done: list[str]) -> None:
    before = history.before.get(name)
    if before is None:
        path.unlink()
    else:
        path.write_bytes(before)
    done.append(f"name {name}")


# --- After a repair -------------------------------------------------------------------------------


def read(root: str, *topics: str) -> Counter[str]:
    """How often each value is in a topic, for a reader of what is committed."""
    consumer = Consumer({"txnlog.root": root, "auto.offset.reset": "earliest"})
    cluster = Cluster.open(root)
    wanted = []
    for name in topics:
        log = cluster.topic(name)
        log.refresh()
        wanted += [TopicPartition(name, number, 0) for number in range(log.partitions)]
    left = {(one.topic, one.partition) for one in wanted}
    ends = {key: cluster.topic(key[0]).view.high_watermark(key[1]) for key in left}
    consumer.assign(wanted)
    found: Counter[str] = Counter()
    while True:
        messages = consumer.consume(1000, 0.05)
        for message in messages:
            assert message.error() is None, message.error()
            found[message.value().decode()] += 1
        positions = consumer.position([TopicPartition(t, p) for t, p in sorted(left)])
        if not messages and all(p.offset >= ends[p.topic, p.partition] for p in positions):
            break
    consumer.close()
    return found


def go_on(root: str, seed: int) -> tuple[History, Clients]:
    """Clients with every old id, a new one, and all groups; each does a few things."""
    rng, history = random.Random(seed), History()
    clients = Clients(root, ids=(*IDS, "late", "new"))
    clients.plain.produce(INPUT, "input-after", partition=0)
    clients.plain.flush()
    history.late.add("input-after")
    for name in clients.producers:
        for number in range(2):
            values = {f"{name}-z{number}-{topic}-0" for topic in TOPICS}
            producer = clients.producers[name]
            producer.begin_transaction()
            _send(producer, values)
            producer.commit_transaction()
            history.late |= values
    for number in range(12):
        step(clients, rng, history, history.late, f"z{number + 2}")
    return history, clients


def copy_of(root: str, to: Path) -> str:
    shutil.copytree(root, to)
    return str(to)
