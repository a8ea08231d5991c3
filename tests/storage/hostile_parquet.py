"""Parquet files and checkpoints whose metadata claims far more than they contain."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.hostile import DELTAS, HUGE, OFF, World, case, roomy
from txnlog.errors import TxnLogError
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.small_batch_form import footer_begin
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.delta.checkpoint_reader import read_checkpoint
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_files import checkpoint_path, list_log
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.store.seals import MAGIC, Span, make_seal, split_footer

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
    """The first page's header claims `asked` bytes of data; lengths do not change.

    A page header begins with its type (15 00 or 15 04) and the uncompressed size, a varint.
    """
    at = 4
    assert parquet[at : at + 1] == b"\x15"
    end = at + 3
    while parquet[end] & 128:
        end += 1
    end += 1
    # The data after it moves: only readers that trust the header get there.
    return parquet[: at + 3] + varint(asked) + parquet[end:]


def data_file(world: World, parquet: bytes, *, rows: int | None = None, known: bool = False) -> str:
    name = "orders/part-0-x.parquet"
    world.path(name).write_bytes(parquet)
    store = world.opened().store
    size_bytes = len(parquet) if known else None
    for _ in read_batch_file(store, FileSpan(name, num_records=rows, size_bytes=size_bytes)):
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


def refused_then_skipped(world: World, name: str) -> str:
    store = world.opened().store
    with pytest.raises(TxnLogError, match=name):
        read_tombstones(store, "orders", version=0)
    # All its commits exist: they are read instead.
    world.read("orders")
    read_checkpoint(store, "orders", list_log(store, "orders").checkpoints[-1])
    return name


@case("checkpoint: a page asks for 2 GB")
def _checkpoint_page(world: World) -> str:
    return refused_then_skipped(
        world, log_checkpoint(world, lambda data: page_asks(data, 2**31 - 1))
    )


@case("checkpoint: more rows than bytes")
def _checkpoint_rows(world: World) -> str:
    def change(data: bytes) -> bytes:
        with roomy():
            rows = pq.read_table(pa.BufferReader(data)).combine_chunks()
            many = rows.take(pa.array(np.zeros(200_000, np.int64)))
            return encoded(many, compression="zstd")

    return refused_then_skipped(world, log_checkpoint(world, change))


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

    return refused_then_skipped(world, log_checkpoint(world, change))


@case("checkpoint: noise between magics")
def _checkpoint_noise(world: World) -> str:
    noise = random.Random(2).randbytes(58_000)
    return refused_then_skipped(world, log_checkpoint(world, lambda _: b"PAR1" + noise + b"PAR1"))
