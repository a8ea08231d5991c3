"""Invariants of a cluster at any moment, after any crash; each check names what is broken.

Checks read through a Cluster of their own where they compare memory with the log, so they may be
called between any two steps of a test. Users call them on the clusters of their own pipelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txnlog.cluster import Cluster
from txnlog.coordinator.state_rows import as_shown
from txnlog.protocol.batches import ABORTED, ONGOING, BatchHeader
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.topics import TopicState
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.tables.row_log import OffsetsLog, RowLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog, TopicView

__all__ = [
    "BrokenInvariantError",
    "Visible",
    "Witness",
    "check_cluster",
    "check_groups",
    "check_rows",
    "check_topic",
    "check_topic_rebuilds",
    "describe_view",
    "read_committed",
]

Visible = Mapping[int, Sequence[BatchHeader]]


class BrokenInvariantError(AssertionError):
    """An invariant does not hold; the message says what and where."""


def check_cluster(cluster: Cluster, *, settled: bool = False) -> None:
    """Check every topic, row and group of a cluster, and that its memory equals the log.

    `settled`: no transaction may be open, or decided and not visible to all.
    Raises BrokenInvariantError.
    """
    for name in cluster.list_topics():
        topic = cluster.topic(name)
        check_topic(name, topic.view, settled=settled)
        check_topic_rebuilds(topic)
    for shard in cluster.existing_shards():
        check_rows(shard)
        if settled:
            # A producer leaves COMPLETE to its next commit.
            _check_settled(shard, as_shown(cluster, list(shard.view.rows.values())))
    for offsets in cluster.offsets_shards():
        check_groups(offsets)


def read_committed(view: TopicState) -> Visible:
    """Partition -> the batches a read_committed reader gets, from log start to LSO."""
    return {
        partition: view.batches(
            partition, view.log_start_offset(partition), view.last_stable_offset(partition), True
        )
        for partition in range(len(view.partitions))
    }


def check_topic(name: str, view: TopicState, *, settled: bool = False) -> None:
    """Offsets are dense and given out once; positions are in order; no torn transaction."""
    paths: set[str] = set()
    for partition, state in enumerate(view.partitions):
        where = f"{name}-{partition}"
        upto: int | None = None
        for batch in state.batches:
            # Below the log start files may be missing: the remaining ones are kept for producers.
            is_hole = batch.base_offset > max(upto or 0, state.log_start_offset)
            if upto is not None and (is_hole or batch.base_offset < upto):
                _broken(f"{where}: offset {batch.base_offset} follows {upto - 1}")
            if batch.path in paths:
                _broken(f"{where}: {batch.path} is there twice")
            if view.by_path.get(batch.path) != batch:
                _broken(f"{where}: {batch.path} differs between the two indexes")
            paths.add(batch.path)
            upto = batch.last_offset + 1
            _check_marker(where, batch, view)
        if upto is not None and upto > state.end_offset:
            _broken(f"{where}: end {state.end_offset} is below {upto}")
        _check_positions(where, view, partition)
        if settled and state.ongoing:
            _broken(f"{where}: undecided batches {sorted(state.ongoing)}")
    if set(view.by_path) != paths:
        _broken(f"{name}: {set(view.by_path) ^ paths} are in one index only")


def _check_marker(where: str, batch: BatchHeader, view: TopicState) -> None:
    marked = view.markers.get(batch.producer_id, -1)
    if batch.status == ONGOING and marked >= batch.producer_epoch:
        _broken(f"{where}: {batch.path} is undecided after the marker of its transaction")
    decided = batch.status not in (ONGOING, "none")
    if batch.producer_id not in view.markers and view.txns.transactions_expired_ms >= 0:
        # The marker may have been forgotten.
        decided = False
    if decided and batch.producer_id >= 0 and marked < batch.producer_epoch:
        _broken(f"{where}: {batch.path} is {batch.status} without a marker")


def _check_positions(where: str, view: TopicState, partition: int) -> None:
    start = view.log_start_offset(partition)
    stable = view.last_stable_offset(partition)
    end = view.high_watermark(partition)
    if not start <= stable <= end:
        _broken(f"{where}: log start {start}, LSO {stable} and end {end} are out of order")
    for batch in view.batches(partition, start, stable, True):
        if batch.status in (ABORTED, ONGOING):
            _broken(f"{where}: read_committed shows {batch.path}, which is {batch.status}")


def check_rows(shard: TransactionLog, *, settled: bool = False) -> None:
    """An epoch identifies one transaction; decided rows hold what finishing needs."""
    producer_ids: dict[int, str] = {}
    rows = shard.view.rows
    if rows.active != {name: row for name, row in rows.items() if not row.state.is_idle}:
        _broken(f"{shard.path}: {sorted(rows.active)} are not the ids with a transaction")
    for row in rows.values():
        where = f"{shard.path}, {row.transactional_id!r}"
        if row.producer_id < 0 or row.producer_epoch < 0:
            _broken(f"{where}: producer {row.producer_id} epoch {row.producer_epoch}")
        if row.producer_id in producer_ids:
            _broken(
                f"{where}: producer id {row.producer_id} also belongs to another transactional.id"
            )
        producer_ids[row.producer_id] = row.transactional_id
        if row.state.is_idle and row.txn_epoch >= row.producer_epoch:
            _broken(f"{where}: idle at epoch {row.producer_epoch}, which has been used")
        if row.txn_epoch > row.producer_epoch:
            _broken(f"{where}: transaction {row.txn_epoch} above epoch {row.producer_epoch}")
    if settled:
        _check_settled(shard, rows.values())
    _check_rebuilds(shard, TransactionLog(shard.store, shard.number))


def _check_settled(shard: TransactionLog, rows: Iterable[TransactionMetadata]) -> None:
    for row in rows:
        if not row.state.is_idle:
            _broken(f"{shard.path}, {row.transactional_id!r}: still {row.state.name}")


def check_groups(offsets: OffsetsLog) -> None:
    """Tickets are given once; a partition has one owner."""
    for group in offsets.view.rows.values():
        tickets = [holder.ticket for holder in group.tickets.holders]
        if len(set(tickets)) < len(tickets):
            _broken(f"group {group.group_id!r}: two holders of one ticket")
        if max(tickets, default=0) > group.tickets.newest:
            _broken(f"group {group.group_id!r}: a ticket above the newest")
        assigned = [
            (topic, number)
            for topics in group.assignment.values()
            for topic, numbers in topics.items()
            for number in numbers
        ]
        if len(set(assigned)) < len(assigned):
            _broken(f"group {group.group_id!r}: a partition has two owners: {group.assignment}")
    _check_rebuilds(offsets, OffsetsLog(offsets.store, offsets.number))


def check_topic_rebuilds(topic: TopicLog) -> None:
    """The state in memory equals the state rebuilt from the log (R11, R19)."""
    cold = TopicLog(topic.store, topic.name, settings=LogSettings(checkpoint_mode="off"))
    cold.refresh()
    topic.refresh()
    if cold.log.version == topic.log.version:
        _same(topic.name, describe_view(topic.view), describe_view(cold.view))


def describe_view(view: TopicView) -> dict[str, object]:
    """A topic's whole state in memory as plain values, for comparison."""
    return {
        "topic": (view.topic_id, view.deleted, dict(view.config)),
        "partitions": [
            (
                p.batches,
                p.ongoing,
                (p.end_offset, p.start_offset),
                (p.cleaned_offset, p.tombstone_offset, p.horizon_ms),
            )
            for p in view.partitions
        ],
        "by_path": view.by_path,
        "markers": view.markers,
        "sequences": {
            key: seen for key, seen in view.sequences.items() if _is_relevant(view, *key)
        },
        "txns": view.txns,
    }


