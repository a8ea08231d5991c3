"""What the page reads, one thing at a time, and remembers: several tabs cost as one."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from txnlog.admin.moments import Moments
from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import Moment, RecordMoment, TransactionMoment
from txnlog.protocol.vacuum import Deletable
from txnlog.ui.values import Shown, shown

T = TypeVar("T")

FRESH_S: Final = 2
LISTED_S: Final = 60
KEPT_MAX: Final = 16
RECORDS: Final = 20
SCHEMAS: Final = "_schemas"


class Record(NamedTuple):
    """A record with its key, value and headers as text; `key` is None for null."""

    place: RecordMoment
    key: Shown | None
    value: Shown | None
    headers: Sequence[tuple[str, Shown | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which records of a partition: from an offset or a time on, or with a key; else the newest."""

    topic: str
    partition: int
    offset: int | None = None
    timestamp_ms: int | None = None
    key: bytes | None = None
    count: int = RECORDS
    with_values: bool = True


class Reader:
    """Remembers the last answers, those about now for two seconds. One thread at a time."""

    def __init__(self, moments: Moments, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._moments = moments
        self._clock_s = clock_s
        self._kept: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def moment(self, at_ms: int | None) -> Moment:
        """The root now, or at a time."""
        if at_ms is not None:
            return self._once(("at", at_ms), at_ms, lambda: self._moments.at(at_ms))
        return self._once("now", None, self._moments.now)

    def transaction(self, transaction: ProducerIdAndEpoch, at_ms: int | None) -> TransactionMoment:
        """One transaction with all that is known of it."""
        key = ("transaction", transaction, at_ms)
        return self._once(key, at_ms, lambda: self._moments.transaction(transaction, at_ms=at_ms))

    def records(self, wanted: Wanted, at_ms: int | None) -> list[Record]:
        """Records as text, their values cut: what is kept is small."""
        return self._once((wanted, at_ms), at_ms, lambda: self._read(wanted, at_ms))

    def deletable(self) -> Sequence[Deletable]:
        """What housekeeping would delete; it lists every folder, so once a minute at most."""
        return self._once("deletable", None, self._moments.deletable, LISTED_S)

    def _read(self, wanted: Wanted, at_ms: int | None) -> list[Record]:
        found = self._moments.records(
            wanted.topic,
            wanted.partition,
            offset=wanted.offset,
            timestamp_ms=wanted.timestamp_ms,
            key=wanted.key,
            count=wanted.count,
            with_values=wanted.with_values,
            at_ms=at_ms,
        )
        # What is newest stands first, unless the question was from where on.
        is_newest_first = wanted.offset is None and wanted.timestamp_ms is None
        found = sorted(found, key=lambda one: one.offset, reverse=is_newest_first)
        if not wanted.with_values:
            found = [one._replace(key=None, value=None, headers=()) for one in found]
        return [self._as_text(record) for record in found]

    def _as_text(self, record: RecordMoment) -> Record:
        headers = [(name, shown(value, self._schema)) for name, value in record.headers]
        key, value = shown(record.key, self._schema), shown(record.value, self._schema)
        small = record._replace(key=None, value=None, headers=())
        return Record(small, key, value, headers)

    def _schema(self, schema_id: int) -> str | None:
        return self._once(("schema", schema_id), 0, lambda: self._read_schema(schema_id))

    def _read_schema(self, schema_id: int) -> str | None:
        """The schema's id is the offset of its first registration plus one (D114)."""
        with suppress(TxnLogError, ValueError, KeyError, TypeError):
            [found] = self._moments.records(
                SCHEMAS, 0, offset=schema_id - 1, count=1, with_values=True
            )
            body = json.loads(found.value or b"")
            if body.get("schemaType", "AVRO") == "AVRO" and not body.get("references"):
                return str(body["schema"])
        return None

    def _once(
        self, key: Hashable, at_ms: int | None, read: Callable[[], T], fresh_s: float = FRESH_S
    ) -> T:
        """What was read before: for good as of a time, for a while as of now."""
        now_s = self._clock_s()
        kept = self._kept.get(key)
        if kept is not None and (at_ms is not None or now_s < kept[0]):
            self._kept.move_to_end(key)
            return kept[1]  # type: ignore[no-any-return]
        found = read()
        if isinstance(found, Moment) and found.later:
            # The next look knows more.
            return found
        self._kept[key] = self._clock_s() + fresh_s, found
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return found
