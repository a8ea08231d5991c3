"""Malicious files that txnlog never writes, and readers of them; run as a program.

`python -m tests.storage.hostile <folder> <case> ...` makes cases and reads them, with little
memory; a case `seed <number>` is files damaged at random. Prints a line with the result of each.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from checkpoint.reader import Checkpoint
from txnlog.cluster import Cluster
from txnlog.protocol.batches import header_from_values
from txnlog.protocol.metadata import Owner
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import checkpoint_path, commit_path, list_log

MEMORY_BYTES = 2 << 30
"""Memory that a read may use, above that of the process."""
LEVELS = 100_000
HUGE = 10**9
OFF = LogSettings(checkpoint_mode="off")
DELTAS = pa.table({"offset_delta": pa.array(range(100), pa.int64())})


class World:
    """A cluster on disk with a topic, a group and a transactional id, and cold reads of each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        cluster = self.opened(create=True)
        cluster.create_topic("orders", partitions=2)
        cluster.groups.start("readers")
        cluster.coordinator.init_producer_id("tx", Owner(run_id="a"), timeout_ms=60_000)
        self.shard = "__transaction_state-0"

    def opened(self, *, create: bool = False) -> Cluster:
        return Cluster.open(str(self.root), create=create, shards=1, offsets_shards=1, settings=OFF)

    def path(self, path: str) -> Path:
        return self.root / path

    def next_commit(self, table: str) -> str:
        log = self.root / table / "_delta_log"
        return commit_path(table, len(list(log.glob("*.json"))))

    def put_commit(self, table: str, *lines: Any) -> str:
        """Write the next commit of a table, as another tool would; returns its name."""
        name = self.next_commit(table)
        raw = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
        self.path(name).write_bytes(b"\n".join(raw))
        return name

    def read(self, table: str) -> None:
        cluster = self.opened()
        if table == self.shard:
            cluster.coordinator.describe("tx")
        elif table == "__consumer_offsets-0":
            cluster.groups.fetch("readers")
        else:
            cluster.topic(table)

    def last_line(self, table: str) -> dict[str, Any]:
        """The newest add of a table."""
        log = sorted((self.root / table / "_delta_log").glob("*.json"))[-1]
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return next(line for line in reversed(lines) if "add" in line)


def deep(levels: int = LEVELS) -> bytes:
    return b"[" * levels + b"]" * levels


def add(**values: object) -> dict[str, Any]:
    """An add of a topic."""
    header = {
        "partition": "0",
        "base_offset": "0",
        "last_offset": "9",
        "producer_id": "-1",
        "producer_epoch": "-1",
        "base_sequence": "-1",
        "txn_status": "none",
    }
    known = {name: str(values.pop(name)) for name in list(values) if name in header}
    return {
        "add": {
            "path": "part-0-x.parquet",
            "partitionValues": {**header, **known},
            "size": 7,
            "modificationTime": 1,
            "dataChange": True,
            **values,
        }
    }


CASES: dict[str, Callable[[World], str]] = {}
"""Name -> makes the case and reads it; returns the file name that the error must contain."""


def case(name: str) -> Callable[[Callable[[World], str]], Callable[[World], str]]:
    def put(make: Callable[[World], str]) -> Callable[[World], str]:
        CASES[name] = make
        return make

    return put


# --- Commits --------------------------------------------------------------------------------------

