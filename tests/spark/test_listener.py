"""The listener beside real queries, and the times that SQL finds in the transaction log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from spark_session import PROJECT, spark_environment

from spark_sink import QueryReport, TxnLogListener
from tests.spark import pipeline
from tests.spark.conftest import Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

EVENTS_S_MAX = 300


@contextmanager
def listening(lab: Lab, listener: TxnLogListener) -> Iterator[None]:
    lab.spark.streams.addListener(listener)
    try:
        yield
    finally:
        lab.spark.streams.removeListener(listener)


def await_reports(reports: list[QueryReport], count: int) -> None:
    """Events come on a thread of Spark's own, some time after the batch."""
    deadline_s = time.monotonic() + EVENTS_S_MAX
    while len(reports) < count:
        assert time.monotonic() < deadline_s, f"{len(reports)} reports of {count}"
        time.sleep(0.02)


def test_listener_reports_each_micro_batch_of_a_query(lab: Lab) -> None:
    """Lag falls to 0, each batch is one transaction, and its phases are those of its commit."""
    lab.feed(0, 60)
    reports: list[QueryReport] = []
    registry = CollectorRegistry()
    with listening(lab, TxnLogListener(str(lab.root), on_report=reports.append, registry=registry)):
        query = lab.run(batch_records=20)
        await_reports(reports, 3)
    assert [report.batch_id for report in reports] == [0, 1, 2]
    assert [report.total_lag for report in reports] == [40, 20, 0]
    assert [report.input_rows for report in reports] == [20, 20, 20]
    assert reports[-1].transactions == 3
    assert set(reports[0].lag) == {"numbers"}
    assert set(reports[0].lag["numbers"]) == {0, 1}
    newest = reports[-1].transaction
    assert newest is not None
    assert newest.transactional_id == query.id
    phases = newest.phases_ms
    wanted = {"tail", "sources", "tickets", "prepare", "publish", "offsets", "stageLongest"}
    assert wanted <= set(phases)
    assert 0 < phases["stageLongest"] <= phases["stageSum"]
    assert sum(phases[name] for name in ("tickets", "prepare", "publish")) <= phases["total"]
    labels = {"query": query.id}
    assert registry.get_sample_value("txnlog_transactions_total", labels) == 3
    lab.check(60)


def test_listener_that_fails_does_not_break_a_query(lab: Lab) -> None:
    """A dashboard must not stop the pipeline it shows."""
    lab.feed(0, 20)
    seen: list[QueryReport] = []

    def broken(report: QueryReport) -> None:
        seen.append(report)
        raise RuntimeError("the dashboard is down")

    unreadable = TxnLogListener(str(lab.root / "not" / "there"), on_report=broken)
    with listening(lab, unreadable):
        lab.run(batch_records=10)
        await_reports(seen, 2)
    assert [report.total_lag for report in seen] == [10, 0]
    assert seen[-1].transactions == 0
    lab.check(20)


def test_phases_are_in_the_history_that_sql_shows(lab: Lab) -> None:
    """No tool of ours is needed to see where a micro-batch spent its time."""
    lab.feed(0, 40)
    query = lab.run(batch_records=20)
    shard = Cluster.open(str(lab.root)).shard_of(query.id)
    history = lab.spark.sql(f"DESCRIBE HISTORY delta.`{lab.root}/__transaction_state-{shard}`")
    rows = history.where(
        f"operationParameters.queryId = '{query.id}' and operation = 'PREPARE_COMMIT'"
    ).orderBy("version")
    found = [row.operationParameters for row in rows.collect()]
    # Those of the last batch would come with the next decision.
    assert [(p["batchId"], p["records"]) for p in found] == [("0", "20")]
    for parameters in found:
        assert float(parameters["publishMs"]) > 0
        assert float(parameters["stageLongestMs"]) > 0
    # The producer of the input may be in the same shard.
    ours = history.where(f"operationParameters.transactionalId = '{query.id}'")
    steps = [row.operation for row in ours.collect()]
    assert steps.count("PREPARE_COMMIT") == 2
    assert "COMPLETE_COMMIT" not in steps


CONNECT = """
import sys, time
from pyspark.sql import SparkSession
from spark_sink import TxnLogListener
from tests.spark import pipeline

root, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
reports = []
spark.streams.addListener(TxnLogListener(root, on_report=reports.append))
pipeline.run(pipeline.start(spark, root, checkpoint, batch_records=20))
deadline_s = time.monotonic() + 30
while len(reports) < 2 and time.monotonic() < deadline_s:
    time.sleep(0.05)
for report in reports:
    print("REPORT", report.batch_id, report.total_lag, report.transactions, flush=True)
spark.stop()
"""


@pytest.mark.ways
def test_listener_works_over_spark_connect(tmp_path: Path, scratch: Path) -> None:
    """There events travel to the client, which must be able to read the root."""
    pipeline.feed(tmp_path / "root", range(40))
    environment = spark_environment(os.environ)
    environment.pop("TXNLOG_FAILPOINT", None)
    environment["SPARK_LOCAL_DIRS"] = str(scratch / "connect")
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(tmp_path / "root"), str(tmp_path / "checkpoint")],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
    assert [line.split()[:3] for line in lines] == [
        ["REPORT", "0", "20"],
        ["REPORT", "1", "0"],
    ], done.stderr[-3000:]
    assert lines[-1].endswith(" 2")
    pipeline.check(tmp_path / "root", 40)
