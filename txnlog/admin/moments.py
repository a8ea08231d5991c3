"""What a root is now, and was at a time: the data of `txnlog show`, `txnlog top`, notebooks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from txnlog.admin.ages import shown_now_ms
from txnlog.admin.groups import state_of
from txnlog.admin.looks import AGAIN_MS, RARELY_MS, RememberedLooks
from txnlog.admin.recent import Recent
from txnlog.admin.record_moments import Asked, newest_records, offset_of_time, records_from
from txnlog.admin.root_state import read_root
from txnlog.admin.transaction_moments import transaction_moment
from txnlog.admin.upkeep import rows_upkeep, table_upkeep
from txnlog.cluster import Cluster
from txnlog.consuming.lookups import check_partition
from txnlog.errors import ConfigError, ObjectNotFoundError
from txnlog.protocol.diagnosis import find_problems
from txnlog.protocol.group_changes import is_gone
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import (
    Moment,
    RecordMoment,
    TransactionMoment,
    UpkeepMoment,
    with_origins,
)
from txnlog.protocol.panels.changes import Changes, new_records
from txnlog.protocol.panels.queries import flow, queries
from txnlog.protocol.panels.timeline import LANES_MAX, lanes
from txnlog.protocol.panels.topics import (
    Counted,
    count_partitions,
    group_moment,
    readers_of,
    topic_moment,
)
from txnlog.protocol.polling import poll_interval_ms
from txnlog.protocol.problems import RootState
from txnlog.protocol.vacuum import Deletable
from txnlog.protocol.waiting import waiting_transactions
from txnlog.settings.topic_configs import own_configs
from txnlog.storage.delta.as_of import StoreAsOf, earliest_ms
from txnlog.storage.store.read_only import ReadOnlyStore
from txnlog.storage.tables.cluster_log import PATH as CLUSTER
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

WINDOW_MS = 900_000
RECORDS_MAX = 10_000
ADVANCED_MS_MAX = 3_600_000
"""From one moment to one so much later, logs are tailed; else they are opened again."""

AS_OF = (
    "Each table is at its version of then, by its writers' clocks: between two tables "
    "milliseconds may differ.",
    "Damage, vacuum and free space are of now only, and are not shown here.",
)


class Moments:
    """The moments of one root, with the history of `window_ms` before each. It writes nothing.

    Not thread-safe. Where `now` is asked more often than one consumer of all topics would ask the
    store, it answers with the last moment again. With `open_ms` a moment opens logs of topics for
    so long at most, and says how many are left for the next one.
    """

    def __init__(
        self, cluster: Cluster, *, window_ms: int = WINDOW_MS, open_ms: int | None = None
    ) -> None:
        self._base = cluster
        self._window_ms = window_ms
        self._open_ms = open_ms
        self._store = ReadOnlyStore(cluster.store)
        self._live: Reading | None = None
        self._last: Moment | None = None
        self._due_ms = 0
        self._earliest: tuple[int, int] | None = None
        self._then: Reading | None = None

    def now(self) -> Moment:
        """The root now. Raises StorageError, an authorization error; damage is a problem."""
        clock, store = self._store.clock, self._store
        if self._last is not None and clock.boot_ms() < self._due_ms:
            return self._last
        before = store.requests
        if self._live is None:
            self._live = self._new_reading(store, shown_now_ms(store))
        moment = self._live.read()
        self._last = with_origins(moment, self._earliest_ms(self._live))
        topics = max(1, len(moment.topics))
        interval_ms = poll_interval_ms(None, is_remote=store.is_remote, topics=topics)
        wait_ms = 0 if moment.later else interval_ms * (store.requests - before) // topics
        self._due_ms = clock.boot_ms() + wait_ms
        return self._last

    def _new_reading(
        self, store: ReadOnlyStore, now_ms: int, *, as_of_ms: int | None = None
    ) -> Reading:
        recent = Recent(self._window_ms, now_ms)
        return Reading(self._base, store, recent, as_of_ms=as_of_ms, open_ms=self._open_ms)

    def at(self, at_ms: int) -> Moment:
        """The root as of a time. Raises ConfigError for one that no log shows any more."""
        reading = self._reading(at_ms)
        if self._live is None or reading is self._live:
            return self.now()
        return with_origins(reading.read(), self._earliest_ms(self._live))

    def transaction(
        self, transaction: ProducerIdAndEpoch, *, at_ms: int | None = None
    ) -> TransactionMoment:
        """One transaction, as far as it is known. Raises TransactionalIdNotFoundError."""
        reading = self._reading(at_ms)
        return transaction_moment(reading.cluster, transaction, reading.changes())

    def records(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        key: bytes | None = None,
        count: int = 20,
        with_values: bool = False,
        at_ms: int | None = None,
    ) -> list[RecordMoment]:
        """Records from an offset or a time on; the newest ones, with a key those that have it.

        `count` is at most RECORDS_MAX.
        Raises UnknownTopicOrPartitionError, ConfigError if the files of then are gone.
        """
        reading = self._reading(at_ms)
        log = reading.cluster.topic(topic)
        check_partition(log, partition)
        asked = Asked(partition, max(1, min(count, RECORDS_MAX)), with_values)
        recent = reading.changes().topics.get(topic, ())
        try:
            if timestamp_ms is not None:
                offset = offset_of_time(log, partition, timestamp_ms)
            if offset is not None:
                return records_from(log, asked, offset, recent)
            return newest_records(log, asked, recent, key)
        except ObjectNotFoundError as error:
            if at_ms is None:
                raise
            raise ConfigError(
                f"{topic}, partition {partition}: files of then have been deleted since, by "
                "retention, compaction and vacuum. Ask for a later time.",
                topic=topic,
            ) from error

    def deletable(self) -> list[Deletable]:
        """What housekeeping with its defaults would delete now; ages by this machine's clock."""
        # Imported here: other commands do without it, and start faster.
        from txnlog.housekeeping.housekeeper import Housekeeper

        cluster = Cluster.open(ReadOnlyStore(self._base.store), settings=self._base.settings)
        return Housekeeper(cluster).find()

    def _reading(self, at_ms: int | None) -> Reading:
        """That of now, which has been read, or of a time."""
        if at_ms is None or at_ms >= shown_now_ms(self._store):
            self.now()
            assert self._live is not None
            return self._live
        if self._last is None or self._live is None or at_ms > self._last.at_ms:
            # Which tables are the cluster's.
            self._due_ms = 0
            self.now()
        assert self._live is not None
        if self._then is None or self._then.as_of_ms != at_ms:
            earliest = self._earliest_ms(self._live)
            if at_ms < earliest:
                raise ConfigError(
                    f"The logs of {self._store.url} no longer show what was at {at_ms} ms: the "
                    f"first moment is {earliest}. Ask for that one or later; log clean-up deletes "
                    "commits that are older than the log retention.",
                    earliest_ms=earliest,
                )
            tables = self._live.tables
            if self._then is None or not self._then.advance(at_ms, tables):
                store = StoreAsOf(self._base.store, at_ms, tables)
                self._then = self._new_reading(store, at_ms, as_of_ms=at_ms)
        return self._then

    def _earliest_ms(self, live: Reading) -> int:
        """Asked again now and then: clean-up moves it."""
        now_ms = self._store.clock.boot_ms()
        if self._earliest is None or now_ms - self._earliest[0] > RARELY_MS:
            self._earliest = now_ms, earliest_ms(self._store, CLUSTER, live.tables)
        return self._earliest[1]


