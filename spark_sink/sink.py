"""The Spark sink: tasks stage files, the driver commits them as one transaction.

Spark pickles these objects and rebuilds them in the planning worker and in the commit worker of
each micro-batch, so they hold only options and the cluster's id. Both workers run on the driver's
host: they open the cluster, or create it. Tasks only open it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_sink.commit import commit_batch_write, commit_micro_batch
from spark_sink.lineage import check_lineage
from spark_sink.message_rows import message_bytes_max
from spark_sink.messages import StagedRows, StagedTask, batch_message, stream_message, task_context
from spark_sink.rows import check_columns
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.connector.causes import reports_causes
from txnlog.connector.executors import executor_cluster
from txnlog.connector.pipelining import consume_beside
from txnlog.connector.spark_versions import (
    DataSourceStreamArrowWriter,
    arrow_schema,
    warn_of_tcp,
)
from txnlog.connector.worker_memory import collect_garbage, keep_freed_memory
from txnlog.errors import ConfigError, TxnLogError
from txnlog.process.failpoint import reach
from txnlog.protocol.txn_memory import TXN_PREFIX
from txnlog.settings.config import Config, parse_config

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TARGET_SIZE_BYTES = 64 << 20


@reports_causes
def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> TxnLogStreamWriter:
    """The sink of `df.writeStream`. Raises ConfigError, InvalidRecordError."""
    warn_of_tcp()
    parsed = parse_config(options, "writeStream")
    if overwrite:
        raise ConfigError(
            "Output mode complete would replace the topic with every micro-batch, and a topic is "
            'append-only. Use outputMode("append"), or foreachBatch for aggregates.',
            option="outputMode",
        )
    check_schema(schema, parsed)
    check_lineage(parsed)
    writer = TxnLogStreamWriter(parsed, _cluster(parsed).cluster_id)
    collect_garbage()
    return writer


@reports_causes
def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TxnLogWriter:
    """The sink of `df.write`. Raises ConfigError, InvalidRecordError."""
    warn_of_tcp()
    parsed = parse_config(options, "write")
    if overwrite:
        raise ConfigError(
            'mode("overwrite") would replace the topic, and a topic is append-only. Use '
            'mode("append"), or delete the topic and create it again.',
            option="mode",
        )
    if parsed.is_set("txnAppId") != parsed.is_set("txnVersion"):
        raise ConfigError(
            "txnAppId and txnVersion must be set together: set both, or neither.",
            option="txnAppId",
        )
    _check_app_id(parsed)
    check_schema(schema, parsed)
    return TxnLogWriter(parsed, _cluster(parsed).cluster_id)


def _check_app_id(options: Config) -> None:
    app_id = options.get("txnAppId")
    if app_id is None:
        return
    if app_id.startswith(TXN_PREFIX):
        raise ConfigError(
            f"Option txnAppId={app_id}: ids that start with {TXN_PREFIX} are reserved for txnlog's "
            "own entries in a topic's log. Choose another one.",
            option="txnAppId",
        )
    if options.is_set("transactional.id"):
        raise ConfigError(
            "txnAppId and transactional.id cannot be combined: all writes of a txnAppId share "
            "their own transactional.id. Omit transactional.id.",
            option="transactional.id",
        )


class TxnLogStreamWriter(DataSourceStreamArrowWriter):
    """Commits once per (query id, batch id), with the batch's source offsets if group.id is set."""

    def __init__(self, options: Config, cluster_id: str) -> None:
        self._options = options
        self._cluster_id = cluster_id

    @reports_causes
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; nothing is visible before the commit."""
        return stream_message(stage_rows(self._options, self._cluster_id, iterator))

    @reports_causes
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch, or skip it if it is already committed."""
        _refuse_continuous(messages)
        commit_micro_batch(self._options, _complete(messages), batchId)
        collect_garbage()
        reach("sink_commit.after")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """No action: staged files are invisible, and a decided transaction stays decided (R57).

        Spark also calls this after a failed commit and while task attempts still write; vacuum
        deletes staged files that no transaction refers to.
        """


