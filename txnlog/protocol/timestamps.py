"""Which batches may hold the first record of a time, from their headers alone.

Mirrors the search behind Kafka's offsetsForTimes: the offset of the first record, in offset order,
whose timestamp is at or after a time. Timestamps need not rise with offsets, so the first batch
that holds one so late is looked for from the left. Times are whole milliseconds: statistics that
another writer cut off to milliseconds give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from txnlog.protocol.batches import BatchHeader


class Candidate(NamedTuple):
    """A batch to look into; `offset` is the answer where the header gives it, else None."""

    header: BatchHeader
    offset: int | None


def candidates(
    batches: Iterable[BatchHeader], timestamp_ms: int, start: int
) -> Iterator[Candidate]:
    """Yield the batches that may hold a record of `timestamp_ms` or later at `start` or after.

    `batches` in offset order, none of them undecided or aborted if that is not to be seen (R15).
    The first record found in them is the answer; a batch that holds none is passed over, since its
    times may be unknown, or be those of records below `start`.
    """
    time_us = timestamp_ms * 1000
    for header in batches:
        num_records, min_us, max_us = header.statistics
        if max_us < time_us:
            continue
        is_whole = num_records == header.last_offset - header.base_offset + 1
        is_all_late = is_whole and min_us >= time_us
        yield Candidate(header, max(start, header.base_offset) if is_all_late else None)
