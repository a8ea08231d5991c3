"""Whether the sink commits a batch's source offsets: group.id given, added, changed, or missing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import txnlog.settings.config
from spark_sink.commit import commit_micro_batch
from spark_sink.messages import StagedTask
from tests.checkpoint.test_source_positions import line
from tests.world import staged
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import parse_config


class Query:
    """A query's checkpoint and the sink's commits, as Spark asks for them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.checkpoint = folder / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        self.cluster = Cluster.open(str(self.root), create=True)
        self.cluster.create_topic("orders", partitions=2)

    def plan(self, batch_id: int, end: int, **mark: object) -> None:
        """Spark writes offsets/<batch id>: topic `in` up to `end`."""
        mark.setdefault("group", None)
        mark.setdefault("generation", None)
        source = line({"in": {"0": end}}, cluster=self.cluster.cluster_id, **mark)  # type: ignore[arg-type]
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{source}")

    def commit(self, batch_id: int, *, run: str = "r1", group_id: str | None = None) -> None:
        given = {} if group_id is None else {"group.id": group_id}
        raw = {
            "path": str(self.root),
            "topic": "orders",
            "checkpointLocation": str(self.checkpoint),
            **given,
        }
        batch = staged(self.cluster, "orders", f"{batch_id}.{run}")
        task = StagedTask(0, (batch,), "query", run, batch_id)
        commit_micro_batch(parse_config(raw, "writeStream"), [task], batch_id)

    def committed(self) -> list[str]:
        view = Cluster.open(str(self.root)).topic("orders").view
        return sorted(path.split("-", 2)[2].removesuffix(".parquet") for path in view.by_path)

    def position(self, group_id: str) -> dict[str, dict[int, int]]:
        return Cluster.open(str(self.root)).groups.fetch(group_id)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Warnings of the test, as if this process had never warned before."""
    monkeypatch.setattr(txnlog.settings.config, "_warned", set())
    caplog.set_level(logging.WARNING, "txnlog")
    return caplog.messages


def test_group_added_at_a_restart_that_replays_a_batch_continues(
    query: Query, warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The replayed batch was planned without the group: the query was blocked for ever (R54).

    The error's remedy was to set the group.id that the source already had.
    """
    query.plan(0, 10)
    query.commit(0)
    query.plan(1, 20)
    generation = query.cluster.groups.start("g")  # by the source, when it plans the replay
    query.commit(1, run="r2", group_id="g")
    assert query.position("g") == {}
    assert "Batch 1 was planned before its source had group.id=g" in caplog.text
    assert "to no group" in caplog.text
    start = {"in": {"0": 20}}
    query.plan(2, 30, group="g", generation=generation, start=start)
    query.commit(2, run="r2", group_id="g")
    assert query.position("g") == {"in": {0: 30}}
    assert query.committed() == ["0.r1", "1.r2", "2.r2"]


def test_group_changed_at_a_restart_that_replays_a_batch_commits_it_as_planned(
    query: Query, caplog: pytest.LogCaptureFixture, warnings: list[str]
) -> None:
    """Source and sink have the new group; the replayed batch moves the old one, once (R54)."""
    old = query.cluster.groups.start("old")
    query.plan(0, 10, group="old", generation=old, start={"in": {"0": 0}})
    query.commit(0, group_id="old")
    query.plan(1, 20, group="old", generation=old)
    new = query.cluster.groups.start("new")
    query.commit(1, run="r2", group_id="new")
    assert query.position("old") == {"in": {0: 20}}
    assert "under old only" in caplog.text
    query.plan(2, 30, group="new", generation=new, start={"in": {"0": 20}})
    query.commit(2, run="r2", group_id="new")
    assert (query.position("old"), query.position("new")) == ({"in": {0: 20}}, {"in": {0: 30}})


@pytest.mark.parametrize("started", [False, True])
def test_group_that_the_source_lacks_is_refused_before_the_second_batch_at_the_latest(
    query: Query, started: bool
) -> None:
    """Nothing would be committed to it; an existing group of others hides that for one batch."""
    if started:
        query.cluster.groups.start("g")
        query.plan(0, 10)
        query.commit(0, group_id="g")
    batch_id = int(started)
    query.plan(batch_id, 20)
    with pytest.raises(ConfigError, match="Set the same group.id on the txnlog"):
        query.commit(batch_id, group_id="g")


def test_source_with_a_group_and_sink_without_is_one_warning(
    query: Query, caplog: pytest.LogCaptureFixture, warnings: list[str]
) -> None:
    """The group's offsets would not advance unnoticed, and a lost checkpoint repeat all input."""
    generation = query.cluster.groups.start("g")
    for batch_id in range(3):
        start = {"start": {"in": {"0": 0}}} if batch_id == 0 else {}
        query.plan(batch_id, 10 * batch_id, group="g", generation=generation, **start)
        query.commit(batch_id)
    query.commit(2, run="r2")
    found = [text for text in caplog.messages if "no offsets are committed" in text]
    assert len(found) == 1
    assert "group.id=g" in found[0]
    assert query.position("g") == {}
