"""The time of each phase of a commit: measured, logged, and in the transaction log itself."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.commit import _measured, commit_batch_write, commit_micro_batch
from spark_sink.messages import StagedTask
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete, finish
from txnlog.coordinator.history import CommittedTransactions
from txnlog.coordinator.phases import Phases
from txnlog.errors import ConfigError
from txnlog.process.log_level import configure_logging
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Manifest, Owner
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import prepare_end
from txnlog.settings.config import Config, parse_config

QUERY = "3207c809-b154-4834-aeab-48435d2bff20"


@pytest.fixture(autouse=True)
def _without_figures_of_other_tests() -> None:
    _measured.clear()


class Ticks:
    """A clock that advances by a millisecond at each reading."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


def stage(root: Path, values: list[str], *, task: int, batch_id: int = -1) -> StagedTask:
    """A task's message, as if staging had taken 3 ms, and 2 ms more for each further task."""
    stager = Stager(
        Cluster.cached(str(root), create=True),
        topic="t",
        include_headers=False,
        target_size_bytes=1 << 20,
        partitions=1,
    )
    batches = tuple(stager.write([pa.RecordBatch.from_pydict({"value": values})]))
    stage_ns = (3 + 2 * task) * 1_000_000
    if batch_id < 0:
        return StagedTask(task, batches, stage_ns=stage_ns)
    return StagedTask(task, batches, QUERY, "run", batch_id, stage_ns)


def options(root: Path, operation: str, **more: str) -> Config:
    return parse_config({"path": str(root), "topic": "t", **more}, operation)  # type: ignore[arg-type]


def history(root: Path, transactional_id: str) -> list[tuple[str, dict[str, str]]]:
    """(operation, parameters) of the commits that name an id."""
    cluster = Cluster.open(str(root))
    shard = root / f"__transaction_state-{cluster.shard_of(transactional_id)}" / "_delta_log"
    found = []
    for path in sorted(shard.glob("*.json")):
        info = commit_info(path)
        if info.get("operationParameters", {}).get("transactionalId") == transactional_id:
            found.append((info["operation"], info["operationParameters"]))
    return found


def commit_info(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().splitlines()[0])["commitInfo"]
    return found


def test_phases_add_up_and_count_a_block_that_raises() -> None:
    """The time of a phase that fails is of most interest."""
    phases = Phases({"batchId": "7"}, now_ns=Ticks())
    with phases.measure("tail"):
        pass
    with pytest.raises(ZeroDivisionError), phases.measure("tail"):
        raise ZeroDivisionError
    with phases.measure("publish"):
        pass
    assert phases.parameters() == {
        "batchId": "7",
        "totalMs": "7.000",
        "tailMs": "2.000",
        "publishMs": "1.000",
    }
    assert phases.describe() == "8.000 ms: tail 2.000, publish 1.000"


def test_micro_batch_phases_are_in_a_commit_that_is_made_anyway(tmp_path: Path) -> None:
    """Times that cost a write of their own would slow down what they measure."""
    tasks = [stage(tmp_path, ["a", "b"], task=task, batch_id=4) for task in (0, 1)]
    commit_micro_batch(options(tmp_path, "writeStream"), tasks, 4)
    following = stage(tmp_path, ["c"], task=0, batch_id=5)
    commit_micro_batch(options(tmp_path, "writeStream"), [following], 5)
    commits = history(tmp_path, QUERY)
    assert [name for name, _ in commits] == [
        "INIT PRODUCER ID",
        "PREPARE_COMMIT",
        "PREPARE_COMMIT",
    ]
    assert "totalMs" not in commits[1][1]
    complete = commits[-1][1]
    assert complete["queryId"] == QUERY
    assert complete["batchId"] == "4"
    assert (complete["tasks"], complete["files"], complete["records"]) == ("2", "2", "4")
    assert float(complete["stageLongestMs"]) == 5.0
    assert float(complete["stageSumMs"]) == 8.0
    phases = ("sourcesMs", "tailMs", "ownMs", "prepareMs", "publishMs")
    parts_ms = sum(float(complete[name]) for name in phases)
    assert 0 < parts_ms <= float(complete["totalMs"])


def test_group_offsets_have_phases_of_their_own(tmp_path: Path) -> None:
    """A slow group row must not look like a slow topic."""
    cluster = Cluster.open(str(tmp_path), create=True)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    offsets = GroupOffsets(
        group_id="g",
        generation=cluster.groups.start("g"),
        start={"s": {0: 0}},
        end={"s": {0: 1}},
    )
    phases = Phases()
    row = cluster.coordinator.commit(row, offsets=[offsets], phases=phases)
    complete(cluster, row, phases=phases)
    completed = history(tmp_path, "id")[-1][1]
    assert {"ticketsMs", "offsetsMs"} <= set(completed)