COMMITS: dict[str, list[Any]] = {
    "deep unknown action": [b'{"x":' + deep() + b"}"],
    "deep field of a known one": [b'{"commitInfo":{"x":' + deep() + b"}}"],
    "deep objects": [b'{"add":' * LEVELS],
    "huge partition": [add(partition=HUGE)],
    "partition beyond a topic's most": [add(partition=100_000)],
    "negative partition": [add(partition=-1)],
    "negative base": [add(base_offset=-5)],
    "last before base": [add(base_offset=9, last_offset=3)],
    "offset beyond int64": [add(last_offset=2**63)],
    "last offset whose end is no int64": [add(last_offset=2**63 - 1)],
    "offset of 100,000 digits": [add(last_offset="9" * 100_000)],
    "offset NaN": [add(last_offset="NaN")],
    "offset 3.0": [add(last_offset="3.0")],
    "producer id -2": [add(producer_id=-2)],
    "producer id beyond int64": [add(producer_id=10**19)],
    "negative size": [add(size=-1)],
    "size beyond int64": [add(size=10**30)],
    "size NaN": [b'{"add":{"path":"p","size":NaN}}'],
    "txn version beyond int64": [{"txn": {"appId": "a", "version": 10**19}}],
    "txn version of 100,000 digits": [b'{"txn":{"appId":"a","version":' + b"9" * 100_000 + b"}}"],
    "txn version 1e400": [b'{"txn":{"appId":"a","version":1e400}}'],
    "end of partition 10^9": [{"txn": {"appId": f"txnlog/end/{HUGE}", "version": 1}}],
    "start of partition -1": [{"txn": {"appId": "txnlog/start/-1", "version": 1}}],
    "negative end": [{"txn": {"appId": "txnlog/end/0", "version": -1}}],
    "checksum without a second line": [b'{"commitInfo":{"txnlogCrc32":5}}'],
    "fewer actions than it says": [{"commitInfo": {"txnlogActions": 3}}, add()],
    "negative timestamp beyond int64": [{"commitInfo": {"timestamp": -(10**20)}}],
    "no partition values": [b'{"add":{"path":"p","partitionValues":{},"size":1,'
                            b'"modificationTime":1}}'],
    "lines of nothing": [b"{}\n" * 30_000_000],
    "blank lines": [b"\n" * 100_000_000],
}  # fmt: skip


def _commit_case(lines: list[Any]) -> Callable[[World], str]:
    def make(world: World) -> str:
        name = world.put_commit("orders", *lines)
        world.read("orders")
        return name

    return make


for title, content in COMMITS.items():
    case(f"commit: {title}")(_commit_case(content))


def _config(world: World, partitions: str) -> str:
    first = json.loads(world.path(commit_path("orders", 0)).read_text().splitlines()[-1])
    first["metaData"]["configuration"]["txnlog.partitions"] = partitions
    name = world.put_commit("orders", first)
    world.read("orders")
    return name


for value in (str(HUGE), "-3", "0", "9" * 5_000, "NaN", "2.0", ""):
    case(f"metadata: {value[:12]} partitions")(lambda world, v=value: _config(world, v))


@case("commit: gigabytes that are not there")
def _sparse(world: World) -> str:
    name = world.next_commit("orders")
    with world.path(name).open("wb") as file:
        file.truncate(64 << 30)
    world.read("orders")
    return name


# --- Rows and groups ------------------------------------------------------------------------------


def _row_case(table: str, column: str, value: str) -> Callable[[World], str]:
    def make(world: World) -> str:
        line = world.last_line(table)
        line["add"]["partitionValues"][column] = value
        name = world.put_commit(table, line)
        world.read(table)
        return name

    return make


NUMBERS = ("9" * 5_000, str(2**63), "NaN", "1.5", "")
ROWS = {
    "__transaction_state-0": ("producer_id", "producer_epoch", "txn_epoch", "timeout_ms"),
    "__consumer_offsets-0": ("generation", "updated_ms"),
}
JSONS = {
    "__transaction_state-0": {
        "partitions": ['[{"topic":"t","topic_id":"i","partitions":[1000000000]}]'],
        "pending": [
            '{"batches":[{"topic":"t","topic_id":"i","partition":-1,"path":"p","size_bytes":1,'
            '"num_records":1,"timestamp_min_us":0,"timestamp_max_us":0,"staged_ms":0}]}',
            '{"batches":[{"topic":"t","topic_id":"i","partition":0,"path":"p","size_bytes":-1,'
            '"num_records":1,"timestamp_min_us":0,"timestamp_max_us":0,"staged_ms":0}]}',
        ],
        "owner": ['{"since_ms":100000000000000000000}'],
    },
    "__consumer_offsets-0": {
        "offsets": [
            '{"t":{"1000000000":[1,1,1]}}',
            '{"t":{"-1":[1,1,1]}}',
            '{"t":{"0":[100000000000000000000,1,1]}}',
            '{"t":{"0":[NaN,1,1]}}',
            '{"t":{"0":[3.0,1,1]}}',
        ],
        "tickets": ['{"holders":[{"transactional_id":"a","producer_id":1,"run_id":"r","ticket":1,'
                    '"generation":1,"partitions":{"t":[1000000000]}}]}'],
        "members": ['{"m":{"topics":[],"heartbeat":100000000000000000000}}'],
        "assignment": ['{"m":{"t":[-1]}}'],
    },
}  # fmt: skip

