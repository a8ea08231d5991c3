"""Checks of one topic's own log, by column: no Python runs per batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from txnlog.protocol.batches import Int64s
from txnlog.protocol.topics import END_PREFIX, START_PREFIX
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.verification.findings import (
    Finding,
    FindingKind,
    Findings,
    delete_records_command,
)
from txnlog.protocol.verification.headers import (
    IS_ABORTED,
    IS_COMMITTED,
    IS_NONE,
    IS_ONGOING,
    Batches,
    Bools,
    batch_finding,
    first_places,
)
from txnlog.protocol.verification.replay import TableState

PARTITIONS_MAX = 100_000


class Undecided(NamedTuple):
    """An `ongoing` header."""

    producer_id: int
    producer_epoch: int
    partition: int
    base_offset: int
    last_offset: int
    path: str


@dataclass(slots=True, kw_only=True)
class TopicFacts:
    """Facts about a topic for the checks across tables.

    `starts` and `ends` are by partition. `producer_id_max` is the largest id in any header or
    marker. `is_complete` says that the whole log could be read.
    """

    name: str
    topic_id: str = ""
    is_deleted: bool = False
    is_complete: bool = True
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    txns: TxnMemory = field(default_factory=TxnMemory)
    undecided: list[Undecided] = field(default_factory=list)
    producer_id_max: int = -1


def check_topic(
    table: str, state: TableState, batches: Batches, config: Mapping[str, str], findings: Findings
) -> TopicFacts:
    """All checks that need only the topic's own log."""
    check = _TopicCheck(table, state, batches, config, findings)
    check.partitions()
    check.offsets()
    check.counts()
    check.sequences()
    check.newest_sequences()
    check.markers()
    return check.facts()


