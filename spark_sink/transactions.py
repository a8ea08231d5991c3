"""Transactions of `foreachBatch`: topics, Delta tables and the group's offsets, exactly once.

The function stages; when it has returned, its micro-batch is committed as the sink's are. It runs
in the driver's process, and so does the commit.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING
from weakref import ref

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from spark_sink.commit import (
    BegunBatch,
    begin_batch,
    commit_begun,
    run_micro_batch,
    staging_facts,
    task_files,
)
from spark_sink.lineage import CommittedBatch, check_lineage
from spark_sink.messages import DESCRIPTION, QUERY_ID, RUN_ID, StagedRows, StagedTask, query_name
from spark_sink.sink import check_schema, stage_rows
from spark_sink.source_offsets import check_checkpoint
from spark_sink.table_staging import Partitions, StagedWrites
from txnlog.cluster import Cluster
from txnlog.connector.causes import reports_causes
from txnlog.coordinator.phases import Phases
from txnlog.errors import ConfigError, InvalidTxnStateError, TableConflictError
from txnlog.process.failpoint import reach
from txnlog.protocol.enlisted.parts import Mode
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.settings import arguments
from txnlog.settings.config import Config, parse_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Transaction", "transactional"]

logger = logging.getLogger("txnlog")

Function = Callable[["Transaction", DataFrame, int], object]

_TARGET = re.compile(
    r"\b(INSERT\s+INTO(?:\s+TABLE)?|UPDATE|DELETE\s+FROM|MERGE\s+INTO)\s+\{([^{}]*)\}",
    re.IGNORECASE,
)

ATTEMPTS_MAX = 4
"""How often a function is called for one micro-batch while others change what it has read."""


_returned: dict[tuple[str, str], tuple[str, int, Function, ref[DataFrame]]] = {}
"""Root and query -> the newest call that has returned: its run, batch, function and frame.

