"""The logs below one root: what every step of a commit reads and writes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from txnlog.coordinator.helping import Helping
from txnlog.errors import ConfigError, NotCoordinatorError, TxnLogError, UnknownTableError
from txnlog.process.failures import Failures, caught
from txnlog.protocol.copies import Copy, WholeCopy
from txnlog.protocol.enlisted.registry import EnlistedTable, find_enlisted
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.leases import Lease
from txnlog.protocol.shards import offsets_table, shard_number, state_table
from txnlog.protocol.snapshots import Pin
from txnlog.protocol.topics import INTERNAL_PREFIX, check_topic_name
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import LeaseReading, check_format
from txnlog.storage.tables.copy_log import CopyLog
from txnlog.storage.tables.enlisted_log import EnlistedLog
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

R = TypeVar("R")
T = TypeVar("T")
L = TypeVar("L", TransactionLog, OffsetsLog)


class Root:
    """Handles on the logs of one root, as of their last refresh. Not thread-safe."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings) -> None:
        self.store = store
        self._meta = CopyLog(store, settings=settings)
        self.settings = replace(settings, kept_from_ms=self._meta.kept_from_ms)
        self._topics: dict[str, TopicLog] = {}
        self._shards: dict[int, TransactionLog] = {}
        self._offsets: dict[int, OffsetsLog] = {}
        self._tables: dict[str, EnlistedLog] = {}
        self._helpings: dict[str, Helping] = {}
        self._helping = threading.RLock()  # After an interrupt this thread may still hold it.
        # A shard may be opened while several transactions are finished side by side.
        self._opening = threading.RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    @property
    def root(self) -> str:
        return self.store.url

    @property
    def cluster_id(self) -> str:
        return self._meta.cluster_id

    @property
    def shards(self) -> int:
        """Number of shards of the transaction log, most of which may not exist yet."""
        return self._meta.shards

    @property
    def offsets_shards_count(self) -> int:
        """Number of shards of the consumer offsets, most of which may not exist yet."""
        return self._meta.offsets_shards

    def topic_log(self, name: str, *, internal: bool = False) -> TopicLog:
        """Handle of a topic that may not exist, as of its last refresh."""
        log = self._topics.get(name)
        if log is None or name.startswith(INTERNAL_PREFIX):
            check_topic_name(name, internal=internal)
        if log is None:
            log = TopicLog(self.store, name, settings=self.settings, cluster_id=self.cluster_id)
            self._topics[name] = log
        return log

    def forget_topics(self) -> None:
        """Free what is known of topics: about 2 kB a batch."""
        self._topics.clear()
        self._helpings.clear()

    def helping(self, log: TopicLog) -> Helping:
        """What this process knows of those who publish in a topic."""
        new = Helping(log, self.tail_shards, self._helping)
        return self._helpings.setdefault(log.name, new)

    def refresh_together(self, logs: Iterable[TopicLog | TransactionLog | OffsetsLog]) -> None:
        """Tail logs to their heads, together; each may be given several times.

        All are tried, then the errors are raised, as one.
        """
        self._read_together({log.path: log.refresh for log in logs}.items())

    def tail_each(self, logs: Sequence[TopicLog]) -> list[TxnLogError | None]:
        """Tail distinct logs together; for each its error, or None."""
        return self.store.together(
            [partial(caught, log.refresh, f"Reading topic {log.name!r}") for log in logs]
        )

    # -- shards: a table is announced in `__cluster`, then created, at its first write -------------

    def shard_of(self, transactional_id: str) -> int:
        """Which shard of the transaction log holds this id."""
        return shard_number(transactional_id, self.shards)

    def shard_for(self, transactional_id: str) -> TransactionLog:
        """The shard of the transaction log that holds this id; raises as `shard`."""
        return self.shard(self.shard_of(transactional_id))

    def find_shard_for(self, transactional_id: str) -> TransactionLog | None:
        """The same for a reader: None if that shard does not exist yet, so the id has no row."""
        number = self.shard_of(transactional_id)
        is_there = number in self._shards or state_table(number) in self._created()
        return self.shard(number) if is_there else None

    def shard(self, number: int) -> TransactionLog:
        """A shard of the transaction log, created on first use.

        Raises NotCoordinatorError if it belongs to another cluster.
        """
        log = self._shards.get(number)
        if log is None:
            opened = TransactionLog(self.store, number, settings=self.settings)
            self._open_shard(opened, f"{self.cluster_id}-{number}")
            log = self._shards.setdefault(number, opened)
        return log

    def existing_shards(self) -> list[TransactionLog]:
        """The shards of the transaction log that any process has created, by number.

        Tailed to their heads, together.
        """
        numbers = self._numbers(state_table, self.shards)
        return self._read_together(self._tails(state_table, numbers, self._shards, self.shard))

    def tail_shards(self, failures: Failures) -> list[TransactionLog]:
        """The shards that can be read, in one round where this process has read all before.

        Names of shards are read beside those that are known. One that is announced meanwhile is
        missing: it decides nothing before this call.
        """
        known = sorted(self._shards)
        tails = partial(self._tails, state_table, known=self._shards, open_shard=self.shard)
        look = cluster_log.PATH, self._created
        found = failures.together(self.store.together, [look, *tails(known)])
        created = next((one for one in found if isinstance(one, frozenset)), frozenset())
        new = [n for n in range(self.shards) if state_table(n) in created and n not in known]
        found += failures.together(self.store.together, tails(new))
        return [log for log in found if isinstance(log, TransactionLog)]

    def offsets_log(self, group_id: str) -> OffsetsLog:
        """The shard of the consumer offsets that holds this group, created on first use.

        Raises NotCoordinatorError if it belongs to another cluster.
        """
        return self.offsets_shard(self.offsets_shard_of(group_id))

    def find_offsets_log(self, group_id: str) -> OffsetsLog | None:
        """The same for a reader: None if that shard does not exist yet, nor any group in it."""
        number = self.offsets_shard_of(group_id)
        is_there = number in self._offsets or offsets_table(number) in self._created()
        return self.offsets_shard(number) if is_there else None

    def offsets_shards(self, failures: Failures | None = None) -> list[OffsetsLog]:
        """Those of the consumer offsets, tailed together; with `failures` those it can read."""
        numbers = self._numbers(offsets_table, self.offsets_shards_count)
        tails = self._tails(offsets_table, numbers, self._offsets, self.offsets_shard)
        if failures is not None:
            return failures.together(self.store.together, tails)
        return self._read_together(tails)

    def known_offsets_shards(self) -> list[OffsetsLog]:
        """The same, of those that the last read of `__cluster` has shown."""
        count = self.offsets_shards_count
        numbers = [n for n in range(count) if self._meta.was_created(offsets_table(n))]
        tails = self._tails(offsets_table, numbers, self._offsets, self.offsets_shard)
        return self._read_together(tails)

    def offsets_handles(self) -> list[OffsetsLog]:
        """The shards, without refreshing: a read error surfaces at first use."""
        return [
            self._offsets.get(number) or OffsetsLog(self.store, number, settings=self.settings)
            for number in self._numbers(offsets_table, self.offsets_shards_count)
        ]

    def opened_topics(self) -> dict[str, TopicLog]:
        """The topics that this process has read, also deleted ones, as of their last refresh."""
        return {name: log for name, log in self._topics.items() if log.log.exists}

    def opened_shards(self) -> list[TransactionLog | OffsetsLog]:
        """The shards of both kinds that this process has read, as of their last refresh."""
        shards: list[TransactionLog | OffsetsLog] = [*self._shards.values()]
        shards += self._offsets.values()
        return sorted((log for log in shards if log.log.exists), key=lambda log: log.path)

    def shard_tables(self) -> list[str]:
        """Folders of all shards of both kinds that any process has created; none is read."""
        created = self._created()
        states = [state_table(n) for n in range(self.shards)]
        offsets = [offsets_table(n) for n in range(self.offsets_shards_count)]
        return [table for table in (*offsets, *states) if table in created]

    def _numbers(self, table_of: Callable[[int], str], count: int) -> list[int]:
        created = self._created()
        return [number for number in range(count) if table_of(number) in created]

    def offsets_shard_of(self, group_id: str) -> int:
        """Which shard of the consumer offsets holds this group."""
        return shard_number(group_id, self.offsets_shards_count)

    def offsets_shard(self, number: int) -> OffsetsLog:
        """A shard of the consumer offsets, created on first use; raises as `shard`."""
        log = self._offsets.get(number)
        if log is None:
            opened = OffsetsLog(self.store, number, settings=self.settings)
            self._open_shard(opened, f"{self.cluster_id}-offsets-{number}")
            log = self._offsets.setdefault(number, opened)
        return log

    def shard_tails(self) -> list[tuple[str, Callable[[], TransactionLog | OffsetsLog]]]:
        """The folder of each shard that exists, and a call that tails and returns it."""
        offsets = self._numbers(offsets_table, self.offsets_shards_count)
        states = self._numbers(state_table, self.shards)
        return [
            *self._tails(offsets_table, offsets, self._offsets, self.offsets_shard),
            *self._tails(state_table, states, self._shards, self.shard),
        ]

    def _read_together(self, reads: Iterable[tuple[str, Callable[[], T]]]) -> list[T]:
        failures = Failures("Reading tables", logging.DEBUG)
        found = failures.together(self.store.together, list(reads))
        failures.check()
        return found

    def _tails(
        self,
        table_of: Callable[[int], str],
        numbers: Sequence[int],
        known: Mapping[int, L],
        open_shard: Callable[[int], L],
    ) -> list[tuple[str, Callable[[], L]]]:
        def tail(number: int) -> L:
            log = known.get(number)
            if log is None:
                # Opening tails it.
                return open_shard(number)
            log.refresh()
            return log

        return [(table_of(number), partial(tail, number)) for number in numbers]

    def confirm_shard(self, table: str) -> None:
        """Record that a shard exists, if `__cluster` does not say so; usually no request."""
        with self._opening:
            self._meta.confirm_shard(table)

    def _open_shard(self, log: TransactionLog | OffsetsLog, expected: str) -> None:
        def exists() -> bool:
            log.refresh()
            return log.log.exists

        was_there, takes_writes = exists(), self.store.takes_writes
        if not was_there and (takes_writes or self._meta.was_created(log.path)):
            with self._opening:
                self._meta.create_shard(log.path, lambda: log.create(expected), exists)
        found = log.log.metadata
        if found is not None and found.id != expected:
            raise NotCoordinatorError(
                f"{log.path} at {self.root} has id {found.id}, not {expected}: the cluster "
                "was created again, maybe with another number of shards, since this process "
                "opened it. Open it again.",
                table=log.path,
            )
        if was_there and takes_writes:
            # A `__cluster` that was restored alone may not know it.
            self.confirm_shard(log.path)

    def _created(self) -> frozenset[str]:
        with self._opening:
            return self._meta.created()

    def vacuum_age_ms(self, topics: Iterable[str]) -> int:
        """Smallest vacuum age in the barrier commits of these topics and the shards read so far.

        A commit after such a barrier has read it.
        """
        return min(known.vacuum_age_ms for known in self._memories(topics))

    def store_now_ms(self, topics: Iterable[str]) -> int:
        """The store's time, or that of the newest vacuum of these topics if that is later.

        The clocks of a process that was paused may be behind. It still reads the time of the
        barrier below its commit, and so rejects a file that this vacuum found old enough to delete.
        """
        vacuumed_ms = max(known.vacuumed_ms for known in self._memories(topics))
        now_ms = self.store.now_ms()
        if vacuumed_ms > now_ms + CLOCK_ERROR_MS:
            self.store.forget_clock()
        return max(now_ms, vacuumed_ms)

    def _memories(self, topics: Iterable[str]) -> list[TxnMemory]:
        views = [self.topic_log(topic).view.txns for topic in topics]
        return views + [shard.view.txns for shard in self._shards.values()]

    # -- Delta tables of others ------------------------------------------------------------------

    def enlisted(self, *, refresh: bool = True) -> dict[str, EnlistedTable]:
        """The enlisted tables by name; those last read, if `refresh` is False."""
        with self._opening:
            if refresh:
                self._meta.refresh()
            return self._meta.enlisted()

    def find_table(self, name: str) -> EnlistedTable:
        """An enlisted table, as last read if it was there. Raises UnknownTableError."""
        known = self.enlisted(refresh=False)
        return find_enlisted(known if name in known else self.enlisted(), name)

    def enlist(self, name: str, table: EnlistedTable) -> None:
        """See ClusterLog.enlist."""
        with self._opening:
            self._meta.enlist(name, table)

    def delist(self, name: str) -> None:
        """See ClusterLog.delist."""
        with self._opening:
            self._meta.delist(name)

    def table_log(self, url: str) -> EnlistedLog:
        """Handle of the Delta table at a URL, as of its last refresh.

        Raises UnknownTableError for a local folder that does not exist.
        """
        log = self._tables.get(url)
        return self._tables.setdefault(url, self.open_table(url)) if log is None else log

    def open_table(self, url: str) -> EnlistedLog:
        """A handle of its own, of which nothing is read; raises as `table_log`."""
        try:
            return EnlistedLog(self.store.at(url), self.store.now_ms)
        except ConfigError as error:
            raise UnknownTableError(error.message, url=url) from error

    def forget_table(self, url: str) -> None:
        """Open the table's log anew at its next use: what is in memory may not be in it."""
        self._tables.pop(url, None)

    def next_producer_id(self, *, above: int = -1) -> int:
        with self._opening:
            return self._meta.next_producer_id(above=above)

    def read_fsync(self) -> str | None:
        """What is recorded of storage.fsync now; see ClusterLog.fsync."""
        with self._opening:
            self._meta.refresh()
            return self._meta.fsync

    def change_fsync(self, prepare: Callable[[str | None], str | None]) -> None:
        """See ClusterLog.change_fsync."""
        with self._opening:
            self._meta.change_fsync(prepare)

    def change_lease(
        self,
        name: str,
        decide: Callable[[Lease | None], Lease | R],
        told: Callable[[], dict[str, str]] = dict,
    ) -> Lease | R:
        """See ClusterLog.change_lease."""
        with self._opening:
            return self._meta.change_lease(name, decide, told)

    def read_lease(self, name: str) -> LeaseReading:
        """See ClusterLog.read_lease."""
        with self._opening:
            return self._meta.read_lease(name)

    def pins(self) -> dict[str, Pin]:
        """The named snapshots, with those that have expired."""
        with self._opening:
            self._meta.refresh()
            return self._meta.pins

    def get_pins_ready(self) -> None:
        """Before `change_pins`: then that takes one round, if nobody else writes."""
        with self._opening:
            self._meta.get_ready()

    def change_pins(self, decide: Callable[[dict[str, Pin]], Mapping[str, Pin | None]]) -> None:
        """See ClusterLog.change_pins."""
        with self._opening:
            self._meta.change_pins(decide)

    # -- copies ----------------------------------------------------------------------------------

    def read_copy(self, *, refresh: bool = True) -> Copy | None:
        """What the root says, or said last, of itself as a copy; None: it is none, or no root.

        Raises UnsupportedProtocolError for a root of another format.
        """
        with self._opening:
            if refresh:
                self._meta.refresh()
            if self._meta.version >= 0:
                check_format(self._meta.format, self.root)
            return self._meta.copy

    def begin_copy(self, copy: Copy, *, expected: Copy | None, of: Root, fsync: bool) -> None:
        """See CopyLog.begin_copy."""
        with self._opening:
            self._meta.begin_copy(
                copy,
                expected=expected,
                shards=of.shards,
                offsets_shards=of.offsets_shards_count,
                fsync=fsync,
            )

    def end_copy(self, run: str, file: str) -> None:
        """See CopyLog.end_copy."""
        with self._opening:
            self._meta.end_copy(run, file)

    def whole_copy(self) -> WholeCopy | None:
        """See CopyLog.whole_copy."""
        with self._opening:
            return self._meta.whole_copy()

    def origins(self) -> Mapping[str, Mapping[str, Sequence[int]]]:
        """Of a copy: the clusters it was copied from -> topic -> end offset by partition then."""
        whole = self.whole_copy()
        return {} if whole is None else whole.ends

    @property
    def producer_ids_end(self) -> int:
        """See CopyLog.producer_ids_end."""
        return self._meta.producer_ids_end

    def leases_age_ms(self) -> int:
        """How long no lease has changed, at least, by the store's clock."""
        with self._opening:
            return self.store.now_ms() - self._meta.leases_changed_ms()


def by_shard(
    root: Root, of_groups: Iterable[T], group_id_of: Callable[[T], str]
) -> list[tuple[OffsetsLog, list[T]]]:
    """What concerns groups, by the shard of the consumer offsets that holds them, in its order."""
    found: dict[str, tuple[OffsetsLog, list[T]]] = {}
    for one in of_groups:
        log = root.offsets_log(group_id_of(one))
        found.setdefault(log.path, (log, []))[1].append(one)
    return list(found.values())