class _TopicCheck:
    def __init__(
        self,
        table: str,
        state: TableState,
        batches: Batches,
        config: Mapping[str, str],
        findings: Findings,
    ) -> None:
        self._table = table
        self._all = batches
        self._findings = findings
        self._txns = state.memory()
        self._topic_id = "" if state.metadata is None else state.metadata.table_id
        self._is_deleted = config.get("deleted") == "true"
        self._count = self._partitions(config.get("partitions", "1"))
        self._starts = _bounds(state, START_PREFIX, self._count)
        self._stated_ends = _bounds(state, END_PREFIX, self._count)
        known = (batches.partition >= 0) & (batches.partition < self._count)
        self._unknown = ~known
        self._batches = batches if known.all() else batches.take(np.flatnonzero(known))

    def _partitions(self, text: str) -> int:
        """The number of partitions; 1 if the property is impossible."""
        count = int(text) if text.isdecimal() and len(text) < 10 else 0
        if 0 < count <= PARTITIONS_MAX:
            return count
        self._findings.add(
            Finding(
                kind=FindingKind.BOUND_WRONG,
                table=self._table,
                what=f"its property txnlog.partitions is {text!r}",
            )
        )
        return 1

    def partitions(self) -> None:
        """Every batch is in a partition of the topic."""
        self._report(
            FindingKind.PARTITION_UNKNOWN,
            self._unknown,
            lambda at: f"the topic has {self._count} partitions",
            batches=self._all,
        )

    def offsets(self) -> None:
        """Each offset between log start and end is in exactly one batch."""
        batches = self._batches
        same = _same_as_before(batches.partition)
        reached = _running_max(batches.last_offset, ~same)
        before = np.concatenate(([-1], reached[:-1])) if len(reached) else reached
        overlap = same & (batches.base_offset <= before)
        self._report(
            FindingKind.BATCHES_OVERLAP,
            overlap,
            lambda at: (
                f"it begins at offset {batches.base_offset[at]}, a batch before it ends at "
                f"{before[at]}"
            ),
        )
        starts = self._starts[batches.partition]
        hole = same & (batches.base_offset > before + 1) & (batches.base_offset > starts)
        self._report(
            FindingKind.OFFSETS_MISSING,
            hole,
            lambda at: (
                f"offsets {max(before[at] + 1, starts[at])} to "
                f"{batches.base_offset[at] - 1} are in no batch"
            ),
            missing=(np.maximum(before + 1, starts), batches.base_offset - 1),
        )
        last = np.append(~same[1:], True) if len(same) else same
        ends, starts_of = self._stated_ends[batches.partition], starts
        behind = last & (ends > reached + 1) & (starts_of < ends)
        self._report(
            FindingKind.OFFSETS_MISSING,
            behind,
            lambda at: (
                f"the newest batch ends at offset {reached[at]}, the log says that the "
                f"partition ends before {ends[at]}"
            ),
            missing=(reached + 1, ends - 1),
        )
        self._bounds_in_order()

    def _bounds_in_order(self) -> None:
        for partition, (start, end) in enumerate(zip(self._starts, self._ends(), strict=True)):
            if start > end:
                self._findings.add(
                    Finding(
                        kind=FindingKind.BOUND_WRONG,
                        table=self._table,
                        partition=partition,
                        offset=int(start),
                        what=f"the log start is {start}, the end {end}",
                    )
                )

    def counts(self) -> None:
        """A file has at most as many records as its header has offsets."""
        batches = self._batches
        span = batches.last_offset - batches.base_offset + 1
        self._report(
            FindingKind.HEADER_UNREADABLE,
            batches.records > span,
            lambda at: (
                f"its statistics say {batches.records[at]} records, its header has offsets "
                f"for {span[at]}"
            ),
        )

    def sequences(self) -> None:
        """Sequences of a producer's epoch increase by one; a merge in between explains a gap.

        The remaining batches of an expired idempotent producer are not checked (D48).
        """
        batches = self._batches
        merged = np.cumsum(batches.producer_id < 0)
        written = np.flatnonzero((batches.producer_id >= 0) & (batches.base_sequence >= 0))
        keys = (batches.producer_id, batches.partition, batches.producer_epoch)
        order = written[np.lexsort([key[written] for key in reversed(keys)])]
        same = np.ones(len(order), dtype=bool)
        for key in keys:
            same &= _same_as_before(key[order])
        after = order[same]
        before = order[np.append(same[1:], False)] if len(order) else order
        first, last = batches.base_sequence[after], batches.last_sequence[before]
        starts = self._starts[batches.partition[after]]
        is_gone = (merged[after] > merged[before]) | (batches.last_offset[before] < starts)
        gap = self._not_expired(after, (first > last + 1) & ~is_gone)
        repeated = self._not_expired(after, first <= last)

        def describe(at: int) -> str:
            place = int(np.searchsorted(positions, at))
            of, epoch = batches.producer_id[at], batches.producer_epoch[at]
            return (
                f"producer {of} epoch {epoch} continues at sequence "
                f"{ordered_first[place]} after {ordered_last[place]}"
            )

        by_place = np.argsort(after)
        positions, ordered_first, ordered_last = after[by_place], first[by_place], last[by_place]
        self._report(FindingKind.SEQUENCE_GAP, _mask(len(batches.partition), after[gap]), describe)
        self._report(
            FindingKind.SEQUENCE_REPEATED, _mask(len(batches.partition), after[repeated]), describe
        )

    def _not_expired(self, places: Int64s, wrong: Bools) -> Bools:
        """The mask without batches of expired idempotent producers."""
        batches = self._batches
        for at in np.flatnonzero(wrong).tolist():
            place = places[at]
            key = int(batches.producer_id[place]), int(batches.partition[place])
            if batches.status[place] == IS_NONE and key not in self._txns.sequences:
                wrong[at] = False
        return wrong

    def newest_sequences(self) -> None:
        """The newest batch of an idempotent producer ends at the sequence of its `txn` action."""
        batches = self._batches
        counted = (batches.producer_id >= 0) & (batches.status == IS_NONE)
        written = np.flatnonzero(counted & (batches.base_sequence >= 0))
        keys = (batches.producer_id[written], batches.partition[written])
        order = written[np.lexsort(keys[::-1])]
        same = _same_as_before(batches.producer_id[order])
        same &= _same_as_before(batches.partition[order])
        newest = order[np.append(~same[1:], True)] if len(order) else order
        for at in newest.tolist():
            key = int(batches.producer_id[at]), int(batches.partition[at])
            stated = self._txns.sequences.get(key)
            if stated is not None and stated != int(batches.last_sequence[at]):
                self._findings.add(
                    batch_finding(
                        FindingKind.SEQUENCE_GAP,
                        self._table,
                        batches,
                        at,
                        f"the newest batch of producer {key[0]} ends at sequence "
                        f"{batches.last_sequence[at]}, the log says {stated}",
                    )
                )

    def markers(self) -> None:
        """A batch is settled if, and only if, its transaction has a marker here."""
        batches = self._batches
        ids, places = np.unique(batches.producer_id, return_inverse=True)
        marked = np.array([self._txns.markers.get(int(one), -1) for one in ids], dtype=np.int64)
        marker = marked[places] if len(ids) else batches.producer_id
        is_settled = (batches.status == IS_COMMITTED) | (batches.status == IS_ABORTED)
        expired_ms = self._txns.transactions_expired_ms
        is_expired = (marker < 0) & (batches.modified_ms < expired_ms)
        lacks = is_settled & (batches.producer_id >= 0) & (marker < batches.producer_epoch)
        self._report(
            FindingKind.MARKER_MISSING,
            lacks & ~is_expired,
            lambda at: (
                f"the batch of epoch {batches.producer_epoch[at]} is settled, the newest marker of "
                f"producer {batches.producer_id[at]} has epoch {marker[at]}"
            ),
        )
        self._report(
            FindingKind.UNDECIDED_AFTER_MARKER,
            (batches.status == IS_ONGOING) & (marker >= batches.producer_epoch),
            lambda at: (
                f"the marker of producer {batches.producer_id[at]} has epoch {marker[at]}, "
                f"the batch {batches.producer_epoch[at]}"
            ),
        )

    def facts(self) -> TopicFacts:
        """For the checks across tables."""
        batches = self._batches
        ends = self._ends()
        starts = ends.copy()
        first = np.flatnonzero(~_same_as_before(batches.partition))
        starts[batches.partition[first]] = batches.base_offset[first]
        starts = np.minimum(np.maximum(starts, self._starts), ends)
        ongoing = np.flatnonzero(batches.status == IS_ONGOING).tolist()
        markers = self._txns.markers
        return TopicFacts(
            name=self._table,
            topic_id=self._topic_id,
            is_deleted=self._is_deleted,
            starts=starts.tolist(),
            ends=ends.tolist(),
            txns=self._txns,
            undecided=[
                Undecided(
                    int(batches.producer_id[at]),
                    int(batches.producer_epoch[at]),
                    int(batches.partition[at]),
                    int(batches.base_offset[at]),
                    int(batches.last_offset[at]),
                    batches.paths[at].as_py(),
                )
                for at in ongoing
            ],
            producer_id_max=max(
                int(batches.producer_id.max(initial=-1)),
                max(markers, default=-1),
                max((key[0] for key in self._txns.sequences), default=-1),
            ),
        )

    def _ends(self) -> Int64s:
        ends: Int64s = self._stated_ends.copy()
        np.maximum.at(ends, self._batches.partition, self._batches.last_offset + 1)
        return ends

    # -- reports ---------------------------------------------------------------------------------

    def _report(
        self,
        kind: FindingKind,
        wrong: Bools,
        what: Callable[[int], str],
        *,
        batches: Batches | None = None,
        missing: tuple[Int64s, Int64s] | None = None,
    ) -> None:
        """A finding for each batch that is wrong; `missing` are offsets that are in none."""
        for at in first_places(self._findings, kind, self._table, wrong):
            found = batch_finding(kind, self._table, batches or self._batches, at, what(at))
            if missing is not None:
                first, last = int(missing[0][at]), int(missing[1][at])
                command = delete_records_command(self._table, found.partition, last + 1)
                found = replace(
                    found, offset=first, last_offset=last, records=last + 1 - first, command=command
                )
            self._findings.add(found)


