"""The listener's reports, log lines and metrics of progress events, without errors."""

from __future__ import annotations

import builtins
import logging
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from spark_sink import QueryReport, TxnLogListener
from spark_sink.commit import _measured, commit_micro_batch
from spark_sink.messages import StagedTask
from spark_sink.reports import lag_of
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import parse_config

QUERY = "3207c809-b154-4834-aeab-48435d2bff20"
RUN = "51a3f98e-0fea-4e80-918d-49ddbad24c5c"
STAMP = {"cluster": "c", "topics": {}}
NOW = "2026-11-20T16:48:44.569Z"


def source(end: Any, latest: Any) -> dict[str, Any]:
    """As Spark 4.2 writes it, with offsets as JSON in the JSON."""
    return {
        "description": "PythonMicroBatchStreamWithTriggerAvailableNow@3689fb14",
        "startOffset": None,
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 10,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 2.4,
    }


def progress(batch_id: int, *sources: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    return {
        "id": QUERY,
        "runId": RUN,
        "name": name,
        "timestamp": NOW,
        "batchId": batch_id,
        "batchDuration": 4094,
        "numInputRows": 10,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 2.4,
        "durationMs": {},
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "PythonTable@558dd7d4", "numOutputRows": 10},
    }


@pytest.fixture(autouse=True)
def _without_figures_of_other_tests() -> None:
    _measured.clear()


def send_progress(
    listener: TxnLogListener, batch_id: int, end: int, latest: int, **more: Any
) -> None:
    """A progress event of a query that reads topic s, of one partition."""
    read = source({"s": {"0": end}, "@": STAMP}, {"s": {"0": latest}})
    event = QueryProgressEvent.fromJson({"progress": progress(batch_id, read, **more)})
    listener.onQueryProgress(event)


def start(listener: TxnLogListener, name: str | None = None) -> None:
    started = {"id": QUERY, "runId": RUN, "name": name, "timestamp": NOW}
    listener.onQueryStarted(QueryStartedEvent.fromJson(started))


def end(listener: TxnLogListener) -> None:
    ended = {"id": QUERY, "runId": RUN, "exception": None, "errorClassOnException": None}
    listener.onQueryTerminated(QueryTerminatedEvent.fromJson(ended))


def commit(root: Path, batch_id: int, **options: str) -> None:
    """A micro-batch of the query, as the sink commits it."""
    stager = Stager(
        Cluster.cached(str(root), create=True),
        topic="t",
        include_headers=False,
        target_size_bytes=1 << 20,
    )
    batches = tuple(stager.write([pa.RecordBatch.from_pydict({"value": ["v"]})]))
    task = StagedTask(0, batches, QUERY, RUN, batch_id, 1_000_000)
    parsed = parse_config({"path": str(root), "topic": "t", **options}, "writeStream")
    commit_micro_batch(parsed, [task], batch_id)


# -- lag -----------------------------------------------------------------------------------------


def test_lag_is_the_unread_records_per_partition() -> None:
    """Dense offsets make the difference exact; the reserved key is no topic."""
    read = source({"a": {"0": 5, "1": 7}, "@": STAMP}, {"a": {"0": 9, "1": 7}})
    assert lag_of(progress(0, read)) == {"a": {0: 4, 1: 0}}


def test_lag_is_none_where_spark_reports_the_end_of_the_batch_as_the_latest_offset() -> None:
    """Spark 4.0 and 4.1 show the whole logged offset; its reserved key has no numbers."""
    logged = {"a": {"0": 9}, "@": STAMP}
    assert lag_of(progress(0, source(logged, logged))) == {"a": {0: 0}}


def test_lag_of_several_sources_is_combined_and_of_others_omitted() -> None:
    """Kafka's source has topics, too, and rate has a number: only ours has the reserved key."""
    kafka = source({"a": {"0": 1}}, {"a": {"0": 100}})
    rate = source(3, None)
    first = source({"a": {"0": 5}, "@": STAMP}, {"a": {"0": 9}})
    behind = source({"a": {"0": 2}, "b": {"0": 1}, "@": STAMP}, {"a": {"0": 9}, "b": {"0": 1}})
    wanted = {"a": {0: 7}, "b": {0: 0}}
    assert lag_of(progress(0, kafka, rate, first, behind)) == wanted
    assert lag_of(progress(0, behind, first, rate, kafka)) == wanted


