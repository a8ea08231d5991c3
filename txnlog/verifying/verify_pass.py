"""One pass over the tables of a root, see txnlog.verifying.verifier for their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from txnlog.errors import (
    ConfigError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.process.failures import unexpected
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.shards import OFFSETS_PREFIX, STATE_PREFIX, offsets_table, state_table
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import with_unmoved
from txnlog.protocol.topics import INTERNAL_PREFIX, may_be_topic
from txnlog.protocol.txn_memory import TxnMemory
from txnlog.protocol.vacuum import BATCH_FILE
from txnlog.protocol.verification import tables as across
from txnlog.protocol.verification.findings import Finding, FindingKind, Findings
from txnlog.protocol.verification.headers import read_batches
from txnlog.protocol.verification.rows import (
    DecidedPart,
    RowFacts,
    RowHistory,
    check_shard,
    read_rows,
)
from txnlog.protocol.verification.topics import TopicFacts, check_topic
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import check_format
from txnlog.storage.tables.schemas import CONFIG_PREFIX
from txnlog.storage.tables.topic_log import HOME
from txnlog.verifying import cluster_properties, data_files
from txnlog.verifying.cluster_properties import count, numbers, shards_with, undecided
from txnlog.verifying.log_reading import Observer, TableReading, read_table
from txnlog.verifying.publications import by_table, check_publications
from txnlog.verifying.report import Progress, Verification, VerifySettings

_TOPIC_MARK = CONFIG_PREFIX + "partitions"
_NO_LOG = "it has no commits and no checkpoints"


class VerifyPass:
    """One pass over the tables. With `first`, an earlier pass, only over what it found damaged."""

    def __init__(
        self,
        store: ObjectStore,
        settings: VerifySettings,
        progress: Progress,
        *,
        first: VerifyPass | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._progress = progress
        self._first = first
        self._cluster_id = ""
        self._ids: dict[str, across.TableId] = {} if first is None else dict(first._ids)
        self._topics: dict[str, TopicFacts] = {}
        self._rows: dict[str, RowFacts[TransactionMetadata]] = {}
        self._decided_rows: Sequence[TransactionMetadata] = ()
        self._offsets: dict[str, RowFacts[Group]] = {}
        self._decided: dict[tuple[int, str, str], tuple[int, int]] = {}
        self._earlier: dict[tuple[int, str, str], tuple[int, int]] = {}
        self._parts: list[DecidedPart] = []
        self._shards: Sequence[int] = ()
        self._offsets_shards: Sequence[int] = ()
        self._unfinished: Collection[str] = ()
        self._without: set[str] = set()
        self._copied: Mapping[str, int] = {}
        self._shards_count = self._offsets_count = self._count = 0
        self.found = Verification()
        self.undecided: list[Finding] = []
        """What needs no second look: it is no damage, and nothing under way explains it."""

    @property
    def findings(self) -> Findings:
        return self.found.findings

    def run(self) -> None:
        names = self._names()
        self._cluster(names)
        topics = self._chosen(names)
        self._count = 1 + len(self._offsets_shards) + len(self._shards) + len(topics)
        for number in self._offsets_shards:
            self._guarded(offsets_table(number), partial(self._offsets_shard, number))
        for number in self._shards:
            self._guarded(state_table(number), partial(self._shard, number))
        self._decided_rows = [
            row
            for shard in self._rows.values()
            for row in shard.rows.values()
            if row.state is TransactionState.PREPARE_COMMIT
        ]
        for name in topics:
            self._guarded(name, lambda name=name: self._topic(name))  # type: ignore[misc]
        existing = {name for name in names if may_be_topic(name)}
        self._across(existing)

    # -- names of tables -------------------------------------------------------------------------

    def _names(self) -> set[str]:
        names = set(self._store.list_folders())
        internal = any(name.startswith((STATE_PREFIX, OFFSETS_PREFIX)) for name in names)
        if cluster_log.PATH not in names and not internal:
            raise ConfigError(
                f"There is no txnlog cluster at {self._store.url}. Check the path.",
                root=self._store.url,
            )
        return names

    def _chosen(self, names: set[str]) -> list[str]:
        wanted = self._settings.topics
        if wanted is not None:
            for name in wanted:
                if name not in names or not may_be_topic(name):
                    raise UnknownTopicOrPartitionError(
                        f"There is no topic {name!r} at {self._store.url}.", topic=name
                    )
        topics = [n for n in sorted(names) if may_be_topic(n) and (wanted is None or n in wanted)]
        if self._first is None:
            return topics
        damaged = {finding.table for finding in self._first.findings}
        if any(table.startswith(INTERNAL_PREFIX) for table in damaged):
            return topics
        return [name for name in topics if name in damaged]

    def _guarded(self, table: str, read: Callable[[], None]) -> None:
        """Read a table; an error of one table stops no other."""
        self._progress(table, self.found.tables, self._count, 0)
        try:
            read()
        except Exception as error:
            failed = unexpected(error, f"Verifying {table!r}")
            self.found.errors.append((table, failed.message))
        self.found.tables += 1

    def _read(
        self,
        table: str,
        *,
        newest_only: bool = False,
        observe: Callable[[Findings], Observer] | None = None,
    ) -> TableReading:
        files = 0

        def tick(count: int) -> None:
            nonlocal files
            files += count
            self._progress(table, self.found.tables, self._count, files)

        reading = read_table(
            self._store,
            table,
            since_ms=self._settings.since_ms,
            newest_only=newest_only,
            observe=observe,
            tick=tick,
        )
        if not newest_only:
            self.found.log_files += files
            cluster_properties.check_not_shorter(reading, self._copied.get(table, -1))
        return reading

    def _newest(self, table: str) -> TableReading:
        """The newest state; if it cannot be read alone, by reading the whole log."""
        reading = self._read(table, newest_only=True)
        return reading if reading.state is not None else self._read(table)

    # -- tables ----------------------------------------------------------------------------------

    def _cluster(self, names: set[str]) -> None:
        """The shards that exist: folders, and what `__cluster` says was created."""
        self._shards = numbers(names, STATE_PREFIX)
        self._offsets_shards = numbers(names, OFFSETS_PREFIX)
        self._shards_count = 1 + max(self._shards, default=0)
        self._offsets_count = 1 + max(self._offsets_shards, default=0)
        self._guarded(cluster_log.PATH, self._read_cluster)

    def _read_cluster(self) -> None:
        reading = self._internal(cluster_log.PATH)
        if reading.metadata is None:
            return
        config = reading.metadata.configuration
        check_format(config.get(f"{CONFIG_PREFIX}format", ""), self._store.url)
        is_all = self._settings.topics is None
        self.undecided += undecided(config, syncs=self._store.is_local and is_all)
        self._shards_count = count(config, cluster_log.STATE_SHARDS, self._shards_count)
        self._offsets_count = count(config, cluster_log.OFFSETS_SHARDS, self._offsets_count)
        created: Collection[str] = ()
        if reading.state is not None:
            created = shards_with(reading.state, cluster_log.CREATED)
            self._unfinished = shards_with(reading.state, cluster_log.ANNOUNCED)
            self._check_shards({*created, *self._unfinished})
        self._shards = sorted({*self._shards, *numbers(created, STATE_PREFIX)})
        self._offsets_shards = sorted({*self._offsets_shards, *numbers(created, OFFSETS_PREFIX)})
        cluster_id = self._cluster_id = reading.metadata.table_id
        for number in self._offsets_shards:
            self._expect(offsets_table(number), f"{cluster_id}-offsets-{number}")
        for number in self._shards:
            self._expect(state_table(number), f"{cluster_id}-{number}")
        self._copied = cluster_properties.copied_versions(self._store, config)

    def _check_shards(self, known: Collection[str]) -> None:
        if self._settings.topics is None:
            tables = [state_table(number) for number in self._shards]
            tables += [offsets_table(number) for number in self._offsets_shards]
            across.check_shards_known(tables, known, self.findings)

    def _expect(self, table: str, table_id: str) -> None:
        self._ids[table] = across.TableId(table=table, found=table_id, expected=table_id)

    def _internal(
        self, table: str, observe: Callable[[Findings], Observer] | None = None
    ) -> TableReading:
        """Read an internal table; its findings count only if all topics are verified."""
        reading = self._read(table, observe=observe)
        if not reading.exists and table not in self._unfinished:
            reading.findings.add(across.no_log(table, _NO_LOG))
        if reading.metadata is not None:
            self._note_id(table, reading.metadata.table_id)
        if self._settings.topics is None:
            self.findings.extend(reading.findings)
        return reading

    def _note_id(self, table: str, table_id: str) -> None:
        known = self._ids.get(table)
        expected = "" if known is None else known.expected
        self._ids[table] = across.TableId(table=table, found=table_id, expected=expected)

    def _offsets_shard(self, number: int) -> None:
        table = offsets_table(number)
        self._offsets[table] = RowFacts(is_complete=False)
        reading = self._internal(table, lambda found: RowHistory(table, found).observe)
        if reading.state is None:
            return
        own = Findings()
        facts = read_rows(table, reading.state, Group, "group_id", own)
        self._offsets[table] = facts
        check_shard(table, number, self._offsets_count, facts, own)
        self._row_files(table, reading, own)

    def _shard(self, number: int) -> None:
        table = state_table(number)
        self._rows[table] = RowFacts(is_complete=False)
        history: list[RowHistory] = []

        def observe(found: Findings) -> Observer:
            history[:] = [RowHistory(table, found, offsets_shards=self._offsets_count)]
            return history[0].observe

        reading = self._internal(table, observe)
        for one in history:
            self._decided.update(one.decided)
            self._earlier.update(one.earlier)
            self._parts += one.completed_parts()
        if reading.state is None:
            return
        own = Findings()
        facts = read_rows(table, reading.state, TransactionMetadata, "transactional_id", own)
        self._rows[table] = facts
        check_shard(table, number, self._shards_count, facts, own)
        self._row_files(table, reading, own)

    def _row_files(self, table: str, reading: TableReading, own: Findings) -> None:
        """Findings about rows and their files, if all topics are verified."""
        if self._settings.topics is not None or reading.state is None:
            return
        since_ms = self._settings.since_ms
        data_files.check_listing(
            self._store,
            table,
            reading.state,
            own,
            missing=FindingKind.ROW_FILE_MISSING,
            since_ms=since_ms,
        )
        if self._settings.deep and since_ms is None:
            self.found.data_files_read += data_files.read_row_files(
                self._store, table, reading.state, own
            )
        self.findings.extend(own)

    def _topic(self, name: str) -> None:
        reading = self._read(name)
        if not reading.exists:
            self._without.add(name)
            self._without_log(name)
            return
        if reading.is_foreign(_TOPIC_MARK):
            self.findings.add(
                Finding(
                    kind=FindingKind.TABLE_FOREIGN,
                    table=name,
                    what=f"it has no property {_TOPIC_MARK}",
                )
            )
            return
        self.findings.extend(reading.findings)
        state, metadata = reading.state, reading.metadata
        if state is None or metadata is None:
            self._topics[name] = TopicFacts(name=name, is_complete=False)
            return
        self._note_id(name, metadata.table_id)
        config = {
            key[len(CONFIG_PREFIX) :]: value
            for key, value in metadata.configuration.items()
            if key.startswith(CONFIG_PREFIX)
        }
        home, found = f"{self._cluster_id}/{name}", config.get(HOME, "")
        if self._cluster_id and found and found != home:
            what = f"it is the topic {found} (cluster/topic), not {home}"
            self.findings.add(Finding(kind=FindingKind.TABLE_ID_WRONG, table=name, what=what))
        batches = read_batches(name, state, self.findings)
        self._topics[name] = check_topic(name, state, batches, config, self.findings)
        self.found.batches += len(batches.partition)
        since_ms = self._settings.since_ms
        reported = data_files.check_listing(
            self._store,
            name,
            state,
            self.findings,
            missing=FindingKind.FILE_MISSING,
            batches=batches,
            decided=across.unpublished(self._topics[name], self._decided_rows),
            since_ms=since_ms,
        )
        if self._settings.deep:
            self.found.data_files_read += data_files.read_deep(
                self._store,
                name,
                batches,
                self.findings,
                since_ms=since_ms,
                only=self._suspects(),
                reported=reported,
                tick=lambda count: self._progress(name, self.found.tables, self._count, count),
            )

    def _suspects(self) -> Collection[str] | None:
        """The files that a second pass reads."""
        if self._first is None:
            return None
        return {finding.file for finding in self._first.findings}

    def _without_log(self, name: str) -> None:
        """A foreign folder, unless it has data files of txnlog."""
        names, _ = data_files.list_data_files(self._store, name)
        if any(BATCH_FILE.match(file) for file in names.to_pylist()):
            self.findings.add(across.no_log(name, _NO_LOG))

    # -- across tables ---------------------------------------------------------------------------

    def _across(self, existing: set[str]) -> None:
        groups = self._groups()
        groups_after: dict[str, Group] = {}
        after: dict[str, TransactionMetadata] = {}
        shard_of: dict[int, str] = {}
        is_complete = self._again(after, shard_of)
        txns = self._offsets_again(groups_after)
        rows = [row for facts in self._rows.values() for row in facts.rows.values()]
        before = {row.producer_id: row for row in rows}
        by_producer = {row.producer_id: row for row in after.values()}
        topics, findings = self._topics, self.findings
        across.check_ended(self._decided, self._earlier, before, topics, txns, findings)
        memories = {name: facts.txns for name, facts in topics.items()}
        memories |= {table: shard.txns for table, shard in self._offsets.items()}
        across.check_rows_behind(memories, topics.values(), by_producer, findings, shard_of)
        if is_complete:
            across.check_hanging(topics.values(), by_producer, findings)
        if self._settings.topics is not None:
            named = {topic for group in groups.values() for topic in group.offsets}
            across.check_offsets(
                groups, topics, existing | named, findings, shards=self._offsets_count
            )
            return
        across.check_offsets(groups, topics, existing, findings, shards=self._offsets_count)
        there = existing - self._without | {finding.table for finding in findings}
        across.check_gone(there, self._decided, rows, groups, findings, self._copied)
        across.check_table_ids(self._ids.values(), findings)
        now_ms, stuck_ms = self._store.clock.now_ms(), self._settings.stuck_ms
        across.check_stuck(
            self._rows,
            topics,
            txns,
            findings,
            shards=self._offsets_count,
            now_ms=now_ms,
            stuck_ms=stuck_ms,
        )
        if is_complete:
            across.check_tickets(groups_after, rows, findings, shards=self._offsets_count)
        self._producer_ids()
        for url, parts in by_table(self._parts if self._cluster_id else ()).items():
            check = partial(check_publications, self._store, url, self._cluster_id, parts, findings)
            self._guarded(url, check)

    def _groups(self) -> dict[str, Group]:
        """The groups with what their holders have decided and not moved, which counts, too."""
        left: dict[str, list[TransactionMetadata]] = {}
        for row in (row for facts in self._rows.values() for row in facts.rows.values()):
            for one in row.moves:
                left.setdefault(one.group_id, []).append(row)
        return {
            name: with_unmoved(group, left.get(name, ()), facts.txns.markers)
            for facts in self._offsets.values()
            for name, group in facts.rows.items()
        }

    def _again(self, after: dict[str, TransactionMetadata], shard_of: dict[int, str]) -> bool:
        """Add the rows as they are after the topics were read; False: some are unknown."""
        is_complete = True
        for table in self._rows:
            try:
                state = self._newest(table).state
            except TxnLogError as error:
                self.found.errors.append((table, error.message))
                state = None
            if state is None:
                is_complete = False
                continue
            unread = Findings()
            rows = read_rows(table, state, TransactionMetadata, "transactional_id", unread).rows
            is_complete = is_complete and not len(unread)
            after.update(rows)
            shard_of.update({row.producer_id: table for row in rows.values()})
        return is_complete

    def _offsets_again(self, after: dict[str, Group]) -> dict[str, TxnMemory]:
        """The memory of each shard of the offsets; adds the groups as they are now."""
        found = {}
        for table in self._offsets:
            try:
                state = self._newest(table).state
            except TxnLogError as error:
                self.found.errors.append((table, error.message))
                continue
            if state is not None:
                found[table] = state.memory()
                after.update(read_rows(table, state, Group, "group_id", Findings()).rows)
        return found

    def _producer_ids(self) -> None:
        try:
            state = self._newest(cluster_log.PATH).state
        except TxnLogError as error:
            self.found.errors.append((cluster_log.PATH, error.message))
            return
        if state is not None:
            given_out = state.txns.get(cluster_log.PRODUCER_IDS, (0, None))[0]
            offsets = {table: facts.txns for table, facts in self._offsets.items()}
            across.check_producer_ids(
                self._rows, self._topics.values(), offsets, given_out, self.findings
            )
