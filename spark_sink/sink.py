"""The Spark sink: tasks stage files, the driver's commit makes them one transaction.

Spark pickles and rebuilds these objects: they are made in the planning worker and again in the
commit worker of every micro-batch, so they hold nothing but options and the cluster's id. Both
workers run beside the driver: they open the cluster, or make it. Tasks only look for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from spark_sink.commit import commit_batch_write, commit_micro_batch
from spark_sink.messages import StagedTask, batch_message, stream_message, task_context
from spark_sink.rows import check_columns
from spark_sink.staging import Stager
from txnlog.cluster import Cluster
from txnlog.connector.causes import reports_causes
from txnlog.connector.executors import executor_cluster
from txnlog.connector.worker_memory import collect_garbage
from txnlog.errors import ConfigError, TxnLogError
from txnlog.process.failpoint import reach
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.txn_memory import TXN_PREFIX
from txnlog.settings.options import Options, parse_options, warn_about

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TARGET_SIZE_BYTES = 64 << 20


@reports_causes
def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> TxnLogStreamWriter:
    """The sink of `df.writeStream`. Raises ConfigError, InvalidRecordError."""
    parsed = parse_options(options, "writeStream")
    if overwrite:
        raise ConfigError(
            "Output mode complete would replace the topic with every micro-batch, and a topic "
            'only grows. Use outputMode("append"), or foreachBatch for aggregates.',
            option="outputMode",
        )
    _check_schema(schema, parsed)
    writer = TxnLogStreamWriter(parsed, _cluster(parsed).cluster_id)
    collect_garbage()
    return writer


@reports_causes
def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> TxnLogWriter:
    """The sink of `df.write`. Raises ConfigError, InvalidRecordError."""
    parsed = parse_options(options, "write")
    if overwrite:
        raise ConfigError(
            'mode("overwrite") would replace the topic, and a topic only grows. Use '
            'mode("append"), or delete the topic and create it again.',
            option="mode",
        )
    if parsed.is_set("txnAppId") != parsed.is_set("txnVersion"):
        raise ConfigError(
            "txnAppId and txnVersion go together: give both, or neither.", option="txnAppId"
        )
    _check_app_id(parsed)
    _check_schema(schema, parsed)
    return TxnLogWriter(parsed, _cluster(parsed).cluster_id)


def _check_app_id(options: Options) -> None:
    app_id = options.text("txnAppId")
    if app_id is None:
        return
    if app_id.startswith(TXN_PREFIX):
        raise ConfigError(
            f"Option txnAppId={app_id}: ids that start with {TXN_PREFIX} are those of txnlog's own "
            "entries in a topic's log. Choose another one.",
            option="txnAppId",
        )
    if options.is_set("transactional.id"):
        raise ConfigError(
            "txnAppId and transactional.id exclude each other: all writes of a txnAppId share one "
            "transactional.id of their own. Leave transactional.id out.",
            option="transactional.id",
        )


class TxnLogStreamWriter(DataSourceStreamArrowWriter):
    """Exactly once per (query id, batch id), with the batch's source offsets if group.id is set."""

    def __init__(self, options: Options, cluster_id: str) -> None:
        self._options = options
        self._cluster_id = cluster_id

    @reports_causes
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; nothing is visible before the commit."""
        return stream_message(*_stage(self._options, self._cluster_id, iterator))

    @reports_causes
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch, or skip it if it is committed already."""
        _refuse_continuous(messages)
        commit_micro_batch(self._options, _complete(messages), batchId)
        collect_garbage()
        reach("sink_commit.after")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: staged files are invisible, and what is decided stays decided (R57).

        Spark calls this after a failed commit, too, and while task attempts still write; vacuum
        removes staged files that no transaction names.
        """


class TxnLogWriter(DataSourceArrowWriter):
    """A batch write is one transaction; with txnAppId and txnVersion it happens once."""

    def __init__(self, options: Options, cluster_id: str) -> None:
        self._options = options
        self._cluster_id = cluster_id

    @reports_causes
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage one task's rows; nothing is visible before the commit."""
        return batch_message(*_stage(self._options, self._cluster_id, iterator))

    @reports_causes
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows as one transaction."""
        commit_batch_write(self._options, _complete(messages))
        reach("sink_commit.after")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo, as in TxnLogStreamWriter.abort."""


def _check_schema(schema: StructType, options: Options) -> None:
    check_columns(
        to_arrow_schema(schema, timezone="UTC"),
        topic=options.text("topic"),
        include_headers=_include_headers(options),
    )


def _include_headers(options: Options) -> bool:
    """A column headers is written unless includeHeaders=false says no, as Kafka's sink does."""
    return options.flag("includeHeaders") or not options.is_set("includeHeaders")


def _cluster(options: Options) -> Cluster:
    """The cluster, on the driver's machine; made if there is none and topics may be created."""
    return Cluster.cached(
        options.root, options.storage, create=options.flag("auto.create.topics.enable")
    )


def _stage(
    options: Options, cluster_id: str, rows: Iterator[pa.RecordBatch]
) -> tuple[tuple[StagedBatch, ...], int]:
    """Stage one task's rows: (its files, nanoseconds of own work, without waiting for rows)."""
    began_ns = perf_counter_ns()
    warn_about(options)
    cluster = executor_cluster(options.root, options.storage, cluster_id=cluster_id)
    stager = Stager(
        cluster,
        topic=options.text("topic"),
        include_headers=_include_headers(options),
        target_size_bytes=TARGET_SIZE_BYTES,
        auto_create=options.flag("auto.create.topics.enable"),
        partitions=options.number("num.partitions"),
        compression=options.text("compression.type"),
    )
    waiting = _Waiting(rows)
    try:
        staged = tuple(stager.write(waiting))
    except TxnLogError as error:
        if "row" not in error.context:
            raise
        task = task_context().partitionId()
        context = {**error.context, "task": task}
        raise type(error)(f"Task {task}: {error.message}", **context) from error
    own_ns = perf_counter_ns() - began_ns - waiting.waited_ns
    collect_garbage()
    reach("stage.after")
    return staged, own_ns


class _Waiting:
    """Rows as they come, and the nanoseconds spent waiting for them."""

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
    """Under a continuous trigger Spark never calls write(), so that no task has a message."""
    if messages and not any(messages):
        raise ConfigError(
            "No task of this query hands its rows to the sink: a continuous trigger cannot commit "
            "transactions, and nothing is written. Stop the query, and use "
            "Trigger.ProcessingTime or Trigger.AvailableNow.",
            option="trigger",
        )


def _complete(messages: list[WriterCommitMessage | None]) -> list[StagedTask]:
    """This commit's own messages, in the order of the tasks: only files they name count (R56)."""
    tasks = [message for message in messages if isinstance(message, StagedTask)]
    if len(tasks) < len(messages):
        raise RuntimeError(
            f"Spark asked to commit {len(messages)} tasks, but {len(messages) - len(tasks)} sent "
            "no message; nothing was committed."
        )
    return sorted(tasks, key=lambda task: task.task)
