"""The record batch header: one Parquet file is one batch, its header is in the Delta log.

Mirrors the fixed part of org.apache.kafka.common.record.RecordBatch (v2). Values are never null
nor empty: -1 means "no producer", `none` "no transaction".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnlog.errors import RESTORE_ALL, CorruptLogError
from txnlog.protocol.decoding import (
    PARTITIONS_MAX,
    Natural,
    NestingError,
    decode,
    to_int64,
)

NONE = "none"
ONGOING = "ongoing"
COMMITTED = "committed"
ABORTED = "aborted"
STATUSES = frozenset({NONE, ONGOING, COMMITTED, ABORTED})

Int64s = npt.NDArray[np.int64]

HEADER_COLUMNS: Mapping[str, str] = {
    "partition": "integer",
    "base_offset": "long",
    "last_offset": "long",
    "producer_id": "long",
    "producer_epoch": "long",
    "base_sequence": "long",
    "txn_status": "string",
}
_STATUS = "txn_status"
_OFFSET_MAX = 2**63 - 2
"""The end offset, one higher, must be a long, too."""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The place of a batch, and its producer; offsets are inclusive.

    `stats` is Delta's JSON of the file's statistics, decoded on demand.
    """

    path: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    status: str
    size_bytes: int
    stats: str

    @property
    def statistics(self) -> Statistics:
        """`stats`, decoded. Raises CorruptLogError naming the file."""
        try:
            return decode_stats(self.stats)
        except (msgspec.MsgspecError, NestingError, TypeError) as error:
            raise CorruptLogError(
                f"Data file {self.path}: its statistics in the log cannot be read ({error}): "
                f"{self.stats[:200]!r}. A tool that rewrites the file must keep them as they were, "
                "or omit them.",
                file=self.path,
            ) from error

    @property
    def num_records(self) -> int | None:
        """Records in the file: fewer than the offsets it spans once some were erased.

        None if unknown: another tool rewrote the file without statistics.
        """
        return self.statistics.num_records

    @property
    def timestamp_max_us(self) -> int:
        return self.statistics.timestamp_max_us

    def to_values(self) -> dict[str, str]:
        """The header as Delta partition values."""
        return {
            "partition": str(self.partition),
            "base_offset": str(self.base_offset),
            "last_offset": str(self.last_offset),
            "producer_id": str(self.producer_id),
            "producer_epoch": str(self.producer_epoch),
            "base_sequence": str(self.base_sequence),
            "txn_status": self.status,
        }

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; meaningless where base_sequence is -1."""
        return self.base_sequence + (self.last_offset - self.base_offset)


def header_from_values(
    values: Mapping[str, str],
    *,
    path: str,
    size_bytes: int,
    stats: str,
    source: str,
) -> BatchHeader:
    """Parse a header. Raises CorruptLogError naming `source` and the file's path."""
    try:
        header = BatchHeader(
            path,
            to_int64(values["partition"]),
            to_int64(values["base_offset"]),
            to_int64(values["last_offset"]),
            to_int64(values["producer_id"]),
            to_int64(values["producer_epoch"]),
            to_int64(values["base_sequence"]),
            sys.intern(values["txn_status"]),
            size_bytes,
            stats,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise _corrupt(source, path, f"{type(error).__name__}: {error}") from error
    if (
        header.status not in STATUSES
        or not 0 <= header.base_offset <= header.last_offset <= _OFFSET_MAX
        or not 0 <= header.partition < PARTITIONS_MAX
        or min(header.producer_id, header.producer_epoch, header.base_sequence) < -1
    ):
        raise _corrupt(source, path, f"invalid values: {header.to_values()}"[:400])
    return header


class HeaderColumns(NamedTuple):
    """Headers of many batches, column by column, in partition and offset order.

    `headers` are the same as objects; the columns are arrays of their length. `is_ended`: part of a
    transaction that has ended.
    """

    headers: list[BatchHeader]
    paths: list[str]
    partition: Int64s
    base_offset: Int64s
    last_offset: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    base_sequence: Int64s
    is_ended: npt.NDArray[np.bool_]
    is_ongoing: npt.NDArray[np.bool_]


def headers_from_columns(
    values: Mapping[str, Any],
    *,
    paths: pa.Array,
    sizes_bytes: pa.Array,
    stats: pa.Array,
    source: str,
) -> HeaderColumns:
    """Parse the headers of a checkpoint, `values` as Arrow string arrays per column.

    Raises CorruptLogError naming `source`.
    """
    try:
        columns = [
            np.from_dlpack(values[name].cast(pa.int64()))
            for name in HEADER_COLUMNS
            if name != _STATUS
        ]
        statuses = values[_STATUS].dictionary_encode()
        known = STATUSES.issuperset(statuses.dictionary.to_pylist()) and not statuses.null_count
    except (KeyError, TypeError, ValueError) as error:
        raise _corrupt(source, "", f"{type(error).__name__}: {error}") from error
    partition, base_offset, last_offset = columns[:3]
    wrong = np.flatnonzero(
        (base_offset < 0)
        | (last_offset < base_offset)
        | (last_offset > _OFFSET_MAX)
        | (partition < 0)
        | (partition >= PARTITIONS_MAX)
        | (np.minimum.reduce(columns[3:]) < -1)
    )
    if not known or len(wrong):
        path = paths[int(wrong[0])].as_py() if len(wrong) else ""
        statuses = statuses.dictionary.to_pylist()
        raise _corrupt(source, path, f"invalid offsets, numbers or statuses {statuses}"[:400])
    order = np.lexsort((base_offset, partition))
    columns = [column[order] for column in columns]
    names = np.array(statuses.dictionary.to_pylist(), dtype=object)
    status = np.from_dlpack(statuses.indices)[order]
    ordered_paths: list[str] = _in_order(paths, order)
    headers = list(
        map(
            BatchHeader,
            ordered_paths,
            *(column.tolist() for column in columns),
            names[status].tolist(),
            _in_order(sizes_bytes, order),
            _in_order(stats, order),
        )
    )
    is_ended = np.isin(names, (COMMITTED, ABORTED))[status]
    is_ongoing = (names == ONGOING)[status]
    return HeaderColumns._make([headers, ordered_paths, *columns, is_ended, is_ongoing])


def _in_order(column: pa.Array, order: Int64s) -> list[Any]:
    """Its values in this order; an index array of Arrow would import pandas if it is installed."""
    values: npt.NDArray[np.object_] = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    return list(values[order])


def encode_stats(num_records: int, timestamp_min_us: int, timestamp_max_us: int) -> str:
    """Delta's `stats` JSON; timestamps in microseconds since the epoch, UTC, none of them null.

    Times outside the years 1 to 9999 are omitted: statistics are a hint.
    """
    try:
        low, high = _iso(timestamp_min_us), _iso(timestamp_max_us)
    except OverflowError:
        return f'{{"numRecords":{num_records}}}'
    return (
        f'{{"numRecords":{num_records},"minValues":{{"timestamp":"{low}"}},'
        # Spark skips a file only if the null counts of all filtered columns are known.
        f'"maxValues":{{"timestamp":"{high}"}},"nullCount":{{"offset_delta":0,"timestamp":0}}}}'
    )


class Statistics(NamedTuple):
    """Number of a file's records (None: unknown), and bounds of their times."""

    num_records: int | None = None
    timestamp_min_us: int = -(2**63)
    timestamp_max_us: int = 2**63 - 1


def decode_stats(stats: str) -> Statistics:
    """Parse Delta's `stats`; "" gives unknown values. Raises what the decoder raises."""
    if not stats:
        return _UNKNOWN
    found = decode(_STATS, stats)
    low, high = found.min_values.timestamp, found.max_values.timestamp
    return Statistics(
        found.num_records,
        _UNKNOWN.timestamp_min_us if low is None else (low - _EPOCH) // _MICROSECOND,
        _UNKNOWN.timestamp_max_us if high is None else (high - _EPOCH) // _MICROSECOND,
    )


class _Times(msgspec.Struct, frozen=True):
    timestamp: datetime | None = None


class _Stats(msgspec.Struct, frozen=True, rename="camel"):
    num_records: Natural | None = None
    min_values: _Times = _Times()
    max_values: _Times = _Times()


_STATS = msgspec.json.Decoder(_Stats)
_UNKNOWN = Statistics()
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def _iso(time_us: int) -> str:
    second, rest_us = divmod(time_us, 1_000_000)
    return f"{_iso_second(second)}.{rest_us:06}Z"


@lru_cache(64)
def _iso_second(second: int) -> str:
    """Cached, as batches written together share seconds."""
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


def _corrupt(source: str, path: str, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"{source}: the header of data file {path} cannot be read ({why}). The log is damaged or "
        f"was not written by txnlog. {RESTORE_ALL}",
        file=source,
    )
