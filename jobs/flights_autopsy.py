"""Reads the state that a killed driver left on disk, with delta-rs and without our own code.

So the demo verifies that a kill happened at its fail point, for example between PREPARE_COMMIT and
the last marker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

PREPARE_COMMIT = "PREPARE_COMMIT"
SETTLED = ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Autopsy:
    """The commit in progress when the driver died.

    unpublished: transactions that are decided and lack a marker. topics, topics_marked: the topics
    of those transactions, and how many of them have the marker. unlogged_batches: micro-batches
    with an offsets/<n> and without a commits/<n>.
    """

    unpublished: int
    topics: int
    topics_marked: int
    unlogged_batches: int

    def describe(self) -> str:
        """The state that a restart will find, as text."""
        if self.unpublished:
            return f"PREPARE_COMMIT, {self.topics_marked} of {self.topics} topics marked"
        batch = "without" if self.unlogged_batches else "with"
        return f"every decided transaction published, the last micro-batch {batch} its commits/<n>"

    def contradicts(self, place: str) -> bool:
        """Whether a driver killed at that fail point cannot have left this state."""
        match place:
            case "prepare_commit.after":
                return not (self.unpublished == 1 and self.topics_marked == 0)
            case "marker.after":
                return not (self.unpublished == 1 and 0 < self.topics_marked < self.topics)
            case "sink_commit.after":
                return not (self.unpublished == 0 and self.unlogged_batches == 1)
            case _:
                return False


def autopsy(root: Path, checkpoint: Path) -> Autopsy:
    """Read the transaction state, the topics it names, and Spark's checkpoint folder."""
    unpublished = [row for row in transaction_rows(root) if _is_unpublished(root, row)]
    topics = [(row, topic) for row in unpublished for topic in _topics_of(row)]
    marked = [1 for row, topic in topics if _is_marked(root, row, topic)]
    return Autopsy(
        unpublished=len(unpublished),
        topics=len(topics),
        topics_marked=len(marked),
        unlogged_batches=len(_batches(checkpoint / "offsets") - _batches(checkpoint / "commits")),
    )


def transaction_rows(root: Path) -> list[dict[str, Any]]:
    """The transaction state rows of all shards."""
    shards = sorted(root.glob("__transaction_state-*"))
    return [row for shard in shards for row in _rows(DeltaTable(shard))]


def _rows(shard: DeltaTable) -> list[dict[str, Any]]:
    # Without pyarrow's threads, which may end a short program with "terminate called".
    table = QueryBuilder().register("shard", shard).execute("SELECT * FROM shard").read_all()
    return pa.table(table).to_pylist()


def unsettled_transactions(root: Path) -> int:
    """The number of transactions that are neither published nor aborted."""
    rows = [row for row in transaction_rows(root) if row["state"] not in SETTLED]
    return sum(row["state"] != PREPARE_COMMIT or _is_unpublished(root, row) for row in rows)


def _is_unpublished(root: Path, row: dict[str, Any]) -> bool:
    """Whether a transaction is decided, and a topic or its group lacks the marker."""
    if row["state"] != PREPARE_COMMIT:
        return False
    shards = [shard.name for shard in root.glob("__consumer_offsets-*")]
    has_offsets = bool(json.loads(row["pending"]).get("tickets"))
    moved = not has_offsets or any(_is_marked(root, row, shard) for shard in shards)
    return not moved or not all(_is_marked(root, row, topic) for topic in _topics_of(row))


def _topics_of(row: dict[str, Any]) -> set[str]:
    batches = json.loads(row["pending"]).get("batches", [])
    return {entry["topic"] for entry in [*json.loads(row["partitions"]), *batches]}


def _is_marked(root: Path, row: dict[str, Any], topic: str) -> bool:
    version = DeltaTable(root / topic).transaction_version(f"txnlog/{row['producer_id']}")
    return version is not None and version >= int(row["txn_epoch"])


def _batches(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.glob("*") if file.name.isdigit()}
