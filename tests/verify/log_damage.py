"""Damage to commits, checkpoints, `_last_checkpoint` and files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from msgspec.structs import replace

from tests.verify.planting import Damage, K
from tests.verify.roots import (
    OFFSETS,
    ORDERS,
    STOCK,
    append,
    batches,
    checkpoint_file,
    checkpoints,
    commit_file,
    commits,
    flip,
    halve,
    shard_of,
    truncate_log,
    zero,
)

# --- Commits --------------------------------------------------------------------------------------

BYTES: dict[str, Callable[[Path], None]] = {
    "flipped": lambda path: flip(path, -20),
    "halved": halve,
    "emptied": lambda path: path.write_bytes(b"") and None,
    "zeroed": zero,
    "cut by a line": lambda path: (
        path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b"\n", 0, -1) + 1]) and None
    ),
}
TABLES = {"topic": ORDERS, "offsets": OFFSETS, "cluster": "__cluster"}


def place(root: str, table: str, where: str) -> int:
    """A version: the newest, one in the middle, the oldest that is kept."""
    kept = commits(root, table)
    return {"newest": kept[-1], "middle": kept[len(kept) // 2], "oldest": kept[0]}[where]


def commit_damages() -> Iterator[Damage]:
    for (how, act), where, table in product(
        BYTES.items(), ("newest", "middle", "oldest"), TABLES.values()
    ):

        def plant(root: str, act=act, where=where, table=table) -> str:  # type: ignore[no-untyped-def]
            path = commit_file(root, table, place(root, table, where))
            act(path)
            return path.name

        yield Damage(f"{where} commit of {table} {how}", plant, (K.COMMIT_DAMAGED,))

    def missing(root: str) -> str:
        version = place(root, ORDERS, "middle")
        commit_file(root, ORDERS, version).unlink()
        return f"{version:020}.json"

    def oldest_missing(root: str) -> str:
        commit_file(root, ORDERS, 0).unlink()
        return ORDERS

    def newest_missing(root: str) -> str:
        truncate_log(root, ORDERS, to=commits(root, ORDERS)[-1] - 1)
        return ORDERS

    def below_checkpoint(root: str) -> str:
        version = checkpoints(root, ORDERS)[-1]
        for newer in [v for v in commits(root, ORDERS) if v >= version]:
            commit_file(root, ORDERS, newer).unlink()
        return f"{version:020}.json"

    yield Damage("middle commit deleted", missing, (K.COMMIT_MISSING,))
    yield Damage("oldest commit deleted", oldest_missing, (K.CHECKPOINT_MISSING,))
    yield Damage("newest commit deleted", newest_missing, (K.MARKER_MISSING, K.OFFSET_BEYOND_END))
    yield Damage("commits newer than a checkpoint deleted", below_checkpoint, (K.COMMIT_MISSING,))


def late_commits() -> Iterator[Damage]:
    for where, below in (("", 3), (", just below the log", 1)):

        def stray(root: str, below: int = below) -> str:
            older = checkpoints(root, ORDERS)[0]
            late = commit_file(root, ORDERS, older - 3).read_bytes()
            for version in range(older):
                commit_file(root, ORDERS, version).unlink()
            commit_file(root, ORDERS, older - below).write_bytes(late)
            return f"{older - below:020}.json"

        yield Damage(f"a commit that came late{where}", stray, (K.COMMIT_STRAY,))

    def rewritten(root: str) -> str:
        older = checkpoints(root, ORDERS)[0]
        for version in range(older - 2):
            commit_file(root, ORDERS, version).unlink()
        for version in (older - 2, older - 1):
            path = commit_file(root, ORDERS, version)
            path.write_bytes(path.read_bytes())
        return ORDERS

    yield Damage("commits of the log whose checkpoint is lost", rewritten, (K.CHECKPOINT_MISSING,))


def replaced_commits() -> Iterator[Damage]:
    """Whole and in their checksums: another version's, another table's."""
    moved = (K.COMMIT_MISPLACED, K.CHAIN_BROKEN)
    for where in ("newest", "middle"):

        def by_version(root: str, where: str = where) -> str:
            version = place(root, ORDERS, where)
            path = commit_file(root, ORDERS, version)
            shutil.copyfile(commit_file(root, ORDERS, version - 3), path)
            return path.name

        yield Damage(f"{where} commit replaced by an older version's", by_version, moved)
    for where in ("newest", "middle"):

        def by_table(root: str, where: str = where) -> str:
            version = place(root, ORDERS, where)
            path = commit_file(root, ORDERS, version)
            shutil.copyfile(commit_file(root, STOCK, 5), path)
            return ORDERS

        kinds = (K.CHAIN_BROKEN, K.CHECKPOINT_DISAGREES, K.OFFSETS_MISSING, K.BATCHES_OVERLAP)
        yield Damage(f"{where} commit replaced by another table's", by_table, kinds)


# --- Checkpoints and hint -------------------------------------------------------------------------


def checkpoint_damages() -> Iterator[Damage]:
    ways = {k: v for k, v in BYTES.items() if k != "cut by a line"}
    for (how, act), which in product(ways.items(), (0, -1)):

        def plant(root: str, act=act, which=which) -> str:  # type: ignore[no-untyped-def]
            path = checkpoint_file(root, ORDERS, checkpoints(root, ORDERS)[which])
            act(path)
            return path.name

        name = "newest" if which else "older"
        yield Damage(f"{name} checkpoint {how}", plant, (K.CHECKPOINT_DAMAGED,))

    def replaced(root: str, table: str) -> str:
        path = checkpoint_file(root, ORDERS, checkpoints(root, ORDERS)[-1])
        shutil.copyfile(checkpoint_file(root, table, checkpoints(root, table)[0]), path)
        return path.name

    kinds = (K.CHECKPOINT_DAMAGED, K.CHECKPOINT_DISAGREES, K.CHAIN_BROKEN)
    for table in (ORDERS, STOCK):
        yield Damage(
            f"newest checkpoint replaced by one of {table}",
            lambda root, table=table: replaced(root, table),  # type: ignore[misc]
            kinds,
        )

    def cleaned_up(root: str) -> str:
        """Clean-up has run, and the checkpoint that it kept is gone."""
        older = checkpoints(root, ORDERS)[0]
        for version in range(older):
            commit_file(root, ORDERS, version).unlink()
        checkpoint_file(root, ORDERS, older).unlink()
        return ORDERS

    yield Damage("oldest checkpoint deleted", cleaned_up, (K.CHECKPOINT_MISSING,))

    def newest_gone(root: str) -> str:
        checkpoint_file(root, ORDERS, checkpoints(root, ORDERS)[-1]).unlink()
        return "_last_checkpoint"

    yield Damage("newest checkpoint deleted", newest_gone, (K.HINT_WRONG,))


def hint_damages() -> Iterator[Damage]:
    def write(root: str, text: str) -> str:
        Path(root, ORDERS, "_delta_log", "_last_checkpoint").write_text(text)
        return "_last_checkpoint"

    def wrong_size(root: str) -> str:
        path = Path(root, ORDERS, "_delta_log", "_last_checkpoint")
        said = json.loads(path.read_text())
        return write(root, json.dumps({**said, "sizeInBytes": said["sizeInBytes"] + 1}))

    kinds = (K.HINT_WRONG,)
    yield Damage("hint names no version", lambda root: write(root, '{"size":3}'), kinds)
    yield Damage("hint garbled", lambda root: write(root, "{"), kinds)
    yield Damage("hint nests deeply", lambda root: write(root, '{"version":' + "[" * 9_000), kinds)
    yield Damage("hint names another version", lambda root: write(root, '{"version":3}'), kinds)
    yield Damage("hint names another size", wrong_size, kinds)


# --- Files ----------------------------------------------------------------------------------------


def file_damages() -> Iterator[Damage]:
    def path_of(root: str, topic: str = ORDERS) -> Path:
        return Path(root, topic, batches(root, topic, 0)[3].path)

    def deleted(root: str) -> str:
        path_of(root).unlink()
        return path_of(root).name

    def shorter(root: str) -> str:
        halve(path_of(root))
        return path_of(root).name

    yield Damage("data file deleted", deleted, (K.FILE_MISSING,))
    yield Damage("data file halved", shorter, (K.FILE_SIZE_WRONG,))
    for at in (5, 100, -30):

        def flipped(root: str, at: int = at) -> str:
            flip(path_of(root), at)
            return path_of(root).name

        yield Damage(f"data file flipped at {at}", flipped, (K.FILE_DAMAGED,), deep=True)

    def zeroed(root: str) -> str:
        zero(path_of(root))
        return path_of(root).name

    yield Damage("data file zeroed", zeroed, (K.FILE_DAMAGED,), deep=True)

    def other_topic(root: str) -> str:
        shutil.copyfile(path_of(root, STOCK), path_of(root))
        return path_of(root).name

    kinds = (K.FILE_DAMAGED, K.RECORDS_DISAGREE, K.FILE_SIZE_WRONG)
    yield Damage("data file replaced by another topic's", other_topic, kinds, deep=True)

    def wider(root: str) -> str:
        """A file of two records under a header of one."""
        add = batches(root, ORDERS, 0)[-1]
        stats = (add.stats or "").replace('"numRecords":1', '"numRecords":0')
        append(root, ORDERS, [replace(add, stats=stats)])
        return add.path

    yield Damage("statistics count other records", wider, (K.FILE_DAMAGED,), deep=True)

    def other_times(root: str) -> str:
        add = batches(root, ORDERS, 0)[-1]
        append(root, ORDERS, [replace(add, stats=(add.stats or "").replace("20", "19"))])
        return add.path

    kinds = (K.RECORDS_DISAGREE,)
    yield Damage("timestamps outside the statistics", other_times, kinds, deep=True)
    for table in ("shard", OFFSETS):

        def row_file(root: str, table: str = table) -> str:
            folder = Path(root, shard_of(root, "eager") if table == "shard" else table)
            [path] = list(folder.glob("row-*"))[:1]
            path.unlink()
            return path.name

        yield Damage(f"row file of {table} deleted", row_file, (K.ROW_FILE_MISSING,))
