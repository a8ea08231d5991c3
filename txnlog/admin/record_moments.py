"""Records of a partition, each with the transaction that wrote it, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from txnlog.consuming.lookups import check_partition
from txnlog.errors import UnknownTopicOrPartitionError
from txnlog.process import arrow_compute as pc
from txnlog.protocol.batches import COMMITTED, NONE, BatchHeader
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import RecordMoment
from txnlog.protocol.panels.changes import TopicChange
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.tables.offset_lookup import offsets_for_times
from txnlog.storage.tables.topic_log import TopicLog

KEY_FILES_MAX = 500
"""Files that are searched for a key, from the end on."""
_READ_ROWS = 1_024
UNKNOWN = "compacted, unknown"


class Asked(NamedTuple):
    """Records of a partition: how many, and whether with their values and headers."""

    partition: int
    num_records: int
    with_values: bool


def records_from(
    log: TopicLog, asked: Asked, offset: int, recent: Sequence[TopicChange]
) -> list[RecordMoment]:
    """The first records at or after an offset, of all statuses."""
    partition, count, with_values = asked
    view = log.view
    start = max(offset, view.log_start_offset(partition))
    found: list[RecordMoment] = []
    for header in view.batches(partition, start, view.high_watermark(partition), False):
        for record in _read(log, header, start, recent, with_values=with_values):
            found.append(record)
            if len(found) == count:
                return found
    return found


def newest_records(
    log: TopicLog, asked: Asked, recent: Sequence[TopicChange], key: bytes | None = None
) -> list[RecordMoment]:
    """The last records in order; with a key, those that have it.

    Raises UnknownTopicOrPartitionError if the newest KEY_FILES_MAX files have no such key.
    """
    partition, count, with_values = asked
    view = log.view
    start, end = view.log_start_offset(partition), view.high_watermark(partition)
    headers = view.batches(partition, start, end, False)
    if key is not None:
        headers = headers[-KEY_FILES_MAX:]
    found: list[RecordMoment] = []
    for header in reversed(headers):
        left = count - len(found)
        first = start if key is not None else max(start, header.last_offset + 1 - left)
        found[:0] = _read(log, header, first, recent, with_values=with_values, key=key)
        if len(found) >= count:
            return found[-count:]
    if key is not None and not found:
        raise UnknownTopicOrPartitionError(
            f"The newest {len(headers)} files of topic {log.name!r}, partition {partition}, have "
            "no record with this key. It may be in another partition; or ask by offset or time.",
            topic=log.name,
            partition=partition,
        )
    return found


def offset_of_time(log: TopicLog, partition: int, timestamp_ms: int) -> int:
    """The first offset at or after a time, else the end."""
    check_partition(log, partition)
    [offset] = offsets_for_times([(log, partition, timestamp_ms)], read_committed=False)
    return log.view.high_watermark(partition) if offset is None else offset


def _read(
    log: TopicLog,
    header: BatchHeader,
    start: int,
    recent: Sequence[TopicChange],
    *,
    with_values: bool,
    key: bytes | None = None,
) -> Iterator[RecordMoment]:
    span = FileSpan(
        f"{log.path}/{header.path}",
        first_delta=max(0, start - header.base_offset),
        num_records=header.num_records,
        size_bytes=header.size_bytes,
    )
    columns = ["offset_delta", "timestamp", "key", *(("value", "headers") if with_values else ())]
    for batch in read_batch_file(log.store, span, columns=columns, batch_rows=_READ_ROWS):
        found = batch if key is None else batch.filter(pc.equal(batch.column("key"), key))
        at = found.schema.get_field_index("timestamp")
        found = found.set_column(at, "timestamp", found.column(at).cast(pa.int64()))
        for row in found.to_pylist():
            offset = header.base_offset + row["offset_delta"]
            transaction, status = _of(header, offset, recent)
            yield RecordMoment(
                topic=log.name,
                partition=header.partition,
                offset=offset,
                timestamp_ms=-1 if row["timestamp"] is None else row["timestamp"] // 1000,
                key=row["key"],
                value=row.get("value"),
                headers=[(one["key"] or "", one["value"]) for one in row.get("headers") or ()],
                transaction=transaction,
                status=status,
            )


def _of(
    header: BatchHeader, offset: int, recent: Iterable[TopicChange]
) -> tuple[ProducerIdAndEpoch | None, str]:
    """The transaction of a record, and its status; that of a segment, if a commit still tells."""
    if header.producer_id >= 0:
        if header.status == NONE:
            return None, NONE
        return ProducerIdAndEpoch(header.producer_id, header.producer_epoch), header.status
    for change in recent:
        for one in change.appended:
            if one.transaction.producer_id >= 0 and one.holds(header.partition, offset):
                # Aborted records are in no segment.
                return (None, NONE) if one.status == NONE else (one.transaction, COMMITTED)
    return None, UNKNOWN
