"""Reading the state rows of transactional.ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from txnlog.coordinator.root import Root
from txnlog.coordinator.tables import waits_for
from txnlog.errors import StorePermissionError
from txnlog.process.failures import caught
from txnlog.protocol.appends import has_marker
from txnlog.protocol.fencing import check_holder
from txnlog.protocol.group_metadata import TicketHolder
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
    """Rows as operators see them: a decided transaction that is visible in all its topics and
    tables is complete, even before COMPLETE is written. Whoever asks for its offsets gets them,
    moved or not; one without a topic is complete when they are moved.
    """
    done = {
        row.transaction
        for row in _published(root, rows)
        if row.topic_ids
        or row.tables
        or all(_has_moved(root, row, one.group_id) for one in row.moves)
    }
    return [as_completed(row) if row.transaction in done else row for row in rows]


def _published(root: Root, rows: Sequence[TransactionMetadata]) -> list[TransactionMetadata]:
    """The rows whose transaction is decided, not complete, and visible wherever it writes.

    It reads these topics and tables; where one cannot be read, the transaction is not among them.
    """
    decided = [row for row in rows if row.state.is_prepared and not row.owner.one_off]
    topics = sorted({topic for row in decided for topic in row.topics})
    # An older reading says nothing: the topic may have been created again since.
    reads = [partial(caught, partial(_read_topic, root, topic)) for topic in topics]
    found = dict(zip(topics, root.store.together(reads), strict=True))
    return [
        row
        for row in decided
        if is_published(row, found)
        and all(waits_for(root, row, table) is None for table in row.tables)
    ]


def unmoved(root: Root, holders: Iterable[TicketHolder]) -> list[TransactionMetadata]:
    """The rows with offsets of groups that these holders have decided, moved or not.

    Rows that are unreadable, or that this process may not read, are left out. The caller has read
    the groups before, and reads them again.
    """
    by_shard: dict[int, list[str]] = {}
    for name in sorted({one.transactional_id for one in holders}):
        by_shard.setdefault(root.shard_of(name), []).append(name)
    reads = [partial(_rows_of, root, names) for names in by_shard.values()]
    return [row for rows in root.store.together(reads) for row in rows if row.moves]


def _rows_of(root: Root, names: Sequence[str]) -> list[TransactionMetadata]:
    """The readable rows of ids of one shard."""
    with suppress(StorePermissionError):
        shard = root.find_shard_for(names[0])
        if shard is not None:
            shard.refresh()
            rows = (dict.get(shard.view.rows, name) for name in names)
            return [row for row in rows if row is not None]
    return []


def _has_moved(root: Root, row: TransactionMetadata, group_id: str) -> bool:
    """Whether the group's shard has the marker of the row's transaction, as far as can be read."""
    log = caught(partial(root.find_offsets_log, group_id))
    if not isinstance(log, OffsetsLog) or caught(log.refresh) is not None:
        return False
    return log.view.markers.get(row.producer_id, -1) >= row.txn_epoch


def _read_topic(root: Root, topic: str) -> TopicLog:
    log = root.topic_log(topic)
    log.refresh()
    return log


def is_published(row: TransactionMetadata, topics: Mapping[str, object]) -> bool:
    """Whether the topics, which were just read, have all of its markers."""
    for topic, topic_id in row.topic_ids:
        log = topics.get(topic)
        if not isinstance(log, TopicLog) or not log.log.exists:
            return False
        if not has_marker(log.view, topic_id, row.transaction):
            return False
    return True
