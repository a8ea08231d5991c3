"""A topic's batch headers as arrays, parsed from the strings of its log."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.protocol.batches import ABORTED, COMMITTED, HEADER_COLUMNS, NONE, ONGOING, Int64s
from txnlog.protocol.verification.findings import (
    FINDINGS_PER_KIND_MAX,
    Finding,
    FindingKind,
    Findings,
    delete_records_command,
)
from txnlog.protocol.verification.replay import TableState

STATUSES = (NONE, ONGOING, COMMITTED, ABORTED)
IS_NONE, IS_ONGOING, IS_COMMITTED, IS_ABORTED = range(4)
_NUMBERS = [name for name in HEADER_COLUMNS if name != "txn_status"]
_INTEGER = r"^-?[0-9]{1,18}$"
_RECORDS = r'"numRecords":(?P<count>[0-9]{1,18})'

Bools = npt.NDArray[np.bool_]


class Batches(NamedTuple):
    """Readable headers in partition and offset order, an array per field.

    `status` is an index into none, ongoing, committed, aborted; `records` is -1 where statistics
    lack it; `paths` is an Arrow array.
    """

    paths: Any
    stats: Any
    size_bytes: Int64s
    modified_ms: Int64s
    partition: Int64s
    base_offset: Int64s
    last_offset: Int64s
    producer_id: Int64s
    producer_epoch: Int64s
    base_sequence: Int64s
    status: Int64s
    records: Int64s

    @property
    def last_sequence(self) -> Int64s:
        return self.base_sequence + (self.last_offset - self.base_offset)

    def take(self, places: Int64s) -> Batches:
        """The headers at these places, in that order."""
        at = pa.array(places)
        return Batches(
            self.paths.take(at), self.stats.take(at), *(column[places] for column in self[2:])
        )


def read_batches(table: str, state: TableState, findings: Findings) -> Batches:
    """The readable headers; any other header is a finding."""
    files = state.files
    columns: dict[str, Int64s] = {}
    readable = np.ones(len(files), dtype=bool)
    for name in _NUMBERS:
        text = _strings(files, name)
        good = pc.fill_null(pc.match_substring_regex(text, _INTEGER), False)
        readable &= good.to_numpy(zero_copy_only=False)
        columns[name] = pc.if_else(good, text, "-1").cast(pa.int64()).to_numpy()
    status = pc.index_in(_strings(files, "txn_status"), pa.array(STATUSES))
    readable &= status.is_valid().to_numpy(zero_copy_only=False)
    readable &= columns["last_offset"] >= columns["base_offset"]
    readable &= columns["base_offset"] >= 0
    paths = _column(files, "path")
    for at in first_places(findings, FindingKind.HEADER_UNREADABLE, table, ~readable):
        row = {name: _strings(files, name)[at].as_py() for name in HEADER_COLUMNS}
        findings.add(
            Finding(
                kind=FindingKind.HEADER_UNREADABLE,
                table=table,
                file=f"{table}/{paths[at].as_py()}",
                what=f"its header is {row}",
            )
        )
    stats = _column(files, "stats")
    counts = pc.struct_field(pc.extract_regex(stats, _RECORDS), [0])
    found = Batches._make(
        [
            paths,
            stats,
            _column(files, "size").to_numpy(),
            _column(files, "modification_time").to_numpy(),
            *(columns[name] for name in _NUMBERS),
            pc.fill_null(status, IS_NONE).to_numpy().astype(np.int64),
            pc.fill_null(counts.cast(pa.int64()), -1).to_numpy(),
        ]
    )
    places = np.flatnonzero(readable)
    order = np.lexsort((found.base_offset[places], found.partition[places]))
    return found.take(places[order])


def batch_finding(
    kind: FindingKind, table: str, batches: Batches, at: int, what: str, *, is_lost: bool = False
) -> Finding:
    """A finding about the batch at a place; `is_lost`: its data file cannot be read."""
    partition, last_offset = int(batches.partition[at]), int(batches.last_offset[at])
    return Finding(
        kind=kind,
        table=table,
        file=f"{table}/{batches.paths[at].as_py()}",
        partition=partition,
        offset=int(batches.base_offset[at]),
        last_offset=last_offset,
        records=int(batches.records[at]),
        what=what,
        command=delete_records_command(table, partition, last_offset + 1) if is_lost else "",
    )


def first_places(findings: Findings, kind: FindingKind, table: str, wrong: Bools) -> list[int]:
    """The places for which to make findings; further ones are only counted."""
    places = np.flatnonzero(wrong)
    findings.count_more(kind, table, len(places) - FINDINGS_PER_KIND_MAX)
    found: list[int] = places[:FINDINGS_PER_KIND_MAX].tolist()
    return found


def _column(files: pa.Table, name: str) -> Any:
    column = files.column(name).combine_chunks()
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _strings(files: pa.Table, name: str) -> Any:
    """A partition column; nulls where a table lacks it."""
    if name not in files.column_names:
        return pa.nulls(len(files), pa.string())
    return _column(files, name)
