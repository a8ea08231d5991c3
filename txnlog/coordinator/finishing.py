"""Steps 2 to 4 of a decided transaction: any process may complete them, and the decision of one
that a table decides.

Each log refuses a step that it already has, so concurrent or late helpers change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from txnlog.coordinator.helping import Helping
from txnlog.coordinator.phases import Phases
from txnlog.coordinator.root import Root, by_shard
from txnlog.coordinator.staged_files import check_published, check_there
from txnlog.coordinator.state_rows import describe
from txnlog.coordinator.tables import TablePublications
from txnlog.errors import RESTORE_ALL, InvalidCommitError, LogGapError, TxnLogError
from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures, caught
from txnlog.protocol.appends import Settled, has_marker, prepare_marker
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.groups import Group, OffsetsCommit
from txnlog.protocol.helping import with_markers
from txnlog.protocol.metadata import GroupTicket, StagedBatch, TransactionMetadata
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.tickets import prepare_carried_offsets
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.protocol.transitions import Done, Transition, prepare_complete, prepare_decided
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.row_log import OffsetsLog, RowView
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")


def finish(root: Root, row: TransactionMetadata) -> TransactionMetadata | None:
    """Steps 2 to 4 of a transaction that any process decided, or let a table decide; returns the
    row afterwards.
    """
    if not row.is_ending:
        return row
    if not publish(root, row):
        return describe(root, row.transactional_id)
    return complete(root, row)


def decide(
    root: Root,
    row: TransactionMetadata,
    *,
    reading: Reading | None = None,
    parts: Mapping[str, Part] = {},
) -> tuple[TransactionMetadata | None, str | None]:
    """Let a table decide the transaction, by its change or a fence, and write PREPARE_* (D147).

    Returns the row afterwards, and why the table refused the change: "" if it did not, None if
    another process has ended the transaction before this one read the table. `reading` and `parts`
    as in `publish` and `publish_own`. Raises what reading and writing the table raise: it decides
    when the next process asks.
    """
    table, clock = row.decider, root.store.clock
    assert table is not None
    while True:
        if reading is None:
            reading, now = Reading.begin(clock), describe(root, row.transactional_id, sure=True)
            if now is None or now.decider is None or now.transaction != row.transaction:
                return now, None
        with TablePublications(root, row, parts) as tables:
            why = tables.decide(table, reading)
        moved = None if why is None else _write_decision(root, row, reading, why)
        if moved is not None and why is not None:
            return moved[0], why
        reading = None


def _write_decision(
    root: Root, row: TransactionMetadata, reading: Reading, why: str
) -> tuple[TransactionMetadata | None] | None:
    """The row afterwards; None: not written, because the row was read too long ago."""
    is_late = False

    def prepare(now: TransactionMetadata | None) -> Transition | Done:
        # The table may forget a fence some days after.
        nonlocal is_late
        is_late = not reading.is_young(root.store.clock, root.settings.trust_ms)
        if is_late:
            return Done(now)
        result = TransactionResult.ABORT if why else TransactionResult.COMMIT
        return prepare_decided(
            now, transaction=row.transaction, result=result, now_ms=root.store.clock.now_ms()
        )

    moved = root.shard_for(row.transactional_id).transition(row.transactional_id, prepare)
    return None if is_late else (moved,)


def publish(root: Root, row: TransactionMetadata, *, reading: Reading | None = None) -> bool:
    """Steps 2 and 3 of a decided transaction: every reader sees it, COMPLETE is left.

    Looks whether the files are there: a topic's folder may have been restored since the decision,
    and readers stop at a header without its file. `reading` began before the row was read; without
    it the row is read again. A topic or table that cannot be written delays only its own marker or
    part: the others are written, then its error is raised, and the row stays decided for the next
    process to finish (R37). False if another process has finished it. One that a table decides is
    decided first.
    """
    if row.decider is not None:
        transaction, decided = row.transaction, decide(root, row, reading=reading)[0]
        if decided is None or not decided.state.is_prepared or decided.transaction != transaction:
            return False
        row = decided
    looks = row.state is TransactionState.PREPARE_COMMIT
    return _publish(root, row, reading, Phases(), {}, looks=looks)


def publish_own(
    root: Root,
    row: TransactionMetadata,
    *,
    reading: Reading,
    phases: Phases,
    parts: Mapping[str, Part] = {},
) -> bool:
    """As `publish`, of what this process has just decided, and staged before: it does not look.

    `reading` began before the row was written; `phases` are those of the commit, `parts` those of
    its tables.
    """
    return _publish(root, row, reading, phases, parts, looks=False)


def finish_own(root: Root, row: TransactionMetadata, *, reading: Reading, phases: Phases) -> None:
    """Steps 2 to 4 of what this process has just decided, as `publish_own`; an error of 2 or 3 has
    `decided` in its context.
    """
    try:
        is_left = publish_own(root, row, reading=reading, phases=phases)
    except TxnLogError as error:
        error.context["decided"] = TransactionResult.of(row.state)
        raise
    if is_left:
        complete_own(root, row, phases)


def complete_own(root: Root, row: TransactionMetadata, phases: Phases) -> None:
    """Step 4 of what this process has just published: an error of it leaves it to a sweep."""
    outcome = caught(partial(complete, root, row, phases=phases))
    if isinstance(outcome, TxnLogError):
        logger.info("COMPLETE of %r is left to a sweep: %s", row.transactional_id, outcome)


def _publish(
    root: Root,
    row: TransactionMetadata,
    reading: Reading | None,
    phases: Phases,
    parts: Mapping[str, Part],
    *,
    looks: bool,
) -> bool:
    with TablePublications(root, row, parts) as tables:
        with phases.measure("publish"):
            reading = _write_markers(root, row, reading, tables, looks=looks)
        if reading is None:
            return False
        reach("markers.after")
        calls: list[Callable[[], object]] = []
        if row.moves:
            write = partial(_write_offsets, root, row)
            calls.append(partial(_while_decided, root, row, reading, write))
        if not tables.are_proved:
            calls.append(tables.prove)
        if calls:
            with phases.measure("offsets"):
                made = root.store.together(calls)
            if row.moves and made[0] is None:
                return False
    reach("offsets.after")
    return True


def complete(
    root: Root, row: TransactionMetadata, *, phases: Phases | None = None
) -> TransactionMetadata | None:
    """Step 4 of a transaction that is published; returns the row afterwards, whoever wrote it."""
    clock = root.store.clock
    shard = root.shard_for(row.transactional_id)
    return shard.transition(
        row.transactional_id,
        lambda now: prepare_complete(now, transaction=row.transaction, now_ms=clock.now_ms()),
        # A helper has measured only part of the commit.
        parameters=dict if phases is None else phases.parameters,
    )


def _write_markers(
    root: Root,
    row: TransactionMetadata,
    reading: Reading | None,
    tables: TablePublications,
    *,
    looks: bool,
) -> Reading | None:
    """Step 2 in all topics and tables together; the newest reading of the row, see
    `_while_decided`.
    """
    work = f"Markers of {row.transactional_id!r} at epoch {row.txn_epoch}"
    failures = Failures(work, logging.DEBUG)
    left: dict[str, Callable[[Reading], bool]] = {
        f"topic {topic!r}": partial(
            _write_markers_of, root, root.topic_log(topic), row, ids, looks=looks
        )
        for topic, ids in sorted(_topics_of(row).items())
    }
    for table in (one for one in row.tables if one.mode != "merge"):
        left[f"table {table.name!r}"] = partial(tables.publish, table)
    is_row_old = False

    def write(reading: Reading) -> bool:
        """Write what is left; False as in `_write_marker`."""
        nonlocal is_row_old
        calls = [partial(caught, partial(publish, reading)) for publish in left.values()]
        for part, outcome in zip(list(left), root.store.together(calls), strict=True):
            if isinstance(outcome, TxnLogError):
                failures.add(part, outcome)
                is_row_old |= isinstance(outcome, LogGapError)
            if outcome is not False:
                del left[part]
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
    root: Root,
    log: TopicLog,
    row: TransactionMetadata,
    topic_ids: Sequence[str],
    reading: Reading,
    *,
    looks: bool,
) -> bool:
    """Step 2 in one topic; False as in `_write_marker`."""
    for topic_id in topic_ids:
        batches = [b for b in row.pending.batches if (b.topic, b.topic_id) == (log.name, topic_id)]
        if looks and batches:
            log.refresh()
            if not has_marker(log.view, topic_id, row.transaction):
                check_there(log.store, batches, row.transactional_id)
        # What this process has just decided: others may be about to publish there, too.
        helping = None if looks or log.store.is_local else root.helping(log)
        if not _write_marker(log, row, topic_id, batches, reading, helping):
            return False
        reach("marker.after")
    return True


def _write_marker(
    log: TopicLog,
    row: TransactionMetadata,
    topic_id: str,
    batches: Sequence[StagedBatch],
    reading: Reading,
    helping: Helping | None,
) -> bool:
    """False: not written, because the row was read too long ago. Raises as `check_published`."""

    def decide(state: TopicState) -> TopicCommit | Settled | None:
        if not reading.counts_for(log.log):
            return None
        mine = prepare_marker(
            state,
            topic_id=topic_id,
            transaction=row.transaction,
            result=TransactionResult.of(row.state),
            batches=batches,
            app=row.pending.app,
        )
        if isinstance(mine, Settled) or helping is None or not helping.reading.counts_for(log.log):
            return mine
        return with_markers(state, mine, log.name, helping.rows)

    if helping is None:
        made = log.transact(decide)
    else:
        made = _transact_with_others(log, decide, helping, row, topic_id)
    if isinstance(made, Settled) and made.missing:
        # What a client has prepared, or a table decided, may be much older than that (R72).
        changes = any(table.mode == "merge" for table in row.tables)
        decided_ms = row.updated_ms if changes or row.pending.prepared_by_client else -1
        check_published(log, made.missing, row.transactional_id, decided_ms=decided_ms)
    return made is not None


def _transact_with_others(
    log: TopicLog,
    decide: Callable[[TopicState], TopicCommit | Settled | None],
    helping: Helping,
    row: TransactionMetadata,
    topic_id: str,
) -> TopicCommit | Settled | None:
    """As TopicLog.transact, where others may be about to publish in the topic, too."""

    def is_published() -> bool:
        return has_marker(log.view, topic_id, row.transaction)

    helping.rows = []
    refresh, guesses = partial(helping.refresh, is_published), not helping.is_contended
    try:
        made = log.transact(decide, refresh=refresh, guesses=guesses)
    except InvalidCommitError:
        if not helping.rows:
            raise
        helping.leave_rows()
        return log.transact(decide)
    if helping.rows:
        reach("helping.after")
    return made


def _write_offsets(root: Root, row: TransactionMetadata, reading: Reading) -> bool:
    """Step 3 in every shard that has groups of the transaction; False as in `_write_marker`."""
    shards = by_shard(root, row.moves, _group_id)
    written = root.store.together(
        [partial(_write_offsets_shard, root, log, row, reading, carried) for log, carried in shards]
    )
    return all(written)


def _write_offsets_shard(
    root: Root,
    offsets: OffsetsLog,
    row: TransactionMetadata,
    reading: Reading,
    carried: Sequence[GroupTicket],
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

    offsets.change(decide)
    newest = offsets.view.markers.get(row.producer_id, -1)
    if newest > row.txn_epoch and _still_decided(root, row) is not None:
        raise LogGapError(
            f"{offsets.path} has a marker of epoch {newest} of producer id {row.producer_id}, and "
            f"{row.transactional_id!r} has just decided epoch {row.txn_epoch} under that id: "
            "`__cluster`, or the id's row, is of an older state, and its offsets cannot be moved. "
            f"{RESTORE_ALL}",
            transactional_id=row.transactional_id,
        )
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
