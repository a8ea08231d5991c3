"""Which batches a look-up by time reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnlog.protocol.batches import NONE, BatchHeader, encode_stats
from txnlog.protocol.timestamps import Candidate, candidates

DAY_MS = 86_400_000


def header(base: int, times_ms: list[int], *, stats: str | None = None) -> BatchHeader:
    """A batch at `base` whose records have these times."""
    found = encode_stats(len(times_ms), min(times_ms) * 1000, max(times_ms) * 1000)
    last = base + len(times_ms) - 1
    return BatchHeader(f"{base}", 0, base, last, -1, -1, -1, NONE, 1, stats or found)


def look_up(batches: list[tuple[int, list[int]]], time_ms: int, start: int) -> int | None:
    """The look-up, with all records in memory."""
    times = dict(batches)
    for found, offset in candidates([header(*batch) for batch in batches], time_ms, start):
        if offset is not None:
            return offset
        for at, at_ms in enumerate(times[found.base_offset], found.base_offset):
            if at >= start and at_ms >= time_ms:
                return at
    return None


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), max_size=8),
    st.integers(0, 21),
    st.integers(0, 10),
)
def test_candidates_lead_to_the_first_record_so_late(
    batches: list[list[int]], time_ms: int, start: int
) -> None:
    """Unordered timestamps, batches cut by the log start: the result equals a full scan's."""
    placed, base = [], 0
    for times in batches:
        placed.append((base, times))
        base += len(times)
    start = min(start, base)
    records = [at_ms for _, times in placed for at_ms in times]
    expected = next((o for o in range(start, base) if records[o] >= time_ms), None)
    visible = [(first, times) for first, times in placed if first + len(times) > start]
    assert look_up(visible, time_ms, start) == expected


def test_candidates_headers_alone_answer_for_a_batch_that_is_late_as_a_whole() -> None:
    """A look-up at the start of a day need not open a file."""
    batches = [header(0, [5, 1]), header(2, [9, 8]), header(4, [7])]
    assert list(candidates(batches, 8, 0)) == [Candidate(batches[1], 2)]
    assert next(candidates(batches, 3, 0)) == Candidate(batches[0], None)
    assert list(candidates(batches, 8, 3)) == [Candidate(batches[1], 3)]


def test_candidates_batch_with_erased_records_is_read() -> None:
    """Its first offset may be an erased one."""
    erased = header(0, [5, 5, 5], stats=encode_stats(2, 5000, 5000))
    assert list(candidates([erased], 1, 0)) == [Candidate(erased, None)]


def test_candidates_batch_of_unknown_times_is_read() -> None:
    """Statistics are a hint: a file without them may hold the result."""
    unknown = header(0, [5], stats='{"numRecords":1}')
    assert list(candidates([unknown], DAY_MS, 0)) == [Candidate(unknown, None)]


def test_candidates_time_beyond_every_calendar_finds_nothing() -> None:
    """It must not overflow the timestamp type (R60)."""
    unknown = header(0, [5], stats='{"numRecords":1}')
    assert list(candidates([unknown], 2**63, 0)) == []
