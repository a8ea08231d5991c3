"""Malicious files that txnlog never writes, and random damage; run as a program.

`python -m tests.storage.hostile_run <folder> <case> ...` makes cases and reads them, with little
memory; a case `seed <number>` is files damaged at random. Prints a line with the result of each.
"""

from __future__ import annotations

import random
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from checkpoint.reader import Checkpoint
from checkpoint.source_positions import source_positions
from tests.storage.hostile import CASES, LEVELS, MEMORY_BYTES, OFF, World
from tests.storage.hostile_parquet import foreign
from tests.storage.hostile_queries import MARKED, META
from txnlog.errors import TxnLogError
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.delta.checkpoints import create_checkpoint

# --- At random ------------------------------------------------------------------------------------


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Changed bytes: flipped, cut, repeated, or with huge numbers and deep brackets."""
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
    """Damage each kind of file in turn, and read it; the result of each that was not accepted."""
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
            lambda: [
                world.read(table) for table in ("orders", "__consumer_offsets-0", world.shard)
            ],
            lambda: list(read_batch_file(world.opened().store, FileSpan(data))),
            lambda: source_positions(Checkpoint(str(world.root / "query")), 0, "c"),
        ):
            end = ended(read)
            if end != "ACCEPTED":
                yield f"{name}: {end}"
        world.path(name).write_bytes(whole_file)


# --- The program ----------------------------------------------------------------------------------


def attempt(root: Path, name: str) -> str:
    """Make and read a case; returns its result in one line."""
    world = World(root)
    with limited():
        return ended(lambda: CASES[name](world))


@contextmanager
def limited() -> Iterator[None]:
    """Limit the process to MEMORY_BYTES more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    held = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, held[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, held)


def ended(read: Callable[[], object]) -> str:
    """The result of a read, in one line."""
    try:
        read()
    except TxnLogError as error:
        return f"{type(error).__name__}: {error}"
    # Any other exception would end a process in production, too.
    except BaseException as error:
        return f"UNTYPED {type(error).__name__}: {str(error)[:300]}"
    return "ACCEPTED"


def lines_of(root: Path, wanted: str) -> Iterator[str]:
    """The result of a case; for random damage, a line for each file that was not accepted."""
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
