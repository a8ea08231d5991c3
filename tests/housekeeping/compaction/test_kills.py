"""SIGKILL of a compacting process on a local disk, at each step."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.housekeeping.compaction.logs import (
    TOPIC,
    Record,
    append,
    begin,
    bounds,
    commit,
    live,
    records_of,
)
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.process.failpoint import COMPACTION
from txnlog.testing.counts import count
from txnlog.testing.invariants import check_cluster

SPAWN = multiprocessing.get_context("spawn")
WAIT_S = 600
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
STEPS = [
    "compaction.staged",
    "compaction.staged@2",
    "compaction.committed",
    "compaction.cleaned.before",
    "compaction.cleaned.after",
]


def compact(root: str, step: str) -> None:
    os.environ["TXNLOG_FAILPOINT"] = step
    Compactor(Cluster.open(root)).compact(TOPIC)


def filled(root: Path) -> Cluster:
    """Something to merge, and then something to key-compact."""
    cluster = Cluster.open(str(root), create=True, shards=1)
    cluster.create_topic(TOPIC, partitions=1, config=CONFIG)
    row, eager = begin(cluster), begin(cluster, "eager")
    for number in range(6):
        row = commit(cluster, row, [Record(b"a", b"%d" % number), Record(b"b%d" % number, None)])
        eager = append(cluster, eager, [Record(b"a", b"never")])
        eager = cluster.coordinator.abort(eager)
    append(cluster, eager, [Record(b"a", b"open")])
    return cluster


def test_compactor_killed_at_any_step_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """A partial compaction leaves only unreferenced files (R20, R22, R23)."""
    assert {step.partition("@")[0] for step in STEPS} == set(COMPACTION)
    killed = []
    for step in STEPS:
        filled(tmp_path / step)
        process = SPAWN.Process(target=compact, args=(str(tmp_path / step), step))
        process.start()
        killed.append(process)
    for process in killed:
        process.join(WAIT_S)
        assert process.exitcode == -signal.SIGKILL
        count("kills", "compactor, at each step")
    for step in STEPS:
        cluster = Cluster.open(str(tmp_path / step))
        check(cluster)
        Compactor(cluster).compact(TOPIC)
        check(cluster)
        log = Cluster.open(str(tmp_path / step)).topic(TOPIC)
        assert [seen.offset for seen in records_of(log)] == [1, 4, 7, 10, 13, 15, 16]
        assert live(log.view) == [(0, 17, "none"), (18, 18, "ongoing")]
        assert log.view.partitions[0].cleaned_offset == 18


def check(cluster: Cluster) -> None:
    check_cluster(cluster)
    log = cluster.topic(TOPIC)
    assert bounds(log.view) == [(0, 18, 19)]
    newest = {record.key: record.value for _, record in records_of(log)}
    assert newest == {b"a": b"5"} | {b"b%d" % number: None for number in range(6)}


@pytest.fixture(autouse=True)
def no_fail_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXNLOG_FAILPOINT", raising=False)
