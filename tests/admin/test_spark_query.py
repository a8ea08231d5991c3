"""A Spark query fenced by an operator: the sink's commit, in new workers of the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_sink.commit import commit_micro_batch
from spark_sink.messages import StagedTask
from tests.world import staged
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import ProducerFencedError
from txnlog.settings.config import parse_config


class Query:
    """The driver of a query: the sink commits each batch as in a new worker."""

    def __init__(self, root: str, run_id: str) -> None:
        self._options = parse_config({"path": root, "topic": "orders"}, "writeStream")
        self._cluster = Cluster.open(root)
        self.run_id = run_id

    def commit(self, batch_id: int) -> None:
        batch = staged(self._cluster, "orders", f"batch{batch_id}-{self.run_id}")
        task = StagedTask(0, (batch,), "query-1", self.run_id, batch_id)
        commit_micro_batch(self._options, [task], batch_id)


def committed(root: str) -> list[str]:
    view = Cluster.open(root).topic("orders").view
    paths = [batch.path for batch in view.by_path.values() if batch.status == "committed"]
    return sorted(path.split("-", 2)[2] for path in paths)


@pytest.mark.parametrize("way", ["fence_producers", "abort_transaction"])
def test_spark_query_fenced_by_an_admin_client_fails_and_its_restart_continues(
    way: str, tmp_path: Path
) -> None:
    """A new worker of the fenced run must not adopt the higher epoch (R43, R55)."""
    root = str(tmp_path / "lake")
    Cluster.open(root, create=True, shards=2).create_topic("orders", partitions=2)
    first = Query(root, "run-1")
    first.commit(0)
    admin = AdminClient({"txnlog.root": root})
    if way == "fence_producers":
        admin.fence_producers(["query-1"], reason="wrong code")["query-1"].result()
    else:
        admin.abort_transaction("query-1", reason="wrong code").result()
    for worker in (first, Query(root, "run-1")):
        with pytest.raises(ProducerFencedError, match="wrong code"):
            worker.commit(1)
    restarted = Query(root, "run-2")
    restarted.commit(0)
    restarted.commit(1)
    assert committed(root) == ["batch0-run-1.parquet", "batch1-run-2.parquet"]
    with pytest.raises(ProducerFencedError):
        first.commit(2)
    told = admin.describe_transactions(["query-1"])["query-1"].result()
    assert (told.query_id, told.is_owner_fenced) == ("query-1", False)
    assert "run run-2" in told.owner