class Reading:
    """One cluster that is read again and again, now or as of a time, and what is remembered."""

    def __init__(
        self,
        base: Cluster,
        store: ReadOnlyStore,
        recent: Recent,
        *,
        as_of_ms: int | None,
        open_ms: int | None,
    ) -> None:
        self.as_of_ms = as_of_ms
        self._store = store
        self._recent = recent
        settings = replace(base.settings, watch=self._recent.watch)
        self.cluster = Cluster.open(store, settings=settings)
        again_ms = AGAIN_MS if as_of_ms is None else 0
        self._looks = RememberedLooks(self.cluster, again_ms=again_ms, open_ms=open_ms)
        self._counted: dict[str, tuple[int, Counted]] = {}
        self._is_read = False
        self.tables: Collection[str] = ()
        """Those of the cluster that there are, also deleted topics and damaged tables."""

    def read(self) -> Moment:
        """The newest state, and what led to it."""
        cluster = self.cluster
        state = read_root(cluster, looks=self._looks, as_of_ms=self.as_of_ms)
        heads = self._heads(state)
        shards = cluster.shard_tables()
        self.tables = {CLUSTER, *shards, *state.topics, *state.unreadable, *state.later}
        self._recent.fill(self._store, heads, state.now_ms)
        self._is_read = True
        window, changes = self._recent.window, self._recent.changes()
        problems = find_problems(state)
        records = {
            name: found
            for name, some in changes.topics.items()
            if (found := list(new_records(some, window)))
        }
        ids = _ids(state, changes)
        groups = {
            name: group_moment(group, state_of(group).value, state, problems, changes, window)
            for name, group in sorted(state.groups.items())
            if not is_gone(group)
        }
        readers = readers_of(groups)
        topics = {
            name: topic_moment(
                facts,
                self._count(cluster.topic_log(name)),
                readers.get(name, {}),
                records.get(name, ()),
                {ids[pid] for one in records.get(name, ()) if (pid := one.producer_id) in ids},
                window,
            )
            for name, facts in sorted(state.topics.items())
            if not facts.is_deleted
        }
        of_spark = queries(state, changes.rows)
        all_lanes = lanes(state, changes.rows, changes.published(), window)
        return Moment(
            root=cluster.root,
            cluster_id=cluster.cluster_id,
            at_ms=state.now_ms,
            since_ms=window.since_ms,
            earliest_ms=-1,
            is_now=self.as_of_ms is None,
            problems=problems,
            waiting=list(waiting_transactions(state)),
            lanes=all_lanes,
            topics=topics,
            groups=groups,
            queries=of_spark,
            flow=flow(state, records, changes, groups, of_spark, problems, ids, window),
            upkeep=self._upkeep(state, heads),
            notes=self._notes(state, changes, len(all_lanes)),
            later=len(state.later),
        )

    def advance(self, at_ms: int, tables: Collection[str]) -> bool:
        """Go on from one time to a later one, soon after it; False: read the root again."""
        since_ms = self.as_of_ms
        if since_ms is None or not since_ms < at_ms <= since_ms + ADVANCED_MS_MAX:
            return False
        assert isinstance(self._store, StoreAsOf)
        self._store.advance(at_ms, tables)
        self.as_of_ms, self._is_read = at_ms, False
        return True

    def changes(self) -> Changes:
        """What has been read of the window."""
        if not self._is_read:
            self.read()
        return self._recent.changes()

    def _heads(self, state: RootState) -> dict[str, int]:
        """The newest version of each table that could be read."""
        logs = [*self._rows(), *(self.cluster.topic_log(name) for name in state.topics)]
        return {log.path: log.log.version for log in logs if log.path not in state.unreadable}

    def _rows(self) -> Sequence[TransactionLog | OffsetsLog]:
        return self.cluster.opened_shards()

    def _count(self, log: TopicLog) -> Counted:
        known = self._counted.get(log.name)
        if known is None or known[0] != log.log.version:
            small_files = self._looks.small_files(log)
            counted = Counted(count_partitions(log.view), small_files, own_configs(log.config))
            known = self._counted[log.name] = log.log.version, counted
        return known[1]

    def _upkeep(self, state: RootState, heads: Mapping[str, int]) -> UpkeepMoment | None:
        if state.upkeep is None:
            return None
        tables = []
        for name in sorted(state.topics.keys() & heads.keys()):
            log = self.cluster.topic_log(name)
            counted = self._count(log)
            num_files = sum(one.num_files for one in counted.partitions)
            size_bytes = sum(one.size_bytes for one in counted.partitions)
            tables.append(table_upkeep(log, num_files, size_bytes, counted.small_files))
        tables += map(rows_upkeep, self._rows())
        return UpkeepMoment(*state.upkeep[:3], state.free_bytes, tables)

    def _notes(self, state: RootState, changes: Changes, num_lanes: int) -> list[str]:
        notes = [] if self.as_of_ms is None else list(AS_OF)
        if state.later:
            notes.append(
                f"{len(state.later)} topics are still to be read, none of them of an open "
                "transaction: what follows is without them."
            )
        notes += [
            f"{table} cannot be read, and is left out: {why}"
            for table, why in sorted(state.unreadable.items())
        ]
        if changes.cut:
            tables = ", ".join(sorted(changes.cut))
            notes.append(f"Only the newest commits of the window are shown of {tables}.")
        if self._recent.cleaned:
            tables = ", ".join(self._recent.cleaned)
            notes.append(f"Log clean-up has deleted a part of the window's history of {tables}.")
        if num_lanes == LANES_MAX:
            notes.append(f"The timeline shows the {LANES_MAX} ids that did something last.")
        if self._store.is_remote and self.as_of_ms is None:
            notes.append("Ages are by this machine's clock.")
        return notes


def _ids(state: RootState, changes: Changes) -> dict[int, str]:
    """Producer id -> transactional.id."""
    found = {row.producer_id: row.transactional_id for row in state.rows}
    for name, some in changes.rows.items():
        for change in some:
            if change.row is not None:
                found.setdefault(change.row.producer_id, name)
    return found
