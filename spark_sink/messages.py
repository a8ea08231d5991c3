"""The commit message of a task: its staged files, and the run it belongs to."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_sink.message_rows import MessageRows
from txnlog.errors import ConfigError
from txnlog.protocol.metadata import StagedBatch

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
DESCRIPTION = "spark.job.description"
"""The name of the query, if it has one, then its ids, on lines or with <br/> between them."""
QUERY_NAME_LENGTH_MAX = 200


@dataclass(frozen=True)
class StagedTask(WriterCommitMessage):
    """The message of one successful task attempt.

    Query, run and batch id are "" and -1 for a batch write. Spark passes them only to tasks, so
    the driver's commit reads them from here. `stage_ns` is the time of the sink's own work,
    without waiting for rows. `rows` are left for the commit to write.
    """

    task: int
    batches: tuple[StagedBatch, ...]
    query_id: str = ""
    run_id: str = ""
    batch_id: int = -1
    stage_ns: int = 0
    query_name: str = ""
    rows: MessageRows | None = None


class StagedRows(NamedTuple):
    """What a task has made of its rows: files, or few rows; and the ns of work."""

    batches: tuple[StagedBatch, ...]
    rows: MessageRows | None
    stage_ns: int


def stream_message(staged: StagedRows) -> StagedTask:
    """The message of a streaming task. Raises ConfigError under a continuous trigger."""
    context = task_context()
    query_id, run_id, batch_id = (
        context.getLocalProperty(name) for name in (QUERY_ID, RUN_ID, BATCH_ID)
    )
    if not query_id or not run_id or batch_id is None:
        raise ConfigError(
            "This task belongs to no micro-batch: a continuous trigger cannot commit "
            "transactions. Use Trigger.ProcessingTime or Trigger.AvailableNow.",
            option="trigger",
        )
    name = query_name(context.getLocalProperty(DESCRIPTION), query_id)
    task = context.partitionId()
    return StagedTask(
        task, staged.batches, query_id, run_id, int(batch_id), staged.stage_ns, name, staged.rows
    )


def query_name(description: str | None, query_id: str) -> str:
    """The name of a query by the description of its jobs; "" if it has none, or another one."""
    name, found, _ = (description or "").partition(f"id = {query_id}")
    name = name.strip().removesuffix("<br/>").strip()
    return name[:QUERY_NAME_LENGTH_MAX] if found else ""


def batch_message(staged: StagedRows) -> StagedTask:
    """The message of a batch write's task."""
    task = task_context().partitionId()
    return StagedTask(task, staged.batches, stage_ns=staged.stage_ns, rows=staged.rows)


def task_context() -> TaskContext:
    """Spark's context of the running task."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("the sink's write() runs in Spark tasks only")
    return context


def this_process() -> tuple[str, int]:
    """(host, process id), for the owner of a transactional.id."""
    return socket.gethostname(), os.getpid()
