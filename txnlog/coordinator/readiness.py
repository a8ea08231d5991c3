"""All of a commit that comes before its decision, made together: no reader sees anything of it.

An object store takes 20 to 60 ms to answer, so calls that need not wait for one another are one
round (D88).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.staged_files import (
    Staging,
    check_read_batches,
    read_topics,
)
from txnlog.coordinator.tables import ready_calls
from txnlog.errors import RESTORE_ALL, LogGapError, TxnLogError
from txnlog.process.failures import caught
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.storage.tables.row_log import OffsetsLog
from txnlog.storage.tables.topic_log import TopicLog


def get_ready(
    root: Root,
    row: TransactionMetadata,
    staging: Staging,
    offsets: Sequence[GroupOffsets],
) -> Sequence[StagedBatch]:
    """Write the files, read and check their topics and tables, and read the shards of the row and
    the groups, as far as nobody has just read them.

    Topics that have batches of the transaction already are read for their markers only (D131).
    Returns the files; raises what the parts raise, after all have been tried.
    """
    read = staging.read
    shard = root.shard_for(row.transactional_id)
    topics = {*staging.topics, *(touched.topic for touched in row.partitions)}
    # Shards are created before: that uses the cluster's own log.
    logs = [log for log, _ in by_shard(root, offsets, lambda request: request.group_id)]
    parts: list[Callable[[], Any]] = [
        staging.write,
        partial(read_topics, root, () if read is not None else topics),
        partial(shard.get_ready, check_head=False),
        *(partial(log.get_ready, check_head=read is None) for log in logs),
        *ready_calls(root, staging.tables),
    ]
    made: list[Any] = root.store.together([partial(caught, part) for part in parts])
    staged = made[0]
    if isinstance(staged, TxnLogError):
        raise staged
    check_read_batches(root, staged, made[1] if read is None else read)
    for outcome in made[2:]:
        if isinstance(outcome, TxnLogError):
            raise outcome
    return tuple(staged)


def get_held_ready(root: Root, row: TransactionMetadata, offsets: Sequence[GroupOffsets]) -> None:
    """`get_ready` for what a client has prepared, as long ago as it may be.

    Its files have no age limit, as the row names them (R72); and the topics are read for their
    markers only (D131): a topic that was deleted gets none.
    """
    topics = {batch.topic for batch in row.pending.batches} | {tp.topic for tp in row.partitions}
    groups = {one.group_id for one in row.pending.tickets}
    logs: list[TopicLog | OffsetsLog] = [root.topic_log(topic) for topic in sorted(topics)]
    logs += [log for log, _ in by_shard(root, sorted(groups), str)]
    # One that cannot be read now delays no other topic: it gets its marker later.
    read = root.store.together([partial(caught, log.get_ready) for log in logs])
    for log, error in zip(logs, read, strict=True):
        if isinstance(log, TopicLog) and error is None:
            _check_there(log, row)
    get_ready(root, row, Staging(frozenset(), tuple, read={}), offsets)


def _check_there(log: TopicLog, row: TransactionMetadata) -> None:
    """Raise LogGapError if a topic that was just read has lost what was appended to it."""
    producer_id, txn_epoch = row.transaction
    is_touched = any(
        (one.topic, one.topic_id) == (log.name, log.view.topic_id) for one in row.partitions
    )
    if not is_touched or log.view.deleted or log.view.markers.get(producer_id, -1) >= txn_epoch:
        return
    there = log.view.ongoing_of(producer_id, txn_epoch)
    if not any(batch.producer_epoch == txn_epoch for batch in there):
        raise LogGapError(
            f"Nothing was committed: {row.transactional_id!r} has prepared records of topic "
            f"{log.name!r}, and the topic does not have them. {RESTORE_ALL}",
            transactional_id=row.transactional_id,
            topic=log.name,
        )
