"""Steps 2 to 4 of a decided transaction: any process may complete them.

Each log refuses a step that it already has, so concurrent or late helpers change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from txnlog.coordinator.phases import Phases
from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.state_rows import describe
from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures
from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.groups import Group, OffsetsCommit, prepare_offsets_marker
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.transitions import prepare_complete
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.row_log import OffsetsLog, RowView


def finish(
    root: Root,
    row: TransactionMetadata,
    *,
    reading: Reading | None = None,
    phases: Phases | None = None,
) -> TransactionMetadata | None:
    """Steps 2 to 4 of a transaction that any process decided; returns the row afterwards.

    `reading` began before the row was read or written; without it the row is read again. A
    topic that cannot be written delays only its own marker: the others are written, then its
    error is raised, and the row stays decided for the next process to finish (R37).
    """
    if not row.state.is_prepared:
        return row
    measured = phases or Phases()
    result = TransactionResult.of(row.state)
    clock = root.store.clock
    with measured.measure("publish"):
        reading = _write_markers(root, row, result, reading)
    if reading is None:
        return describe(root, row.transactional_id)
    reach("markers.after")
    if row.pending.groups:
        with measured.measure("offsets"):
            reading = _while_decided(root, row, reading, partial(_write_offsets, root, row, result))
        if reading is None:
            return describe(root, row.transactional_id)
    reach("offsets.after")
    reach("complete.before")
    shard = root.shard_for(row.transactional_id)
    with measured.measure("complete"):
        completed = shard.transition(
            row.transactional_id,
            lambda now: prepare_complete(now, transaction=row.transaction, now_ms=clock.now_ms()),
            # A helper has measured only part of the commit.
            parameters=dict if phases is None else phases.parameters,
        )
    reach("complete.after")
    return completed


def _write_markers(
    root: Root, row: TransactionMetadata, result: TransactionResult, reading: Reading | None
) -> Reading | None:
    """Step 2 in every topic; the newest reading of the row, see `_while_decided`."""
    work = f"Markers of {row.transactional_id!r} at epoch {row.txn_epoch}"
    failures = Failures(work, logging.DEBUG)
    topics = {(batch.topic, batch.topic_id) for batch in row.pending.batches}
    topics.update((touched.topic, touched.topic_id) for touched in row.partitions)
    if reading is None and not topics:
        return _still_decided(root, row)
    for topic, topic_id in sorted(topics):
        with failures.of(f"topic {topic!r}"):
            reading = _while_decided(
                root,
                row,
                reading,
                partial(_write_marker, root, row, result, topic, topic_id),
            )
            if reading is None:
                return None
        reach("marker.after")
    failures.check()
    return reading


def _while_decided(
    root: Root,
    row: TransactionMetadata,
    reading: Reading | None,
    write: Callable[[Reading], bool],
) -> Reading | None:
    """Call `write` with a reading of the row, and read the row again while it is too old.

    Returns the newest reading; None if another process has finished the transaction.
    """
    while reading is None or not write(reading):
        reading = _still_decided(root, row)
        if reading is None:
            return None
    return reading


def _write_marker(
    root: Root,
    row: TransactionMetadata,
    result: TransactionResult,
    topic: str,
    topic_id: str,
    reading: Reading,
) -> bool:
    """False: not written, because the row was read too long ago."""
    batches = [b for b in row.pending.batches if (b.topic, b.topic_id) == (topic, topic_id)]
    log = root.topic_log(topic)

    def decide(state: TopicState) -> TopicCommit | Settled | None:
        if not reading.counts_for(log.log):
            return None
        return prepare_marker(
            state,
            topic_id=topic_id,
            transaction=row.transaction,
            result=result,
            batches=batches,
            app=row.pending.app,
        )

    return log.transact(decide) is not None


def _write_offsets(
    root: Root, row: TransactionMetadata, result: TransactionResult, reading: Reading
) -> bool:
    """Step 3 in every shard that has groups of the transaction; False as in `_write_marker`."""
    shards = by_shard(root, row.pending.groups, str)
    written = root.store.together(
        [partial(_write_offsets_shard, log, row, result, reading, ids) for log, ids in shards]
    )
    return all(written)


def _write_offsets_shard(
    offsets: OffsetsLog,
    row: TransactionMetadata,
    result: TransactionResult,
    reading: Reading,
    group_ids: Sequence[str],
) -> bool:
    clock = offsets.store.clock
    is_late = False

    def decide(view: RowView[Group], version: int) -> OffsetsCommit | None:
        nonlocal is_late
        is_late = not reading.counts_for(offsets.log)
        if is_late:
            return None
        return prepare_offsets_marker(
            view.rows,
            view.markers,
            group_ids=group_ids,
            transaction=row.transaction,
            result=result,
            version=version,
            now_ms=clock.now_ms(),
        )

    offsets.change(decide)
    return not is_late


def _still_decided(root: Root, row: TransactionMetadata) -> Reading | None:
    """A new reading of the row; None if this transaction is no longer prepared."""
    reading = Reading.begin(root.store.clock)
    now = describe(root, row.transactional_id, sure=True)
    if now is None or not now.state.is_prepared:
        return None
    return reading if now.transaction == row.transaction else None