@pytest.mark.parametrize("latest", [None, "null", "None", "not JSON", {"a": {}}, {}])
def test_lag_without_a_latest_offset_is_unknown_not_zero(latest: Any) -> None:
    """A lag of 0 that was not measured would hide an alarm."""
    assert not any(lag_of(progress(0, source({"a": {"0": 5}, "@": STAMP}, latest))).values())


def test_lag_reads_offsets_that_are_json_texts() -> None:
    """Spark Connect's client and Spark itself represent the same offset differently."""
    read = source('{"a":{"0":5},"@":{}}', '{"a":{"0":9}}')
    assert lag_of(progress(0, read)) == {"a": {0: 4}}


# -- reports -------------------------------------------------------------------------------------


def test_reports_count_transactions_since_the_start_of_the_query(tmp_path: Path) -> None:
    """A restarted query has committed before; several batches may pass between two events."""
    commit(tmp_path, 0)
    reports: list[QueryReport] = []
    listener = TxnLogListener(str(tmp_path), on_report=reports.append)
    start(listener, "copy")
    for batch_id in (1, 2):
        commit(tmp_path, batch_id)
    send_progress(listener, 2, 20, 50, name="copy")
    send_progress(listener, 3, 50, 50, name="copy")
    first, second = reports
    assert (first.transactions, second.transactions) == (2, 2)
    assert (first.total_lag, second.total_lag) == (30, 0)
    assert first.lag == {"s": {0: 30}}
    assert (first.batch_id, first.input_rows, first.label) == (2, 10, "copy")
    assert first.transaction is not None
    assert first.transaction.parameters["batchId"] == "1", "its figures come with the next one"
    assert second.transaction == first.transaction
    assert listener.latest == {QUERY: second}


def test_listener_that_is_added_to_a_running_query_counts_from_its_newest(tmp_path: Path) -> None:
    """It has not received the query's start event."""
    for batch_id in range(3):
        commit(tmp_path, batch_id)
    listener = TxnLogListener(str(tmp_path))
    send_progress(listener, 2, 1, 1)
    assert listener.latest[QUERY].transactions == 1
    commit(tmp_path, 3)
    send_progress(listener, 3, 2, 2)
    assert listener.latest[QUERY].transactions == 2


