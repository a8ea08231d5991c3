"""Topic metadata for clients: partitions, watermarks, offsets for timestamps."""

from __future__ import annotations

from collections.abc import Sequence

from txnlog.cluster import Cluster
from txnlog.errors import InvalidTopicError, TxnLogError, UnknownTopicOrPartitionError
from txnlog.messages import (
    OFFSET_END,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from txnlog.storage.tables.offset_lookup import offsets_for_times
from txnlog.storage.tables.topic_log import TopicLog


def describe_topics(cluster: Cluster, topic: str | None = None) -> ClusterMetadata:
    """All topics, or only `topic`.

    A topic that does not exist or cannot be read has an `error` and no partitions.
    """
    logs: dict[str, TopicLog | TxnLogError]
    if topic is None:
        logs = cluster.survey_topics()
    else:
        try:
            logs = {topic: cluster.topic(topic)}
        except InvalidTopicError:
            raise
        except TxnLogError as error:
            logs = {topic: error}
    return ClusterMetadata(
        cluster.cluster_id,
        {
            name: _describe(log) if isinstance(log, TopicLog) else TopicMetadata(name, {}, log)
            for name, log in logs.items()
        },
    )


def watermarks(
    cluster: Cluster, topic: str, partition: int, *, read_committed: bool
) -> tuple[int, int]:
    """(log start, end) of a partition; the end is the LSO or the high watermark (R12, R18).

    Raises UnknownTopicOrPartitionError.
    """
    log = cluster.topic(topic)
    check_partition(log, partition)
    return ends(log, partition, read_committed=read_committed)


def ends(log: TopicLog, partition: int, *, read_committed: bool) -> tuple[int, int]:
    """As `watermarks`, of the log as of its last refresh."""
    view = log.view
    end = view.last_stable_offset if read_committed else view.high_watermark
    return view.log_start_offset(partition), end(partition)


def positions_for_times(
    cluster: Cluster, partitions: Sequence[TopicPartition], *, read_committed: bool
) -> list[TopicPartition]:
    """For each partition, the first offset at or after the time in ms in its `offset` (R15).

    OFFSET_END where there is none. Raises UnknownTopicOrPartitionError.
    """
    logs = cluster.topics(p.topic for p in partitions)
    for asked in partitions:
        check_partition(logs[asked.topic], asked.partition)
    found = offsets_for_times(
        [(logs[p.topic], p.partition, p.offset) for p in partitions], read_committed=read_committed
    )
    return [
        TopicPartition(asked.topic, asked.partition, OFFSET_END if offset is None else offset)
        for asked, offset in zip(partitions, found, strict=True)
    ]


def check_partition(log: TopicLog, partition: int) -> None:
    """Raise UnknownTopicOrPartitionError if the topic does not have this partition."""
    if not 0 <= partition < log.partitions:
        raise UnknownTopicOrPartitionError(
            f"Topic {log.name!r} has {log.partitions} partitions, no partition {partition}; "
            "numbers start at 0.",
            topic=log.name,
            partition=partition,
        )


def _describe(log: TopicLog) -> TopicMetadata:
    partitions = {number: PartitionMetadata(number) for number in range(log.partitions)}
    return TopicMetadata(log.name, partitions)
