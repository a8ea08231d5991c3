"""Consumer groups for operators: members, committed offsets, and changing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from txnlog.admin.descriptions import (
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    MemberAssignment,
    MemberDescription,
    PendingTransaction,
)
from txnlog.admin.state_rows import rows
from txnlog.admin.topics import by_topic
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.groups import Begun
from txnlog.errors import ConfigError, CorruptLogError, GroupIdNotFoundError
from txnlog.messages import TopicPartition
from txnlog.protocol.group_changes import (
    check_empty,
    is_gone,
    offsets_without,
    prepare_delete_group,
    prepare_delete_offsets,
    prepare_give_up_group,
)
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.groups import OffsetsCommit
from txnlog.protocol.membership import is_rebalancing
from txnlog.protocol.states import TransactionState
from txnlog.storage.tables.row_log import OffsetsLog, RowView


def list_groups(
    cluster: Cluster, *, states: Collection[ConsumerGroupState] = ()
) -> list[ConsumerGroupListing]:
    """Every readable group with offsets or members, sorted by name."""
    logs = cluster.offsets_shards()
    listings = [
        ConsumerGroupListing(
            group_id=group_id, is_simple_consumer_group=not group.members, state=state_of(group)
        )
        for group_id, group in sorted(pair for log in logs for pair in log.view.rows.items())
        if not is_gone(group)
    ]
    return [listing for listing in listings if not states or listing.state in states]


def unreadable_groups(cluster: Cluster) -> list[CorruptLogError]:
    """The errors of unreadable groups, sorted by name; as of the last refresh."""
    unreadable = {
        key: row.error
        for log in cluster.offsets_shards()
        for key, row in log.view.rows.unreadable.items()
    }
    return [error for _, error in sorted(unreadable.items())]


def describe_group(cluster: Cluster, group_id: str) -> ConsumerGroupDescription:
    """Raises GroupIdNotFoundError."""
    group = require_group(cluster, group_id)
    return ConsumerGroupDescription(
        group_id=group_id,
        is_simple_consumer_group=not group.members,
        state=state_of(group),
        generation=group.generation,
        members=[
            MemberDescription(
                member_id=member_id,
                client_id=member.client_id,
                host=member.host,
                assignment=MemberAssignment(_partitions(group.assignment.get(member_id, {}))),
                heartbeat_ms=member.heartbeat_ms,
            )
            for member_id, member in sorted(group.members.items())
        ],
        pending=_pending(cluster, group),
    )


def list_offsets(
    cluster: Cluster, request: ConsumerGroupTopicPartitions, *, require_stable: bool
) -> ConsumerGroupTopicPartitions:
    """Committed offsets; OFFSET_INVALID for a requested partition without one.

    Raises GroupIdNotFoundError; UnstableOffsetCommitError with `require_stable`, if a transaction
    has pending offsets of these partitions (R46).
    """
    group = require_group(cluster, request.group_id)
    asked = request.topic_partitions
    if group.tickets.holders:
        if require_stable:
            only = None if asked is None else by_topic(asked)
            cluster.groups.fetch(request.group_id, partitions=only, fence=False)
        # What is decided counts, whether it is moved or not.
        group = cluster.groups.committed(request.group_id) or group
    offsets = [
        TopicPartition(topic, number, committed.offset, committed.metadata or None)
        for topic, partitions in sorted(group.offsets.items())
        for number, committed in sorted(partitions.items())
    ]
    if asked is not None:
        by_key = {(p.topic, p.partition): p for p in offsets}
        offsets = [
            by_key.get((p.topic, p.partition), TopicPartition(p.topic, p.partition)) for p in asked
        ]
    return ConsumerGroupTopicPartitions(request.group_id, offsets)


def alter_offsets(
    cluster: Cluster, request: ConsumerGroupTopicPartitions
) -> ConsumerGroupTopicPartitions:
    """Set committed offsets under a new generation: members rejoin, others are fenced (R48).

    Raises UnknownTopicOrPartitionError, ConfigError for an offset below 0.
    """
    wanted = request.topic_partitions or ()
    for partition in wanted:
        check_partition(cluster.topic(partition.topic), partition.partition)
        if partition.offset < 0:
            raise ConfigError(
                f"Offset {partition.offset} of {partition.topic!r} partition "
                f"{partition.partition} is not a valid position. Look it up with list_offsets."
            )
    cluster.groups.reset(request.group_id, by_topic(wanted))
    return request


def delete_offsets(
    cluster: Cluster, request: ConsumerGroupTopicPartitions, *, by: str
) -> ConsumerGroupTopicPartitions:
    """Delete committed offsets, under a new generation. Raises GroupIdNotFoundError."""
    group = require_group(cluster, request.group_id)
    # Also those that are decided and not moved.
    group = cluster.groups.committed(request.group_id) or group
    partitions = request.topic_partitions
    named = by_topic(partitions) if partitions is not None else group.positions()
    if offsets_without(group, named) == group.offsets:
        return request
    clock = cluster.store.clock

    def decide(begun: Begun, now: Group | None, version: int) -> OffsetsCommit:
        return prepare_delete_offsets(
            now,
            group_id=request.group_id,
            generation=begun.generation,
            done=begun.done,
            partitions=named,
            now_ms=clock.now_ms(),
        )

    cluster.groups.change_alone(request.group_id, decide, by=by)
    return request


def delete_group(cluster: Cluster, group_id: str, *, by: str) -> None:
    """Delete a group without members, or one with an unreadable row.

    If the row's id is unreadable too, `group_id` is the row's file.
    Raises GroupIdNotFoundError, NonEmptyGroupError.
    """
    # A row's file may be in any shard.
    damaged = [log for log in cluster.offsets_shards() if group_id in log.view.rows.unreadable]
    for log in damaged:
        if not _delete_unreadable(log, group_id):
            return
    group = cluster.groups.describe(group_id)
    if damaged or group is None or is_gone(group):
        # Its holders may have been unreadable, too: what they have decided must not come back,
        # also if a call before this one ended here.
        left = [row for _, row in rows(cluster) if group_id in {m.group_id for m in row.moves}]
        for row in left:
            finish(cluster, row)
        if not damaged and not left:
            require_group(cluster, group_id)
    else:
        # Before anyone is fenced.
        check_empty(group)
    _delete(cluster, group_id, by=by)


def _delete(cluster: Cluster, group_id: str, *, by: str) -> None:
    clock = cluster.store.clock

    def decide(begun: Begun, now: Group | None, version: int) -> OffsetsCommit:
        return prepare_delete_group(
            now,
            group_id=group_id,
            generation=begun.generation,
            done=begun.done,
            now_ms=clock.now_ms(),
        )

    cluster.groups.change_alone(group_id, decide, by=by)


def _delete_unreadable(log: OffsetsLog, key: str) -> bool:
    """Replace an unreadable row by one with its generation (D35) and the holders of its tickets.

    False: it is removed, because its id is unreadable, too.
    """
    clock = log.store.clock

    def decide(view: RowView[Group], _: int) -> OffsetsCommit | None:
        row = view.rows.unreadable.get(key)
        if row is None:
            return None
        return prepare_give_up_group(key, row.values, path=row.path, now_ms=clock.now_ms())

    if key == log.view.rows.unreadable[key].path:
        log.remove_unreadable(key, "DELETE CONSUMER GROUP")
        return False
    log.change(decide)
    return True


def require_group(cluster: Cluster, group_id: str) -> Group:
    """The group's newest row. Raises GroupIdNotFoundError."""
    group = cluster.groups.describe(group_id)
    if group is None or is_gone(group):
        raise GroupIdNotFoundError(
            f"There is no group {group_id!r}: nothing was committed in it, and it has no members.",
            group_id=group_id,
        )
    return group


def _pending(cluster: Cluster, group: Group) -> list[PendingTransaction]:
    """The open transactions with offsets of the group; what is decided is listed as committed."""
    found = []
    for holder in group.tickets.holders:
        row = cluster.coordinator.describe(holder.transactional_id)
        if (
            row is None
            or row.producer_id != holder.producer_id
            or row.state is not TransactionState.ONGOING
        ):
            continue
        carried = [one for one in row.pending.tickets if one.group_id == group.group_id]
        if carried and carried[0].ticket == holder.ticket:
            found.append(
                PendingTransaction(
                    row.transactional_id, row.producer_id, _partitions(carried[0].offsets)
                )
            )
    return found


def state_of(group: Group) -> ConsumerGroupState:
    """Kafka's state of a group."""
    if not group.members:
        return ConsumerGroupState.EMPTY
    if is_rebalancing(group):
        return ConsumerGroupState.PREPARING_REBALANCING
    return ConsumerGroupState.STABLE


def _partitions(named: Mapping[str, Collection[int]]) -> Sequence[TopicPartition]:
    return [
        TopicPartition(topic, number) for topic in sorted(named) for number in sorted(named[topic])
    ]
