"""The timeline: what each transactional.id did in a window, from the changes of its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.moments import Bar, Lane, Phase, Tick, TickKind
from txnlog.protocol.panels.changes import Window
from txnlog.protocol.problems import RootState
from txnlog.protocol.states import TransactionState
from txnlog.protocol.stories import RowChange, change_texts
from txnlog.protocol.transitions import EXPIRE
from txnlog.protocol.waiting import is_published

LANES_MAX = 200
LATE_MS = 5_000
"""A process that publishes its own transaction takes less."""

_PHASES = {
    TransactionState.ONGOING: Phase.ONGOING,
    TransactionState.PREPARE_COMMIT: Phase.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT: Phase.PREPARE_ABORT,
}
_ENDS = {
    TransactionState.PREPARE_COMMIT: Phase.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: Phase.COMPLETE_ABORT,
}
_KINDS = {
    "TIME OUT": TickKind.TIMED_OUT,
    EXPIRE: TickKind.EXPIRED,
}


def lanes(
    state: RootState,
    changes: Mapping[str, Sequence[RowChange]],
    published: Mapping[ProducerIdAndEpoch, int],
    window: Window,
) -> list[Lane]:
    """The lanes of ids that did something in the window, or have not ended a transaction; the
    newest first, LANES_MAX at most.
    """
    rows = {row.transactional_id: row for row in state.rows}
    found = []
    for name in {*rows, *changes}:
        row, own = rows.get(name), list(changes.get(name, ()))
        if not own and (row is None or row.state.is_idle or is_published(row, state)):
            continue
        found.append(_lane(name, row, own, published, state, window))
    found = [lane for lane in found if lane.bars or lane.ticks]
    return sorted(found, key=lambda lane: (-_newest_ms(lane), lane.transactional_id))[:LANES_MAX]


def _newest_ms(lane: Lane) -> int:
    if any(bar.until_ms is None for bar in lane.bars):
        return 2**62
    times = [bar.since_ms for bar in lane.bars] + [tick.at_ms for tick in lane.ticks]
    return max(times)


def _lane(
    name: str,
    row: TransactionMetadata | None,
    changes: list[RowChange],
    published: Mapping[ProducerIdAndEpoch, int],
    state: RootState,
    window: Window,
) -> Lane:
    last = row or next((one.row for one in reversed(changes) if one.row is not None), None)
    title, owner = name, ""
    if last is not None:
        title = last.owner.query_name or last.owner.query_id or name
        owner = last.owner.describe()
    if row is not None and (not changes or changes[-1].row != row):
        # Of before the window, or the history could not be read.
        changes = [*changes, _now(row)]
    bars = [bar for bar in _bars(changes, published, state) if _is_within(bar, window)]
    ticks = [tick for tick in _ticks(changes, published) if window.since_ms <= tick.at_ms]
    return Lane(name, title, owner, bars, sorted(ticks, key=lambda tick: tick.at_ms))


def _now(row: TransactionMetadata) -> RowChange:
    is_open = row.state is TransactionState.ONGOING
    at_ms = row.started_ms if is_open else row.updated_ms
    return RowChange(at_ms, -1, row.transactional_id, row)


def _is_within(bar: Bar, window: Window) -> bool:
    return bar.until_ms is None or bar.until_ms >= window.since_ms


def _bars(
    changes: Sequence[RowChange],
    published: Mapping[ProducerIdAndEpoch, int],
    state: RootState,
) -> Iterator[Bar]:
    """One bar for each state that a transaction was in; changes within a state are one bar."""
    steps: list[RowChange] = []
    for change in changes:
        row, before = change.row, steps[-1].row if steps else None
        if row is None or before is None or _step(row) != _step(before):
            steps.append(change)
    opened: ProducerIdAndEpoch | None = None
    for at, change in enumerate(steps):
        row, after = change.row, steps[at + 1] if at + 1 < len(steps) else None
        if row is None or row.state not in _PHASES:
            continue
        since_ms = change.at_ms
        if row.state is TransactionState.ONGOING:
            opened, since_ms = row.transaction, min(since_ms, row.started_ms)
        elif row.partitions and opened != row.transaction:
            yield Bar(row.transaction, Phase.ONGOING, row.started_ms, since_ms)
        until_ms = None if after is None else after.at_ms
        transaction = row.transaction
        if row.state in _ENDS:
            seen_ms = published.get(transaction)
            if seen_ms is not None and (until_ms is not None or is_published(row, state)):
                until_ms = max(change.at_ms, min(seen_ms, until_ms or seen_ms))
            elif until_ms is None and is_published(row, state):
                until_ms = change.at_ms
        yield Bar(transaction, _PHASES[row.state], since_ms, until_ms)
        if row.state in _ENDS and until_ms is not None:
            yield Bar(transaction, _ENDS[row.state], until_ms, until_ms)


def _step(row: TransactionMetadata) -> tuple[ProducerIdAndEpoch, TransactionState]:
    return row.transaction, row.state


def _ticks(
    changes: Sequence[RowChange], published: Mapping[ProducerIdAndEpoch, int]
) -> Iterator[Tick]:
    before: TransactionMetadata | None = None
    is_first = True
    for change in changes:
        kind = _kind(before, change, is_first=is_first)
        if kind is not None:
            texts = [text for is_ordinary, text in change_texts(before, change) if not is_ordinary]
            yield Tick(change.at_ms, kind, " ".join(texts))
        late = _finished_late(before, change, published)
        if late is not None:
            yield late
        before, is_first = change.row, False


def _kind(
    before: TransactionMetadata | None, change: RowChange, *, is_first: bool
) -> TickKind | None:
    row = change.row
    if change.operation in _KINDS:
        is_one_off = row is None and before is not None and before.owner.one_off
        return None if is_one_off else _KINDS[change.operation]
    if row is None:
        return None
    if before is None:
        is_begun = change.operation == "INIT PRODUCER ID" and row.producer_epoch == 0
        return TickKind.BEGUN if is_begun or not is_first else None
    note = row.owner.fenced
    if note is not None and note != before.owner.fenced:
        return TickKind.FENCED
    if row.owner.floors != before.owner.floors:
        return TickKind.FENCED
    return TickKind.BEGUN if row.owner.run_id != before.owner.run_id else None


def _finished_late(
    before: TransactionMetadata | None,
    change: RowChange,
    published: Mapping[ProducerIdAndEpoch, int],
) -> Tick | None:
    """Its own process says in the COMPLETE how long it took, and takes less than LATE_MS."""
    if before is None or not before.state.is_prepared or "totalMs" in change.parameters:
        return None
    seen_ms = published.get(before.transaction, -1)
    late_ms = seen_ms - before.updated_ms
    if late_ms < LATE_MS:
        return None
    text = (
        f"The transaction of epoch {before.txn_epoch} became visible {late_ms // 1000} s after it "
        "was decided: another process, or a sweep, finished it."
    )
    return Tick(seen_ms, TickKind.FINISHED_BY_OTHER, text)
