"""The pure part of the panels: records that are new, ends over time, bars and ticks of a row."""

from __future__ import annotations

from msgspec.structs import replace

from tests.protocol.test_diagnosis import DECIDED, IDLE, NOW_MS, OPEN, OWNER, state
from txnlog.protocol.metadata import Fenced, ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.moments import Lane, Phase, Point, TickKind
from txnlog.protocol.panels.changes import (
    MARKERS,
    Appended,
    TopicChange,
    Window,
    appended,
    log_ends,
    new_records,
    rates,
    thinned,
)
from txnlog.protocol.panels.timeline import lanes
from txnlog.protocol.states import TransactionState
from txnlog.protocol.stories import RowChange
from txnlog.protocol.transitions import EXPIRE, TAKEN_OVER

WINDOW = Window(NOW_MS - 60_000, NOW_MS)
A, B = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
NOBODY = ProducerIdAndEpoch(-1, -1)


def piece(of: ProducerIdAndEpoch, status: str, first: int, last: int) -> Appended:
    return Appended(0, of, status, first, last, last + 1 - first)


def change(ago_ms: int, operation: str, *pieces: Appended) -> TopicChange:
    transaction = pieces[0].transaction if pieces else NOBODY
    marked = (transaction,) if operation == MARKERS else ()
    return TopicChange(NOW_MS - ago_ms, 0, operation, transaction, pieces, marked)


EAGER = [
    change(50_000, "PRODUCE", piece(A, "ongoing", 0, 4)),
    change(40_000, "PRODUCE", piece(B, "ongoing", 5, 6)),
    change(30_000, MARKERS, piece(B, "committed", 5, 6)),
    change(20_000, MARKERS, piece(A, "aborted", 0, 4)),
    change(10_000, "COMPACT", piece(NOBODY, "none", 0, 6)),
]


def test_records_are_counted_when_they_come_and_not_when_they_are_settled() -> None:
    """A marker adds the same files again; compaction writes the same records again."""
    found = list(new_records(EAGER, WINDOW))
    assert [(one.producer_id, one.records) for one in found] == [(1, 5), (2, 2)]
    assert list(new_records(EAGER, Window(NOW_MS - 45_000, NOW_MS))) == found[1:]


def test_end_over_time_is_moved_by_what_is_appended_and_not_by_markers() -> None:
    ends = [(NOW_MS - at_ms, end) for at_ms, _, end in log_ends(EAGER)]
    assert ends == [(50_000, 5), (40_000, 7)]


def test_rates_sum_up_to_the_records() -> None:
    found = rates(list(new_records(EAGER, WINDOW)), WINDOW)
    assert sum(point.value for point in found) == 7
    assert found[10] == Point(NOW_MS - 50_000, 5.0)
    assert rates([], WINDOW) == []


def test_thinned_line_keeps_the_last_value_of_each_step() -> None:
    points = [Point(NOW_MS - 59_900, 1), Point(NOW_MS - 59_500, 2), Point(NOW_MS - 100, 3)]
    assert thinned(points, WINDOW) == [Point(NOW_MS - 59_000, 2), Point(NOW_MS, 3)]


def test_batches_of_a_producer_are_one_piece_that_knows_its_gaps() -> None:
    """What is between them is another producer's: it must not be taken for theirs."""
    values = {"partition": "0", "producer_id": "1", "producer_epoch": "0", "txn_status": "none"}
    [found] = appended(
        [
            {**values, "base_offset": "4", "last_offset": "5"},
            {**values, "base_offset": "0", "last_offset": "1"},
        ]
    )
    assert (found.base_offset, found.last_offset, found.offsets) == (0, 5, 4)
    assert not found.holds(0, 3)
    assert piece(A, "none", 0, 3).holds(0, 3)
    assert not piece(A, "none", 0, 3).holds(1, 3)


# --- Timeline -------------------------------------------------------------------------------------


