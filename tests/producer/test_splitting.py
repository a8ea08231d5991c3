"""Records of `produce` and of `produce_batch` go to the same partitions, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from txnlog.producing.accumulator import OnDelivery, Rows, Table
from txnlog.producing.batching import Batch, split
from txnlog.producing.destinations import Destination
from txnlog.storage.batches.record_lists import RecordLists, from_arrow
from txnlog.storage.batches.records import RECORD_OVERHEAD_BYTES

RUN_BYTES = 400
RECORD = st.tuples(
    st.none() | st.sampled_from([b"a", b"b", b"c", b""]),
    st.none() | st.binary(max_size=60),
    st.just(-1) | st.integers(-1, 2),
    st.none() | st.just([("h", b"x")]),
    st.booleans(),
)
Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None, bool]


def destination(partitions: int) -> Destination:
    return Destination("orders", "id", partitions, 10_000, False, 10_000, 0, 7)


def size(record: Record) -> int:
    key, value, _, headers, _ = record
    extra = 0 if headers is None else 2 + 10
    return RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + extra


def rows_of(records: Sequence[Record], where: Destination, callback: OnDelivery) -> Rows:
    """Rows as `produce` fills them."""
    rows = Rows(where, 0)
    for at, (key, value, partition, headers, called) in enumerate(records):
        if partition >= 0:
            rows.partitions[at] = partition
        if headers is not None:
            rows.headers[at] = headers
        if called:
            rows.callbacks[at] = callback
        rows.keys.append(key)
        rows.values.append(value)
        rows.timestamps_ms.append(at)
    rows.size_bytes = sum(map(size, records))
    return rows


def table_of(records: Sequence[Record], where: Destination) -> Table:
    lists = RecordLists(
        [at * 1000 for at in range(len(records))],
        [record[0] for record in records],
        [record[1] for record in records],
        [record[3] for record in records],
    )
    asked = [record[2] if record[2] >= 0 else None for record in records]
    size_bytes = sum(map(size, records))
    return Table(where, 0, lists.to_arrow(), pa.array(asked, pa.int32()), size_bytes, None)


def lists_in(batch: Batch) -> RecordLists:
    found = batch.records
    return from_arrow(found if isinstance(found, pa.RecordBatch) else found.to_arrow())


@given(
    pieces=st.lists(st.lists(RECORD, min_size=1, max_size=25), min_size=1, max_size=3),
    partitions=st.sampled_from([1, 3]),
)
def test_rows_and_tables_are_split_alike(pieces: list[list[Record]], partitions: int) -> None:
    """Sticky runs continue from piece to piece (KIP-794); all bytes are counted."""
    calls: list[object] = []
    by_row, by_table = destination(partitions), destination(partitions)
    for chosen in pieces:
        records = [
            (key, value, min(asked, partitions - 1), headers, called)
            for key, value, asked, headers, called in chosen
        ]
        one = list(split(rows_of(records, by_row, lambda *_: calls.append(1)), RUN_BYTES))
        other = list(split(table_of(records, by_table), RUN_BYTES))
        assert [batch.partition for batch in one] == [batch.partition for batch in other]
        assert [lists_in(batch) for batch in one] == [lists_in(batch) for batch in other]
        assert by_row.sticky_bytes == by_table.sticky_bytes
        assert sum(batch.size_bytes for batch in one) == sum(map(size, records))
        for batch in one:
            # Timestamps are indexes into the piece: each callback belongs to its own record.
            times_us = lists_in(batch).timestamps_us
            called_at = [at for at, us in enumerate(times_us) if records[(us or 0) // 1000][4]]
            assert sorted(batch.callbacks) == called_at