def _is_relevant(view: TopicState, producer_id: int, partition: int) -> bool:
    """Whether a decision may use it: compaction may drop the sequences of other batches."""
    has_last = (producer_id, partition) in view.last_sequences
    return has_last or any(
        batch.producer_id == producer_id for batch in view.partitions[partition].ongoing.values()
    )


def _check_rebuilds(warm: RowLog[Any], cold: RowLog[Any]) -> None:
    cold.refresh()
    warm.refresh()
    if cold.log.version == warm.log.version:
        for name in ("rows", "txns", "sizes"):
            found = {name: getattr(warm.view, name)}
            _same(warm.path, found, {name: getattr(cold.view, name)})


def _same(where: str, warm: Mapping[str, object], cold: Mapping[str, object]) -> None:
    for name, value in warm.items():
        if value != cold[name]:
            _broken(f"{where}: {name} in memory is\n  {value}\nand rebuilt\n  {cold[name]}")


def _broken(what: str) -> None:
    raise BrokenInvariantError(what)


class Witness:
    """A read_committed reader that runs all the time: what it saw once, it must always see."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[tuple[int, str]]] = {}

    def observe(self, cluster: Cluster) -> dict[str, set[str]]:
        """Read every topic and check that nothing seen before moved; topic -> visible paths.

        Topics are read one after another, as by any reader. Raises BrokenInvariantError.
        """
        found: dict[str, set[str]] = {}
        for name in cluster.list_topics():
            view = cluster.topic(name).view
            found[name] = set()
            for partition, batches in read_committed(view).items():
                now = [(batch.base_offset, batch.path) for batch in batches]
                before = self._seen.get((view.topic_id, partition), [])
                if now[: len(before)] != before:
                    _broken(f"{name}-{partition}: was read as {before}, now it is {now}")
                self._seen[view.topic_id, partition] = now
                found[name].update(path for _, path in now)
        return found
