"""Which batches may hold the first record of a time, from their headers alone.

Mirrors the search behind Kafka's offsetsForTimes: the offset of the first record, in offset order,
whose timestamp is at or after a time. Timestamps need not rise with offsets, so the search starts
at the lowest offset. Times are whole milliseconds, so statistics that another writer truncated to
milliseconds give the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from txnlog.protocol.batches import BatchHeader

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
"""What Kafka's ListOffsets takes in the place of a time: the end of a partition, its start."""


class Candidate(NamedTuple):
    """A batch to search; `offset` is the result if the header gives it, else None."""

    header: BatchHeader
    offset: int | None


def candidates(
    batches: Iterable[BatchHeader], timestamp_ms: int, start: int
) -> Iterator[Candidate]:
    """Yield the batches that may hold a record of `timestamp_ms` or later at `start` or after.

    `batches` are in offset order, and only those that the reader may see (R15). The first record
    found in them is the result. A batch may hold none, since its times may be unknown, or be those
    of records below `start`.
    """
    time_us = timestamp_ms * 1000
    for header in batches:
        num_records, min_us, max_us = header.statistics
        if max_us < time_us:
            continue
        is_whole = num_records == header.last_offset - header.base_offset + 1
        is_all_late = is_whole and min_us >= time_us
        yield Candidate(header, max(start, header.base_offset) if is_all_late else None)
