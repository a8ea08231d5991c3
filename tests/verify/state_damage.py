"""Damage to what logs say: batches, rows, groups, tables. Every commit is whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from tests.verify.planting import Damage, K
from tests.verify.roots import (
    GROUP,
    OFFSETS,
    ORDERS,
    STOCK,
    append,
    batches,
    commit_file,
    commits,
    live,
    opened,
    shard_of,
)
from txnlog.storage.delta.actions import Add, Metadata, Remove, Txn, decode_commit
from txnlog.storage.tables.cluster_log import PATH as CLUSTER

# --- Batches --------------------------------------------------------------------------------------


def changed(root: str, add: Add, **values: str) -> str:
    """The file gets another header."""
    append(root, ORDERS, [replace(add, partition_values={**add.partition_values, **values})])
    return add.path


def batch_damages() -> Iterator[Damage]:
    def hole(root: str) -> str:
        gone, after = batches(root, ORDERS, 0)[4:6]
        append(root, ORDERS, [Remove(gone.path, 1)])
        return after.path

    def overlap(root: str) -> str:
        first, second = batches(root, ORDERS, 0)[4:6]
        return changed(root, second, base_offset=first.partition_values["base_offset"] or "")

    def behind_end(root: str) -> str:
        newest = batches(root, ORDERS, 0)[-1]
        append(root, ORDERS, [Txn("txnlog/end/0", 10_000, 1)])
        return newest.path

    def unknown_partition(root: str) -> str:
        return changed(root, batches(root, ORDERS, 0)[-1], partition="7")

    def garbled(root: str) -> str:
        return changed(root, batches(root, ORDERS, 0)[-1], last_offset="many")

    def backwards(root: str) -> str:
        return changed(root, batches(root, ORDERS, 0)[-1], last_offset="0")

    def strange_status(root: str) -> str:
        return changed(root, batches(root, ORDERS, 0)[-1], txn_status="maybe")

    def high_start(root: str) -> str:
        append(root, ORDERS, [Txn("txnlog/start/0", 10_000, 1)])
        return ORDERS

    yield Damage("batch removed in the middle", hole, (K.OFFSETS_MISSING,))
    yield Damage("end beyond the newest batch", behind_end, (K.OFFSETS_MISSING,))
    yield Damage("batches overlap", overlap, (K.BATCHES_OVERLAP,))
    yield Damage("partition unknown", unknown_partition, (K.PARTITION_UNKNOWN,))
    yield Damage("header garbled", garbled, (K.HEADER_UNREADABLE,))
    yield Damage("header backwards", backwards, (K.HEADER_UNREADABLE, K.OFFSETS_MISSING))
    yield Damage("status unknown", strange_status, (K.HEADER_UNREADABLE,))
    yield Damage("log start above the end", high_start, (K.BOUND_WRONG,))

    def plain(root: str) -> list[Add]:
        """The newest idempotent producer's batches."""
        found = batches(root, ORDERS, 0, txn_status="none")
        newest = found[-1].partition_values["producer_id"]
        return [add for add in found if add.partition_values["producer_id"] == newest]

    def gap(root: str) -> str:
        add = plain(root)[2]
        before = int(add.partition_values["base_sequence"] or 0)
        return changed(root, add, base_sequence=str(before + 50))

    def repeated(root: str) -> str:
        return changed(root, plain(root)[2], base_sequence="0")

    def newest_sequence(root: str) -> str:
        add = plain(root)[-1]
        producer_id = add.partition_values["producer_id"]
        append(root, ORDERS, [Txn(f"txnlog/{producer_id}-0", 99, 10**15)])
        return add.path

    yield Damage("sequence gap", gap, (K.SEQUENCE_GAP,))
    yield Damage("sequence repeated", repeated, (K.SEQUENCE_REPEATED,))
    yield Damage("newest sequence lost", newest_sequence, (K.SEQUENCE_GAP,))

    def hanging(root: str) -> str:
        add = batches(root, ORDERS, 0, txn_status="committed")[-1]
        epoch = int(add.partition_values["producer_epoch"] or 0)
        return changed(root, add, txn_status="ongoing", producer_epoch=str(epoch + 100))

    def settled_without(root: str) -> str:
        add = batches(root, ORDERS, 0, txn_status="committed")[-1]
        epoch = int(add.partition_values["producer_epoch"] or 0)
        return changed(root, add, producer_epoch=str(epoch + 100))

    def undecided(root: str) -> str:
        return changed(
            root, batches(root, ORDERS, 0, txn_status="committed")[-1], txn_status="ongoing"
        )

    yield Damage("hanging transaction", hanging, (K.HANGING_TRANSACTION,))
    yield Damage("settled without a marker", settled_without, (K.MARKER_MISSING,))
    yield Damage("undecided after its marker", undecided, (K.UNDECIDED_AFTER_MARKER,))


