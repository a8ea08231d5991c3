"""Compares what clients learned with what readers got: no loss, duplicate, torn transaction.

A test names every record that it produces through an Auditor, reports the outcome of each
transaction as far as the client knows it, and passes every record that readers get, in their
order. That alone determines what readers may see; nothing here depends on how txnlog works.

    auditor = Auditor()
    txn = auditor.begin()
    value = auditor.name_record("writer 1", txn, "orders")
    producer.produce("orders", value)
    auditor.take(value)
    producer.commit_transaction()
    txn.settle(committed=True)
    auditor.see("orders", 0, offset, value, committed=False)        # every record that readers get
    auditor.check()                                  # after readers have read to the end
    auditor.finish({}, {})                          # after everything is settled
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["AuditedTransaction", "Auditor", "BrokenPromiseError", "Place"]

Place = tuple[str, int]
"""A partition: topic and number."""


class BrokenPromiseError(AssertionError):
    """A reader got a record it must not get, or lacks one; the message says which and where."""


@dataclass(eq=False, slots=True)
class AuditedTransaction:
    """A transaction as its client knows it; `committed` is None while the outcome is unknown.

    `values` are its records by topic. `is_whole`: all its records of a topic become visible at
    once, as deferred publication guarantees.
    """

    name: str
    is_whole: bool = False
    values: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    committed: bool | None = None

    def settle(self, *, committed: bool) -> None:
        """Its client learned the outcome. Raises BrokenPromiseError if it differs from before."""
        if self.committed not in (None, committed):
            raise BrokenPromiseError(f"{self.name} was {self.committed}, now it is {committed}")
        self.committed = committed


@dataclass(slots=True)
class _Partition:
    """The records that readers of one isolation level got from a partition."""

    values: dict[int, str] = field(default_factory=dict)
    newest: int = -1


@dataclass(slots=True)
class _Origin:
    """A record's topic and writer, and its transaction (None: none)."""

    writer: str
    number: int
    topic: str
    txn: AuditedTransaction | None
    copy_of: tuple[str, Place, int] | None


