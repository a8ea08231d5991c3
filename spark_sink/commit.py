"""The driver's half of the sink: who owns the transactional.id, is this batch new, commit it.

Runs in a worker that may be a fresh process for any micro-batch, so nothing is remembered here:
the state row and the checkpoint say everything.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from checkpoint import Checkpoint, is_readable, source_positions
from spark_sink.messages import StagedTask, this_process
from txnlog.cluster import Cluster
from txnlog.errors import CheckpointError, ConfigError
from txnlog.logs import configure_logging
from txnlog.options import Options, redacted_url
from txnlog.phases import Phases
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import (
    AppTransaction,
    LastBatch,
    Owner,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.micro_batches import is_committed
from txnlog.sweeper import sweep_if_due

logger = logging.getLogger("txnlog")


def commit_micro_batch(options: Options, tasks: Sequence[StagedTask], batch_id: int) -> None:
    """Commit a micro-batch exactly once, or skip it when this query committed it before.

    Raises ProducerFencedError for a run that was taken over, CheckpointError for a checkpoint
    that is behind the log or another one's, IllegalGenerationError and OffsetConflictError when
    the group has moved on.
    """
    if not tasks:
        return
    configure_logging()
    run = tasks[0]
    phases = Phases({"queryId": run.query_id, "batchId": str(batch_id), **_staging(tasks)})
    cluster = Cluster.cached(
        options.root, options.storage, create=options.flag("auto.create.topics.enable")
    )
    with phases.measure("housekeeping"):
        sweep_if_due(cluster)
    batches = _ordered(tasks)
    with phases.measure("sources"):
        digest, offsets = _source_offsets(options, cluster, batch_id)
    if not batches and not offsets:
        return
    transactional_id = options.text("transactional.id") or run.query_id
    with phases.measure("tail"):
        before = cluster.coordinator.describe(transactional_id)
    if before is not None:
        # What is decided comes out first, whoever decided it; a batch that is committed is not
        # taken over for: a driver that wakes up late would fence the one that goes on.
        with phases.measure("own"):
            cluster.coordinator.finish(before)
        if _is_committed(before, options, run, batch_id, digest):
            return
    with phases.measure("own"):
        row = _own(options, cluster, transactional_id, run, before)
    if _is_committed(row, options, run, batch_id, digest):
        return
    topics = tuple(sorted({batch.topic for batch in batches}))
    last = LastBatch(batch_id=batch_id, digest=digest, topics=topics)
    cluster.coordinator.commit(
        row, batches, offsets=offsets, batch=(run.query_id, last), phases=phases
    )
    _log("Batch %d of query %s", (batch_id, run.query_id), phases)


def commit_batch_write(options: Options, tasks: Sequence[StagedTask]) -> None:
    """Commit a batch write: once per topic and (txnAppId, txnVersion) where they are given.

    Raises DuplicateTransactionError when only some of its topics have the pair.
    """
    batches = _ordered(tasks)
    if not batches:
        return
    configure_logging()
    phases = Phases(_staging(tasks))
    cluster = Cluster.cached(options.root, options.storage)
    host, pid = this_process()
    owner = Owner(run_id=str(uuid.uuid4()), host=host, pid=pid)
    transactional_id = options.text("transactional.id")
    if transactional_id is None:
        app = _app_transaction(options, phases)
        if cluster.coordinator.commit_one_off(batches, owner, app=app, phases=phases):
            _log("Batch write", (), phases)
        elif app is not None:
            logger.warning(
                "txnVersion %d of txnAppId %s is in %s already: this write is skipped, with %s "
                "records in %s files. To write them none the less, give a higher txnVersion.",
                app.version,
                app.app_id,
                ", ".join(sorted({f"topic {batch.topic}" for batch in batches})),
                phases.facts["records"],
                phases.facts["files"],
            )
        return
    with phases.measure("own"):
        row = cluster.coordinator.init_producer_id(
            transactional_id, owner, timeout_ms=options.number("transaction.timeout.ms") or 0
        )
    cluster.coordinator.commit(row, batches, phases=phases)
    _log("Batch write of transactional.id %s", (transactional_id,), phases)


def _app_transaction(options: Options, phases: Phases) -> AppTransaction | None:
    app_id, version = options.text("txnAppId"), options.number("txnVersion")
    if app_id is None or version is None:
        return None
    phases.facts.update(txnAppId=app_id, txnVersion=str(version))
    return AppTransaction(app_id=app_id, version=version)


def _staging(tasks: Sequence[StagedTask]) -> dict[str, str]:
    """How much the tasks have staged, and in what time: their own work, without waiting for rows.

    Tasks run beside each other: the longest one bounds the batch, the sum is what it costs.
    """
    times_ns = [task.stage_ns for task in tasks]
    batches = _ordered(tasks)
    return {
        "tasks": str(len(tasks)),
        "files": str(len(batches)),
        "records": str(sum(batch.num_records for batch in batches)),
        "stageLongestMs": f"{max(times_ns) / 1e6:.3f}",
        "stageSumMs": f"{sum(times_ns) / 1e6:.3f}",
    }


def _log(what: str, names: tuple[object, ...], phases: Phases) -> None:
    """The debug line of a commit."""
    if logger.isEnabledFor(logging.DEBUG):
        facts = phases.facts
        logger.debug(
            f"{what}: committed %s records in %s files, staged by %s tasks in %s ms at most and "
            "%s ms together; commit %s",
            *names,
            *(facts[f] for f in ("records", "files", "tasks", "stageLongestMs", "stageSumMs")),
            phases.describe(),
        )


def _ordered(tasks: Sequence[StagedTask]) -> list[StagedBatch]:
    """The staged files in the order of tasks, which keeps the order of the input."""
    return [batch for task in tasks for batch in task.batches]


def _is_committed(
    row: TransactionMetadata, options: Options, run: StagedTask, batch_id: int, digest: str
) -> bool:
    """Whether to skip the batch. Raises CheckpointError that names the checkpoint (R55)."""
    try:
        is_done = is_committed(row, query_id=run.query_id, batch_id=batch_id, digest=digest)
        if is_done:
            logger.info("Batch %d of query %s is committed already", batch_id, run.query_id)
        return is_done
    except CheckpointError as error:
        location = options.text("checkpointLocation")
        if location is None:
            raise
        raise CheckpointError(
            f"Checkpoint {redacted_url(location)}: {error}",
            query_id=run.query_id,
            batch_id=batch_id,
        ) from error


def _own(
    options: Options,
    cluster: Cluster,
    transactional_id: str,
    run: StagedTask,
    row: TransactionMetadata | None,
) -> TransactionMetadata:
    """The state row (`row` as it was), owned by this run, with nothing left unfinished."""
    if row is not None and row.owner.query_id not in ("", run.query_id):
        logger.warning(
            "Query %s takes over transactional.id %s from query %s (%s). Two queries that run at "
            "the same time need a transactional.id each.",
            run.query_id,
            transactional_id,
            row.owner.query_id,
            row.owner.describe(),
        )
    host, pid = this_process()
    owner = Owner(run_id=run.run_id, query_id=run.query_id, host=host, pid=pid)
    return cluster.coordinator.init_producer_id(
        transactional_id, owner, timeout_ms=options.number("transaction.timeout.ms") or 0
    )


def _source_offsets(
    options: Options, cluster: Cluster, batch_id: int
) -> tuple[str, list[GroupOffsets]]:
    """(digest of the batch's offsets file or "", the group offsets to commit with it)."""
    location = options.text("checkpointLocation")
    group_id = options.text("group.id")
    if location is None or not is_readable(location):
        if group_id is None:
            return "", []
        found = "is not given to the sink" if location is None else f"is {location}"
        raise ConfigError(
            f"Option group.id={group_id} commits the source offsets of each batch, which the sink "
            f"reads in the checkpoint, but checkpointLocation {found}. Give it with "
            '.option("checkpointLocation", ...) on writeStream (the session setting does not reach '
            "the sink), on a local disk, s3, gs or az.",
            option="checkpointLocation",
        )
    storage = options.checkpoint_storage or options.storage
    checkpoint = Checkpoint(location, storage)
    try:
        planned = checkpoint.planned(batch_id)
    except CheckpointError:
        if group_id is not None:
            raise
        return "", []
    if group_id is None:
        return planned.digest, []
    offsets = source_positions(checkpoint, batch_id, cluster.cluster_id, current=planned)
    groups = sorted(found.group_id for found in offsets)
    if offsets and group_id not in groups:
        raise ConfigError(
            f"Option group.id of the sink is {group_id}, but the sources of this query read as "
            f"{', '.join(groups)}. Give the sink the group.id of a source (each source's offsets "
            "are committed under its own), or leave it out to commit no offsets.",
            option="group.id",
        )
    if not offsets:
        raise ConfigError(
            f"Option group.id={group_id} commits source offsets with each batch, but no source of "
            "this query reads this cluster under a group. Give the txnlog source the same "
            "group.id, or leave it out of the sink.",
            option="group.id",
        )
    return planned.digest, offsets
