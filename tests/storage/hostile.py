"""Files that no process of ours writes, made to hurt whoever reads them; run as a program.

`python -m tests.storage.hostile <folder> <case> ...` makes cases and reads them, with little
memory; a case `seed <number>` is files damaged at random. A line for each says how it ended.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpoint.reader import Checkpoint
from checkpoint.source_positions import source_positions
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.protocol.batches import header_from_values
from txnlog.protocol.metadata import Owner
from txnlog.storage.checkpoint_reader import read_checkpoint
from txnlog.storage.checkpoints import create_checkpoint
from txnlog.storage.delta_log import LogSettings
from txnlog.storage.log_files import checkpoint_path, commit_path, list_log
from txnlog.storage.parquet import read_batch_file, write_batch_file
from txnlog.storage.seals import MAGIC, Span, make_seal, split_footer
from txnlog.storage.small_batch import footer_begin
from txnlog.storage.tombstones import read_tombstones

MEMORY_BYTES = 2 << 30
"""What a reading may take, beyond what the process has."""
LEVELS = 100_000
HUGE = 10**9
OFF = LogSettings(checkpoint_mode="off")
DELTAS = pa.table({"offset_delta": pa.array(range(100), pa.int64())})


class World:
    """A cluster on disk with a topic, a group and a transactional id, and how to read each anew."""

    def __init__(self, root: Path) -> None:
        self.root = root
        cluster = self.opened(create=True)
        cluster.create_topic("orders", partitions=2)
        cluster.groups.start("readers")
        cluster.coordinator.init_producer_id("tx", Owner(run_id="a"), timeout_ms=60_000)
        self.shard = "__transaction_state-0"

    def opened(self, *, create: bool = False) -> Cluster:
        return Cluster.open(str(self.root), create=create, shards=1, settings=OFF)

    def path(self, path: str) -> Path:
        return self.root / path

    def next_commit(self, table: str) -> str:
        log = self.root / table / "_delta_log"
        return commit_path(table, len(list(log.glob("*.json"))))

    def put_commit(self, table: str, *lines: Any) -> str:
        """Write the next commit of a table, as another tool would; its name."""
        name = self.next_commit(table)
        raw = [line if isinstance(line, bytes) else msgspec.json.encode(line) for line in lines]
        self.path(name).write_bytes(b"\n".join(raw))
        return name

    def read(self, table: str) -> None:
        cluster = self.opened()
        if table == self.shard:
            cluster.coordinator.describe("tx")
        elif table == "__consumer_offsets":
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
"""Name -> makes the case and reads it; the name of the file that the error must have in it."""


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
    "__consumer_offsets": ("generation", "updated_ms"),
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
    "__consumer_offsets": {
        "offsets": [
            '{"t":{"1000000000":[1,1,1]}}',
            '{"t":{"-1":[1,1,1]}}',
            '{"t":{"0":[100000000000000000000,1,1]}}',
            '{"t":{"0":[NaN,1,1]}}',
            '{"t":{"0":[3.0,1,1]}}',
        ],
        "pending": ['[{"transactional_id":"a","producer_id":1,"txn_epoch":1,"version":1,'
                    '"generation":1,"offsets":{"t":{"1000000000":1}}}]'],
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
    """Making some cases takes more memory than reading them may."""
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
            list(read_batch_file(store, name, size_bytes=size_bytes))
        return name

    @case(f"query checkpoint: {kind.__name__}")
    def _query_place(world: World, kind: Callable[[Path], None] = kind) -> str:
        (world.root / "query/offsets").mkdir(parents=True)
        kind(world.root / "query/offsets/3")
        Checkpoint(str(world.root / "query")).planned(3)
        return "offsets/3"


# --- Parquet --------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    number = number << 1 if number >= 0 else (-number << 1) - 1
    while True:
        out.append(number & 127 | (128 if number > 127 else 0))
        number >>= 7
        if not number:
            return bytes(out)


def encoded(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def footer_of(parquet: bytes) -> tuple[bytes, bytes]:
    """(everything before the footer, the footer without its length)."""
    at = split_footer(parquet)
    return parquet[:at], parquet[at:-8]


def whole(body: bytes, footer: bytes) -> bytes:
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def page_asks(parquet: bytes, asked: int) -> bytes:
    """The first page's header says that its data has so many bytes; lengths stay as they are.

    A page header begins with its type (15 00 or 15 04) and the uncompressed size, a varint.
    """
    at = 4
    assert parquet[at : at + 1] == b"\x15"
    end = at + 3
    while parquet[end] & 128:
        end += 1
    end += 1
    # The data behind it moves: only readers who believe the header come to that.
    return parquet[: at + 3] + varint(asked) + parquet[end:]


def data_file(world: World, parquet: bytes, *, rows: int | None = None, known: bool = False) -> str:
    name = "orders/part-0-x.parquet"
    world.path(name).write_bytes(parquet)
    store = world.opened().store
    size_bytes = len(parquet) if known else None
    for _ in read_batch_file(store, name, num_records=rows, size_bytes=size_bytes):
        pass
    return name


def foreign() -> bytes:
    """58 KB by another writer."""
    values = pa.array([random.Random(1).randbytes(500) for _ in range(100)], pa.binary())
    return encoded(DELTAS.append_column("value", values), compression="snappy")


for codec in ("snappy", "zstd", "gzip"):

    @case(f"parquet: a page asks for 2 GB, {codec}")
    def _page(world: World, codec: str = codec) -> str:
        parquet = encoded(DELTAS, compression=codec, use_dictionary=False)
        return data_file(world, page_asks(parquet, 2**31 - 1))


@case("parquet: a zstd page is 128 MB of zeros")
def _bomb(world: World) -> str:
    with roomy():
        value = pa.array([bytes(128 << 20)], pa.binary())
        one = pa.table({"offset_delta": pa.array([0], pa.int64()), "value": value})
        parquet = encoded(one, compression="zstd", use_dictionary=False)
    assert len(parquet) < 100_000
    return data_file(world, parquet)


@case("parquet: footer longer than the file")
def _long_footer(world: World) -> str:
    return data_file(world, foreign()[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1")


@case("parquet: footer is a list of a billion")
def _list(world: World) -> str:
    footer = b"\x15\x02\x19\xfc" + varint(HUGE)[:5] + b"\x00" * 58_000
    return data_file(world, whole(b"PAR1", footer))


@case("parquet: schema of 10,000 levels")
def _nested_schema(world: World) -> str:
    element = b"\x48\x01g\x15\x02\x00"
    count = 10_000
    raw = count << 0
    size = bytearray()
    while True:
        size.append(raw & 127 | (128 if raw > 127 else 0))
        raw >>= 7
        if not raw:
            break
    footer = b"\x15\x02\x19\xfc" + bytes(size) + element * count + b"\x16\x02\x19\x0c\x00"
    return data_file(world, whole(b"PAR1", footer))


@case("parquet: another count than the log's")
def _rows(world: World) -> str:
    return data_file(world, foreign(), rows=HUGE)


@case("parquet: out of order and too many")
def _unordered(world: World) -> str:
    count = 10_000_001
    deltas = np.zeros(count, np.int64)
    return data_file(world, encoded(pa.table({"offset_delta": deltas}), compression="zstd"))


@case("small file: sealed, and a page asks for 4 GB")
def _small(world: World) -> str:
    store = world.opened().store
    table = pa.table({
        "timestamp": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
        "key": pa.array([b"k", b"k"]), "value": pa.array([b"v" * 99, b"v" * 99]),
    })  # fmt: skip
    name = write_batch_file(store, "orders/part-0-y.parquet", table).path
    data = page_asks(world.path(name).read_bytes(), 2**32)
    body, footer = footer_of(data)
    body = body[: body.rindex(MAGIC) - 16 - 12]
    end = footer + struct.pack("<I", len(footer)) + b"PAR1"
    sealed = body + make_seal([Span(len(body), crc32(body))], end, name="part-0-x.parquet") + end
    return data_file(world, sealed, known=True)


@case("small file: sealed, with a number of 200,000 bytes")
def _small_varint(world: World) -> str:
    before, _ = footer_begin("none")
    footer = before + b"\xff" * 200_000
    end = footer + struct.pack("<I", len(footer)) + b"PAR1"
    body = b"PAR1"
    sealed = body + make_seal([Span(len(body), crc32(body))], end, name="part-0-x.parquet") + end
    return data_file(world, sealed, known=True)


# --- Checkpoints ----------------------------------------------------------------------------------


def log_checkpoint(world: World, change: Callable[[bytes], bytes]) -> str:
    """A checkpoint of another tool, which has no seal, with a change."""
    cluster = world.opened()
    version = create_checkpoint(cluster.store, "orders", trust_ms=OFF.trust_ms)
    name = checkpoint_path("orders", version)
    table = pq.read_table(world.path(name))
    world.path(name).write_bytes(change(encoded(table, compression="snappy")))
    return name


def believed(world: World, name: str) -> str:
    store = world.opened().store
    with pytest.raises(TxnLogError, match=name):
        read_tombstones(store, "orders", version=0)
    # All its commits are there: it is passed over for them.
    world.read("orders")
    version = list_log(store, "orders").checkpoints[-1]
    read_checkpoint(store, "orders", version)
    return name


@case("checkpoint: a page asks for 2 GB")
def _checkpoint_page(world: World) -> str:
    return believed(world, log_checkpoint(world, lambda data: page_asks(data, 2**31 - 1)))


@case("checkpoint: more rows than bytes")
def _checkpoint_rows(world: World) -> str:
    def change(data: bytes) -> bytes:
        with roomy():
            rows = pq.read_table(pa.BufferReader(data)).combine_chunks()
            many = rows.take(pa.array(np.zeros(200_000, np.int64)))
            return encoded(many, compression="zstd")

    return believed(world, log_checkpoint(world, change))


@case("checkpoint: footer says 10^12 rows")
def _checkpoint_claim(world: World) -> str:
    def change(data: bytes) -> bytes:
        body, footer = footer_of(data)
        rows = pq.read_metadata(pa.BufferReader(data)).num_rows
        # num_rows is the third field of FileMetaData, behind the list of the schema, and of a row
        # group; all have the same header and number.
        number, huge = b"\x16" + varint(rows) + b"\x19", b"\x16" + varint(10**12) + b"\x19"
        changed = footer.replace(number, huge)
        assert changed != footer
        return whole(body, changed)

    return believed(world, log_checkpoint(world, change))


@case("checkpoint: noise between magics")
def _checkpoint_noise(world: World) -> str:
    noise = random.Random(2).randbytes(58_000)
    return believed(world, log_checkpoint(world, lambda _: b"PAR1" + noise + b"PAR1"))


# --- A query's checkpoint -------------------------------------------------------------------------


def query(world: World, name: str, data: bytes, read: Callable[[Checkpoint], object]) -> str:
    (world.root / "query/offsets").mkdir(parents=True)
    (world.root / "query/commits").mkdir()
    (world.root / "query" / name).write_bytes(data)
    read(Checkpoint(str(world.root / "query")))
    return name


META = b'v1\n{"batchWatermarkMs":0}\n'
MARKED = b'{"@":{"cluster":"c","topics":{"t":"i"},"group":"g","generation":1},"t":{"%s":%s}}'

QUERY: dict[str, tuple[str, bytes, Callable[[Checkpoint], object]]] = {
    "deep metadata": ("metadata", b'{"id":' + deep() + b"}", Checkpoint.query_id),
    "deep offsets": ("offsets/0", META + b'{"t":' * LEVELS, lambda c: c.planned(0)),
    "deep line 2": ("offsets/0", b"v1\n" + b'{"a":' * LEVELS + b"\n{}", lambda c: c.planned(0)),
    "version of 5,000 digits": ("offsets/0", b"v" + b"9" * 5_000, lambda c: c.planned(0)),
    "deep commit": ("commits/0", b'v1\n{"a":' + deep() + b"}", lambda c: c.committed(0)),
    "deep mark": (
        "offsets/0",
        META + b'{"@":' + deep() + b"}",
        lambda c: source_positions(c, 0, "c"),
    ),
    "offset beyond int64": (
        "offsets/0",
        META + MARKED % (b"0", b"9" * 30),
        lambda c: source_positions(c, 0, "c"),
    ),
    "partition 10^9": (
        "offsets/0",
        META + MARKED % (b"1000000000", b"1"),
        lambda c: source_positions(c, 0, "c"),
    ),
    "negative offset": (
        "offsets/0",
        META + MARKED % (b"0", b"-1"),
        lambda c: source_positions(c, 0, "c"),
    ),
    "offset NaN": (
        "offsets/0",
        META + MARKED % (b"0", b"NaN"),
        lambda c: source_positions(c, 0, "c"),
    ),
}
for title, (file_name, file_data, file_read) in QUERY.items():
    case(f"query checkpoint: {title}")(
        lambda world, n=file_name, d=file_data, r=file_read: query(world, n, d, r)
    )


# --- At random ------------------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Other bytes: flipped, cut, repeated, or with numbers and brackets blown up."""
    at = rng.randrange(max(1, len(data)))
    match rng.randrange(7):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at]
        case 2:
            return (
                data[:at] + data[at : at + rng.randrange(200)] * rng.randrange(2, 500) + data[at:]
            )
        case 3:
            return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at + rng.randrange(40) :]
        case 4:
            digits = [found.span() for found in re.finditer(rb"[0-9]+", data)] or [(at, at)]
            start, end = rng.choice(digits)
            number = rng.choice([b"-1", b"1000000000", b"9" * 19, b"9" * 30, b"9" * 5_000, b"1e9"])
            return data[:start] + number + data[end:]
        case 5:
            return data[:at] + rng.choice([b"[", b'{"a":', b"\x19\xfc\xff\xff\xff"]) * LEVELS
        case _:
            ends = rng.randbytes(4), struct.pack("<i", -1), struct.pack("<I", len(data))
            return data[:-8] + rng.choice(ends) + data[-4:]