The frame is not kept: it holds the plan of its batch, and a driver may run many queries.
"""


def _frame(name: str, given: object) -> DataFrame:
    """The argument. Raises TypeError for anything else."""
    frame: DataFrame = arguments.one_of(name, given, DataFrame)
    return frame


def _written(table: str) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"This transaction writes to table {table!r} already. Overwrite it first, then append; "
        "change its rows in a transaction of its own.",
        table=table,
    )


class Transaction:
    """What the function of a micro-batch writes; committed when the function has returned.

    Not thread-safe. After an error of one of its calls it cannot be committed.
    """

    def __init__(
        self, cluster: Cluster, options: Config, spark: SparkSession, run: StagedTask
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._spark = spark
        self._run = run
        self._tasks: list[StagedTask] = []
        self._tables: dict[str, StagedWrites] = {}
        self._refusal = ""
        """Why nothing may be written any more."""

    def write(self, records: DataFrame) -> None:
        """Stage records for topics; the columns are those of the sink.

        Raises ConfigError, InvalidRecordError; what fails in a task is Spark's error.
        """
        with self._writing():
            _frame("records", records)
            check_schema(records.schema, self._options)
            stage = partial(_stage_task, self._options, self._cluster.cluster_id, len(self._tasks))
            staged = records.mapInArrow(stage, "staged binary").collect()
            for task, row in enumerate(staged, len(self._tasks)):
                batches, rows, stage_ns = _STAGED.decode(row.staged)
                self._tasks.append(StagedTask(task, batches, stage_ns=stage_ns, rows=rows))

    def append(self, table: str, rows: DataFrame) -> None:
        """Stage rows for an enlisted Delta table, by the names of their columns.

        After `overwrite` of the same table they come to those of that. Raises UnknownTableError,
        TableFeatureError, ConfigError without Delta; what Delta refuses is Spark's error.
        """
        with self._writing():
            self._staged(table).append(_frame("rows", rows))

    def overwrite(
        self,
        table: str,
        rows: DataFrame,
        partitions: Iterable[Mapping[str, object]] | None = None,
    ) -> None:
        """Stage rows that replace all rows of an enlisted table, or of partitions, when committed.

        `partitions` are values of some or all partition columns: [{"day": "2026-11-26"}]. Raises
        as `append`, and TableDataError for rows that are in none of them, when it is committed.
        """
        with self._writing():
            if arguments.text("table", table) in self._tables:
                raise _written(table)
            named = arguments.partition_values("partitions", partitions)
            self._begin(table, "overwrite", named).append(_frame("rows", rows))

    def sql(self, statement: str, **frames: DataFrame) -> None:
        """Stage the rows of an INSERT INTO {name} SELECT ..., for the enlisted table of that name.

        Or an UPDATE {name}, DELETE FROM {name}, MERGE INTO {name}: these are `merge` of the whole
        table, and may name it again. `frames` are for other names in braces, as in
        `SparkSession.sql`. Raises as `append` and `merge`.
        """
        with self._writing():
            targets = _TARGET.findall(arguments.text("statement", statement))
            if len(targets) != 1:
                raise ConfigError(
                    "tx.sql is for one INSERT INTO {name}, UPDATE {name}, DELETE FROM {name} or "
                    "MERGE INTO {name}, where name is that of an enlisted table; this is "
                    f"{arguments.shown(statement)}."
                )
            verb, name = targets[0]
            is_insert = verb[0] in "Ii"

            def run(place: str) -> object:
                if frames:
                    place = place.replace("{", "{{").replace("}", "}}")
                text = _TARGET.sub(lambda found: f"{found[1]} {place}", statement)
                if not is_insert:
                    text = text.replace(f"{{{name}}}", place)
                return self._spark.sql(text, None, **frames)

            table = name.strip()
            (self._staged(table) if is_insert else self._begin_merge(table, None)).sql(run)

    def merge(
        self,
        table: str,
        function: Callable[[str], object],
        partitions: Iterable[Mapping[str, object]] | None = None,
    ) -> None:
        """Change rows of an enlisted table by what they are: one MERGE, UPDATE or DELETE.

        `function` gets the path of a Delta table that has the rows of now, and changes that. With
        `partitions`, as in `overwrite`, it has only theirs; then only changes of others in these
        partitions are in conflict with it. One table of a transaction. Raises as `append`, and
        InvalidTxnStateError for another one.
        When it is committed, TableConflictError: others have changed what was read; the function
        of the micro-batch is then called again, up to four times in all.
        """
        with self._writing():
            if not callable(function):
                raise TypeError(f"function must be callable: {arguments.shown(function)}.")
            named = arguments.partition_values("partitions", partitions)
            self._begin_merge(arguments.text("table", table), named).merge(function)

    def _staged(self, table: str) -> StagedWrites:
        found = self._tables.get(arguments.text("table", table))
        if found is None:
            return self._begin(table, "append", None)
        if found.mode == "merge":
            raise _written(table)
        return found

    def _begin_merge(self, table: str, partitions: Partitions | None) -> StagedWrites:
        if table in self._tables:
            raise _written(table)
        others = [name for name, writes in self._tables.items() if writes.mode == "merge"]
        if others:
            raise InvalidTxnStateError(
                f"This transaction changes rows of {others[0]!r} by what they are, and can do so "
                f"in one table only: its commit decides. Change {table!r} in another transaction.",
                table=table,
            )
        return self._begin(table, "merge", partitions)

    def _begin(self, table: str, mode: Mode, partitions: Partitions | None) -> StagedWrites:
        writes = StagedWrites(
            self._cluster, self._options, self._spark, table, mode=mode, partitions=partitions
        )
        self._tables[table] = writes
        return writes

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A write that fails may have staged rows: the transaction is not committed."""
        if self._refusal:
            raise InvalidTxnStateError(f"Nothing can be written any more: {self._refusal}.")
        try:
            yield
        except BaseException:
            self._refusal = "a write of this transaction has failed, so it is not committed"
            raise

    def _commit(
        self, begun: BegunBatch, phases: Phases, committed: list[CommittedBatch]
    ) -> TransactionMetadata | None:
        """The row that the commit leaves; None if nothing was written, and no offset moves."""
        if self._refusal:
            raise InvalidTxnStateError(f"Nothing was committed: {self._refusal}.")
        self._refusal = "the function of its micro-batch has returned"
        files = task_files(self._options, self._tasks)
        phases.facts.update(staging_facts(self._tasks, files))
        read = [writes.change for _, writes in sorted(self._tables.items())]
        changes = self._cluster.store.together(read)
        tables = tuple(change for change in changes if change is not None)
        if not files.topics and not tables and not begun.offsets:
            return None
        return commit_begun(self._cluster, begun, files, phases, committed, tables=tables)


