"""Checks of live files: that they exist, their size, and that records match the header."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txnlog.protocol.batches import Int64s, Statistics
from txnlog.protocol.verification.findings import (
    FINDINGS_PER_KIND_MAX,
    Finding,
    FindingKind,
    Findings,
)
from txnlog.protocol.verification.headers import Batches, batch_finding


def check_files(
    table: str,
    live: pa.Table,
    *,
    names: Any,
    sizes: Any,
    missing: FindingKind,
    findings: Findings,
    batches: Batches | None = None,
) -> set[str]:
    """Check live files against a listing; returns the paths below the table that are reported.

    `live` has the columns path and size; `names` and `sizes` are Arrow arrays of the listing.
    `missing` is the kind of a finding about a missing file; `batches` are the headers of a topic.
    """

    def add(kind: FindingKind, path: str, what: str) -> None:
        at = -1 if batches is None else pc.index(batches.paths, path).as_py()
        if batches is None or at < 0:
            finding = Finding(kind=kind, table=table, file=f"{table}/{path}", what=what)
        else:
            finding = batch_finding(kind, table, batches, at, what, is_lost=True)
        findings.add(finding)

    places = pc.index_in(live.column("path"), names)
    gone = live.filter(pc.is_null(places))
    findings.count_more(missing, table, len(gone) - FINDINGS_PER_KIND_MAX)
    for path in gone.column("path").slice(0, FINDINGS_PER_KIND_MAX).to_pylist():
        add(missing, path, "the log names it, and it does not exist")
    there = live.filter(pc.is_valid(places))
    found = sizes.take(places.drop_null().combine_chunks())
    differ = pc.not_equal(there.column("size"), pa.chunked_array([found]))
    wrong = there.append_column("found", pa.chunked_array([found])).filter(differ)
    kind = FindingKind.FILE_SIZE_WRONG
    findings.count_more(kind, table, len(wrong) - FINDINGS_PER_KIND_MAX)
    for row in wrong.slice(0, FINDINGS_PER_KIND_MAX).to_pylist():
        add(kind, row["path"], f"it has {row['found']} bytes, the log says {row['size']}")
    return {*gone.column("path").to_pylist(), *wrong.column("path").to_pylist()}


class RecordCheck:
    """Checks a file's records batch by batch; `wrong` says what contradicts its header."""

    def __init__(self, *, span: int, statistics: Statistics) -> None:
        self._span = span
        self._statistics = statistics
        self._last = -1
        self.wrong = ""

    def add(self, deltas: Int64s, timestamps_us: Int64s) -> None:
        """Check the next records: offset deltas, and non-null times in microseconds."""
        if self.wrong or not len(deltas):
            return
        if deltas[0] <= self._last or np.any(np.diff(deltas) <= 0):
            self.wrong = "its offset_delta does not increase from record to record"
        elif deltas[0] < 0 or deltas[-1] >= self._span:
            self.wrong = (
                f"it has offset_delta {deltas[0]} to {deltas[-1]}, its header {self._span} offsets"
            )
        self._last = int(deltas[-1])
        if len(timestamps_us) and not self.wrong:
            low, high = int(timestamps_us.min()), int(timestamps_us.max())
            known = self._statistics
            if low < known.timestamp_min_us or high > known.timestamp_max_us:
                self.wrong = (
                    f"its timestamps are {low} to {high} us, its statistics say "
                    f"{known.timestamp_min_us} to {known.timestamp_max_us}"
                )