for table_name, columns in ROWS.items():
    for column_name in columns:
        for number in NUMBERS:
            case(f"row: {table_name} {column_name} {number[:20]}")(
                _row_case(table_name, column_name, number)
            )
for table_name, by_column in JSONS.items():
    for column_name, texts in by_column.items():
        for at, text in enumerate([*texts, deep().decode(), '{"x":' * LEVELS]):
            case(f"row: {table_name} {column_name} {at}")(_row_case(table_name, column_name, text))


@case("statistics: deep")
def _deep_stats(world: World) -> str:
    stats = '{"minValues":' * LEVELS
    values = add(stats=stats)["add"]
    header = header_from_values(
        values["partitionValues"], path="part-0-x.parquet", size_bytes=7, stats=stats, source="s"
    )
    assert header.num_records is None
    return "part-0-x.parquet"


@case("lease: deep")
def _deep_lease(world: World) -> str:
    first = json.loads(world.path(commit_path("__cluster", 0)).read_text().splitlines()[-1])
    first["metaData"]["configuration"]["txnlog.lease.housekeeping"] = deep().decode()
    world.put_commit("__cluster", first)
    world.opened().change_lease("housekeeping", lambda known: None)
    return "__cluster"


# --- Names in a log -------------------------------------------------------------------------------

for digits in ("00000000001000000000", f"{2**63 - 1:020}"):

    @case(f"log: commit {digits} behind a hole")
    def _far(world: World, digits: str = digits) -> str:
        name = f"orders/_delta_log/{digits}.json"
        world.path(name).write_bytes(b"{}")
        cluster = world.opened()
        log = cluster.topic_log("orders")
        list_log(cluster.store, "orders")
        log.refresh()
        return name


@case("log: checkpoint of the largest version")
def _far_checkpoint(world: World) -> str:
    name = checkpoint_path("orders", 2**63 - 1)
    world.path(name).write_bytes(b"PAR1PAR1")
    world.read("orders")
    read_checkpoint(world.opened().store, "orders", 2**63 - 1)
    return name


# --- What is no file ------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


IRREGULAR = (fifo, device, folder, loop)


@contextmanager
def roomy() -> Iterator[None]:
    """Lift the limit: making some cases takes more memory than reading them may."""
    held = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held[1], held[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, held)


for kind in IRREGULAR:

    @case(f"commit: {kind.__name__}")
    def _commit_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        name = world.next_commit("orders")
        log = world.opened().topic("orders")
        kind(world.path(name))
        list_log(log.store, "orders")
        log.refresh()
        return name

    @case(f"commit: {kind.__name__} in the slot of a writer")
    def _slot_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        log = world.opened().topic("orders")
        name = commit_path("orders", log.log.version + 1)
        kind(world.path(name))
        log.alter(lambda config: {**config, "retention.ms": "1000"})
        return name

    @case(f"checkpoint: {kind.__name__}")
    def _checkpoint_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        name = checkpoint_path("orders", 0)
        kind(world.path(name))
        read_checkpoint(world.opened().store, "orders", 0)
        return name

    @case(f"data file: {kind.__name__}")
    def _data_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        name = "orders/part-0-x.parquet"
        kind(world.path(name))
        store = world.opened().store
        for size_bytes in (7, None):
            list(read_batch_file(store, FileSpan(name, size_bytes=size_bytes)))
        return name

    @case(f"query checkpoint: {kind.__name__}")
    def _query_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        (world.root / "query/offsets").mkdir(parents=True)
        kind(world.root / "query/offsets/3")
        Checkpoint(str(world.root / "query")).planned(3)
        return "offsets/3"
