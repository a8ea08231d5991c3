"""Older copies of a table, and folders that are gone: other tables show it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.verify.planting import Damage, K
from tests.verify.roots import (
    OFFSETS,
    ORDERS,
    STOCK,
    append,
    batches,
    commits,
    opened,
    shard_of,
    truncate_log,
)
from tests.verify.state_damage import changed, regrouped
from txnlog.producer import Producer
from txnlog.storage.delta.actions import Txn


def lost_commits() -> Iterator[Damage]:
    def old_shard(root: str) -> str:
        table = shard_of(root, "deferred")
        truncate_log(root, table, to=commits(root, table)[-1] - 6)
        return table

    def old_offsets(root: str) -> str:
        truncate_log(root, OFFSETS, to=commits(root, OFFSETS)[-1] - 4)
        return OFFSETS

    def old_cluster(root: str) -> str:
        truncate_log(root, "__cluster", to=2)
        return "producer id"

    def old_topic(root: str) -> str:
        truncate_log(root, STOCK, to=commits(root, STOCK)[-1] - 4)
        return STOCK

    def old_topic_of_idle_producer(root: str) -> str:
        # Its last transaction is not complete in its row: the next one, or anybody, does that.
        producer = Producer({"txnlog.root": root, "transactional.id": "idle"})
        producer.init_transactions()
        for _ in range(2):
            with producer.transaction():
                producer.produce(STOCK, b"idle", partition=0)
        truncate_log(root, STOCK, to=commits(root, STOCK)[-1] - 2)
        return STOCK

    def cluster_without_shards(root: str) -> str:
        # Before: who opens a shard records it.
        table = shard_of(root, "deferred")
        truncate_log(root, "__cluster", to=0)
        return table

    def offsets_ahead(root: str) -> str:
        append(root, OFFSETS, [Txn(f"txnlog/{producer_id_of(root, 'copier')}", 99, 1)])
        return OFFSETS

    def batch_ahead(root: str) -> str:
        newest, producer_id = batches(root, ORDERS, 0)[-1], producer_id_of(root, "eager")
        header = {"producer_id": str(producer_id), "producer_epoch": "99", "base_sequence": "0"}
        changed(root, newest, txn_status="ongoing", **header)
        return "eager"

    def unknown_in_offsets(root: str) -> str:
        append(root, OFFSETS, [Txn("txnlog/123456", 0, 1)])
        return OFFSETS

    yield Damage("older copy of a shard", old_shard, (K.ROW_BEHIND_MARKER,))
    yield Damage("older copy of the offsets", old_offsets, (K.MARKER_MISSING,))
    yield Damage("older copy of the cluster", old_cluster, (K.PRODUCER_ID_UNKNOWN,))
    yield Damage("older copy of a topic", old_topic, (K.MARKER_MISSING,))
    yield Damage(
        "older copy below an idle producer", old_topic_of_idle_producer, (K.MARKER_MISSING,)
    )
    yield Damage("marker of offsets ahead of its row", offsets_ahead, (K.ROW_BEHIND_MARKER,))
    yield Damage("undecided batch ahead of its row", batch_ahead, (K.ROW_BEHIND_MARKER,))
    yield Damage("cluster before its shards", cluster_without_shards, (K.SHARD_UNKNOWN,))
    yield Damage("unknown producer of offsets", unknown_in_offsets, (K.PRODUCER_ID_UNKNOWN,))


def producer_id_of(root: str, transactional_id: str) -> int:
    row = opened(root).coordinator.describe(transactional_id)
    assert row is not None
    return row.producer_id


def lost_folders() -> Iterator[Damage]:
    def without_folder(root: str) -> str:
        shutil.rmtree(Path(root, STOCK))
        return STOCK

    def without_any_file(root: str) -> str:
        without_folder(root)
        Path(root, STOCK).mkdir()
        return STOCK

    def assigned(root: str) -> str:
        regrouped(root, assignment=json.dumps({"m": {"nowhere": [0]}}))
        return "nowhere"

    def without_shard(root: str) -> str:
        table = shard_of(root, "eager")
        shutil.rmtree(Path(root, table))
        return table

    yield Damage("a topic whose folder is gone", without_folder, (K.LOG_MISSING,))
    yield Damage("a topic whose folder is empty", without_any_file, (K.LOG_MISSING,))
    yield Damage("a topic that is assigned and gone", assigned, (K.LOG_MISSING,))
    yield Damage("a shard that is gone", without_shard, (K.LOG_MISSING,))
