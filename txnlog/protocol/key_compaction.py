"""Key compaction, for cleanup.policy=compact: which part of a partition a pass covers, and when.

Mirrors LogCleanerManager and Cleaner of Apache Kafka; "clean", "cleaned" and "dirty" have Kafka's
meaning. A pass covers a partition from the log start to `end_offset`, up to which every batch is
decided and old enough. It keeps the newest record of each key, by offset. Records of aborted
transactions are ignored (R23), and records without a key are removed, as in Kafka. Records from
`end_offset` on stay.

`txn{txnlog/cleaned/<partition>}` is the end of the newest pass, written by its last commit. So each
record before it is the newest of its key before it, even if passes died: the next pass reads keys
only from there on, and a tombstone before it has nothing left to delete. Kafka stores in each batch
when its tombstones can be removed; here a partition has one such time:
`txn{txnlog/horizon/<partition>}`, by the store's clock, after which tombstones before
`txn{txnlog/tombstones/<partition>}` are removed. The end of the pass that removes them sets the
next one: after a tombstone was first cleaned it stays for delete.retention.ms or longer, up to
about twice that while passes continue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import (
    OPERATION,
    Compacted,
    CompactionGroup,
    CompactionSettings,
    Obsolete,
)
from txnlog.protocol.topics import (
    CLEANED_PREFIX,
    HORIZON_PREFIX,
    TOMBSTONES_PREFIX,
    PartitionState,
    TopicCommit,
    TopicState,
)

_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionSettings:
    """Kafka's topic configurations of these names; times in ms."""

    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int


class KeyCompactionPass(msgspec.Struct, frozen=True):
    """One pass over the offsets from `start_offset` up to `end_offset`, exclusively.

    Keys are read from `dirty_offset` on. Tombstones before `tombstone_offset` are removed (0:
    none). `cleaned_offset` is the end of the previous pass.
    """

    topic: str
    topic_id: str
    partition: int
    start_offset: int
    cleaned_offset: int
    end_offset: int
    tombstone_offset: int

    @property
    def dirty_offset(self) -> int:
        return max(self.start_offset, self.cleaned_offset)


def plan_pass(
    state: TopicState, topic: str, partition: int, settings: KeyCompactionSettings, *, now_ms: int
) -> KeyCompactionPass | None:
    """The pass that is due, or None. `now_ms` by the store's clock.

    A pass is due if more than min.cleanable.dirty.ratio of the cleanable bytes are dirty, or a
    dirty record is older than max.compaction.lag.ms.
    """
    if state.deleted:
        return None
    found = state.partitions[partition]
    start, cleaned = found.log_start_offset, found.cleaned_offset
    dirty = max(start, cleaned)
    if dirty >= found.last_stable_offset:
        return None
    end = _first_uncleanable(found, dirty, settings, now_ms)
    if dirty >= end or not _is_due(found, dirty, end, settings, now_ms):
        return None
    is_due = now_ms >= found.horizon_ms
    tombstone_offset = found.tombstone_offset if is_due else 0
    return KeyCompactionPass(
        topic, state.topic_id, partition, start, cleaned, end, tombstone_offset
    )


def _first_uncleanable(
    found: PartitionState, dirty: int, settings: KeyCompactionSettings, now_ms: int
) -> int:
    """The last stable offset, or the first batch with a record younger than the minimum lag."""
    stable = found.last_stable_offset
    if settings.min_compaction_lag_ms > 0:
        youngest_us = (now_ms - settings.min_compaction_lag_ms) * 1000
        for batch in _between(found, dirty, stable):
            if batch.timestamp_max_us > youngest_us:
                return max(dirty, batch.base_offset)
    return stable


def _is_due(
    found: PartitionState, dirty: int, end: int, settings: KeyCompactionSettings, now_ms: int
) -> bool:
    batches = _between(found, dirty, end)
    oldest_us = (now_ms - settings.max_compaction_lag_ms) * 1000
    if oldest_us > 0:
        times_us = (batch.statistics.timestamp_min_us for batch in batches)
        if any(0 < time_us < oldest_us for time_us in times_us):
            return True
    cleaned_bytes = sum(
        batch.size_bytes for batch in _between(found, found.log_start_offset, dirty)
    )
    dirty_bytes = float(sum(batch.size_bytes for batch in batches))
    first = batches[0]
    if first.base_offset < dirty:
        # Merged since from cleaned and dirty batches: its bytes were counted on both sides.
        span = first.last_offset + 1 - first.base_offset
        cleaned_part = first.size_bytes * (dirty - first.base_offset) / span
        dirty_bytes -= cleaned_part
        cleaned_bytes -= first.size_bytes - int(cleaned_part)
    return dirty_bytes > settings.min_cleanable_dirty_ratio * (cleaned_bytes + dirty_bytes)


def _between(found: PartitionState, start: int, end: int) -> Sequence[BatchHeader]:
    """Batches that hold an offset in [start, end)."""
    first = bisect_left(found.batches, start, key=_last_offset)
    last = bisect_right(found.batches, end - 1, key=_base_offset)
    return found.batches[first:last]


def pass_groups(
    state: TopicState, key_pass: KeyCompactionPass, settings: CompactionSettings
) -> list[CompactionGroup]:
    """All batches of a pass in groups; a full batch, or one that must stay alone, is a group.

    `needs_rewrite` decides which groups are rewritten.
    """
    found = state.partitions[key_pass.partition]
    groups: list[list[BatchHeader]] = []
    size_bytes = 0
    is_closed = True
    for batch in _between(found, key_pass.start_offset, key_pass.end_offset):
        is_alone = settings.is_full(batch) or state.may_be_repeated(batch)
        size_bytes += batch.size_bytes
        if is_closed or is_alone or size_bytes > settings.segment_bytes:
            groups.append([])
            size_bytes = batch.size_bytes
        groups[-1].append(batch)
        is_closed = is_alone or len(groups[-1]) == settings.inputs_max
    return [
        CompactionGroup(key_pass.topic, key_pass.topic_id, key_pass.partition, tuple(inputs))
        for inputs in groups
    ]


def needs_rewrite(group: CompactionGroup, survivors: int, settings: CompactionSettings) -> bool:
    """Whether a group of a pass has records to remove, or enough files to merge."""
    counts = [batch.num_records for batch in group.inputs]
    if len(counts) >= settings.inputs_min:
        return True
    return any(count is None for count in counts) or survivors < sum(count or 0 for count in counts)


def prepare_end_of_pass(
    state: TopicState, key_pass: KeyCompactionPass, *, delete_retention_ms: int, now_ms: int
) -> TopicCommit | Compacted | Obsolete:
    """The last commit of a pass, after all its groups: the offset it has reached.

    `now_ms` by the store's clock.
    """
    if state.deleted or state.topic_id != key_pass.topic_id:
        return Obsolete("the topic was deleted")
    partition = key_pass.partition
    found = state.partitions[partition]
    if found.cleaned_offset == key_pass.end_offset:
        return Compacted()
    if found.cleaned_offset != key_pass.cleaned_offset:
        return Obsolete("another pass has ended meanwhile")
    txns = {f"{CLEANED_PREFIX}{partition}": key_pass.end_offset}
    if key_pass.tombstone_offset == found.tombstone_offset:
        txns[f"{TOMBSTONES_PREFIX}{partition}"] = key_pass.end_offset
        txns[f"{HORIZON_PREFIX}{partition}"] = now_ms + delete_retention_ms
    return TopicCommit(operation=OPERATION, txns=txns, data_change=False)
