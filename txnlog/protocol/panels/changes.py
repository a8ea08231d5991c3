"""What the commits of the last minutes say, in a compact form: the history behind the panels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Point
from txnlog.protocol.stories import RowChange

RATE_MS = 60_000
POINTS_MAX = 60
"""Points of a line over a window."""


class Window(NamedTuple):
    """The time that the panels show."""

    since_ms: int
    until_ms: int

    @property
    def length_ms(self) -> int:
        return max(1, self.until_ms - self.since_ms)

    def ends(self) -> list[int]:
        """The ends of POINTS_MAX steps of equal length."""
        return [
            self.since_ms + self.length_ms * (step + 1) // POINTS_MAX for step in range(POINTS_MAX)
        ]


class Appended(NamedTuple):
    """The batches to which one commit gives a status, of one producer in a partition: `offsets` of
    those from the first to the last.
    """

    partition: int
    transaction: ProducerIdAndEpoch
    status: str
    base_offset: int
    last_offset: int
    offsets: int

    def holds(self, partition: int, offset: int) -> bool:
        """Whether it surely has a record."""
        is_whole = self.offsets == self.last_offset + 1 - self.base_offset
        is_within = self.base_offset <= offset <= self.last_offset
        return is_whole and is_within and partition == self.partition


class TopicChange(NamedTuple):
    """A commit to a topic; `transaction` is that of its writer; `marked` are all that it ends."""

    at_ms: int
    version: int
    operation: str
    transaction: ProducerIdAndEpoch
    appended: Sequence[Appended]
    marked: Sequence[ProducerIdAndEpoch] = ()


class GroupChange(NamedTuple):
    """A commit's change of a group: its offsets, topic -> partition -> offset."""

    at_ms: int
    version: int
    group_id: str
    positions: Mapping[str, Mapping[int, int]]


Change = TopicChange | GroupChange | RowChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The commits of a window, each list in order; `rows` by id, `topics` and `groups` by name.

    A list may begin with the one before the window.

    `cut` are tables of which only the newest commits of the window were read, and from when on.
    """

    rows: Mapping[str, Sequence[RowChange]] = field(default_factory=dict)
    topics: Mapping[str, Sequence[TopicChange]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[GroupChange]] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)

    def published(self) -> dict[ProducerIdAndEpoch, int]:
        """When the last topic got the marker of a transaction."""
        found: dict[ProducerIdAndEpoch, int] = {}
        for changes in self.topics.values():
            for change in changes:
                for transaction in change.marked:
                    known = found.get(transaction, change.at_ms)
                    found[transaction] = max(known, change.at_ms)
        return found


MARKERS = "WRITE TXN MARKERS"
REWRITES = ("COMPACT", "COPY", "REPAIR")


def appended(headers: Iterable[Mapping[str, str | None]]) -> tuple[Appended, ...]:
    """The batches of a commit, by the partition values of their files, those of a producer in a
    partition as one. Raises KeyError, ValueError, TypeError for values that are no header.
    """
    found: dict[tuple[int, int, int, str], Appended] = {}
    for values in headers:
        partition, producer_id, epoch, first, last = (int(values[name] or "") for name in _NUMBERS)
        status = sys.intern(values["txn_status"] or "")
        key = partition, producer_id, epoch, status
        offsets = last + 1 - first
        known = found.get(key)
        if known is not None:
            first, last = min(first, known.base_offset), max(last, known.last_offset)
            offsets += known.offsets
        transaction = ProducerIdAndEpoch(producer_id, epoch)
        found[key] = Appended(partition, transaction, status, first, last, offsets)
    return tuple(found.values())


_NUMBERS = ("partition", "producer_id", "producer_epoch", "base_offset", "last_offset")


class NewRecords(NamedTuple):
    """Records that came into a partition."""

    at_ms: int
    producer_id: int
    partition: int
    records: int


def new_records(changes: Sequence[TopicChange], window: Window) -> Iterator[NewRecords]:
    """What commits brought in a window, without what they wrote again: a marker does."""
    ends: dict[int, int] = {}
    for change in changes:
        if change.operation in REWRITES:
            continue
        for one in sorted(change.appended, key=lambda one: one.base_offset):
            first = max(one.base_offset, ends.get(one.partition, 0))
            count = one.last_offset + 1 - first
            if count > 0:
                ends[one.partition] = one.last_offset + 1
                if change.at_ms >= window.since_ms:
                    producer_id = one.transaction.producer_id
                    yield NewRecords(change.at_ms, producer_id, one.partition, count)


def log_ends(changes: Sequence[TopicChange]) -> Iterator[tuple[int, int, int]]:
    """(time, partition, end) after each commit that appends."""
    ends: dict[int, int] = {}
    for change in changes:
        for one in change.appended:
            if one.last_offset >= ends.get(one.partition, 0):
                ends[one.partition] = one.last_offset + 1
                yield change.at_ms, one.partition, one.last_offset + 1


def first_offsets(changes: Sequence[TopicChange]) -> dict[int, int]:
    """The end of each partition before the first of these commits that appended there."""
    found: dict[int, int] = {}
    for change in changes:
        for one in change.appended:
            found.setdefault(one.partition, one.base_offset)
    return found


def newest_rate(records: Sequence[NewRecords], window: Window) -> float:
    """Records per second over the last minute of a window."""
    length_ms = min(RATE_MS, window.length_ms)
    since_ms = window.until_ms - length_ms
    return sum(one.records for one in records if one.at_ms >= since_ms) * 1000 / length_ms


def rates(records: Sequence[NewRecords], window: Window) -> list[Point]:
    """Records per second in each step of a window; [] if there are none."""
    if not records:
        return []
    ends, sums, length_ms = window.ends(), [0] * POINTS_MAX, window.length_ms
    for one in records:
        step = (one.at_ms - window.since_ms) * POINTS_MAX // length_ms
        sums[max(0, min(step, POINTS_MAX - 1))] += one.records
    starts = [window.since_ms, *ends[:-1]]
    seconds = length_ms / POINTS_MAX / 1000
    return [Point(at, count / seconds) for at, count in zip(starts, sums, strict=True)]


def thinned(points: Sequence[Point], window: Window) -> list[Point]:
    """The last value of each step of a window, where it is another one than before."""
    found: list[Point] = []
    at = 0
    value: float | None = None
    for end in window.ends():
        while at < len(points) and points[at].at_ms <= end:
            value = points[at].value
            at += 1
        if value is not None and (not found or found[-1].value != value):
            found.append(Point(end, value))
    return found
