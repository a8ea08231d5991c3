"""The records of a topic as one Arrow table, with a filter that skips files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnlog.process.arrow_arrays import number_array
from txnlog.process.together import together
from txnlog.protocol.batches import BatchHeader
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists, gather
from txnlog.storage.batches.records import MESSAGE_SCHEMA, RECORD_SCHEMA, to_messages
from txnlog.storage.tables.skipping import check_columns, check_filter, matching
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow.compute as pc

_ROWS = 131_072
_BYTES = 4 << 20
_RUN_BYTES = 8 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def read_topic(
    log: TopicLog, *, columns: Sequence[str] | None, filter: pc.Expression | None
) -> pa.Table:
    """The committed records of a topic, as of its last refresh, by partition and offset.

    `columns` of MESSAGE_SCHEMA, all by default; `filter` may use the others, too. Raises
    ConfigError for another column, and what reading the files raises.
    """
    names = check_columns(columns, MESSAGE_SCHEMA.names)
    used = {*names, *check_filter(filter, MESSAGE_SCHEMA)}
    wanted = [name for name in MESSAGE_SCHEMA.names if name in used]
    reads = []
    for number, state in enumerate(log.view.partitions):
        batches = state.slice(state.log_start_offset, state.last_stable_offset, read_committed=True)
        left = matching(batches, MESSAGE_SCHEMA, filter, partial(_bounds, log.name))
        for run in _runs(left):
            reads.append(partial(_read, log, number, run, state.log_start_offset, wanted))

    def tables(read: Callable[[], Iterator[pa.RecordBatch]]) -> list[pa.Table]:
        found = (pa.Table.from_batches([records]) for records in read())
        return [
            (table if filter is None else table.filter(filter)).select(names) for table in found
        ]

    # As pyarrow's reader; it releases the interpreter's lock, and so does zlib.
    found = together([partial(tables, read) for read in reads], at_once=pa.cpu_count())
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    return pa.concat_tables([schema.empty_table(), *chain.from_iterable(found)])


def _runs(batches: Iterable[BatchHeader]) -> Iterator[list[BatchHeader]]:
    """Cut into runs, each the work of one call: of more than one file only up to _RUN_BYTES."""
    run: list[BatchHeader] = []
    size_bytes = 0
    for batch in batches:
        if run and size_bytes + batch.size_bytes > _RUN_BYTES:
            yield run
            run, size_bytes = [], 0
        run.append(batch)
        size_bytes += batch.size_bytes
    if run:
        yield run


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
    log: TopicLog,
    partition: int,
    batches: Iterable[BatchHeader],
    start: int,
    wanted: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Records from `start` on, with the `wanted` columns of MESSAGE_SCHEMA."""
    columns = ["offset_delta", *(name for name in RECORD_SCHEMA.names if name in wanted)]

    def span(batch: BatchHeader) -> FileSpan:
        return FileSpan(
            f"{log.path}/{batch.path}",
            first_delta=max(0, start - batch.base_offset),
            num_records=batch.num_records,
            size_bytes=batch.size_bytes,
            is_dense=batch.num_records == batch.last_offset - batch.base_offset + 1,
        )

    def read() -> Iterator[tuple[int, int, pa.RecordBatch | RecordLists]]:
        for batch, data in read_ahead(log.store, batches, span):
            file = span(batch)
            parts = read_records(log.store, file, columns=columns, batch_rows=_ROWS, data=data)
            for part in parts:
                yield batch.base_offset, file.first_delta, part

    for offsets, records in gather(read(), rows_max=_ROWS, bytes_max=_BYTES):
        yield to_messages(records, log.name, partition, number_array(offsets), wanted)
