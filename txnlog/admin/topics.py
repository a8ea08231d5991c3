"""Topics for operators: create, add partitions, configure, delete records, describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txnlog.admin.descriptions import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
)
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition, ends
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    InvalidPartitionsError,
    TopicAlreadyExistsError,
)
from txnlog.messages import OFFSET_END, TopicPartition
from txnlog.protocol.batches import Statistics
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.topic_changes import prepare_delete_records
from txnlog.protocol.topics import PartitionState, check_topic_name
from txnlog.settings.names import NUM_PARTITIONS_DEFAULT
from txnlog.settings.topic_configs import (
    TOPIC_CONFIGS,
    changed,
    check_configs,
    find_config,
    grown,
    own_configs,
)
from txnlog.storage.tables.offset_lookup import offsets_for_times
from txnlog.storage.tables.topic_log import TopicLog

UNKNOWN_TIME_US = Statistics().timestamp_max_us


def create_topic(cluster: Cluster, new: NewTopic, *, validate_only: bool = False) -> None:
    """Raises InvalidTopicError, InvalidPartitionsError, ConfigError, TopicAlreadyExistsError."""
    asked = None if new.num_partitions == -1 else new.num_partitions
    if not validate_only:
        cluster.create_topic(new.topic, partitions=asked, config=new.config)
        return
    count = NUM_PARTITIONS_DEFAULT if asked is None else asked
    check_topic_name(new.topic)
    check_configs(new.config)
    if not 0 < count <= PARTITIONS_MAX:
        raise InvalidPartitionsError(
            f"Topic {new.topic!r}: {count} partitions; give 1 to {PARTITIONS_MAX}.",
            topic=new.topic,
        )
    log = cluster.topic_log(new.topic)
    log.refresh()
    if log.exists:
        raise TopicAlreadyExistsError(f"Topic {new.topic!r} exists already.", topic=new.topic)
    if asked is not None:
        log.check_not_fewer(count)


def create_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Add partitions up to `total`. No records move, so the partition of a key may change.

    Raises InvalidPartitionsError unless there are fewer now, UnknownTopicOrPartitionError.
    """
    asked = False

    def change(config: Mapping[str, str]) -> Mapping[str, str]:
        nonlocal asked
        grown_config = grown(
            config, topic=topic, partitions=total, partitions_max=PARTITIONS_MAX, again=asked
        )
        asked = True
        return grown_config

    cluster.topic_log(topic).alter(change)


def describe_topic(log: TopicLog) -> TopicDescription:
    """A topic as of the last refresh of its log."""
    return TopicDescription(
        name=log.name,
        topic_id=log.topic_id,
        partitions=[
            _describe_partition(number, state) for number, state in enumerate(log.view.partitions)
        ],
        config=own_configs(log.config),
    )


def _describe_partition(number: int, state: PartitionState) -> PartitionDescription:
    start, end = state.log_start_offset, state.last_stable_offset
    num_records, newest_us = 0, -1
    for batch in state.slice(start, end, read_committed=True):
        try:
            statistics = batch.statistics
        except CorruptLogError:
            # `verify` reports it; the offsets are right without.
            statistics = Statistics()
        offsets = batch.last_offset + 1 - max(start, batch.base_offset)
        known = statistics.num_records
        num_records += offsets if known is None else min(known, offsets)
        if statistics.timestamp_max_us < UNKNOWN_TIME_US:
            newest_us = max(newest_us, statistics.timestamp_max_us)
    return PartitionDescription(
        id=number,
        log_start_offset=start,
        last_stable_offset=end,
        high_watermark=state.end_offset,
        num_records=num_records,
        num_files=len(state.batches),
        size_bytes=sum(batch.size_bytes for batch in state.batches),
        last_timestamp_ms=newest_us // 1000,
    )


# --- Configurations -------------------------------------------------------------------------------


def describe_configs(log: TopicLog) -> dict[str, ConfigEntry]:
    """Every configuration of a topic, as of the last refresh of its log."""
    own = own_configs(log.config)
    return {
        name: ConfigEntry(
            name,
            own.get(name, str(row.default)),
            is_default=name not in own,
            default=str(row.default),
            doc=row.doc,
        )
        for name, row in sorted(TOPIC_CONFIGS.items())
    }


def alter_configs(cluster: Cluster, resource: ConfigResource) -> None:
    """Apply all changes of the resource, or none.

    Raises ConfigError, UnknownTopicOrPartitionError.
    """
    changes = changes_of(resource.incremental_configs)
    sets = check_configs({name: value for name, value in changes.items() if value is not None})
    rows = [find_config(name) for name, value in changes.items() if value is None]
    deletes = frozenset(row.name for row in rows if row is not None)
    cluster.topic_log(resource.name).alter(lambda config: changed(config, sets, deletes))


def changes_of(entries: Sequence[ConfigEntry]) -> dict[str, str | None]:
    """The new values by name; None resets to the default.

    Raises ConfigError for two changes of one name.
    """
    changes: dict[str, str | None] = {}
    for entry in entries:
        name = entry.name.strip().lower()
        is_set = entry.incremental_operation is AlterConfigOpType.SET
        value = (entry.value or "") if is_set else None
        if changes.setdefault(name, value) != value:
            raise ConfigError(
                f"{name} is given two values, or is both set and deleted; do only one.",
                option=name,
            )
    return changes


# --- Records --------------------------------------------------------------------------------------


def delete_records(cluster: Cluster, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """Delete the records before those offsets (-1: all); partition -> log start after it.

    Raises OffsetOutOfRangeError, UnknownTopicOrPartitionError.
    """
    log = cluster.topic(topic)
    log.transact(lambda state: prepare_delete_records(state, topic=topic, before=before))
    return {partition: log.view.log_start_offset(partition) for partition in before}


def list_offset(
    log: TopicLog, partition: TopicPartition, spec: OffsetSpec, *, read_committed: bool
) -> ListOffsetsResultInfo:
    """As of the last refresh of the log. Raises UnknownTopicOrPartitionError."""
    number = partition.partition
    check_partition(log, number)
    if spec.kind == "timestamp":
        asked = (log, number, spec.timestamp_ms)
        [offset] = offsets_for_times([asked], read_committed=read_committed)
        return ListOffsetsResultInfo(OFFSET_END if offset is None else offset)
    start, end = ends(log, number, read_committed=read_committed)
    return ListOffsetsResultInfo(start if spec.kind == "earliest" else end)


def all_partitions(cluster: Cluster, topics: Iterable[str]) -> list[TopicPartition]:
    """Every partition of these topics. Raises UnknownTopicOrPartitionError."""
    return [
        TopicPartition(topic, number)
        for topic, log in cluster.topics(topics).items()
        for number in range(log.partitions)
    ]


def by_topic(partitions: Sequence[TopicPartition]) -> dict[str, dict[int, int]]:
    """topic -> partition -> offset."""
    offsets: dict[str, dict[int, int]] = {}
    for partition in partitions:
        offsets.setdefault(partition.topic, {})[partition.partition] = partition.offset
    return offsets
