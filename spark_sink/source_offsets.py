"""The source offsets that a micro-batch commits, from the offsets file Spark planned it with."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint import Checkpoint, OffsetSeq, groups_of, is_readable, source_positions
from txnlog.cluster import Cluster
from txnlog.errors import CheckpointError, ConfigError
from txnlog.protocol.groups import GroupOffsets
from txnlog.settings.options import Options, warn_once


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """`offsets/<batch_id>` of the query's checkpoint; `checkpoint` is None where not readable."""

    batch_id: int
    checkpoint: Checkpoint | None = None
    offsets: OffsetSeq | None = None

    @property
    def digest(self) -> str:
        """That of the offsets file, "" where it cannot be read."""
        return "" if self.offsets is None else self.offsets.digest


def planned_batch(options: Options, batch_id: int) -> PlannedBatch:
    """Read what Spark has planned for the batch.

    Raises ConfigError or CheckpointError when group.id asks for offsets that cannot be read.
    """
    location = options.text("checkpointLocation")
    group_id = options.text("group.id")
    if location is None or not is_readable(location):
        if group_id is None:
            return PlannedBatch(batch_id)
        found = "is not given to the sink" if location is None else f"is {location}"
        raise ConfigError(
            f"Option group.id={group_id} commits the source offsets of each batch, which the sink "
            f"reads in the checkpoint, but checkpointLocation {found}. Give it with "
            '.option("checkpointLocation", ...) on writeStream (the session setting does not reach '
            "the sink), on a local disk, s3, gs or az.",
            option="checkpointLocation",
        )
    checkpoint = Checkpoint(location, options.checkpoint_storage or options.storage)
    try:
        return PlannedBatch(batch_id, checkpoint, checkpoint.planned(batch_id))
    except CheckpointError:
        if group_id is not None:
            raise
        return PlannedBatch(batch_id)


def group_offsets(
    options: Options, cluster: Cluster, planned: PlannedBatch, *, is_first_of_run: bool
) -> list[GroupOffsets]:
    """The group offsets to commit with the batch; none without group.id.

    The first batch that a run commits may have been planned by the run before it, when group.id was
    not given or was another one: such a batch is committed as it was planned, and the next one
    says where the group begins. The source has started in its group by then, so a group that never
    was started is one that the source does not have. Raises ConfigError for that, and for
    different group ids of source and sink; CheckpointError.
    """
    group_id = options.text("group.id")
    if planned.checkpoint is None or planned.offsets is None:
        return []
    if group_id is None:
        if is_first_of_run:
            _warn_of_groups(groups_of(planned.offsets, cluster.cluster_id))
        return []
    offsets = source_positions(
        planned.checkpoint, planned.batch_id, cluster.cluster_id, current=planned.offsets
    )
    groups = sorted(found.group_id for found in offsets)
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
            f"Option group.id of the sink is {group_id}, but the sources of this query read as "
            f"{', '.join(groups)}. Give the sink the group.id of a source (each source's offsets "
            "are committed under its own), or leave it out to commit no offsets.",
            option="group.id",
        )
    raise ConfigError(
        f"Option group.id={group_id} commits source offsets with each batch, but no source of "
        "this query reads this cluster under a group. Give the txnlog source the same "
        "group.id, or leave it out of the sink.",
        option="group.id",
    )


def _is_started(cluster: Cluster, group_id: str) -> bool:
    """Whether any query or consumer has ever started in the group."""
    log = cluster.offsets_log()
    log.refresh()
    group = log.view.rows.get(group_id)
    return group is not None and group.generation > 0


def _warn_of_groups(groups: list[str]) -> None:
    if groups:
        warn_once(
            f"The source has group.id={', '.join(groups)} and the sink has none: no offsets are "
            'committed to the group. Give the sink .option("group.id", ...) as well, to commit '
            "them with each batch, or leave it out of the source."
        )
