"""Micro-batches of a query whose shard of the transaction log was restored alone (D131)."""

from __future__ import annotations

import pytest

from spark_sink import commit as sink
from spark_sink.messages import StagedTask
from spark_sink.source_offsets import PlannedBatch
from tests.coordinator.restoring import backup, restore
from tests.world import process, staged, world
from txnlog.cluster import Cluster
from txnlog.coordinator.phases import Phases
from txnlog.errors import LogGapError
from txnlog.settings.config import parse_config
from txnlog.testing.invariants import read_committed

QUERY = "query"
OPTIONS = parse_config({"path": "/memory", "topic": "orders"}, "writeStream")


@pytest.fixture(autouse=True)
def _without_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "planned_batch", lambda _, number: PlannedBatch(number))


def commit(cluster: Cluster, batch_id: int, run: str) -> None:
    task = StagedTask(0, (staged(cluster, "orders", f"{batch_id}-{run}"),), QUERY, run, batch_id)
    sink.commit_once(cluster, OPTIONS, [task], batch_id, Phases())


def committed(cluster: Cluster) -> list[str]:
    log = cluster.topic("orders")
    paths = [b.path for batches in read_committed(log.view).values() for b in batches]
    return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in paths)


def test_replay_of_a_batch_whose_row_is_lost_is_refused_at_every_restart() -> None:
    """Each start raised the epoch: after some, the batch was written again (R54, R55)."""
    shared = world()
    commit(process(shared), 0, "a")
    files = backup(shared, "__transaction_state")
    for batch_id in (1, 2):
        commit(process(shared), batch_id, "a")
    restore(shared, "__transaction_state", files)
    for number in range(5):
        with pytest.raises(LogGapError, match="all tables of the root together"):
            commit(process(shared), 2, f"restart{number}")
    assert committed(process(shared)) == ["0-a", "1-a", "2-a"]


def test_worker_that_goes_on_beside_the_restore_is_refused() -> None:
    """Its run owns the row already: the decision refuses it (R4)."""
    shared = world()
    commit(process(shared), 0, "a")
    files = backup(shared, "__transaction_state")
    commit(process(shared), 1, "a")
    restore(shared, "__transaction_state", files)
    for _ in range(3):
        with pytest.raises(LogGapError):
            commit(process(shared), 2, "a")
    assert committed(process(shared)) == ["0-a", "1-a"]


def test_new_query_takes_a_producer_id_that_its_topics_do_not_know() -> None:
    """`__cluster` was restored: its first batches were taken for those of another query (R10)."""
    shared = world()
    first = process(shared)
    first.shard_for(QUERY)
    files = backup(shared, "__cluster")
    commit(process(shared), 0, "a")
    restore(shared, "__cluster", files)
    # Another transactional.id, and another shard, with the same producer id.
    again = process(shared)
    task = StagedTask(0, (staged(again, "orders", "0-b"),), "other", "b", 0)
    sink.commit_once(again, OPTIONS, [task], 0, Phases())
    assert committed(process(shared)) == ["0-a", "0-b"]
