"""Which neighbouring batches become one segment, and the commit that replaces them by it.

A segment has the records of its inputs, without those of aborted transactions, at their offsets. It
spans the offsets of all inputs, so no position, end or log start moves (R22). It has no producer:
producer id -1, status `none`. Batches at or above the last stable offset are not merged, nor the
last five of an idempotent producer that may still repeat one of them: their headers hold its
sequences. Such a batch is only rewritten alone, and keeps its header.

Batches that fill a segment are merged at once. Of the newer ones, a run of neighbours is merged
once there are enough of them and each is no larger than the sum of those after it. So sizes at
least halve from each small segment to the next, small segments are few, and a record is rewritten
a logarithmic number of times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from txnlog.protocol.batches import ABORTED, NONE, BatchHeader, encode_stats
from txnlog.protocol.topics import TopicCommit, TopicState

INPUTS_MIN = 10
INPUTS_MAX = 10_000
OPERATION = "COMPACT"

_last_offset = attrgetter("last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """`segment_bytes` is segment.bytes of the topic; a file is full from half of it.

    `inputs_min` small files are the minimum for a rewrite, `inputs_max` the maximum per commit.
    """

    segment_bytes: int
    inputs_min: int = INPUTS_MIN
    inputs_max: int = INPUTS_MAX

    def is_full(self, batch: BatchHeader) -> bool:
        return batch.size_bytes >= self.segment_bytes // 2


class CompactionGroup(msgspec.Struct, frozen=True):
    """Neighbouring batches of one partition to be rewritten, in offset order without a gap."""

    topic: str
    topic_id: str
    partition: int
    inputs: tuple[BatchHeader, ...]

    @property
    def base_offset(self) -> int:
        return self.inputs[0].base_offset

    @property
    def last_offset(self) -> int:
        return self.inputs[-1].last_offset

    def changed_input(self, live: Mapping[str, BatchHeader]) -> BatchHeader | None:
        """The first input that is not live as planned any more: removed, or replaced."""
        return next((batch for batch in self.inputs if live.get(batch.path) != batch), None)

    @property
    def sources(self) -> tuple[BatchHeader, ...]:
        """The inputs whose records are kept."""
        return tuple(batch for batch in self.inputs if batch.status != ABORTED)

    @property
    def size_bytes(self) -> int:
        """Bytes to be read."""
        return sum(batch.size_bytes for batch in self.sources)


class Segment(msgspec.Struct, frozen=True):
    """The file written for a group. `staged_ms`: when that began, by the store's clock."""

    path: str
    size_bytes: int
    num_records: int
    timestamp_min_us: int
    timestamp_max_us: int
    staged_ms: int


