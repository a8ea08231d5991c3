"""Reading the state rows of transactional.ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from txnlog.coordinator.root import Root
from txnlog.errors import TxnLogError
from txnlog.protocol.appends import has_marker
from txnlog.protocol.fencing import check_holder
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.transitions import as_completed
from txnlog.storage.tables.row_log import OffsetsLog
from txnlog.storage.tables.topic_log import TopicLog


def describe(
    root: Root, transactional_id: str, *, sure: bool = False
) -> TransactionMetadata | None:
    """The newest state row of an id, None if it has none; `sure` as in DeltaLog.refresh."""
    shard = root.find_shard_for(transactional_id)
    return None if shard is None else shard.row(transactional_id, sure=sure)


def check_run(root: Root, row: TransactionMetadata) -> None:
    """Raises the error that fences the run of this row, at whatever epoch it is."""
    now = describe(root, row.transactional_id, sure=True)
    epoch = row.producer_epoch if now is None else now.producer_epoch
    check_holder(now, replace(row.holder, producer_epoch=epoch))


def check_owner(root: Root, row: TransactionMetadata) -> None:
    """Raises the error that fences the holder of this row: it says who did it, and when."""
    check_holder(describe(root, row.transactional_id, sure=True), row.holder)


def as_shown(root: Root, rows: Sequence[TransactionMetadata]) -> list[TransactionMetadata]:
    """Rows as operators see them: a transaction that is decided, and has all of its markers, is as
    its COMPLETE will leave it, whether that was written or not.

    It reads the logs of decided transactions; where one cannot be read, the row is as it is.
    """
    decided = [row for row in rows if row.state.is_prepared and not row.owner.one_off]
    topics = {topic: root.topic_log(topic) for row in decided for topic in row.topics}
    offsets = {
        one.group_id: log
        for row in decided
        for one in row.moves
        if (log := root.find_offsets_log(one.group_id)) is not None
    }
    # A marker that was there before is still there.
    with suppress(TxnLogError):
        root.refresh_together([*topics.values(), *offsets.values()])
    published = {row.transaction for row in decided if _is_published(row, topics, offsets)}
    return [as_completed(row) if row.transaction in published else row for row in rows]


def _is_published(
    row: TransactionMetadata, topics: Mapping[str, TopicLog], offsets: Mapping[str, OffsetsLog]
) -> bool:
    in_topics = (
        topics[topic].log.exists and has_marker(topics[topic].view, topic_id, row.transaction)
        for topic, topic_id in row.topic_ids
    )
    moved = (
        one.group_id in offsets
        and offsets[one.group_id].view.markers.get(row.producer_id, -1) >= row.txn_epoch
        for one in row.moves
    )
    return all(in_topics) and all(moved)
