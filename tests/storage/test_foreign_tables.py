"""Foreign Delta tables below the root are not topics, and disturb no topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from txnlog.cluster import Cluster
from txnlog.errors import ForeignTableError

ROWS = pa.table({"id": [1, 2], "partition": [0, 1]})


def written(root: Path, name: str) -> None:
    write_deltalake(str(root / name), ROWS)


def partitioned(root: Path, name: str) -> None:
    write_deltalake(str(root / name), ROWS, partition_by=["partition"])


def checkpointed(root: Path, name: str) -> None:
    written(root, name)
    DeltaTable(root / name).create_checkpoint()
    for commit in (root / name / "_delta_log").glob("*.json"):
        commit.unlink()


def with_features(root: Path, name: str) -> None:
    wanted = {"delta.enableDeletionVectors": "true"}
    write_deltalake(str(root / name), ROWS, configuration=wanted)


@pytest.mark.parametrize("make", [written, partitioned, checkpointed, with_features])
def test_foreign_table_is_no_topic(tmp_path: Path, make: Callable[[Path, str], None]) -> None:
    """Lists leave it out, opening it names it, and nothing is written to it."""
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("orders", partitions=1)
    make(tmp_path, "customers")
    before = sorted(path.name for path in (tmp_path / "customers").rglob("*"))
    for one in (cluster, Cluster.open(str(tmp_path))):
        assert one.list_topics() == ["orders"]
        for ask in (one.topic, one.create_topic):
            with pytest.raises(ForeignTableError, match=r"customers is a Delta table of another"):
                ask("customers")
    assert sorted(path.name for path in (tmp_path / "customers").rglob("*")) == before
