"""Malicious files of a streaming query, which Spark never writes."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint.reader import Checkpoint
from checkpoint.source_positions import source_positions
from tests.storage.hostile import LEVELS, World, case, deep

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