def transactional(
    root: str,
    *,
    group_id: str | None = None,
    checkpoint: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Callable[[Function], Callable[[DataFrame, int], None]]:
    """Make a function (tx, frame, batch_id) one for `foreachBatch`: what it writes by `tx` appears
    whole, and exactly once.

    A micro-batch that was committed is skipped without a call. With `group_id`, that of the source,
    the group's offsets are in the transaction, so that a query with a new checkpoint and
    startingOffsets=committed goes on exactly once; `checkpoint` is then the query's
    checkpointLocation. `options` are further ones of the sink. Runs where the driver runs, not over
    Spark Connect.
    Raises ConfigError. The function that it makes raises what the sink raises, and
    UnknownTableError, TableFeatureError, TableDataError, TableChangedError, TableConflictError.
    """
    given = {"txnlog.root": root, "group.id": group_id, "checkpointLocation": checkpoint}
    more = {} if options is None else arguments.one_of("options", options, Mapping)
    parsed = parse_config({**more, **given}, "writeStream")
    if parsed.is_set("group.id") and not parsed.is_set("checkpointLocation"):
        raise ConfigError(
            "With group_id the offsets that a batch has read are in the transaction; they are in "
            "the query's checkpoint: pass its checkpointLocation as checkpoint.",
            option="checkpointLocation",
        )
    check_lineage(parsed)

    def decorate(function: Function) -> Callable[[DataFrame, int], None]:
        checked: set[str] = set()

        @wraps(function)
        @reports_causes
        def process(frame: DataFrame, batch_id: int) -> None:
            run = _run_of(frame)
            if run.run_id not in checked:
                check_checkpoint(parsed, run.query_id)
                checked.add(run.run_id)
            place, call = (parsed.root, run.query_id), (run.run_id, batch_id, function, ref(frame))
            known = _returned.get(place, call)
            # The same call may be one that the program repeats, as the batch is.
            if known[:2] == call[:2] and (known[2] is not function or known[3]() is not frame):
                raise InvalidTxnStateError(
                    f"Batch {batch_id} of query {run.query_id} has had its transaction in this "
                    "root: what another one wrote would be taken for a repeat, and skipped. Write "
                    "all of a micro-batch by the tx of one function, called once."
                )
            _process(function, parsed, frame, run, batch_id)
            _returned[place] = call
            reach("sink_commit.after")

        return process

    return decorate


def _process(
    function: Function, options: Config, frame: DataFrame, run: StagedTask, batch_id: int
) -> None:
    def attempt(
        cluster: Cluster, phases: Phases, committed: list[CommittedBatch]
    ) -> TransactionMetadata | None:
        begun = begin_batch(cluster, options, run, batch_id, phases)
        if begun is None:
            return None
        tx = Transaction(cluster, options, frame.sparkSession, run)
        try:
            with phases.measure("stage"):
                function(tx, frame, batch_id)
            return tx._commit(begun, phases, committed)
        finally:
            for writes in tx._tables.values():
                writes.close()

    def commit(
        cluster: Cluster, phases: Phases, committed: list[CommittedBatch]
    ) -> TransactionMetadata | None:
        for number in range(1, ATTEMPTS_MAX):
            try:
                return attempt(cluster, phases, committed)
            except TableConflictError as error:
                logger.warning(
                    "Batch %d, attempt %d of %d: %s", batch_id, number, ATTEMPTS_MAX, error
                )
        return attempt(cluster, phases, committed)

    create = options.get("auto.create.topics.enable")
    run_micro_batch(options, run, batch_id, commit, create=create)


def _run_of(frame: DataFrame) -> StagedTask:
    """The query and the run that call, as a task without files. Raises ConfigError."""
    spark = frame.sparkSession
    if "connect" in type(spark).__module__.split("."):
        raise ConfigError(
            "Transactions of foreachBatch do not work over Spark Connect, which calls the function "
            "in a worker of the server. Run the query in a driver of its own, or write topics by "
            'writeStream.format("txnlog").'
        )
    properties = spark.sparkContext.getLocalProperty
    query_id, run_id = properties(QUERY_ID), properties(RUN_ID)
    if not query_id or not run_id:
        raise ConfigError(
            "This function belongs to a streaming query: pass it to writeStream.foreachBatch."
        )
    name = query_name(properties(DESCRIPTION), query_id)
    return StagedTask(0, (), query_id, run_id, query_name=name)


_STAGED = msgspec.msgpack.Decoder(StagedRows)


def _stage_task(
    options: Config, cluster_id: str, tasks_before: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One row: what a task has made of its rows, a StagedRows."""
    staged = stage_rows(options, cluster_id, rows, tasks_before=tasks_before)
    yield pa.RecordBatch.from_pydict({"staged": [msgspec.msgpack.encode(staged)]})