class Auditor:
    """Names of records, outcomes of transactions, and what readers got.

    A check that fails raises BrokenPromiseError.
    """

    def __init__(self) -> None:
        self.transactions: list[AuditedTransaction] = []
        self.forgiven: set[str] = set()
        self._names = 0
        self._named: dict[str, _Origin] = {}
        self._origins: dict[str, _Origin] = {}
        self._gone_from: dict[str, Mapping[int, int]] = {}
        self._read: dict[bool, defaultdict[Place, _Partition]] = {
            level: defaultdict(_Partition) for level in (False, True)
        }
        self._places: dict[bool, dict[str, tuple[Place, int]]] = {False: {}, True: {}}
        self._order: dict[bool, dict[tuple[str, Place], int]] = {False: {}, True: {}}
        self._copies: defaultdict[tuple[str, Place], list[int]] = defaultdict(list)
        self._delivered: dict[str, tuple[Place, int | None]] = {}
        self._deliveries: list[str] = []
        self._touched: set[AuditedTransaction] = set()
        self._unchecked: list[AuditedTransaction] = []

    # -- what clients do and learn -----------------------------------------------------------------

    def begin(self, *, is_whole: bool = False) -> AuditedTransaction:
        """A transaction without records."""
        txn = AuditedTransaction(f"transaction {len(self.transactions)}", is_whole)
        self.transactions.append(txn)
        self._unchecked.append(txn)
        return txn

    def name_record(
        self,
        writer: str,
        txn: AuditedTransaction | None,
        topic: str,
        *,
        copy_of: tuple[str, Place, int] | None = None,
    ) -> str:
        """A value for the writer's next record; `copy_of` is (group, partition, offset)."""
        self._names += 1
        value = f"{self._names}: {writer} to {topic}" + ("" if txn is None else f" in {txn.name}")
        if copy_of is not None:
            value += f", copy of {copy_of[1]} at {copy_of[2]} for {copy_of[0]}"
        self._named[value] = _Origin(writer, self._names, topic, txn, copy_of)
        return value

    def take(self, value: str) -> None:
        """The producer has accepted the record, for the topic as it is now."""
        origin = self._origins[value] = self._named.pop(value)
        if origin.txn is not None:
            origin.txn.values[origin.topic].append(value)

    def acknowledge(self, value: str, partition: int, offset: int | None) -> None:
        """A delivery callback without error; in a transaction, it may come before the end."""
        if value in self._delivered:
            raise BrokenPromiseError(f"{value!r} was delivered twice")
        self._delivered[value] = (self._origins[value].topic, partition), offset
        self._deliveries.append(value)

    def forgive(self, topic: str, ends: Mapping[int, int]) -> None:
        """The topic is deleted: no reader needs to see the records produced to it so far.

        And none may see them at or above `ends` (partition -> offset), if given: those offsets
        belong to another topic of the same name. But a producer without transactions writes what
        it has not delivered yet into that one.
        """
        for value, origin in self._origins.items():
            if origin.topic == topic and value not in self.forgiven:
                self.forgiven.add(value)
                if origin.txn is not None or value in self._delivered:
                    self._gone_from[value] = ends

    # -- what readers get --------------------------------------------------------------------------

    def see(self, topic: str, partition: int, offset: int, value: str, *, committed: bool) -> None:
        """A reader from the start got this next. Checks order, duplicates and outcomes.

        Call it for read_uncommitted first, for read_committed afterwards.
        """
        place = (topic, partition)
        where = f"{topic}-{partition}@{offset} ({'un' * (not committed)}committed)"
        origin = self._origins.get(value)
        if origin is None or origin.topic != topic:
            raise BrokenPromiseError(f"{where}: no producer has written {value!r} there")
        read = self._read[committed][place]
        if offset <= read.newest:
            raise BrokenPromiseError(f"{where}: after offset {read.newest}")
        if value in self._places[committed]:
            raise BrokenPromiseError(f"{where}: {value!r} twice, as {self._places[committed]}")
        if offset >= self._gone_from.get(value, {}).get(partition, offset + 1):
            raise BrokenPromiseError(f"{where}: {value!r} was for a topic that is deleted")
        before = self._order[committed].get((origin.writer, place), -1)
        if origin.number < before:
            raise BrokenPromiseError(f"{where}: {value!r} after number {before} of the same writer")
        self._order[committed][origin.writer, place] = origin.number
        read.newest = offset
        read.values[offset] = value
        self._places[committed][value] = (place, offset)
        if not committed:
            if origin.txn is not None and origin.txn.is_whole:
                self._touched.add(origin.txn)
            return
        if origin.txn is not None and origin.txn.committed is False:
            raise BrokenPromiseError(f"{where}: {value!r} is of an aborted transaction")
        if self._places[False].get(value) != (place, offset):
            raise BrokenPromiseError(f"{where}: {value!r} is elsewhere to read_uncommitted")
        if origin.copy_of is not None:
            group, source, at = origin.copy_of
            self._check_copy(where, group, source, at)

    def check_again(
        self,
        topic: str,
        partition: int,
        records: Mapping[int, str],
        *,
        start: int,
        key_of: Callable[[str], str] | None = None,
    ) -> None:
        """A new read_committed reader got these: all that others got from `start` on, and no more.

        With `key_of` the topic is compacted: a record may be gone if a later one has its key.
        """
        known = self._read[True][topic, partition].values
        expected = {offset: value for offset, value in known.items() if offset >= start}
        wrong = sorted(records.items() - expected.items())
        missing = expected.keys() - records.keys()
        if key_of is not None:
            newest = {key_of(value): offset for offset, value in expected.items()}
            missing &= set(newest.values())
        if wrong or missing:
            raise BrokenPromiseError(
                f"{topic}-{partition} from {start}: a new reader does not get what the others got; "
                f"it lacks {[(offset, expected[offset]) for offset in sorted(missing)]}, and "
                f"gets {wrong}"
            )

    def offsets(self, topic: str, partition: int) -> list[int]:
        """Offsets that read_committed readers have got from a partition."""
        return list(self._read[True][topic, partition].values)

    # -- verdicts ----------------------------------------------------------------------------------

    def check(self) -> None:
        """After readers have read to the end: acknowledged records and whole transactions."""
        there = self._places[False]
        for txn in self._touched:
            for topic, values in txn.values.items():
                _check_whole(f"{txn.name} in {topic}", self._wanted(values), there)
        self._touched.clear()
        for txn in [txn for txn in self._unchecked if txn.committed is not None]:
            self._unchecked.remove(txn)
            self._check_fate(txn, there)
        for value in self._wanted(self._deliveries):
            place, offset = self._delivered[value]
            found = there.get(value)
            if found is None or (offset is not None and found != (place, offset)):
                raise BrokenPromiseError(f"{value!r} was delivered to {place}@{offset}: {found}")
        self._deliveries.clear()

    def finish(
        self, positions: Mapping[str, Mapping[Place, int]], starts: Mapping[Place, int]
    ) -> None:
        """After everything is settled: each transaction, and each copy, is complete or absent.

        `positions`: group -> partition -> committed offset, of groups that copy. Records below
        `starts`, the log starts, may have been deleted before they could be copied.
        """
        there = self._places[True]
        for txn in self.transactions:
            values = self._wanted(value for values in txn.values.values() for value in values)
            _check_whole(txn.name, values, there)
            is_there = any(value in there for value in values)
            if values and txn.committed not in (None, is_there):
                raise BrokenPromiseError(f"{txn.name} was {txn.committed}, and it is not so")
        for group, partitions in positions.items():
            for place, read in list(self._read[True].items()):
                upto, start = partitions.get(place, 0), starts.get(place, 0)
                wanted = [offset for offset in read.values if offset < upto]
                copied = self._copies.get((group, place), [])
                missing = [at for at in wanted if at not in copied and at >= start]
                unexpected = [at for at in copied if at not in wanted]
                if missing or unexpected:
                    raise BrokenPromiseError(
                        f"group {group} is at {upto} of {place}: it has not copied {missing}, "
                        f"and it has copied {unexpected}"
                    )

    # -- inside ------------------------------------------------------------------------------------

    def _wanted(self, values: Iterable[str]) -> list[str]:
        return [value for value in values if value not in self.forgiven]

    def _check_fate(self, txn: AuditedTransaction, there: Mapping[str, object]) -> None:
        values = self._wanted(value for values in txn.values.values() for value in values)
        if txn.committed:
            missing = [value for value in values if value not in there]
            if missing:
                raise BrokenPromiseError(f"{txn.name} was committed, and has lost {missing}")
            return
        shown = [value for value in values if value in self._places[True]]
        if shown:
            raise BrokenPromiseError(f"{txn.name} was aborted, and was read: {shown}")

    def _check_copy(self, where: str, group: str, source: Place, at: int) -> None:
        copied = self._copies[group, source]
        if copied and at <= copied[-1]:
            raise BrokenPromiseError(f"{where}: copy of {source} at {at} after {copied[-1]}")
        copied.append(at)


def _check_whole(what: str, values: list[str], there: Mapping[str, object]) -> None:
    shown = [value for value in values if value in there]
    if shown and shown != values:
        raise BrokenPromiseError(f"{what} is torn: {shown} of {values}")