class Plan(NamedTuple):
    """Groups in offset order; the next plan can start at `resume_offset`."""

    groups: tuple[CompactionGroup, ...]
    resume_offset: int


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result is already in the log."""


@dataclass(frozen=True, slots=True)
class Obsolete:
    """The log has changed: nothing to commit any more. Vacuum deletes a file written for it."""

    why: str


def plan(state: TopicState, topic: str, settings: CompactionSettings) -> list[CompactionGroup]:
    """All groups of a topic that are worth a rewrite now."""
    return [
        group
        for partition in range(len(state.partitions))
        for group in plan_partition(state, topic, partition, settings).groups
    ]


def plan_partition(
    state: TopicState,
    topic: str,
    partition: int,
    settings: CompactionSettings,
    *,
    from_offset: int = 0,
    before_offset: int | None = None,
    groups_max: int | None = None,
) -> Plan:
    """Groups of a partition's batches from one offset to before another, up to `groups_max`.

    Takes time in proportion to the batches between them. Batches after the last one that can join
    no segment are planned again: a producer's last batches may be merged later, and so may the
    batches between them. They are few, since merging keeps them few.
    """
    if state.deleted:
        return Plan((), 0)
    found = state.partitions[partition]
    end = found.last_stable_offset
    if before_offset is not None:
        end = min(end, before_offset)
    batches = found.batches
    at = bisect_left(batches, max(from_offset, found.log_start_offset), key=_last_offset)
    groups: list[CompactionGroup] = []
    run = _Run(settings)
    resume_offset: int | None = None

    def close(*, final: bool) -> None:
        inputs = run.take(final=final)
        if inputs:
            groups.append(CompactionGroup(topic, state.topic_id, partition, inputs))

    for batch in batches[at:]:
        if batch.last_offset >= end or len(groups) == groups_max:
            break
        is_closed = batch.status != ABORTED and settings.is_full(batch)
        is_kept = state.may_be_repeated(batch)
        is_apart = not run.is_followed_by(batch)
        is_over = run.is_too_much(batch)
        if is_closed or is_kept or is_apart or is_over:
            close(final=is_closed or (is_over and not is_kept and not is_apart))
            if not groups and (is_closed or not is_kept):
                resume_offset = None
        if is_closed:
            continue
        if resume_offset is None:
            resume_offset = batch.base_offset
        if not is_kept:
            run.add(batch)
    if len(groups) != groups_max:
        close(final=False)
    return Plan(tuple(groups), end if resume_offset is None else resume_offset)


class _Run:
    """A run of neighbours that can become one segment."""

    def __init__(self, settings: CompactionSettings) -> None:
        self._settings = settings
        self.batches: list[BatchHeader] = []
        self._size_bytes = 0

    def is_followed_by(self, batch: BatchHeader) -> bool:
        return not self.batches or self.batches[-1].last_offset + 1 == batch.base_offset

    def is_too_much(self, batch: BatchHeader) -> bool:
        """Whether the batch does not fit into the run."""
        is_over = self._size_bytes + _kept_bytes(batch) > self._settings.segment_bytes
        return is_over or len(self.batches) >= self._settings.inputs_max

    def add(self, batch: BatchHeader) -> None:
        self.batches.append(batch)
        self._size_bytes += _kept_bytes(batch)

    def take(self, *, final: bool) -> tuple[BatchHeader, ...]:
        """End the run: the batches of it to rewrite.

        `final`: no later batch can join the run.
        """
        batches, size_bytes = self.batches, self._size_bytes
        self.batches, self._size_bytes = [], 0
        is_full = size_bytes >= self._settings.segment_bytes // 2
        if len(batches) > 1 and (final or is_full):
            return tuple(batches)
        if final and any(batch.status == ABORTED for batch in batches):
            return tuple(batches)
        first = 0
        while first < len(batches) and 2 * _kept_bytes(batches[first]) > size_bytes:
            size_bytes -= _kept_bytes(batches[first])
            first += 1
        if len(batches) - first < self._settings.inputs_min:
            return ()
        return tuple(batches[first:])


def _kept_bytes(batch: BatchHeader) -> int:
    """Approximate bytes that a batch adds to a segment."""
    return 0 if batch.status == ABORTED else batch.size_bytes


def prepare_compaction(
    state: TopicState, group: CompactionGroup, segment: Segment, *, now_ms: int
) -> TopicCommit | Compacted | Obsolete:
    """Replace the batches of a group by its segment, if none of them has changed.

    `now_ms` by the store's clock: a segment that vacuum may have deleted is not committed (R72).
    """
    if segment.path in state.by_path:
        return Compacted()
    if state.deleted or state.topic_id != group.topic_id:
        return Obsolete("the topic was deleted")
    changed = group.changed_input(state.by_path)
    if changed is not None:
        return Obsolete(f"{changed.path} has been removed or compacted by another")
    if group.last_offset >= state.last_stable_offset(group.partition):
        return Obsolete("some of its batches are undecided")
    if max(now_ms, state.txns.vacuumed_ms) - segment.staged_ms > state.txns.vacuum_age_ms // 2:
        return Obsolete(f"{segment.path} was staged so long ago that vacuum may have deleted it")
    header = _header_of(group, segment)
    if any(state.may_be_repeated(batch) for batch in group.inputs):
        if len(group.inputs) > 1:
            return Obsolete("a producer may still repeat one of its batches")
        header = replace(
            group.inputs[0], path=header.path, size_bytes=header.size_bytes, stats=header.stats
        )
    return TopicCommit(
        operation=OPERATION,
        adds=(header,),
        removes=tuple(batch.path for batch in group.inputs),
        data_change=False,
    )


def _header_of(group: CompactionGroup, segment: Segment) -> BatchHeader:
    return BatchHeader(
        segment.path,
        group.partition,
        group.base_offset,
        group.last_offset,
        -1,
        -1,
        -1,
        NONE,
        segment.size_bytes,
        encode_stats(segment.num_records, segment.timestamp_min_us, segment.timestamp_max_us),
    )