def row_change(
    ago_ms: int, row: TransactionMetadata | None, operation: str, **told: str
) -> RowChange:
    return RowChange(
        NOW_MS - ago_ms, 0, OPEN.transactional_id, row, operation=operation, parameters=told
    )


def lane(
    *changes: RowChange,
    row: TransactionMetadata | None = None,
    published: dict[ProducerIdAndEpoch, int] | None = None,
) -> Lane:
    rows = [row] if row is not None else []
    [found] = lanes(state(*rows), {OPEN.transactional_id: changes}, published or {}, WINDOW)
    return found


def test_open_transaction_of_before_the_window_is_a_bar_without_an_end() -> None:
    old = replace(OPEN, started_ms=NOW_MS - 900_000)
    [found] = lanes(state(old), {}, {}, WINDOW)
    [bar] = found.bars
    assert (bar.phase, bar.since_ms, bar.until_ms) == (Phase.ONGOING, NOW_MS - 900_000, None)
    assert found.title == "hourly"


def test_idle_id_without_changes_has_no_lane() -> None:
    assert lanes(state(IDLE), {}, {}, WINDOW) == []


def test_transaction_that_was_published_late_was_finished_by_another_process() -> None:
    """A COMPLETE alone proves nothing: sweeps write it for live producers, too."""
    decided = replace(DECIDED, updated_ms=NOW_MS - 40_000)
    done = replace(decided, state=TransactionState.COMPLETE_COMMIT)
    changes = row_change(40_000, decided, "PREPARE_COMMIT"), row_change(5_000, done, "COMPLETE")
    late = lane(*changes, published={decided.transaction: NOW_MS - 10_000})
    assert [tick.kind for tick in late.ticks] == [TickKind.FINISHED_BY_OTHER]
    assert [bar.until_ms for bar in late.bars] == [NOW_MS - 10_000] * 2
    soon = lane(*changes, published={decided.transaction: NOW_MS - 39_900})
    assert soon.ticks == []
    own = changes[0], row_change(5_000, done, "COMPLETE", totalMs="30000.0")
    assert lane(*own, published={decided.transaction: NOW_MS - 10_000}).ticks == []


def test_time_out_expiry_and_take_over_are_ticks() -> None:
    note = Fenced(by="a sweeper", at_ms=NOW_MS - 30_000, reason="timed out")
    aborting = replace(
        OPEN,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=OPEN.producer_epoch + 1,
        owner=replace(OWNER, fenced=note),
    )
    aborted = replace(aborting, state=TransactionState.COMPLETE_ABORT)
    taken = replace(note, by="run2", at_ms=NOW_MS - 10_000, reason=TAKEN_OVER)
    again = replace(aborted, owner=replace(OWNER, run_id="run2", fenced=taken))
    found = lane(
        row_change(40_000, OPEN, "ADD PARTITIONS TO TXN"),
        row_change(30_000, aborting, "TIME OUT"),
        row_change(29_000, aborted, "COMPLETE_ABORT"),
        row_change(10_000, again, "INIT PRODUCER ID"),
        row_change(1_000, None, EXPIRE),
    )
    assert [tick.kind for tick in found.ticks] == [
        TickKind.TIMED_OUT,
        TickKind.FENCED,
        TickKind.EXPIRED,
    ]
    assert "timed out" in found.ticks[0].text
    assert [bar.phase for bar in found.bars] == [
        Phase.ONGOING,
        Phase.PREPARE_ABORT,
        Phase.COMPLETE_ABORT,
    ]


def test_what_happened_within_a_millisecond_is_in_the_order_of_the_log() -> None:
    note = Fenced(by="run2", at_ms=NOW_MS - 10_000, reason=TAKEN_OVER)
    again = replace(IDLE, owner=replace(OWNER, run_id="run2", fenced=note))
    changes = row_change(10_000, again, "INIT PRODUCER ID"), row_change(10_000, None, EXPIRE)
    found = lane(row_change(20_000, IDLE, "INIT PRODUCER ID"), *changes)
    assert [tick.kind for tick in found.ticks][-2:] == [TickKind.FENCED, TickKind.EXPIRED]