def _same_as_before(values: Int64s) -> Bools:
    """Whether each value equals the one before it; the first does not."""
    same = np.zeros(len(values), dtype=bool)
    same[1:] = values[1:] == values[:-1]
    return same


def _running_max(values: Int64s, begins: Bools) -> Int64s:
    """The largest value so far in each run; `begins` marks the first of each run."""
    if len(values) == 0:
        return values
    # Shift the runs apart, so that one accumulation serves all of them.
    low = int(values.min())
    span = int(values.max()) - low + 1
    run = np.cumsum(begins)
    if span and int(run[-1]) < (2**62) // span:
        lifted = (values - low) + run * span
        reached: Int64s = np.maximum.accumulate(lifted) - run * span + low
        return reached
    found: Int64s = values.copy()
    edges = [*np.flatnonzero(begins).tolist(), len(values)]
    for start, end in pairwise(edges):
        np.maximum.accumulate(values[start:end], out=found[start:end])
    return found


def _mask(length: int, places: Int64s) -> Bools:
    found = np.zeros(length, dtype=bool)
    found[places] = True
    return found


def _bounds(state: TableState, prefix: str, count: int) -> Int64s:
    found = np.zeros(count, dtype=np.int64)
    for app_id, (version, _) in state.txns.items():
        number = app_id[len(prefix) :]
        if app_id.startswith(prefix) and number.isdigit() and int(number) < count:
            found[int(number)] = version
    return found
