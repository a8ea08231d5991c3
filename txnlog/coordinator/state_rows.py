"""Reading the state rows of transactional.ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from txnlog.coordinator.root import Root
from txnlog.process.failures import caught
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
    topics = sorted({topic for row in decided for topic in row.topics})
    carried = (one.group_id for row in decided for one in row.moves)
    groups = {root.offsets_shard_of(group_id): group_id for group_id in carried}
    # An older reading says nothing: the topic may have been created again since.
    reads: list[Callable[[], TopicLog | OffsetsLog | None]] = [
        *(partial(_read_topic, root, topic) for topic in topics),
        *(partial(_read_offsets, root, group_id) for group_id in groups.values()),
    ]
    made = root.store.together([partial(caught, read) for read in reads])
    found: dict[str | int, object] = dict(zip((*topics, *groups), made, strict=True))
    published = {row.transaction for row in decided if _is_published(root, row, found)}
    return [as_completed(row) if row.transaction in published else row for row in rows]


def _read_topic(root: Root, topic: str) -> TopicLog:
    log = root.topic_log(topic)
    log.refresh()
    return log


def _read_offsets(root: Root, group_id: str) -> OffsetsLog | None:
    log = root.find_offsets_log(group_id)
    if log is not None:
        log.refresh()
    return log


def _is_published(root: Root, row: TransactionMetadata, read: Mapping[str | int, object]) -> bool:
    """`read`: the topics by name, the shards of the consumer offsets by number."""
    for topic, topic_id in row.topic_ids:
        log = read[topic]
        if not isinstance(log, TopicLog) or not log.log.exists:
            return False
        if not has_marker(log.view, topic_id, row.transaction):
            return False
    for one in row.moves:
        offsets = read[root.offsets_shard_of(one.group_id)]
        if not isinstance(offsets, OffsetsLog):
            return False
        if offsets.view.markers.get(row.producer_id, -1) < row.txn_epoch:
            return False
    return True