# --- Rows -----------------------------------------------------------------------------------------


def row_of(root: str, table: str, name: str) -> Add:
    """The live file of an id or group."""
    [found] = [add for add in live(root, table).values() if name in add.partition_values.values()]
    return found


def rewritten(root: str, name: str, **values: str) -> str:
    """The row of a transactional.id says something else."""
    table = shard_of(root, name)
    add = row_of(root, table, name)
    append(root, table, [replace(add, partition_values={**add.partition_values, **values})])
    return name


def regrouped(root: str, **values: str) -> str:
    """The row of the group says something else."""
    add = row_of(root, OFFSETS, GROUP)
    append(root, OFFSETS, [replace(add, partition_values={**add.partition_values, **values})])
    return GROUP


def row_damages() -> Iterator[Damage]:
    def unreadable(root: str) -> str:
        return rewritten(root, "eager", state="MAYBE")

    def unreadable_group(root: str) -> str:
        return regrouped(root, offsets="{")

    def wrong_shard(root: str) -> str:
        table = shard_of(root, "eager")
        other = f"__transaction_state-{1 - int(table[-1])}"
        add = row_of(root, table, "eager")
        shutil.copyfile(Path(root, table, add.path), Path(root, other, add.path))
        append(root, table, [Remove(add.path, 1)])
        append(root, other, [add])
        return "eager"

    def repeated(root: str) -> str:
        table = shard_of(root, "eager")
        add = row_of(root, table, "eager")
        shutil.copyfile(Path(root, table, add.path), Path(root, table, "row-copy.parquet"))
        append(root, table, [replace(add, path="row-copy.parquet")])
        return "eager"

    def went_back(root: str) -> str:
        return rewritten(root, "eager", producer_epoch="0", txn_epoch="0")

    def generation_back(root: str) -> str:
        regrouped(root, generation="100")
        return regrouped(root, generation="1")

    def shared_id(root: str) -> str:
        other = opened(root).coordinator.describe("deferred")
        assert other is not None
        rewritten(root, "eager", producer_id=str(other.producer_id))
        return "producer id"

    def unknown_id(root: str) -> str:
        return rewritten(root, "eager", producer_id="123456")

    def stuck(root: str) -> str:
        row = opened(root).coordinator.describe("eager")
        assert row is not None
        touched = {"topic": ORDERS, "topic_id": opened(root).topic(ORDERS).topic_id}
        return rewritten(
            root,
            "eager",
            state="PREPARE_ABORT",
            txn_epoch=str(row.producer_epoch),
            partitions=json.dumps([{**touched, "partitions": [0]}]),
        )

    hour_ms = 3_700_000
    yield Damage("row unreadable", unreadable, (K.ROW_UNREADABLE,))
    yield Damage("group unreadable", unreadable_group, (K.ROW_UNREADABLE,))
    yield Damage("row in the wrong shard", wrong_shard, (K.ROW_IN_WRONG_SHARD,))
    yield Damage("row twice", repeated, (K.ROW_REPEATED,))
    yield Damage("epoch went back", went_back, (K.ROW_WENT_BACK,))
    yield Damage("generation went back", generation_back, (K.ROW_WENT_BACK,))
    yield Damage("producer id of two rows", shared_id, (K.PRODUCER_ID_SHARED,))
    yield Damage("producer id never given out", unknown_id, (K.PRODUCER_ID_UNKNOWN,))
    yield Damage(
        "PREPARE that no process finishes", stuck, (K.TRANSACTION_STUCK,), later_ms=hour_ms
    )


# --- Groups and tables ----------------------------------------------------------------------------


def group_damages() -> Iterator[Damage]:
    def offset(root: str, topic: str, partition: int, number: int) -> str:
        text = json.dumps({topic: {str(partition): [number, 1, 1, ""]}})
        return regrouped(root, offsets=text)

    def below(root: str) -> str:
        append(root, ORDERS, [Txn("txnlog/start/0", 5, 1)])
        return offset(root, ORDERS, 0, 2)

    def deleted(root: str) -> str:
        offset(root, STOCK, 0, 1)
        opened(root).delete_topic(STOCK)
        return GROUP

    def above(root: str) -> str:
        holder = {
            "transactional_id": "gone", "producer_id": 1, "run_id": "r", "ticket": 9,
            "generation": 1, "partitions": {ORDERS: [0]},
        }  # fmt: skip
        return regrouped(root, tickets=json.dumps({"newest": 8, "holders": [holder]}))

    def beyond(root: str) -> str:
        return offset(root, ORDERS, 0, 10_000)

    yield Damage("offset beyond the end", beyond, (K.OFFSET_BEYOND_END,))
    yield Damage("offset below the log start", below, (K.OFFSET_BELOW_START,))
    without = (K.OFFSET_WITHOUT_PARTITION,)
    yield Damage("offset of a deleted topic", deleted, without)
    yield Damage("offset of no topic", lambda root: offset(root, "nowhere", 0, 1), without)
    yield Damage("offset of no partition", lambda root: offset(root, ORDERS, 9, 1), without)
    yield Damage("holder of a ticket that was never given", above, (K.TICKET_ABOVE_NEWEST,))