def read_damaged(world: World, seed: int) -> Iterator[str]:
    """Damage each kind of file in turn, and read it; how each ended, but for those believed."""
    rng = random.Random(seed)
    cluster = world.opened()
    for number in range(12):
        cluster.topic("orders").alter(lambda config, n=number: {**config, "retention.ms": f"{n}0"})
    create_checkpoint(cluster.store, "orders", trust_ms=OFF.trust_ms)
    data = "orders/part-0-x.parquet"
    world.path(data).write_bytes(foreign())
    (world.root / "query/offsets").mkdir(parents=True)
    offsets = "query/offsets/0"
    world.path(offsets).write_bytes(META + MARKED % (b"0", b"5"))
    logs = sorted(str(path.relative_to(world.root)) for path in world.root.rglob("0*.*"))
    for name in [*logs, data, offsets] * 4:
        whole_file = world.path(name).read_bytes()
        world.path(name).write_bytes(mutated(whole_file, rng))
        for read in (
            lambda: [world.read(table) for table in ("orders", "__consumer_offsets", world.shard)],
            lambda: list(read_batch_file(world.opened().store, data)),
            lambda: source_positions(Checkpoint(str(world.root / "query")), 0, "c"),
        ):
            end = ended(read)
            if end != "BELIEVED":
                yield f"{name}: {end}"
        world.path(name).write_bytes(whole_file)


# --- The program ----------------------------------------------------------------------------------


def attempt(root: Path, name: str) -> str:
    """Make and read a case; one line that says how it ended."""
    world = World(root)
    with limited():
        return ended(lambda: CASES[name](world))


@contextmanager
def limited() -> Iterator[None]:
    """Let the process have MEMORY_BYTES more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, held[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, held)


def ended(read: Callable[[], object]) -> str:
    """How a reading ended, in one line."""
    try:
        read()
    except TxnLogError as error:
        return f"{type(error).__name__}: {error}"
    # Whatever else there is would end a process in production, too.
    except BaseException as error:
        return f"UNTYPED {type(error).__name__}: {str(error)[:300]}"
    return "BELIEVED"


def lines_of(root: Path, wanted: str) -> Iterator[str]:
    """How a case ended; of damage at random, a line for each file that was not believed."""
    if not wanted.startswith("seed "):
        yield attempt(root, wanted)
        return
    world = World(root)
    with limited():
        yield from read_damaged(world, int(wanted[5:]))


if __name__ == "__main__":
    for number, wanted in enumerate(sys.argv[2:]):
        for line in lines_of(Path(sys.argv[1]) / str(number), wanted):
            print(f"{wanted}\t{line[:600]!r}", flush=True)