def test_batch_write_phases_are_in_its_history(tmp_path: Path) -> None:
    """The row of a one-off id is removed after its commit; the history of the shard is not."""
    commit_batch_write(options(tmp_path, "write"), [stage(tmp_path, ["a"], task=0)])
    commit_batch_write(
        options(tmp_path, "write", txnAppId="app", txnVersion="3"),
        [stage(tmp_path, ["a"], task=0)],
    )
    complete = history(tmp_path, "_batch-txnAppId-app")[-1][1]
    assert (complete["txnAppId"], complete["txnVersion"]) == ("app", "3")
    one_off = [
        info["operationParameters"]
        for path in tmp_path.glob("__transaction_state-*/_delta_log/*.json")
        if (info := commit_info(path))["operation"] == "COMPLETE_COMMIT"
        and info["operationParameters"]["transactionalId"].startswith("_batch-")
    ]
    assert len(one_off) == 2
    assert float(one_off[0]["publishMs"]) > 0


def test_helper_that_finishes_a_transaction_records_no_times(tmp_path: Path) -> None:
    """It measured only part of the work: its times would be read as the whole commit's."""
    cluster = Cluster.open(str(tmp_path), create=True)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    shard = cluster.shard(cluster.shard_of("id"))
    decided = shard.transition(
        "id",
        lambda now: prepare_end(
            now,
            holder=row.holder,
            result=TransactionResult.COMMIT,
            manifest=Manifest(),
            now_ms=1,
        ),
    )
    assert decided is not None
    finish(Cluster.open(str(tmp_path)), decided)
    operation, parameters = history(tmp_path, "id")[-1]
    assert operation == "COMPLETE_COMMIT"
    assert set(parameters) == {"transactionalId", "producerId", "txnEpoch"}


def test_debug_line_comes_once_per_micro_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line describes a whole micro-batch; a skipped batch has none."""
    task = stage(tmp_path, ["a", "b"], task=1, batch_id=4)
    with caplog.at_level(logging.DEBUG, logger="txnlog"):
        commit_micro_batch(options(tmp_path, "writeStream"), [task], 4)
        commit_micro_batch(options(tmp_path, "writeStream"), [task], 4)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert len(lines) == 1
    assert lines[0].startswith(f"Batch 4 of query {QUERY}: committed 2 records in 1 files")
    assert "in at most 5.000 ms each" in lines[0]
    for phase in ("tail", "own", "prepare", "publish", "housekeeping"):
        assert f"{phase} " in lines[0]


def test_level_of_workers_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No user code runs in the worker that commits, so nothing else could enable it."""
    logger = logging.getLogger("txnlog")
    monkeypatch.setattr(logger, "level", logger.level)
    configure_logging({})
    assert logger.level == logging.NOTSET
    configure_logging({"TXNLOG_LOG_LEVEL": "debug"})
    assert logger.level == logging.DEBUG
    with pytest.raises(ConfigError, match=r"TXNLOG_LOG_LEVEL='loud'.*DEBUG"):
        configure_logging({"TXNLOG_LOG_LEVEL": "loud"})
    logger.setLevel(logging.NOTSET)


def test_committed_transactions_are_counted_from_the_log(tmp_path: Path) -> None:
    """Progress events may come late, or several batches after one another: the log has them all."""
    stream = options(tmp_path, "writeStream")
    commit_micro_batch(stream, [stage(tmp_path, ["a"], task=0, batch_id=0)], 0)
    committed = CommittedTransactions(Cluster.open(str(tmp_path)))
    assert committed.read("another id") == (0, None)
    assert committed.read(QUERY) == (1, None)
    for batch_id in (1, 2):
        task = stage(tmp_path, ["a"], task=0, batch_id=batch_id)
        commit_micro_batch(stream, [task], batch_id)
    count, newest = committed.read(QUERY)
    assert count == 3
    assert newest is not None
    assert newest.parameters["batchId"] == "1", "its figures come with the next decision"
    assert newest.phases_ms["stageLongest"] == 3.0
    assert newest.phases_ms["total"] > newest.phases_ms["publish"] > 0
    for log, _ in committed._shards.values():
        log.invalidate()
    assert committed.read(QUERY) == (3, newest), "a log that is opened again is not counted twice"


def test_committed_transactions_are_read_without_a_write(tmp_path: Path) -> None:
    """A listener may have read permission only."""
    Cluster.open(str(tmp_path), create=True)
    before = sorted(path for path in tmp_path.rglob("*"))
    committed = CommittedTransactions(Cluster.open(str(tmp_path)))
    assert committed.read("unused") == (0, None)
    assert sorted(path for path in tmp_path.rglob("*")) == before
