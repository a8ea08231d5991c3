"""The records of a topic as one Arrow table, with a filter that skips files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.batches import BatchHeader
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists, gather
from txnlog.storage.batches.records import DATA_SCHEMA, MESSAGE_SCHEMA, to_messages
from txnlog.storage.tables.skipping import check_columns, check_filter, matching
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow.compute as pc

_ROWS = 16_384
_BYTES = 4 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def read_topic(
    log: TopicLog, *, columns: Sequence[str] | None, filter: pc.Expression | None
) -> pa.Table:
    """The committed records of a topic, as of its last refresh, by partition and offset.

    `columns` of MESSAGE_SCHEMA, all by default; `filter` may use the others, too. Raises
    ConfigError for another column, and what reading the files raises.
    """
    names = check_columns(columns, MESSAGE_SCHEMA.names)
    check_filter(filter, MESSAGE_SCHEMA)
    found = []
    for number, state in enumerate(log.view.partitions):
        batches = state.slice(state.log_start_offset, state.last_stable_offset, read_committed=True)
        left = matching(batches, MESSAGE_SCHEMA, filter, partial(_bounds, log.name))
        for records in _read(log, number, left, state.log_start_offset):
            table = pa.Table.from_batches([records])
            found.append((table if filter is None else table.filter(filter)).select(names))
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    return pa.concat_tables(found) if found else schema.empty_table()


def _bounds(topic: str, batch: BatchHeader) -> Any:
    """What its header says of each of its records."""
    import pyarrow.compute as pc

    known = (
        (pc.field("topic") == topic)
        & (pc.field("partition") == pa.scalar(batch.partition, pa.int32()))
        & (pc.field("offset") >= batch.base_offset)
        & (pc.field("offset") <= batch.last_offset)
    )
    statistics = batch.statistics
    try:
        low = _EPOCH + timedelta(microseconds=statistics.timestamp_min_us)
        high = _EPOCH + timedelta(microseconds=statistics.timestamp_max_us)
    except OverflowError:
        return known
    kind = MESSAGE_SCHEMA.field("timestamp").type
    times = pc.field("timestamp")
    return known & (times >= pa.scalar(low, kind)) & (times <= pa.scalar(high, kind))


def _read(
    log: TopicLog, partition: int, batches: Iterable[BatchHeader], start: int
) -> Iterator[pa.RecordBatch]:
    """Records from `start` on, as MESSAGE_SCHEMA."""

    def span(batch: BatchHeader) -> FileSpan:
        return FileSpan(
            f"{log.path}/{batch.path}",
            first_delta=max(0, start - batch.base_offset),
            num_records=batch.num_records,
            size_bytes=batch.size_bytes,
        )

    def read() -> Iterator[tuple[int, int, pa.RecordBatch | RecordLists]]:
        for batch, data in read_ahead(log.store, batches, span):
            file = span(batch)
            parts = read_records(
                log.store, file, columns=DATA_SCHEMA.names, batch_rows=_ROWS, data=data
            )
            for part in parts:
                yield batch.base_offset, file.first_delta, part

    for offsets, records in gather(read(), rows_max=_ROWS, bytes_max=_BYTES):
        yield to_messages(records, log.name, partition, number_array(offsets))
