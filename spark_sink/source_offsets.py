"""The source offsets that a micro-batch commits, from the offsets file of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint import (
    Checkpoint,
    OffsetSeq,
    groups_of,
    is_readable,
    source_positions,
    store_url,
)
from txnlog.cluster import Cluster
from txnlog.errors import CheckpointError, ConfigError
from txnlog.protocol.groups import GroupOffsets
from txnlog.settings.config import Config, warn_once


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """`offsets/<batch_id>` of the query's checkpoint; `checkpoint` is None if not readable."""

    batch_id: int
    checkpoint: Checkpoint | None = None
    offsets: OffsetSeq | None = None

    @property
    def digest(self) -> str:
        """The digest of the offsets file, "" if it cannot be read."""
        return "" if self.offsets is None else self.offsets.digest


def planned_batch(options: Config, batch_id: int) -> PlannedBatch:
    """Read the offsets that Spark planned for the batch.

    Raises ConfigError or CheckpointError if group.id is set and they cannot be read.
    """
    location = options.get("checkpointLocation")
    group_id = options.get("group.id")
    if location is None or not is_readable(location):
        if group_id is None:
            return PlannedBatch(batch_id)
        problem = "is not set on the sink" if location is None else f"is {location}"
        raise ConfigError(
            f"Option group.id={group_id} commits the source offsets of each batch, which the sink "
            f"reads from the checkpoint, but checkpointLocation {problem}. Set it with "
            '.option("checkpointLocation", ...) on writeStream (the session setting does not reach '
            "the sink), to a local disk, s3, gs or az.",
            option="checkpointLocation",
        )
    checkpoint = _checkpoint(options, location)
    try:
        return PlannedBatch(batch_id, checkpoint, checkpoint.planned(batch_id))
    except CheckpointError:
        if group_id is not None:
            raise
        return PlannedBatch(batch_id)


def _checkpoint(options: Config, location: str) -> Checkpoint:
    settings = options.checkpoint_storage or options.storage_at(store_url(location))
    return Checkpoint(location, settings)


def check_checkpoint(options: Config, query_id: str) -> None:
    """Raise ConfigError for the checkpoint of another query, CheckpointError for none."""
    location = options.get("checkpointLocation")
    if location is None or not is_readable(location):
        return
    checkpoint = _checkpoint(options, location)
    owner = checkpoint.query_id()
    if owner != query_id:
        raise ConfigError(
            f"{checkpoint.file_name('metadata')} is that of query {owner}, and this is query "
            f"{query_id}. Pass the checkpointLocation of this query.",
            option="checkpointLocation",
        )


def group_offsets(
    options: Config, cluster: Cluster, planned: PlannedBatch, *, is_first_of_run: bool
) -> list[GroupOffsets]:
    """The group offsets to commit with the batch; none without group.id.

    The previous run may have planned the first batch that a run commits, without group.id or with
    another one: such a batch is committed as planned, and the next one commits the group's start
    positions. By then the source has started its group, so a group that was never started is not
    the source's. Raises ConfigError for that, and for different group ids of source and sink;
    CheckpointError.
    """
    group_id = options.get("group.id")
    if planned.checkpoint is None or planned.offsets is None:
        return []
    if group_id is None:
        if is_first_of_run:
            _warn_of_groups(groups_of(planned.offsets, cluster.cluster_id))
        return []
    offsets = source_positions(
        planned.checkpoint,
        planned.batch_id,
        cluster.cluster_id,
        current=planned.offsets,
        origins=cluster.origins(),
    )
    groups = sorted(group.group_id for group in offsets)
    if group_id in groups:
        return offsets
    if is_first_of_run and _is_started(cluster, group_id):
        under = f"under {', '.join(groups)} only" if groups else "to no group"
        warn_once(
            f"Batch {planned.batch_id} was planned before its source had group.id={group_id}: its "
            f"offsets are committed {under}. The next batch commits the positions of all "
            "partitions."
        )
        return offsets
    if groups:
        raise ConfigError(
            f"Option group.id of the sink is {group_id}, but the sources of this query have "
            f"{', '.join(groups)}. Set the sink's group.id to that of a source (each source's "
            "offsets are committed under its own), or omit it to commit no offsets.",
            option="group.id",
        )
    raise ConfigError(
        f"Option group.id={group_id} commits source offsets with each batch, but no source of "
        "this query reads this cluster with a group.id. Set the same group.id on the txnlog "
        "source, or omit it on the sink.",
        option="group.id",
    )


def _is_started(cluster: Cluster, group_id: str) -> bool:
    """Whether any query or consumer has ever started in the group."""
    group = cluster.groups.describe(group_id)
    return group is not None and group.generation > 0


def _warn_of_groups(groups: list[str]) -> None:
    if groups:
        warn_once(
            f"The source has group.id={', '.join(groups)} and the sink has none: no offsets are "
            'committed to the group. Set .option("group.id", ...) on the sink, too, to commit '
            "them with each batch, or omit it on the source."
        )
