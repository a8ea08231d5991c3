"""Steps 2 to 4 of a decided transaction: any process may complete them.

Each log refuses a step that it already has, so concurrent or late helpers change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from txnlog.coordinator.phases import Phases
from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.staged_files import check_published
from txnlog.coordinator.state_rows import describe
from txnlog.errors import LogGapError, TxnLogError
from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures, caught
from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.groups import Group, OffsetsCommit
from txnlog.protocol.metadata import GroupTicket, TransactionMetadata
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.tickets import prepare_carried_offsets
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.transitions import as_completed, prepare_complete
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.row_log import OffsetsLog, RowView
from txnlog.storage.tables.topic_log import TopicLog


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
    published = publish(root, row, reading=reading, phases=phases)
    return describe(root, row.transactional_id) if published is None else complete(root, published)


class Decided(Struct, frozen=True):
    """A transaction after step 1, by this process: no reader sees it yet, none can undo it.

    `reading` began before the row was written.
    """

    row: TransactionMetadata
    reading: Reading
    phases: Phases
    prove_later: bool = False

    @property
    def completed(self) -> TransactionMetadata:
        """The row as COMPLETE will leave it, but for its time."""
        return as_completed(self.row)


class Published(Struct, frozen=True):
    """A decided transaction after steps 2 and 3: every reader sees it, and COMPLETE is left.

    `proofs` of the offsets markers are left, too; or, with `leaves_offsets`, these markers are,
    while the producer's next transaction may supersede them (D130). `reading` as in Decided.
    """

    row: TransactionMetadata
    phases: Phases | None
    proofs: tuple[Callable[[], bool], ...] = ()
    leaves_offsets: bool = False
    reading: Reading | None = None

    @property
    def completed(self) -> TransactionMetadata:
        """The row as COMPLETE will leave it, but for its time."""
        return as_completed(self.row)


class Ended(NamedTuple):
    """The row after an end; while COMPLETE is `left`, as that will leave it."""

    row: TransactionMetadata
    left: Published | None = None


def publish_decided(root: Root, decided: Decided, *, leave_offsets: bool = False) -> Ended:
    """Steps 2 and 3, or with `leave_offsets` only step 2; a repeated call writes what is missing.

    An error has the result as `decided` in its context: a repeated call may not learn it, as the
    row may have another owner by then.
    """
    row = decided.row
    reach("prepare_commit.after")
    try:
        published = publish(
            root,
            row,
            reading=decided.reading,
            phases=decided.phases,
            prove_later=decided.prove_later,
            leave_offsets=leave_offsets,
        )
        if published is not None:
            return Ended(published.completed, published)
        finished = describe(root, row.transactional_id)
    except TxnLogError as error:
        error.context["decided"] = TransactionResult.of(row.state)
        raise
    return Ended(finished if finished is not None else row)


def publish(
    root: Root,
    row: TransactionMetadata,
    *,
    reading: Reading | None = None,
    phases: Phases | None = None,
    prove_later: bool = False,
    leave_offsets: bool = False,
) -> Published | None:
    """Steps 2 and 3 of a decided transaction, as `finish`; None if another process finished it.

    With `prove_later` the slot check of the offsets marker (D52) is left to `complete`, with
    `leave_offsets` the offsets marker itself.
    """
    measured = phases or Phases()
    result = TransactionResult.of(row.state)
    leaves_offsets = leave_offsets and bool(row.moves)
    with measured.measure("publish"):
        # The slot checks of the markers (D52) are made beside the offsets marker.
        later = bool(row.moves) and not leaves_offsets
        reading = _write_markers(root, row, result, reading, prove_later=later)
    if reading is None:
        return None
    reach("markers.after")
    if leaves_offsets:
        return Published(row, phases, leaves_offsets=True, reading=reading)
    if row.moves:
        with measured.measure("offsets"):
            reading = _move_offsets(root, row, reading, prove_later=prove_later)
        if reading is None:
            return None
    reach("offsets.after")
    logs = by_shard(root, row.moves, _group_id) if prove_later else ()
    return Published(row, phases, tuple(log.log.proof() for log, _ in logs))


def publish_newest(root: Root, row: TransactionMetadata | None) -> None:
    """Steps 2 and 3 of what the row has decided, or of what has superseded that since (D130)."""
    reading = None
    while row is not None and row.state.is_prepared:
        if publish(root, row, reading=reading) is not None:
            return
        # It was finished; or its offsets were not moved, and the next transaction has newer ones.
        reading = Reading.begin(root.store.clock)
        row = describe(root, row.transactional_id, sure=True)


def move_left_offsets(root: Root, published: Published) -> Published:
    """Step 3 of a published transaction that has left it, unless another process finished it.

    An error has `left` in its context, and says so: it is not about the transaction that comes
    next.
    """
    if not published.leaves_offsets:
        return published
    try:
        _move_offsets(root, published.row, published.reading)
    except TxnLogError as error:
        raise _left_error(published.row, error) from error
    reach("offsets.after")
    return Published(published.row, published.phases)


def _left_error(row: TransactionMetadata, error: TxnLogError) -> TxnLogError:
    groups = ", ".join(repr(one.group_id) for one in row.moves)
    return type(error)(
        f"The transaction of {row.transactional_id!r} before this one is committed, and its "
        f"offsets must be in the rows of its groups ({groups}) before the next write of this id. "
        "They count already, and nothing is lost: remove the cause, then try again. "
        f"{error.message}",
        **{**error.context, "left": True},
    )


def complete(root: Root, published: Published) -> TransactionMetadata | None:
    """Step 4 of a published transaction; returns the row afterwards, whoever wrote it."""
    published = move_left_offsets(root, published)
    reach("complete.before")
    row, phases = published.row, published.phases
    clock = root.store.clock
    if not all(root.store.together(published.proofs)):
        # The offsets marker may not be in the log: it is written again, as what was decided.
        return finish(root, row)
    shard = root.shard_for(row.transactional_id)
    with (phases or Phases()).measure("complete"):
        completed = shard.transition(
            row.transactional_id,
            lambda now: prepare_complete(now, transaction=row.transaction, now_ms=clock.now_ms()),
            # A helper has measured only part of the commit.
            parameters=dict if phases is None else phases.parameters,
            # The transaction is decided and published: if this is not in the log, that is because
            # another process has completed it.
            prove_later=True,
        )
    reach("complete.after")
    return completed


def _write_markers(
    root: Root,
    row: TransactionMetadata,
    result: TransactionResult,
    reading: Reading | None,
    *,
    prove_later: bool,
) -> Reading | None:
    """Step 2 in all topics together; the newest reading of the row, see `_while_decided`."""
    work = f"Markers of {row.transactional_id!r} at epoch {row.txn_epoch}"
    failures = Failures(work, logging.DEBUG)
    left = _topics_of(row)
    is_row_old = False

    def write(reading: Reading) -> bool:
        """Write the markers that are left; False as in `_write_marker`."""
        nonlocal is_row_old
        outcomes = root.store.together(
            [
                partial(
                    caught, partial(_write_markers_of, log, row, result, ids, reading, prove_later)
                )
                for log, ids in ((root.topic_log(topic), left[topic]) for topic in sorted(left))
            ]
        )
        for topic, outcome in zip(sorted(left), outcomes, strict=True):
            if isinstance(outcome, TxnLogError):
                failures.add(f"topic {topic!r}", outcome)
                is_row_old |= isinstance(outcome, LogGapError)
            if outcome is not False:
                del left[topic]
        return not left

    newest = _while_decided(root, row, reading, write)
    # An old row may be this process's, which was paused; or the table's, which was restored.
    if newest is None or (is_row_old and _still_decided(root, row) is None):
        return None
    failures.check()
    return newest


def _topics_of(row: TransactionMetadata) -> dict[str, list[str]]:
    """Topic -> the ids under which the transaction wrote to it: several if it was created again."""
    topics = {(batch.topic, batch.topic_id) for batch in row.pending.batches}
    topics.update((touched.topic, touched.topic_id) for touched in row.partitions)
    found: dict[str, list[str]] = {}
    for topic, topic_id in sorted(topics):
        found.setdefault(topic, []).append(topic_id)
    return found


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


def _write_markers_of(
    log: TopicLog,
    row: TransactionMetadata,
    result: TransactionResult,
    topic_ids: Sequence[str],
    reading: Reading,
    prove_later: bool,
) -> bool:
    """Step 2 in one topic; False as in `_write_marker`."""
    for topic_id in topic_ids:
        if not _write_marker(log, row, result, topic_id, reading, prove_later):
            return False
        reach("marker.after")
    return True


def _write_marker(
    log: TopicLog,
    row: TransactionMetadata,
    result: TransactionResult,
    topic_id: str,
    reading: Reading,
    prove_later: bool,
) -> bool:
    """False: not written, because the row was read too long ago. Raises as `check_published`."""
    batches = [b for b in row.pending.batches if (b.topic, b.topic_id) == (log.name, topic_id)]

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

    made = log.transact(decide, prove_later=prove_later)
    if isinstance(made, Settled) and made.missing:
        # A fence beside the decision has changed the time of the row.
        is_changed = row.owner.fenced is not None and row.owner.fenced.at_ms == row.updated_ms
        decided_ms = -1 if is_changed else row.updated_ms
        check_published(log, made.missing, row.transactional_id, decided_ms=decided_ms)
    return made is not None


def _move_offsets(
    root: Root, row: TransactionMetadata, reading: Reading | None, *, prove_later: bool = False
) -> Reading | None:
    """Step 3; the newest reading of the row, see `_while_decided`."""
    return _while_decided(root, row, reading, partial(_end_groups, root, row, prove_later))


def _end_groups(
    root: Root,
    row: TransactionMetadata,
    prove_later: bool,
    reading: Reading,
) -> bool:
    """Step 3, and beside it the proofs of step 2; False as in `_write_marker`.

    A marker that is not proved is looked for, and written, again: of a decided transaction, so the
    group's new offsets are right before it, too. Only COMPLETE must follow the proofs.
    """
    calls = [partial(_write_offsets, root, row, reading, prove_later)]
    calls += [partial(root.topic_log(topic).log.prove) for topic in _topics_of(row)]
    is_written, *proofs = root.store.together(calls)
    if is_written and not all(proofs):
        _write_markers(root, row, TransactionResult.COMMIT, reading, prove_later=True)
        return False
    return is_written


def _write_offsets(
    root: Root,
    row: TransactionMetadata,
    reading: Reading,
    prove_later: bool,
) -> bool:
    """Step 3 in every shard that has groups of the transaction; False as in `_write_marker`."""
    shards = by_shard(root, row.moves, _group_id)
    written = root.store.together(
        [
            partial(_write_offsets_shard, log, row, reading, carried, prove_later)
            for log, carried in shards
        ]
    )
    return all(written)


def _write_offsets_shard(
    offsets: OffsetsLog,
    row: TransactionMetadata,
    reading: Reading,
    carried: Sequence[GroupTicket],
    prove_later: bool,
) -> bool:
    clock = offsets.store.clock
    is_late = False

    def decide(view: RowView[Group], version: int) -> OffsetsCommit | None:
        nonlocal is_late
        is_late = not reading.counts_for(offsets.log)
        if is_late:
            return None
        return prepare_carried_offsets(
            view.rows,
            view.markers,
            carried,
            transaction=row.transaction,
            version=version,
            now_ms=clock.now_ms(),
        )

    offsets.change(decide, prove_later=prove_later)
    return not is_late


def _group_id(one: GroupTicket) -> str:
    return one.group_id


def _still_decided(root: Root, row: TransactionMetadata) -> Reading | None:
    """A new reading of the row; None if this transaction is no longer prepared."""
    reading = Reading.begin(root.store.clock)
    now = describe(root, row.transactional_id, sure=True)
    if now is None or not now.state.is_prepared:
        return None
    return reading if now.transaction == row.transaction else None
