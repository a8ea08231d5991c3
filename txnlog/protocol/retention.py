"""Which files of a topic may go: past its retention, or wholly below the log start.

Mirrors deleteOldSegments of Kafka's UnifiedLog, one file being what a segment is there: per
partition, whole files, oldest first, none that holds an offset at or above the last stable offset.
The log start moves up to the oldest record that is left. A file below it that holds one of the
last batches of an idempotent producer stays until the producer is forgotten, since the producer may
still repeat it (R22); one that is undecided stays until its marker comes.
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
"""Most files that one commit removes."""

UNDATED_MAX = 100
"""Most files whose age one look asks for."""

_TIME_MS_MAX = 253_402_300_800_000
"""The year 10000: beyond it a time in statistics means that none is known."""

_last_offset = attrgetter("last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """retention.ms and retention.bytes where cleanup.policy has `delete`; -1: no limit."""

    retention_ms: int = -1
    retention_bytes: int = -1


@dataclass(frozen=True, slots=True)
class Undated:
    """Files whose age decides, and whose statistics do not tell it."""

    paths: tuple[str, ...]


def prepare_retention(
    state: TopicState,
    *,
    limits: RetentionLimits,
    now_ms: int,
    written_ms: Mapping[str, int],
    files_max: int = FILES_MAX,
) -> TopicCommit | Undated | None:
    """The next commit that removes files; None when there is nothing to remove (any more).

    `written_ms` says when a file was written, by the store's clock, as `now_ms` is. It is asked for
    where statistics give no time: there Kafka takes a segment's last modification. Only the oldest
    files are looked at.
    """
    if state.deleted:
        return None
    look = _Look(limits, now_ms, written_ms)
    removes: list[str] = []
    txns: dict[str, int] = {}
    for number, partition in enumerate(state.partitions):
        left = files_max - len(removes)
        if left == 0:
            break
        cut = look.first_kept(partition, left)
        gone, cut = _removable(state, partition.batches[:cut], left)
        removes += [batch.path for batch in gone]
        txns.update(_bounds(partition, number, cut, gone))
    if look.undated:
        return Undated(tuple(look.undated))
    if not removes and not txns:
        return None
    return TopicCommit(operation="DELETE EXPIRED", removes=tuple(removes), txns=txns)


def newest_record_ms(batch: BatchHeader, written_ms: Mapping[str, int]) -> int | None:
    """The time of a file's newest record, or when it was written; None if it must be asked for."""
    stated_ms = batch.timestamp_max_us // 1000
    return stated_ms if 0 <= stated_ms < _TIME_MS_MAX else written_ms.get(batch.path)


def _bounds(
    partition: PartitionState, number: int, cut: int, gone: Sequence[BatchHeader]
) -> dict[str, int]:
    """What the log must say of a partition's start and end where its files do not show them."""
    batches = partition.batches
    start = batches[cut].base_offset if cut < len(batches) else partition.end_offset
    found = {}
    if cut > len(gone) and start > partition.log_start_offset:
        found[start_app_id(number)] = start
    if gone and gone[-1] is batches[-1]:
        found[end_app_id(number)] = partition.end_offset
    return found


def _removable(
    state: TopicState, batches: Sequence[BatchHeader], count_max: int
) -> tuple[list[BatchHeader], int]:
    """Those whose files may go, up to `count_max`, and how many were looked at for them."""
    gone: list[BatchHeader] = []
    for at, batch in enumerate(batches):
        if len(gone) >= count_max:
            return gone, at
        if batch.status != ONGOING and not state.may_be_repeated(batch):
            gone.append(batch)
    return gone, len(batches)


class _Look:
    """One look at a topic. With anything in `undated` it has to be taken again."""

    def __init__(self, limits: RetentionLimits, now_ms: int, written_ms: Mapping[str, int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._written_ms = written_ms
        self.undated: list[str] = []

    def first_kept(self, partition: PartitionState, files_max: int) -> int:
        """Index of the first batch whose records stay, after `files_max` expired ones at most."""
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
        """Index of the oldest batch without which less than retention.bytes would be left."""
        limit = self._limits.retention_bytes
        at, kept_bytes = len(partition.batches), 0
        while at and kept_bytes < limit:
            at -= 1
            kept_bytes += partition.batches[at].size_bytes
        return at if 0 <= limit <= kept_bytes else 0