def test_report_is_one_line_for_people(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log is what most users read."""
    listener = TxnLogListener(str(tmp_path))
    start(listener)
    for batch_id in (0, 1):
        commit(tmp_path, batch_id)
    with caplog.at_level(logging.INFO, logger="txnlog"):
        send_progress(listener, 1, 20, 50)
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith(
        f"Query {QUERY}, batch 1: 10 rows, 2 rows/s, lag 30 (s 30), 2 transactions; "
        "commit of batch 0 "
    )
    for phase in ("tail", "own", "prepare", "publish", "stageLongest 1.0"):
        assert phase in line


def test_queries_without_txnlog_topics_are_ignored(tmp_path: Path) -> None:
    """A session may run others; one that only writes to txnlog counts from its first commit."""
    reports: list[QueryReport] = []
    listener = TxnLogListener(str(tmp_path), on_report=reports.append)
    start(listener)
    event = QueryProgressEvent.fromJson({"progress": progress(0, source(3, None))})
    listener.onQueryProgress(event)
    assert reports == []
    commit(tmp_path, 0)
    listener.onQueryProgress(event)
    assert [(report.transactions, report.lag) for report in reports] == [(1, {})]


# -- trouble -------------------------------------------------------------------------------------


def test_listener_never_raises_and_logs_the_same_error_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would log a wall of Java for each event, or lose the listener."""

    def broken(report: QueryReport) -> None:
        raise RuntimeError("the user's callback fails")

    listener = TxnLogListener(str(tmp_path), on_report=broken)
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        for batch_id in range(3):
            commit(tmp_path, batch_id)
            send_progress(listener, batch_id, 1, 1)
    assert len(caplog.records) == 1
    assert "the user's callback fails" in caplog.text
    assert listener.latest[QUERY].batch_id == 2


def test_lag_is_reported_when_the_log_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lag comes from the events alone; a restored log is read again, and counting continues."""
    listener = TxnLogListener(str(tmp_path))
    start(listener)
    commit(tmp_path, 0)
    send_progress(listener, 0, 10, 50)
    cluster = Cluster.open(str(tmp_path))
    logs = tmp_path / f"__transaction_state-{cluster.shard_of(QUERY)}" / "_delta_log"
    commit(tmp_path, 1)
    newest = sorted(logs.glob("*.json"))[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        for batch_id in (1, 1):
            send_progress(listener, batch_id, 20, 50)
    assert len(caplog.records) == 1
    assert (listener.latest[QUERY].total_lag, listener.latest[QUERY].transactions) == (30, 1)
    newest.write_bytes(whole)
    send_progress(listener, 1, 50, 50)
    assert listener.latest[QUERY].transactions == 2


def test_missing_cluster_is_no_error_at_the_start_of_a_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first query of a new root creates the cluster; the listener does not."""
    root = tmp_path / "root"
    listener = TxnLogListener(str(root))
    with caplog.at_level(logging.WARNING, logger="txnlog"):
        start(listener)
    assert not root.exists()
    assert not caplog.records
    commit(root, 0)
    commit(root, 1)
    send_progress(listener, 1, 1, 1)
    assert listener.latest[QUERY].transactions == 2


# -- Prometheus ----------------------------------------------------------------------------------


def test_metrics_of_a_query_and_their_end(tmp_path: Path) -> None:
    """Gauges of a query that has ended would show its last lag for ever; counters remain."""
    registry = CollectorRegistry()
    listener = TxnLogListener(str(tmp_path), registry=registry)
    start(listener, "copy")
    for batch_id in range(3):
        commit(tmp_path, batch_id)
        if batch_id != 1:
            send_progress(listener, batch_id, 10 * batch_id, 50, name="copy")
    send_progress(listener, 2, 20, 50, name="copy")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"query": "copy", **labels})

    assert value("txnlog_lag_records", topic="s", partition="0") == 30
    assert value("txnlog_transactions_total") == 3
    assert value("txnlog_input_rows_total") == 30
    assert value("txnlog_commit_seconds_count") == 1, "one of each report with new figures"
    assert value("txnlog_processed_rows_per_second") == 2.4
    assert value("txnlog_commit_phase_seconds", phase="stageLongest") == 0.001
    assert (value("txnlog_commit_phase_seconds", phase="publish") or 0) > 0
    end(listener)
    assert value("txnlog_lag_records", topic="s", partition="0") is None
    assert value("txnlog_commit_phase_seconds", phase="publish") is None
    assert value("txnlog_transactions_total") == 3


@pytest.mark.parametrize("given", [{}, {"address": "127.0.0.2"}])
def test_port_serves_the_metrics_on_this_machine_only_unless_told(
    tmp_path: Path, given: dict[str, str]
) -> None:
    """A port must not be open to the network by itself."""
    address = given.get("address", "127.0.0.1")
    listener = TxnLogListener(str(tmp_path), port=0, **given)
    try:
        commit(tmp_path, 0)
        send_progress(listener, 0, 1, 4)
        assert listener._metrics is not None
        assert listener._metrics._server is not None
        assert listener._metrics._server.address == address
        with urllib.request.urlopen(f"http://{address}:{listener.port}/metrics") as page:
            text = page.read().decode()
        assert 'txnlog_lag_records{partition="0",query="' in text
    finally:
        listener.close()


def test_prometheus_is_imported_only_when_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra: without it the listener works, and asking for metrics gives the remedy."""
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "prometheus_client":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    TxnLogListener(str(tmp_path))
    with pytest.raises(ConfigError, match=r"install\s+txnlog\[prometheus\]"):
        TxnLogListener(str(tmp_path), port=0)


def test_workers_that_import_the_sink_do_not_import_the_listener() -> None:
    """Every new worker of Spark waits for its imports."""
    code = (
        "import sys, spark_sink.sink\n"
        "assert not {'spark_sink.listener', 'prometheus_client'} & set(sys.modules)\n"
        "from spark_sink import QueryReport, TxnLogListener\n"
        "assert 'prometheus_client' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
