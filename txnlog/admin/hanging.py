"""What readers wait for now, by partition (R21): open, decided and hanging transactions."""

from __future__ import annotations

from collections.abc import Collection

from txnlog.admin.descriptions import HangingTransaction
from txnlog.admin.root_state import read_waiting
from txnlog.admin.transactions import newest_timestamp_ms
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.messages import TopicPartition
from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.problems import BLOCKING, Place, Problem, RootState
from txnlog.storage.tables.topic_log import TopicLog

AGE_UNKNOWN_MS = 2**62
"""Of a batch whose file is missing."""


def find_hanging(
    cluster: Cluster, partitions: Collection[TopicPartition], *, age_ms_min: int = 0
) -> list[HangingTransaction]:
    """The transactions that readers of these partitions, or of their committed offsets, wait for.

    By partition; those that hold its last stable offset come first, in order of their data. Ages
    are by the store's clock: records may carry any timestamp. Raises UnknownTopicOrPartitionError.
    """
    state = read_waiting(cluster, {partition.topic for partition in partitions})
    for partition in partitions:
        check_partition(cluster.topic_log(partition.topic), partition.partition)
    asked = {(partition.topic, partition.partition) for partition in partitions}
    found = [
        _described(problem, place, cluster.topic_log(place.topic), state)
        for problem in find_problems(state, patience_ms=0)
        if problem.kind in BLOCKING
        for place in problem.places
        if (place.topic, place.partition) in asked
    ]
    found = [one for one in found if one.duration_ms >= age_ms_min]
    return sorted(found, key=_order)


def _order(found: HangingTransaction) -> tuple[str, int, bool, int]:
    is_held, start = found.start_offset is not None, found.start_offset or 0
    return found.topic, found.partition, not is_held, start


def _described(
    problem: Problem, place: Place, log: TopicLog, state: RootState
) -> HangingTransaction:
    row, is_held = problem.row, place.start_offset is not None
    timestamps = [newest_timestamp_ms(log.view.by_path[path]) for path in place.paths]
    if not is_held and row is not None and not place.groups:
        where = place.topic, place.partition
        staged = [b for b in row.pending.batches if (b.topic, b.partition) == where]
        timestamps = [batch.timestamp_max_us // 1000 for batch in staged]
    is_unknown = is_held and place.since_ms < 0
    return HangingTransaction(
        problem=problem,
        place=place,
        coordinator_epoch=log.view.markers.get(_producer_id(problem), -1),
        last_timestamp_ms=max(timestamps, default=-1),
        duration_ms=AGE_UNKNOWN_MS if is_unknown else max(0, state.now_ms - place.since_ms),
    )


def _producer_id(problem: Problem) -> int:
    return -1 if problem.transaction is None else problem.transaction.producer_id
