"""Which files of a topic retention removes: past its limits, or completely below the log start.

Mirrors deleteOldSegments of Kafka's UnifiedLog, with a file in place of a segment: per partition,
whole files, oldest first, none with an offset at or above the last stable offset. The log start
becomes the oldest remaining record. A file below it stays if it holds one of the last batches of
an idempotent producer, until the producer expires, since the producer may still repeat the batch
(R22). A file with an undecided batch stays until its marker is written. The commit that removes a
partition's newest file also writes the partition's end, which must not go back (D42).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from txnlog.protocol.batches import ONGOING, BatchHeader
from txnlog.protocol.topics import (
    PartitionState,
    TopicCommit,
    TopicState,
    end_app_id,
    start_app_id,
)

FILES_MAX = 10_000
"""Maximum number of files that one commit removes."""

UNDATED_MAX = 100
"""Maximum number of files whose age one decision asks for."""

_TIME_MS_MAX = 253_402_300_800_000
"""The year 10000: a later time in statistics means that the time is unknown."""

_last_offset = attrgetter("last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """retention.ms and retention.bytes where cleanup.policy has `delete`; -1: no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Undated:
    """Files whose age is needed and is not in their statistics: ask the store."""

    paths: tuple[str, ...]


def prepare_retention(
    state: TopicState,
    *,
    limits: RetentionLimits,
    now_ms: int,
    written_ms: Mapping[str, int],
    files_max: int = FILES_MAX,
) -> TopicCommit | Undated | None:
    """The next commit that removes files; None if there is nothing to remove.

    `written_ms` maps paths to the times they were written, by the store's clock, as `now_ms` is. It
    is used for files without times in their statistics, as Kafka uses a segment's last
    modification. Only the oldest files are examined.
    """
    if state.deleted:
        return None
    scan = _Scan(limits, now_ms, written_ms)
    removes: list[str] = []
    txns: dict[str, int] = {}
    for number, partition in enumerate(state.partitions):
        left = files_max - len(removes)
        if left == 0:
            break
        cut = scan.first_kept(partition, left)
        gone, cut = _removable(state, partition.batches[:cut], left)
        removes += [batch.path for batch in gone]
        txns.update(_bounds(partition, number, cut, gone))
    if scan.undated:
        return Undated(tuple(scan.undated))
    if not removes and not txns:
        return None
    return TopicCommit(operation="DELETE EXPIRED", removes=tuple(removes), txns=txns)


def newest_record_ms(batch: BatchHeader, written_ms: Mapping[str, int]) -> int | None:
    """The time of a file's newest record, or when it was written; None if the store must say it."""
    stated_ms = batch.timestamp_max_us // 1000
    return stated_ms if 0 <= stated_ms < _TIME_MS_MAX else written_ms.get(batch.path)


def _bounds(
    partition: PartitionState, number: int, cut: int, gone: Sequence[BatchHeader]
) -> dict[str, int]:
    """The start and end to write to the log where the remaining files do not show them."""
    batches = partition.batches
    start = batches[cut].base_offset if cut < len(batches) else partition.end_offset
    bounds = {}
    if cut > len(gone) and start > partition.log_start_offset:
        bounds[start_app_id(number)] = start
    if gone and gone[-1] is batches[-1]:
        bounds[end_app_id(number)] = partition.end_offset
    return bounds


def _removable(
    state: TopicState, batches: Sequence[BatchHeader], count_max: int
) -> tuple[list[BatchHeader], int]:
    """Up to `count_max` batches whose files can be removed, and how many were examined."""
    gone: list[BatchHeader] = []
    for at, batch in enumerate(batches):
        if len(gone) >= count_max:
            return gone, at
        if batch.status != ONGOING and not state.may_be_repeated(batch):
            gone.append(batch)
    return gone, len(batches)


class _Scan:
    """One scan of a topic. If `undated` is not empty, it must be repeated with their times."""

    def __init__(self, limits: RetentionLimits, now_ms: int, written_ms: Mapping[str, int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._written_ms = written_ms
        self.undated: list[str] = []

    def first_kept(self, partition: PartitionState, files_max: int) -> int:
        """Index of the first batch whose records stay, after up to `files_max` expired batches."""
        batches = partition.batches
        below = bisect_left(batches, partition.log_start_offset, key=_last_offset)
        stable = bisect_left(batches, partition.last_stable_offset, key=_last_offset)
        cut = below
        for batch in batches[below : min(stable, below + files_max)]:
            if not self._is_past(batch):
                break
            cut += 1
        return max(cut, min(stable, self._beyond_size(partition)))

    def _is_past(self, batch: BatchHeader) -> bool:
        """Whether its newest record is older than retention.ms."""
        retention_ms = self._limits.retention_ms
        if retention_ms < 0 or len(self.undated) >= UNDATED_MAX:
            return False
        newest_ms = newest_record_ms(batch, self._written_ms)
        if newest_ms is None:
            self.undated.append(batch.path)
            return True
        return self._now_ms - newest_ms > retention_ms

    def _beyond_size(self, partition: PartitionState) -> int:
        """Index of the oldest batch that retention.bytes keeps."""
        limit = self._limits.retention_bytes
        at, kept_bytes = len(partition.batches), 0
        while at and kept_bytes < limit:
            at -= 1
            kept_bytes += partition.batches[at].size_bytes
        return at if 0 <= limit <= kept_bytes else 0