def table_damages() -> Iterator[Damage]:
    def copied(root: str) -> str:
        shutil.copytree(Path(root, STOCK), Path(root, "stock-copy"))
        return "stock"

    def foreign(root: str) -> str:
        log = Path(root, "foreign", "_delta_log")
        log.mkdir(parents=True)
        data = commit_file(root, STOCK, 0).read_bytes()
        lines = data.replace(b"txnlog.partitions", b"else.partitions").splitlines(keepends=True)
        (log / f"{0:020}.json").write_bytes(b"".join(lines[1:]))
        return "foreign"

    def other_cluster(root: str) -> str:
        metadata = metadata_of(root, OFFSETS)
        append(root, OFFSETS, [replace(metadata, id="another-offsets")])
        return OFFSETS

    def swapped(root: str) -> str:
        one, other = Path(root, STOCK), Path(root, ORDERS)
        aside = one.with_name("aside")
        one.rename(aside)
        other.rename(one)
        aside.rename(other)
        return STOCK

    def without_log(root: str) -> str:
        shutil.rmtree(Path(root, STOCK, "_delta_log"))
        return STOCK

    def upgraded(root: str) -> str:
        path = commit_file(root, STOCK, commits(root, STOCK)[-1] + 1)
        lines = (
            '{"commitInfo":{"operation":"UPGRADE PROTOCOL"}}',
            '{"protocol":{"minReaderVersion":3,"minWriterVersion":7}}\n',
        )
        path.write_text("\n".join(lines))
        return STOCK

    def by_another_tool(root: str) -> str:
        path = commit_file(root, STOCK, commits(root, STOCK)[-1] + 1)
        lines = (
            '{"commitInfo":{"operation":"WRITE"}}',
            '{"txn":{"appId":"other","version":5}}\n',
        )
        path.write_text("\n".join(lines))
        return path.name

    def other_json(root: str) -> str:
        path = commit_file(root, STOCK, commits(root, STOCK)[-1])
        path.write_text('{"version":10,"size":3}\n')
        return path.name

    def many_partitions(root: str) -> str:
        metadata = metadata_of(root, ORDERS)
        configuration = {**metadata.configuration, "txnlog.partitions": "1000000000"}
        append(root, ORDERS, [replace(metadata, configuration=configuration)])
        return ORDERS

    yield Damage("two tables with one id", copied, (K.TABLE_ID_SHARED,))
    yield Damage("a foreign table", foreign, (K.TABLE_FOREIGN,))
    yield Damage("a table of another cluster", other_cluster, (K.TABLE_ID_WRONG,))
    yield Damage("two topics swapped", swapped, (K.TABLE_ID_WRONG,))
    yield Damage("a topic without its log", without_log, (K.LOG_MISSING,))
    yield Damage("a table upgrade", upgraded, (K.TABLE_UNSUPPORTED,))
    yield Damage("a commit that is other JSON", other_json, (K.COMMIT_DAMAGED,))
    yield Damage("a commit of another tool", by_another_tool, (K.COMMIT_FOREIGN,))
    yield Damage("partitions that cannot be", many_partitions, (K.BOUND_WRONG,))


def cluster_warnings() -> Iterator[Damage]:
    def fsync(root: str, value: dict[str, str]) -> str:
        metadata = metadata_of(root, CLUSTER)
        others = {k: v for k, v in metadata.configuration.items() if k != "txnlog.storage.fsync"}
        append(root, CLUSTER, [replace(metadata, configuration={**others, **value})])
        return CLUSTER

    kinds = (K.FSYNC_UNDECIDED,)
    yield Damage("a root without storage.fsync", lambda root: fsync(root, {}), kinds)
    syncing = {"txnlog.storage.fsync": "syncing"}
    yield Damage("a change of storage.fsync that died", lambda root: fsync(root, syncing), kinds)

    def unfinished(root: str) -> str:
        metadata = metadata_of(root, CLUSTER)
        copy = {"txnlog.copy": '{"origin":"another","run":"died"}'}
        append(root, CLUSTER, [replace(metadata, configuration={**metadata.configuration, **copy})])
        return CLUSTER

    yield Damage("a copy that died", unfinished, (K.COPY_UNFINISHED,))


def metadata_of(root: str, table: str) -> Metadata:
    data = commit_file(root, table, 0).read_bytes()
    actions = decode_commit(data, version=0, source=table).actions
    return next(action for action in actions if isinstance(action, Metadata))
