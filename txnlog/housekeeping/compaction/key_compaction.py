"""One pass of key compaction over a partition.

It reads the newest offset of each key, then rewrites the groups with the records to keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.segments import (
    Offsets,
    commit_end_of_pass,
    compact_group,
    read_columns,
    rewrite,
)
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import CompactionGroup, CompactionSettings, Segment
from txnlog.protocol.key_compaction import KeyCompactionPass, needs_rewrite, pass_groups
from txnlog.storage.store.objects import ObjectStore

DEDUPE_BUFFER_BYTES_DEFAULT = 128 << 20
"""log.cleaner.dedupe.buffer.size."""

LOOKUP_ROWS = 1 << 20
LOOKUP_BYTES = 32 << 20
FOLD_BYTES = 4 << 20
REPLANS_MAX = 10

_MAP_SCHEMA = pa.schema([("key", pa.binary()), ("offset", pa.int64())])


class LatestOffsets:
    """Newest offset per key. Takes up to `size_bytes_max`, and the same again while it folds."""

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._known = _MAP_SCHEMA.empty_table()
        self._new: list[pa.Table] = []
        self._new_bytes = 0

    def add(self, keys: pa.Array, offsets: Offsets) -> bool:
        """Add records; those without a key are ignored. False: the map is full."""
        table = pa.Table.from_arrays([keys, pa.array(offsets)], schema=_MAP_SCHEMA)
        table = table.filter(keys.is_valid())
        self._new.append(table)
        self._new_bytes += table.nbytes
        is_tight = self._known.nbytes + self._new_bytes > self._size_bytes_max
        if is_tight or self._new_bytes > max(FOLD_BYTES, self._known.nbytes):
            self._fold()
        return int(self._known.nbytes) <= self._size_bytes_max * 3 // 4

    def newest(self, keys: pa.ChunkedArray) -> Offsets:
        """The newest offset of each key, -1 for keys that were not added."""
        self._fold()
        known = self._known
        at = pc.index_in(keys, value_set=known.column("key"))
        offsets = known.column("offset").take(at)
        return pc.fill_null(offsets, -1).to_numpy()  # type: ignore[no-any-return]

    def _fold(self) -> None:
        if not self._new:
            return
        grouped = pa.concat_tables([self._known, *self._new]).group_by("key", use_threads=False)
        newest = grouped.aggregate([("offset", "max")])
        columns = [newest.column("key"), newest.column("offset_max")]
        self._known = pa.Table.from_arrays(columns, schema=_MAP_SCHEMA).combine_chunks()
        self._new, self._new_bytes = [], 0


class KeyCompactor:
    """Rewrites the groups of a pass. It needs only a store, so a Spark task can use it.

    `key_pass` ends where the keys fill the memory that they may take.
    """

    def __init__(
        self,
        store: ObjectStore,
        key_pass: KeyCompactionPass,
        settings: CompactionSettings,
        *,
        dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES_DEFAULT,
    ) -> None:
        self.key_pass = key_pass
        self._store = store
        self._settings = settings
        self._latest = LatestOffsets(dedupe_buffer_bytes)

    def read_keys(self, groups: Iterable[CompactionGroup]) -> Iterator[None]:
        """Read the keys of the dirty part of the partition; yields after each file."""
        key_pass = self.key_pass
        for header in chain.from_iterable(group.sources for group in groups):
            if header.last_offset < key_pass.dirty_offset:
                continue
            for batch in self._read(header, "offset_delta", "key"):
                offsets = batch.column("offset_delta").to_numpy() + header.base_offset
                inside = slice(
                    *np.searchsorted(offsets, (key_pass.dirty_offset, key_pass.end_offset))
                )
                keys = batch.column("key")[inside]
                if len(keys) and not self._latest.add(keys, offsets[inside]):
                    end_offset = int(offsets[inside][-1]) + 1
                    self.key_pass = replace(key_pass, end_offset=end_offset)
                    return
            yield

    def rewrite(self, group: CompactionGroup) -> Segment | None:
        """Write the segment of a group, if it needs one; the keys must have been read."""
        keep = self._offsets_to_keep(group)
        if not needs_rewrite(group, len(keep), self._settings):
            return None
        return rewrite(self._store, group, keep)

    def _offsets_to_keep(self, group: CompactionGroup) -> Offsets:
        """Ascending offsets of the group's records to keep."""
        key_pass = self.key_pass
        columns = ["offset_delta", "key"]
        if key_pass.tombstone_offset > group.base_offset:
            columns.append("value")
        kept: list[Offsets] = [np.empty(0, dtype=np.int64)]
        keys: list[pa.Array] = []
        offsets: list[Offsets] = []
        rows = size_bytes = 0
        for header in group.sources:
            for batch in self._read(header, *columns):
                found = batch.column("offset_delta").to_numpy() + header.base_offset
                stays = self._stays(batch, found)
                keys.append(batch.column("key").filter(pa.array(stays)))
                offsets.append(found[stays])
                rows += batch.num_rows
                size_bytes += keys[-1].nbytes
                if rows >= LOOKUP_ROWS or size_bytes >= LOOKUP_BYTES:
                    kept.append(self._newest_of(keys, offsets))
                    keys, offsets, rows, size_bytes = [], [], 0, 0
        kept.append(self._newest_of(keys, offsets))
        return np.concatenate(kept)

    def _stays(self, batch: pa.RecordBatch, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """A mask of the records to keep unless their key has a newer one."""
        key_pass = self.key_pass
        stays = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        if "value" in batch.schema.names:
            is_tombstone = batch.column("value").is_null().to_numpy(zero_copy_only=False)
            stays &= ~(is_tombstone & (offsets < key_pass.tombstone_offset))
        return stays | (offsets >= key_pass.end_offset)  # type: ignore[no-any-return]

    def _newest_of(self, keys: list[pa.Array], offsets: list[Offsets]) -> Offsets:
        if not keys:
            return np.empty(0, dtype=np.int64)
        found = np.concatenate(offsets)
        newest = self._latest.newest(pa.chunked_array(keys))
        return found[found >= newest]

    def _read(self, header: BatchHeader, *columns: str) -> Iterator[pa.RecordBatch]:
        return read_columns(self._store, self.key_pass.topic, header, columns)


def key_compact(
    cluster: Cluster,
    key_pass: KeyCompactionPass,
    settings: CompactionSettings,
    *,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES_DEFAULT,
) -> Iterator[int]:
    """Do a pass; yields the number of files replaced after each file read or group done.

    A pass that other processes interrupt REPLANS_MAX times is not recorded: the next
    pass repeats its work. The same holds when it raises ObjectNotFoundError, CorruptLogError,
    StorageError, TopicAuthorizationError, CommitStateUnknownError.
    """
    compactor = KeyCompactor(
        cluster.store, key_pass, settings, dedupe_buffer_bytes=dedupe_buffer_bytes
    )
    for _ in compactor.read_keys(_groups(cluster, key_pass, settings)):
        yield 0
    rest = compactor.key_pass
    for _ in range(REPLANS_MAX):
        for group in _groups(cluster, rest, settings):
            replaced = compact_group(cluster, group, compactor.rewrite)
            if replaced is None:
                break
            rest = replace(rest, start_offset=group.last_offset + 1)
            yield replaced
        else:
            commit_end_of_pass(cluster, compactor.key_pass)
            return


def _groups(
    cluster: Cluster, key_pass: KeyCompactionPass, settings: CompactionSettings
) -> list[CompactionGroup]:
    """A pass's groups on the newest state; none if the topic was deleted."""
    log = cluster.topic_log(key_pass.topic)
    log.refresh()
    state = log.view
    if state.deleted or state.topic_id != key_pass.topic_id:
        return []
    start = max(key_pass.start_offset, state.log_start_offset(key_pass.partition))
    return pass_groups(state, replace(key_pass, start_offset=start), settings)
