"""Single bit flips anywhere: in commits, checkpoints and data files (R66)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.cases import Some
from tests.verify.roots import (
    ORDERS,
    batches,
    checkpoint_file,
    checkpoints,
    commit_file,
    commits,
    verified,
)
from txnlog.storage.store.seals import MAGIC
from txnlog.testing.counts import count

FLIPS = 40


def test_any_flipped_bit_is_found(root: str, seed: int, some: Some[Any]) -> None:
    """Each of them made readers see other records, or none, without a word."""
    rng = random.Random(seed)
    places = [(path, start) for path, start in sealed_files(root) for _ in range(FLIPS)]
    for path, start in some(rng.sample(places, FLIPS)):
        data = path.read_bytes()
        # The mark of a seal: a file without it is another tool's, and here every row is right.
        mark = data.rfind(MAGIC) if path.suffix == ".parquet" else -1
        at, bit = rng.randrange(start, len(data)), rng.randrange(8)
        if mark >= 0 and mark <= at < mark + len(MAGIC):
            continue
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        path.write_bytes(bytes(flipped))
        found = verified(root, topics=[ORDERS], deep=path.name.startswith("part-"))
        count("damage planted", "bit flipped, for verify")
        assert len(found.findings), f"bit {bit} of byte {at} of {path}"
        count("damage found", "bit flipped, by verify")
        path.write_bytes(data)
    assert not len(verified(root, topics=[ORDERS]).findings)


def sealed_files(root: str) -> list[tuple[Path, int]]:
    """Files, and from which byte on they are under a checksum.

    The first line of the newest commit is under that of the commit that will come after it.
    """
    *older, newest = commits(root, ORDERS)
    newest_path = commit_file(root, ORDERS, newest)
    data_files = [Path(root, ORDERS, add.path) for add in batches(root, ORDERS, 0)[:5]]
    return [
        *((commit_file(root, ORDERS, version), 0) for version in older),
        (newest_path, newest_path.read_bytes().index(b"\n") + 1),
        *((checkpoint_file(root, ORDERS, version), 0) for version in checkpoints(root, ORDERS)),
        *((path, 0) for path in data_files),
    ]
