"""Conditions that Spark pushes down to a batch read: which partitions, offsets and files to skip.

Spark evaluates every condition again on the rows that it gets, so this only has to keep each record
that can match. Conditions of another form, or on other columns, are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import pyspark.sql.datasource as spark

from txnlog.protocol.group_metadata import Positions

Value = TypeVar("Value", int, str)

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


def filters_are_pushed() -> bool:
    """Whether this process is the worker that Spark starts to push filters down.

    Spark refuses a reader that implements pushFilters while its setting
    spark.sql.python.filterPushdown.enabled is false, which readers cannot see.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == PUSHDOWN_WORKER


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers from `low` to `high`, both inclusive; of `values`, if they are listed."""

    low: int = _LOWEST
    high: int = _HIGHEST
    values: frozenset[int] | None = None

    def admits(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.values is None or number in self.values)

    def overlaps(self, low: int, high: int) -> bool:
        """Whether a number from `low` to `high` may be admitted."""
        return low <= self.high and high >= self.low

    def and_at_least(self, low: int) -> Bounds:
        return replace(self, low=max(self.low, low))

    def and_at_most(self, high: int) -> Bounds:
        return replace(self, high=min(self.high, high))

    def and_one_of(self, values: Iterable[int]) -> Bounds:
        listed = _both(self.values, values)
        low, high = min(listed, default=_HIGHEST), max(listed, default=_LOWEST)
        return replace(self.and_at_least(low).and_at_most(high), values=listed)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a batch read can skip. Times are in microseconds since 1970."""

    topics: frozenset[str] | None = None
    numbers: Mapping[str, Bounds] = field(default_factory=dict)

    @classmethod
    def of(cls, filters: Iterable[spark.Filter]) -> Pruning:
        """The conjunction of the filters that are understood."""
        pruning = cls()
        for filter_ in filters:
            pruning = pruning._and(filter_)
        return pruning

    @property
    def times_us(self) -> Bounds:
        return self.numbers.get("timestamp", Bounds())

    def starts(self, starts: Positions) -> dict[str, dict[int, int]]:
        """Where to start: not before the first offset of interest."""
        low = self.numbers.get("offset", Bounds()).low
        return {
            topic: {partition: max(start, low) for partition, start in found.items()}
            for topic, found in starts.items()
        }

    def ends(self, ends: Positions) -> dict[str, dict[int, int]]:
        """Where to end: after the last offset of interest; only topics and partitions with some."""
        partitions = self.numbers.get("partition", Bounds())
        high = self.numbers.get("offset", Bounds()).high
        return {
            topic: {
                partition: min(end, high + 1)
                for partition, end in found.items()
                if partitions.admits(partition)
            }
            for topic, found in ends.items()
            if self.topics is None or topic in self.topics
        }

    def _and(self, filter_: spark.Filter) -> Pruning:
        path: tuple[str, ...] = getattr(filter_, "attribute", ())
        name = path[0].lower() if len(path) == 1 else ""
        value: Any = getattr(filter_, "value", None)
        values = list(value) if isinstance(filter_, spark.In) else [value]
        if name == "topic":
            if isinstance(filter_, spark.EqualTo | spark.EqualNullSafe | spark.In) and _are(
                values, str
            ):
                return replace(self, topics=_both(self.topics, values))
            return self
        numbers = _numbers(name, values)
        if numbers is None:
            return self
        bounds = self.numbers.get(name, Bounds())
        match filter_:
            case spark.EqualTo() | spark.EqualNullSafe() | spark.In():
                bounds = bounds.and_one_of(numbers)
            case spark.GreaterThan():
                bounds = bounds.and_at_least(numbers[0] + 1)
            case spark.GreaterThanOrEqual():
                bounds = bounds.and_at_least(numbers[0])
            case spark.LessThan():
                bounds = bounds.and_at_most(numbers[0] - 1)
            case spark.LessThanOrEqual():
                bounds = bounds.and_at_most(numbers[0])
            case _:
                return self
        return replace(self, numbers={**self.numbers, name: bounds})


def _numbers(name: str, values: list[Any]) -> list[int] | None:
    """The values of a condition on a number or time of a record; None if they are something else.

    A null in a list matches no record, and a comparison with null matches none either: Spark
    decides about those.
    """
    if name in ("partition", "offset") and _are(values, int):
        return values
    if name == "timestamp" and _are(values, datetime) and all(time.tzinfo for time in values):
        return [(time - _EPOCH) // _MICROSECOND for time in values]
    return None


def _are(values: list[Any], kind: type) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)


def _both(known: frozenset[Value] | None, values: Iterable[Value]) -> frozenset[Value]:
    listed = frozenset(values)
    return listed if known is None else known & listed
