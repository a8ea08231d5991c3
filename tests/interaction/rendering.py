"""The state of a cluster as a new process reads it: rows, headers, groups, readers.

    tx       PREPARE_COMMIT, producer 0 epoch 0, transaction 0, owner a, to publish orders stock
    orders   0-1 committed 0/0, 2-2 ongoing 0/1; markers 0:0
             read_committed x1 x2 | read_uncommitted x1 x2 x3
    readers  generation 1, input-0 at 10, pending of tx 0/1: input-0 at 20

`0-1 committed 0/0` is a batch: its offsets, its status, its producer id and epoch; `markers 0:0`
means that transaction 0 of producer 0 has ended in this topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.consumer.records import consumer
from txnlog.cluster import Cluster
from txnlog.messages import TopicPartition
from txnlog.protocol.groups import Group
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.tables.topic_log import TopicView

WIDTH = 9


def render(cluster: Cluster) -> list[str]:
    """The lines; `cluster` must be one that has read nothing yet."""
    return list(_lines(cluster))


def _lines(cluster: Cluster) -> Iterator[str]:
    for shard in cluster.existing_shards():
        for name, row in sorted(shard.view.rows.items()):
            yield _named(name, _row(row))
    for topic in cluster.list_topics():
        yield _named(topic, _headers(cluster.topic(topic).view))
        seen = (
            f"{level} {' '.join(_values(cluster, topic, level)) or '-'}"
            for level in ("read_committed", "read_uncommitted")
        )
        yield _named("", " | ".join(seen))
    for offsets in cluster.offsets_shards():
        for name, group in sorted(offsets.view.rows.items()):
            yield _named(name, _group(group))


def _named(name: str, text: str) -> str:
    return f"{name:{WIDTH}}{text}"


def _row(row: TransactionMetadata) -> str:
    parts = [
        row.state.name,
        f"producer {row.producer_id} epoch {row.producer_epoch}",
        f"transaction {row.txn_epoch if row.txn_epoch >= 0 else '-'}",
        f"owner {row.owner.run_id}",
    ]
    held = [topic for topic, _ in row.topic_ids]
    held += [f"offsets of {one.group_id}" for one in row.pending.tickets]
    if held:
        verb = "has" if row.state is TransactionState.ONGOING else "to publish"
        if row.state is TransactionState.PREPARE_ABORT:
            verb = "to undo"
        parts.append(f"{verb} {' '.join(held)}")
    parts += [f"floor {floor} of {group}" for group, floor in sorted(row.owner.floors.items())]
    return ", ".join(parts)


def _headers(view: TopicView) -> str:
    batches = [
        f"{b.base_offset}-{b.last_offset} {b.status} {b.producer_id}/{b.producer_epoch}"
        for state in view.partitions
        for b in state.batches
    ]
    markers = [f"{producer}:{epoch}" for producer, epoch in sorted(view.markers.items())]
    return f"{', '.join(batches) or 'empty'}; markers {' '.join(markers) or '-'}"


def _values(cluster: Cluster, topic: str, level: str) -> list[str]:
    with consumer(cluster, isolation_level=level) as reader:
        reader.assign([TopicPartition(topic, 0)])
        return [(message.value() or b"").decode() for message in reader.consume(1_000, 0)]


def _group(group: Group) -> str:
    parts = [f"generation {group.generation}", *_positions(group.positions())]
    parts += [
        f"ticket {holder.ticket} of {holder.transactional_id}" for holder in group.tickets.holders
    ]
    return ", ".join(parts)


def _positions(offsets: Mapping[str, Mapping[int, int]]) -> list[str]:
    return [
        f"{topic}-{partition} at {offset}"
        for topic, partitions in sorted(offsets.items())
        for partition, offset in sorted(partitions.items())
    ]
