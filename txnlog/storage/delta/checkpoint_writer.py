"""Writing a checkpoint: its row groups, compression, statistics and seal, and reading it back."""

from __future__ import annotations

from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from txnlog.errors import StorageError
from txnlog.storage.delta.checkpoint_file import REQUIRED, SCHEMA, UNDECODABLE, leaf_paths
from txnlog.storage.delta.checkpoint_reader import count_actions
from txnlog.storage.store.errors import is_out_of_memory
from txnlog.storage.store.seals import Span, make_seal, split_footer

ROWS_PER_GROUP = 65_536

# Readers refuse a checkpoint with fewer bytes than rows. Zstandard can make consecutive ids and
# paths that small; Snappy cannot, since it writes at least 3 bytes for each 64.
_DICTIONARY = ["add.partitionValues.key_value.key"]
_ZSTD = frozenset((*_DICTIONARY, "add.partitionValues.key_value.value", "add.stats"))
_COMPRESSION = {path: "zstd" if path in _ZSTD else "snappy" for path in leaf_paths(SCHEMA)}


class CheckpointWriter:
    """Writes actions, one kind after the other, in row groups of up to ROWS_PER_GROUP rows."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(SCHEMA.names, 0)
        self._sink = pa.BufferOutputStream()
        self._file = pq.ParquetWriter(
            self._sink,
            SCHEMA,
            compression=_COMPRESSION,
            use_dictionary=_DICTIONARY,
            write_statistics=list(REQUIRED.values()),
        )
        self._waiting: list[pa.Table] = []
        self._nulls: dict[str, pa.Array] = {}

    def write(self, kind: str, actions: pa.StructArray) -> None:
        if not len(actions):
            return
        self.counts[kind] += len(actions)
        columns = [
            actions if name == kind else self._nulls_of(name, len(actions)) for name in SCHEMA.names
        ]
        self._waiting.append(pa.table(columns, schema=SCHEMA))
        if sum(map(len, self._waiting)) >= ROWS_PER_GROUP:
            self.end_group()

    def _nulls_of(self, kind: str, count: int) -> pa.Array:
        if count > len(self._nulls.get(kind, ())):
            self._nulls[kind] = pa.nulls(count, SCHEMA.field(kind).type)
        return self._nulls[kind].slice(0, count)

    def end_group(self) -> None:
        """Begin a new row group with the next action."""
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self._file.write_table(rows, row_group_size=ROWS_PER_GROUP)
            self._waiting = []

    def close(self, name: str, note: bytes) -> bytes:
        """The file, sealed with its name and a note. Raises StorageError if it cannot be read."""
        self.end_group()
        self._file.close()
        sealed = _seal(self._sink.getvalue(), name, note)
        _check_read_back(sealed, self.counts)
        return sealed


def _seal(parquet: pa.Buffer, name: str, note: bytes) -> bytes:
    """The Parquet file with a checksum of all its bytes, in one span."""
    data = memoryview(parquet)
    footer_at = split_footer(data)
    body, footer = data[:footer_at], data[footer_at:]
    span = Span(footer_at, crc32(body))
    return b"".join((body, make_seal([span], footer, name=name, note=note), footer))


def _check_read_back(parquet: bytes, written: dict[str, int]) -> None:
    """Raise StorageError unless our reader decodes as many actions of each kind as were written."""
    try:
        found = count_actions(parquet)
    except UNDECODABLE as error:
        if is_out_of_memory(error):
            raise
        raise _unreadable(str(error)) from error
    if found != written:
        raise _unreadable(f"{found} actions of {written}")


def _unreadable(why: str) -> StorageError:
    return StorageError(
        f"A checkpoint was not written, since it cannot be read back ({why}). The log has not "
        "changed; readers use its commits. Please report this."
    )