class TxnLogWriter(DataSourceArrowWriter):
    """Commits a batch write as one transaction; with txnAppId and txnVersion, only once."""

    def __init__(self, options: Config, cluster_id: str) -> None:
        self._options = options
        self._cluster_id = cluster_id

    @reports_causes
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; nothing is visible before the commit."""
        return batch_message(stage_rows(self._options, self._cluster_id, iterator))

    @reports_causes
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows as one transaction."""
        commit_batch_write(self._options, _complete(messages))
        reach("sink_commit.after")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """No action, as in TxnLogStreamWriter.abort."""


def check_schema(schema: StructType, options: Config) -> None:
    check_columns(
        arrow_schema(schema),
        topic=options.get("topic"),
        include_headers=options.get("includeHeaders"),
    )


def _cluster(options: Config) -> Cluster:
    """The cluster, opened on the driver's host; created if missing and topics may be created."""
    return Cluster.cached(
        options.root, options.storage, create=options.get("auto.create.topics.enable")
    )


def stage_rows(
    options: Config, cluster_id: str, rows: Iterator[pa.RecordBatch], *, tasks_before: int = 0
) -> StagedRows:
    """Stage one task's rows, which another thread receives.

    `tasks_before` are other tasks of the same commit, in earlier jobs.
    """
    began_ns = perf_counter_ns()
    keep_freed_memory()
    cluster = executor_cluster(options.root, options.storage, cluster_id=cluster_id)
    stager = Stager(
        cluster,
        topic=options.get("topic"),
        include_headers=options.get("includeHeaders"),
        target_size_bytes=TARGET_SIZE_BYTES,
        auto_create=options.get("auto.create.topics.enable"),
        partitions=options.get("num.partitions"),
        compression=options.get("compression.type"),
        message_bytes_max=message_bytes_max(tasks_before + task_context().partitionId()),
    )
    opened_ns = perf_counter_ns() - began_ns

    def stage(received: Iterable[pa.RecordBatch]) -> StagedRows:
        began_ns = perf_counter_ns()
        timed_rows = _TimedRows(iter(received))
        staged = tuple(stager.write(timed_rows))
        own_ns = opened_ns + perf_counter_ns() - began_ns - timed_rows.waited_ns
        return StagedRows(staged, stager.message_rows, own_ns)

    try:
        staged = consume_beside(rows, stage)
    except TxnLogError as error:
        if "row" not in error.context:
            raise
        task = task_context().partitionId()
        raise error.replace(f"Task {task}: {error.message}", task=task) from error
    collect_garbage()
    reach("stage.after")
    return staged


class _TimedRows:
    """An iterator over rows that counts the nanoseconds spent waiting for them."""

    def __init__(self, rows: Iterator[pa.RecordBatch]) -> None:
        self._rows = rows
        self.waited_ns = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        began_ns = perf_counter_ns()
        try:
            return next(self._rows)
        finally:
            self.waited_ns += perf_counter_ns() - began_ns


def _refuse_continuous(messages: list[WriterCommitMessage | None]) -> None:
    """Under a continuous trigger Spark never calls write(), so no task has a message."""
    if messages and not any(messages):
        raise ConfigError(
            "No task of this query passes its rows to the sink: a continuous trigger cannot commit "
            "transactions, and nothing is written. Stop the query, and use "
            "Trigger.ProcessingTime or Trigger.AvailableNow.",
            option="trigger",
        )


def _complete(messages: list[WriterCommitMessage | None]) -> list[StagedTask]:
    """This commit's messages, in task order; only the files they name are committed (R56)."""
    tasks = [message for message in messages if isinstance(message, StagedTask)]
    if len(tasks) < len(messages):
        raise RuntimeError(
            f"Spark called commit for {len(messages)} tasks, but {len(messages) - len(tasks)} sent "
            "no message; nothing was committed."
        )
    return sorted(tasks, key=lambda task: task.task)
