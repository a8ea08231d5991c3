"""The transaction state and the group offsets as Arrow tables, with the columns of Kafka's tools.

They are built from the logs, not read by Spark: each row is a file, and Spark would open each.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from txnlog.admin.state_rows import shown_rows, unreadable_rows
from txnlog.admin.transactions import describe_row
from txnlog.cluster import Cluster
from txnlog.coordinator.state_rows import unmoved
from txnlog.errors import InvalidTopicError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.tickets import with_unmoved
from txnlog.settings.config import warn_once

UNREADABLE = "Unreadable"
TRANSACTIONS = pa.schema(
    [
        ("CoordinatorId", pa.int32()),
        ("TransactionalId", pa.string()),
        ("ProducerId", pa.int64()),
        ("ProducerEpoch", pa.int64()),
        ("TransactionState", pa.string()),
        ("TransactionTimeoutMs", pa.int64()),
        ("CurrentTransactionStartTimeMs", pa.int64()),
        ("TransactionDurationMs", pa.int64()),
        ("TopicPartitions", pa.list_(pa.string())),
        ("Owner", pa.string()),
        ("OwnerSinceMs", pa.int64()),
        ("OwnerFenced", pa.bool_()),
        ("QueryId", pa.string()),
        ("Groups", pa.list_(pa.string())),
        ("PreparedByClient", pa.bool_()),
        (
            "LastFenced",
            pa.struct([("By", pa.string()), ("AtMs", pa.int64()), ("Reason", pa.string())]),
        ),
    ]
)
OFFSETS = pa.schema(
    [
        ("GroupId", pa.string()),
        ("Topic", pa.string()),
        ("Partition", pa.int32()),
        ("CurrentOffset", pa.int64()),
        ("LogEndOffset", pa.int64()),
        ("Lag", pa.int64()),
        ("Generation", pa.int64()),
        ("Metadata", pa.string()),
    ]
)


def transaction_state(cluster: Cluster, *, now_ms: int) -> pa.Table:
    """A row for each transactional.id, as `txnlog transactions describe` shows it; by id.

    An unreadable row has the state Unreadable and its shard; its other columns are null.
    """
    found: list[dict[str, object]] = []
    for shard, row in shown_rows(cluster):
        description = describe_row(shard, row)
        found.append({**description.transaction(now_ms), **description.ownership()})
    for shard, unreadable in unreadable_rows(cluster):
        warn_once(unreadable.error.message)
        found.append(
            {
                "CoordinatorId": shard,
                "TransactionalId": unreadable.key,
                "TransactionState": UNREADABLE,
            }
        )
    found.sort(key=lambda columns: str(columns["TransactionalId"]))
    return pa.Table.from_pylist(found, schema=TRANSACTIONS)


def consumer_offsets(cluster: Cluster) -> pa.Table:
    """A row for each group, topic and partition with a committed offset, in that order; also those
    that are decided and not moved.

    End and lag are null if the topic does not exist. Ends are read after the offsets, so lag is
    not negative; for an offset after the end it is 0. Unreadable groups are omitted and logged.
    """
    logs = cluster.offsets_shards()
    for log in logs:
        for unreadable in log.view.rows.unreadable.values():
            warn_once(unreadable.error.message)
    holders = [one for log in logs for row in log.view.rows.values() for one in row.tickets.holders]
    left: dict[str, list[TransactionMetadata]] = {}
    for one in unmoved(cluster, holders):
        for ticket in one.moves:
            left.setdefault(ticket.group_id, []).append(one)
    if holders:
        # What is not there any more was moved after the first read.
        logs = cluster.offsets_shards()
    groups = sorted(
        (
            with_unmoved(row, left.get(row.group_id, ()), log.view.markers)
            for log in logs
            for row in log.view.rows.values()
        ),
        key=lambda group: group.group_id,
    )
    ends: dict[tuple[str, int], int] = {}
    for topic in {topic for group in groups for topic in group.offsets}:
        ends.update(_ends(cluster, topic))
    found = []
    for group in groups:
        for topic, partitions in sorted(group.offsets.items()):
            for partition, committed in sorted(partitions.items()):
                end = ends.get((topic, partition))
                found.append(
                    {
                        "GroupId": group.group_id,
                        "Topic": topic,
                        "Partition": partition,
                        "CurrentOffset": committed.offset,
                        "LogEndOffset": end,
                        "Lag": None if end is None else max(0, end - committed.offset),
                        "Generation": committed.generation,
                        "Metadata": committed.metadata,
                    }
                )
    return pa.Table.from_pylist(found, schema=OFFSETS)


def snapshot_offsets(snapshot: Snapshot) -> pa.Table:
    """A row for each group, topic and partition; without what a snapshot does not have."""
    found = [
        {"GroupId": group, "Topic": topic, "Partition": partition, "CurrentOffset": offset}
        for group, topics in sorted(snapshot.offsets.items())
        for topic, partitions in sorted(topics.items())
        for partition, offset in sorted(partitions.items())
    ]
    return pa.Table.from_pylist(found, schema=pa.schema([OFFSETS.field(i) for i in range(4)]))


def _ends(cluster: Cluster, topic: str) -> dict[tuple[str, int], int]:
    """The high watermark of each partition; empty for a missing topic."""
    with suppress(InvalidTopicError):
        log = cluster.topic_log(topic)
        log.refresh()
        if log.exists:
            return {(topic, n): log.view.high_watermark(n) for n in range(log.partitions)}
    return {}
