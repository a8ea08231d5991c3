"""The records of a topic as one Arrow table, with a filter that skips files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnlog.errors import ConfigError
from txnlog.process.arrow_arrays import number_array
from txnlog.protocol.batches import BatchHeader
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import FileSpan, read_records
from txnlog.storage.batches.record_lists import RecordLists, gather
from txnlog.storage.batches.records import DATA_SCHEMA, MESSAGE_SCHEMA, to_messages
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
    names = MESSAGE_SCHEMA.names if columns is None else list(columns)
    if unknown := [name for name in names if name not in MESSAGE_SCHEMA.names]:
        raise ConfigError(
            f"There is no column {unknown[0]!r}; there are: {', '.join(MESSAGE_SCHEMA.names)}.",
            option="columns",
        )
    if filter is not None:
        _check(filter)
    found = []
    for number, state in enumerate(log.view.partitions):
        batches = state.slice(state.log_start_offset, state.last_stable_offset, read_committed=True)
        left = batches if filter is None else _matching(log, batches, filter)
        for records in _read(log, number, left, state.log_start_offset):
            table = pa.Table.from_batches([records])
            found.append((table if filter is None else table.filter(filter)).select(names))
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    return pa.concat_tables(found) if found else schema.empty_table()


def _check(filter: pc.Expression) -> None:
    from pyarrow.compute import Expression

    if not isinstance(filter, Expression):
        raise TypeError(f"filter must be an Expression of pyarrow.compute, not {filter!r:.80}.")
    try:
        MESSAGE_SCHEMA.empty_table().filter(filter)
    except pa.ArrowException as error:
        raise ConfigError(
            f"The filter does not fit the columns: {error}", option="filter"
        ) from error


def _matching(
    log: TopicLog, batches: Iterable[BatchHeader], filter: pc.Expression
) -> list[BatchHeader]:
    """Without those whose header rules out every record; Arrow decides it, and opens no file."""
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    by_path = {batch.path: batch for batch in batches}
    file_format = ds.ParquetFileFormat()
    nowhere = LocalFileSystem()
    fragments = [
        file_format.make_fragment(path, nowhere, partition_expression=_bounds(log.name, batch))
        for path, batch in by_path.items()
    ]
    dataset = ds.FileSystemDataset(fragments, MESSAGE_SCHEMA, file_format, nowhere)
    return [by_path[fragment.path] for fragment in dataset.get_fragments(filter)]


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
