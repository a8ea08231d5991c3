"""Which producer ids tables know: what shows that a row, or `__cluster`, is of an older state."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.tables import markers_in
from txnlog.protocol.metadata import GroupTicket, Manifest, TransactionMetadata


def markers_of(
    root: Root, producer_id: int, topics: Iterable[str], groups: Collection[str] = ()
) -> dict[str, int]:
    """Table, as last read -> the newest epoch of the producer id that has ended there; -1: none."""
    logs = {topic: root.topic_log(topic).view.markers for topic in topics}
    logs |= {log.path: log.view.markers for log, _ in by_shard(root, sorted(groups), str)}
    return {table: markers.get(producer_id, -1) for table, markers in logs.items()}


def markers_for(
    root: Root,
    row: TransactionMetadata,
    manifest: Manifest,
    tickets: Iterable[GroupTicket] = (),
) -> dict[str, int]:
    """`markers_of` the row's producer id in all tables that its transaction will write."""
    topics = {batch.topic for batch in (*manifest.batches, *row.pending.batches)}
    topics |= {touched.topic for touched in row.partitions}
    carried = (*manifest.tickets, *row.pending.tickets, *tickets)
    groups = {one.group_id for one in carried}
    markers = markers_of(root, row.producer_id, topics, groups)
    return markers | markers_in(root, row.producer_id, manifest.tables)


def unknown_producer_id(root: Root, topics: Iterable[str]) -> int:
    """A new producer id that none of these topics knows, as they were last read.

    `__cluster` gives ids again if it was restored alone: then one above all that the topics know.
    """
    found = root.next_producer_id()
    views = [root.topic_log(topic).view for topic in topics]
    if any(view.knows_producer(found) for view in views):
        found = root.next_producer_id(above=max(view.producer_id_max for view in views))
    return found
