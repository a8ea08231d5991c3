"""The driver's part of the sink: take over the query's row, skip replays, commit.

Runs in a Python worker that may be a new process for each micro-batch: all state is in the state
row and the checkpoint. COMPLETE of a batch is one write with the decision of the next one.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_sink.lineage import CommittedBatch, report
from spark_sink.message_rows import TaskFiles
from spark_sink.messages import StagedTask, this_process
from spark_sink.source_offsets import PlannedBatch, group_offsets, planned_batch
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete_own, finish
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.phases import Phases
from txnlog.coordinator.staged_files import Staging, TopicsRead, read_topics
from txnlog.coordinator.state_rows import is_published
from txnlog.coordinator.tables import TableChange, markers_in
from txnlog.errors import CheckpointError, TxnLogError
from txnlog.process.failures import caught
from txnlog.process.log_level import configure_logging
from txnlog.protocol.app_transactions import other_records
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import (
    AppTransaction,
    LastBatch,
    Owner,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.micro_batches import goes_on, is_committed, is_owned
from txnlog.settings.config import Config
from txnlog.settings.roots import redacted_url

logger = logging.getLogger("txnlog")

_measured: dict[str, Phases] = {}
"""Run -> the figures of its newest batch that this process committed, for the log entry of the
next one. They are lost with the process, and with them nothing else."""


def commit_micro_batch(options: Config, tasks: Sequence[StagedTask], batch_id: int) -> None:
    """Commit a micro-batch exactly once, or skip it if this query has committed it.

    Raises ProducerFencedError for a fenced run, CheckpointError for a checkpoint that is behind
    the log or has another driver, IllegalGenerationError and OffsetConflictError if the
    group has a newer generation or other offsets.
    """
    if not tasks:
        return
    configure_logging()

    def commit(
        cluster: Cluster, phases: Phases, committed: list[CommittedBatch]
    ) -> TransactionMetadata | None:
        return commit_once(cluster, options, tasks, batch_id, phases, committed)

    run_micro_batch(options, tasks[0], batch_id, commit)


def run_micro_batch(
    options: Config,
    run: StagedTask,
    batch_id: int,
    commit: Callable[[Cluster, Phases, list[CommittedBatch]], TransactionMetadata | None],
    *,
    create: bool = False,
) -> None:
    """Make the commit of a micro-batch, and what goes with it: its figures, a sweep, an event.

    `commit` returns the row that it leaves, None if it has committed nothing.
    """
    facts = {"queryId": run.query_id, "batchId": str(batch_id)}
    phases = Phases(facts, before=_measured.pop(run.run_id, None))
    cluster = Cluster.cached(options.root, options.storage, create=create)
    row: TransactionMetadata | None = None
    committed: list[CommittedBatch] = []
    try:
        row = commit(cluster, phases, committed)
    finally:
        phases.stop()
        # Transactions of dead processes have waited for this one.
        with phases.measure("housekeeping"):
            cluster.sweeper.sweep_if_due()
    if row is not None:
        phases.before = None
        _measured[run.run_id] = phases
        _log("Batch %s of query %s", (str(batch_id), run.query_id), phases)
    for batch in committed:
        report(options, cluster, batch)


def commit_once(
    cluster: Cluster,
    options: Config,
    tasks: Sequence[StagedTask],
    batch_id: int,
    phases: Phases,
    committed: list[CommittedBatch] | None = None,
) -> TransactionMetadata | None:
    """The row that the commit leaves; None if the batch is already committed, or empty.

    `committed` gets what was committed.
    """
    files = task_files(options, tasks)
    phases.facts.update(staging_facts(tasks, files))
    begun = begin_batch(cluster, options, tasks[0], batch_id, phases, files=files)
    if begun is None:
        return None
    return commit_begun(cluster, begun, files, phases, committed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunBatch:
    """A micro-batch that is to be committed, and the row of its query, which its run owns.

    `read` are its topics, if they were just read.
    """

    run: StagedTask
    planned: PlannedBatch
    row: TransactionMetadata
    offsets: Sequence[GroupOffsets]
    is_first_of_run: bool
    read: TopicsRead | None


def begin_batch(
    cluster: Cluster,
    options: Config,
    run: StagedTask,
    batch_id: int,
    phases: Phases,
    *,
    files: TaskFiles | None = None,
) -> BegunBatch | None:
    """Get the row and the offsets ready; None if the batch is committed, or has nothing at all.

    `files` are those of the batch; None: it is not staged yet.
    """
    topics = () if files is None else tuple(sorted(files.topics))
    row, planned, read = _read(cluster, options, run.query_id, batch_id, files, phases)
    is_next = goes_on(row, run.run_id, batch_id) and _is_published(cluster, row, read)
    if not is_next:
        # The row was a guess, on which only a commit may rely.
        with phases.measure("tail"):
            row = cluster.coordinator.describe(run.query_id)
    is_first_of_run = not is_owned(row, run.run_id)
    with phases.measure("sources"):
        offsets = group_offsets(options, cluster, planned, is_first_of_run=is_first_of_run)
    if files is not None and not topics and not offsets:
        return None
    if row is None or not is_next:
        # A decided transaction is finished first, whichever run decided it. A committed batch is
        # skipped without a takeover: else a driver that resumes late would fence its successor.
        if row is not None and row.is_ending:
            with phases.measure("own"):
                # The topics may have changed meanwhile.
                row, read = finish(cluster, row) or row, None
        if _is_committed(row, options, run, planned):
            return None
        if row is None or not is_owned(row, run.run_id) or not row.state.is_idle:
            # The topics may have changed while the id was taken over.
            read = None
            with phases.measure("own"):
                row = _take_over(options, cluster, run, topics)
            if _is_committed(row, options, run, planned):
                return None
    _keep_figures_of(row.owner.last_batch, phases)
    return BegunBatch(
        run=run,
        planned=planned,
        row=row,
        offsets=offsets,
        is_first_of_run=is_first_of_run,
        read=None if files is None else read,
    )


def commit_begun(
    cluster: Cluster,
    begun: BegunBatch,
    files: TaskFiles,
    phases: Phases,
    committed: list[CommittedBatch] | None = None,
    *,
    tables: tuple[TableChange, ...] = (),
) -> TransactionMetadata:
    """Commit what was staged, with the offsets; the row that the commit leaves."""
    topics = tuple(sorted(files.topics))
    planned = begun.planned
    write = partial(files.write, cluster.store)
    left = cluster.coordinator.commit(
        begun.row,
        Staging(files.topics, write, tables, begun.read),
        offsets=begun.offsets,
        last_batch=LastBatch(batch_id=planned.batch_id, digest=planned.digest, topics=topics),
        phases=phases,
    )
    if committed is not None:
        done = CommittedBatch(
            run=begun.run,
            batch_id=planned.batch_id,
            row=left,
            staged=write(),
            offsets=begun.offsets,
            is_first_of_run=begun.is_first_of_run,
        )
        committed.append(done)
    return left


def _is_published(
    cluster: Cluster, row: TransactionMetadata | None, read: TopicsRead | None
) -> bool:
    """Whether nothing but COMPLETE is left of the row's batch, by what was just read, or before.

    Spark begins no batch before; and where it did, a decision would hide what is not published.
    """
    if row is None or not row.state.is_prepared:
        return True
    transaction = row.transaction

    def is_marked(topic: str, topic_id: str) -> bool:
        # Of any age: a marker stays.
        view = cluster.topic_log(topic).view
        marker = view.markers.get(transaction.producer_id, -1)
        return view.topic_id == topic_id and marker >= transaction.epoch

    known = read or {}
    unsure = {topic for topic, topic_id in row.topic_ids if not is_marked(topic, topic_id)}
    known = {**known, **read_topics(cluster, unsure - known.keys())}
    logs = {topic: cluster.topic_log(topic) for topic in row.topics if known.get(topic) is None}
    ended = markers_in(cluster, transaction.producer_id, row.tables).values()
    if any(epoch < transaction.epoch for epoch in ended):
        return False
    groups = [cluster.offsets_log(one.group_id).view for one in row.moves]
    has_moved = all(view.markers.get(row.producer_id, -1) >= row.txn_epoch for view in groups)
    return has_moved and is_published(row, logs)


def _keep_figures_of(batch: LastBatch | None, phases: Phases) -> None:
    """Drop the figures that are not those of the batch which the next decision completes."""
    before = phases.before
    if before is not None and (batch is None or before.facts["batchId"] != str(batch.batch_id)):
        phases.before = None


def _read(
    cluster: Cluster,
    options: Config,
    query_id: str,
    batch_id: int,
    files: TaskFiles | None,
    phases: Phases,
) -> tuple[TransactionMetadata | None, PlannedBatch, TopicsRead | None]:
    """A guess of the state row, the planned offsets and the topics, together: once per batch.

    Only PREPARE, which proves the guess, may rely on it (D89). The time of the offsets is a phase
    of its own, and what the others take longer is another. Rows of small tasks are written beside;
    of a batch that turns out to be committed, nobody refers to these files.
    """
    parts = Phases()

    def plan() -> PlannedBatch:
        with parts.measure("sources"):
            return planned_batch(options, batch_id)

    calls: list[Callable[[], Any]] = [
        partial(cluster.coordinator.guess, query_id),
        plan,
        partial(read_topics, cluster, () if files is None else files.topics),
    ]
    if files is not None:
        # The commit calls it again, and fails if this did.
        calls.append(partial(caught, partial(files.write, cluster.store)))
    group_id = options.get("group.id")
    if group_id is not None:
        offsets = cluster.offsets_log(group_id)
        calls.append(partial(caught, offsets.get_ready))
    with parts.measure("all"):
        row, planned, read, *_ = cluster.store.together(calls)
    sources_ns = parts.times_ns["sources"]
    phases.add("sources", sources_ns)
    phases.add("tail", parts.times_ns["all"] - sources_ns)
    return row, planned, read


def commit_batch_write(options: Config, tasks: Sequence[StagedTask]) -> None:
    """Commit a batch write: once per topic and (txnAppId, txnVersion) if they are set.

    Raises DuplicateTransactionError if only some of its topics have the pair. After the decision
    an error says that the write must not be repeated without them.
    """
    files = task_files(options, tasks)
    if not files.topics:
        return
    try:
        _commit_batch_write(options, tasks, files)
    except TxnLogError as error:
        if "decided" not in error.context or options.is_set("txnAppId"):
            raise
        advice = (
            "This write is decided, and any client or housekeeping publishes it when that is "
            "possible again. Do not repeat it: its records would come twice."
        )
        raise error.replace(*error.lines, advice) from error


def _commit_batch_write(options: Config, tasks: Sequence[StagedTask], files: TaskFiles) -> None:
    configure_logging()
    phases = Phases(staging_facts(tasks, files))
    cluster = Cluster.cached(options.root, options.storage)
    with phases.measure("tail"):
        batches = files.write(cluster.store)
    host, pid = this_process()
    owner = Owner(run_id=str(uuid.uuid4()), host=host, pid=pid)
    transactional_id = options.get("transactional.id")
    if transactional_id is None:
        app = _app_transaction(options, phases)
        if commit_one_off(cluster, batches, owner, app=app, phases=phases):
            _log("Batch write", (), phases)
        elif app is not None:
            logger.warning(_skipped(cluster, batches, app))
        return
    with phases.measure("own"):
        row = cluster.coordinator.init_producer_id(
            transactional_id, owner, timeout_ms=options.get("transaction.timeout.ms")
        )
    committed = cluster.coordinator.commit(row, batches, phases=phases)
    phases.stop()
    complete_own(cluster, committed, phases)
    _log("Batch write of transactional.id %s", (transactional_id,), phases)


def _app_transaction(options: Config, phases: Phases) -> AppTransaction | None:
    app_id, version = options.get("txnAppId"), options.get("txnVersion")
    if app_id is None or version is None:
        return None
    phases.facts.update(txnAppId=app_id, txnVersion=str(version))
    return AppTransaction(app_id=app_id, version=version)


def _skipped(cluster: Cluster, batches: Sequence[StagedBatch], app: AppTransaction) -> str:
    """What to say of a batch write that its topics have already; they were just read."""
    records: Counter[str] = Counter()
    for batch in batches:
        records[batch.topic] += batch.num_records
    memories = {topic: cluster.topic_log(topic).view.txns for topic in records}
    others = other_records(app, records, memories)
    pair = f"txnVersion {app.version} of txnAppId {app.app_id}"
    if not others:
        topics = ", ".join(f"topic {topic}" for topic in sorted(records))
        return (
            f"{pair} is in {topics} already: this write is skipped, with {sum(records.values())} "
            "records. To write them anyway, set a higher txnVersion."
        )
    given = {topic: records[topic] for topic in others}
    return (
        f"{pair} is another write: it has {_named(others)}, and the write that is skipped now has "
        f"{_named(given)}. The skipped records are in no topic. Where a query lost its checkpoint, "
        "its batch ids began again: use spark_sink.transactional there (docs/recipes.md, Several "
        "topics at once), and write the skipped records under another txnAppId or a higher "
        "txnVersion."
    )


def _named(records: Mapping[str, int]) -> str:
    return ", ".join(f"{records[topic]} records in topic {topic}" for topic in sorted(records))


def task_files(options: Config, tasks: Sequence[StagedTask]) -> TaskFiles:
    """The files of a commit, in task order."""
    found = [(task.batches, task.rows) for task in tasks]
    return TaskFiles(found, compression=options.get("compression.type"))


def staging_facts(tasks: Sequence[StagedTask], files: TaskFiles) -> dict[str, str]:
    """What the tasks staged, and their own time, without waiting for rows.

    Tasks run in parallel: the longest one bounds the batch's latency, the sum is its cost.
    """
    times_ns = [task.stage_ns for task in tasks] or [0]
    return {
        "tasks": str(len(tasks)),
        "files": str(files.num_files),
        "records": str(files.num_records),
        "stageLongestMs": f"{max(times_ns) / 1e6:.3f}",
        "stageSumMs": f"{sum(times_ns) / 1e6:.3f}",
    }


def _log(what: str, names: tuple[object, ...], phases: Phases) -> None:
    """Log a commit at debug level."""
    if logger.isEnabledFor(logging.DEBUG):
        facts = phases.facts
        logger.debug(
            f"{what}: committed %s records in %s files, staged by %s tasks in at most %s ms each, "
            "%s ms in total; commit %s",
            *names,
            *(facts[f] for f in ("records", "files", "tasks", "stageLongestMs", "stageSumMs")),
            phases.describe(),
        )


def _is_committed(
    row: TransactionMetadata | None, options: Config, run: StagedTask, planned: PlannedBatch
) -> bool:
    """Whether to skip the batch. Raises CheckpointError that names the checkpoint (R55)."""
    batch_id = planned.batch_id
    try:
        is_done = is_committed(row, batch_id=batch_id, digest=planned.digest)
        if is_done:
            logger.info("Batch %d of query %s is committed already", batch_id, run.query_id)
        return is_done
    except CheckpointError as error:
        location = options.get("checkpointLocation")
        if location is None:
            raise
        raise CheckpointError(
            f"Checkpoint {redacted_url(location)}: {error}",
            query_id=run.query_id,
            batch_id=batch_id,
        ) from error


def _take_over(
    options: Config, cluster: Cluster, run: StagedTask, topics: Sequence[str]
) -> TransactionMetadata:
    """The query's row, owned by this run and with no open transaction.

    `topics` were just read. Raises LogGapError if they show that the row is an old one.
    """
    host, pid = this_process()
    owner = Owner(
        run_id=run.run_id,
        query_id=run.query_id,
        query_name=run.query_name,
        host=host,
        pid=pid,
    )
    return cluster.coordinator.init_producer_id(
        run.query_id,
        owner,
        timeout_ms=options.get("transaction.timeout.ms"),
        topics=topics,
    )
