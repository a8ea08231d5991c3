"""A root on a local disk with everything that a root may hold, and ways to damage a copy of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from txnlog.admin import AdminClient, NewTopic
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.verification.findings import Finding
from txnlog.storage.delta.actions import (
    Action,
    Add,
    CommitInfo,
    Remove,
    decode_commit,
    digest_of,
    encode_commit,
)
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import commit_path, list_whole_log
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SkewedClock
from txnlog.verifying.report import Verification, VerifySettings
from txnlog.verifying.verifier import verify

OFF = LogSettings(checkpoint_mode="off")
ORDERS, STOCK = "orders", "stock"
OFFSETS = "__consumer_offsets-0"
GROUP = "readers"
IDS = ("deferred", "eager", "copier")
HOUR_MS = 3_600_000


def build(
    root: str,
    storage: Mapping[str, str] | None = None,
    *,
    config: Mapping[str, str] | None = None,
) -> None:
    """Two topics, deferred, eager and idempotent producers, a group, two checkpoints per table.

    `storage` are options of its store, and `config` of the topics.
    """
    shards = {"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 1}
    admin = AdminClient({**settings_of(root, storage), **shards})
    for topic, partitions in ((ORDERS, 2), (STOCK, 1)):
        new = NewTopic(topic, partitions, config=dict(config or {}))
        admin.create_topics([new])[topic].result()
    produce(root, storage, rounds=3)
    checkpoint_all(root, storage)
    produce(root, storage, rounds=3)
    checkpoint_all(root, storage)
    produce(root, storage, rounds=2)


def settings_of(root: str, storage: Mapping[str, str] | None) -> dict[str, str | int]:
    """The settings of a client."""
    options = {f"storage.{name}": value for name, value in (storage or {}).items()}
    return {"txnlog.root": root, **options}


def produce(root: str, storage: Mapping[str, str] | None = None, *, rounds: int) -> None:
    """Transactions of all kinds, an abort, and offsets in and outside of transactions."""
    config = settings_of(root, storage)
    plain = Producer({**config, "enable.idempotence": True})
    deferred = Producer({**config, "transactional.id": "deferred"})
    eager = Producer({**config, "transactional.id": "eager", "transaction.publish": "eager"})
    copier = Producer({**config, "transactional.id": "copier"})
    consumer = Consumer(
        {**config, "group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(ORDERS, 0)])
    for producer in (deferred, eager, copier):
        producer.init_transactions()
    for number in range(rounds):
        for _ in range(2):
            plain.produce(ORDERS, b"plain", partition=0)
            plain.flush()
        for producer in (deferred, eager):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.produce(ORDERS, b"in a transaction", partition=partition)
            producer.produce(STOCK, b"stock", partition=0)
            producer.flush()
            if producer is eager and number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        message = consumer.poll(10)
        assert message is not None
        copier.begin_transaction()
        copier.produce(STOCK, message.value(), partition=0)
        position = TopicPartition(ORDERS, 0, message.offset() + 1)
        copier.send_offsets_to_transaction([position], consumer.consumer_group_metadata())
        copier.commit_transaction()
    for client in (consumer, plain, deferred, eager, copier):
        client.close()


def checkpoint_all(root: str, storage: Mapping[str, str] | None = None) -> None:
    """A checkpoint of every table's newest version."""
    cluster = opened(root, storage)
    tables = [ORDERS, STOCK, OFFSETS, "__cluster"]
    for table in [*tables, *(cluster.shard(n).path for n in range(cluster.shards))]:
        create_checkpoint(cluster.store, table, trust_ms=OFF.trust_ms)


class _Ahead(SkewedClock):
    """A clock that is ahead, and waits for nothing."""

    def sleep_ms(self, duration_ms: float) -> None:
        pass


def opened(root: str, storage: Mapping[str, str] | None = None) -> Cluster:
    """A process of its own."""
    return Cluster.open(root, storage, settings=OFF)


def shard_of(root: str, transactional_id: str) -> str:
    """The table of an id's row."""
    cluster = opened(root)
    return cluster.shard(cluster.shard_of(transactional_id)).path


def verified(root: str, *, later_ms: int = 0, **settings: object) -> Verification:
    """What verify finds; its clock may be ahead."""
    store = ObjectStore.from_url(root, create=False)
    store.clock = _Ahead(store.clock, later_ms)
    return verify(store, VerifySettings(**settings))  # type: ignore[arg-type]


def shown(findings: Sequence[Finding]) -> str:
    """For the message of an assertion."""
    return "\n".join(f"{f.kind.name} {f.table} {f.file} {f.subject}: {f.what}" for f in findings)


# --- Log files ------------------------------------------------------------------------------------


def commits(root: str, table: str) -> list[int]:
    return list_whole_log(ObjectStore.from_url(root), table).commits


def checkpoints(root: str, table: str) -> list[int]:
    return list_whole_log(ObjectStore.from_url(root), table).checkpoints


def commit_file(root: str, table: str, version: int) -> Path:
    return Path(root, commit_path(table, version))


def checkpoint_file(root: str, table: str, version: int) -> Path:
    return Path(root, table, "_delta_log", f"{version:020}.checkpoint.parquet")


def append(root: str, table: str, actions: Sequence[Action], *, operation: str = "TEST") -> int:
    """A commit that follows the newest one, with actions no client would write; its version."""
    version = commits(root, table)[-1] + 1
    info = CommitInfo(1_700_000_000_000, operation, "txnlog/test", {}, os.urandom(16).hex())
    before = digest_of(commit_file(root, table, version - 1).read_bytes())
    info = replace(info, previous=before)
    commit_file(root, table, version).write_bytes(encode_commit(info, actions))
    return version


def live(root: str, table: str) -> dict[str, Add]:
    """The live files of a table by path, as its commits say."""
    found: dict[str, Add] = {}
    for version in commits(root, table):
        path = commit_file(root, table, version)
        for action in decode_commit(path.read_bytes(), version=version, source=str(path)).actions:
            if isinstance(action, Add):
                found[action.path] = action
            elif isinstance(action, Remove):
                found.pop(action.path, None)
    return found


def batches(root: str, topic: str, partition: int, **values: str) -> list[Add]:
    """The live batches of a partition in offset order whose headers have these values."""
    wanted = {"partition": str(partition), **values}
    found = [
        add
        for add in live(root, topic).values()
        if all(add.partition_values[name] == value for name, value in wanted.items())
    ]
    return sorted(found, key=lambda add: int(add.partition_values["base_offset"] or 0))


def truncate_log(root: str, table: str, *, to: int) -> None:
    """Take the newest commits and checkpoints away: an older copy of the log was restored."""
    for version in commits(root, table):
        if version > to:
            commit_file(root, table, version).unlink()
    for version in checkpoints(root, table):
        if version > to:
            checkpoint_file(root, table, version).unlink()
    hint = Path(root, table, "_delta_log", "_last_checkpoint")
    left = checkpoints(root, table)
    hint.unlink(missing_ok=True)
    if left:
        size_bytes = checkpoint_file(root, table, left[-1]).stat().st_size
        hint.write_text(f'{{"version":{left[-1]},"size":1,"sizeInBytes":{size_bytes}}}')


# --- Bytes ----------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    """Flip one bit of a byte; negative places count from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def halve(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
