"""The root that a copy is: who may write there, and what brings it to a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from txnlog.coordinator.copied_topics import CopiedTopic, TableContents, newest_markers
from txnlog.coordinator.root import Root
from txnlog.coordinator.versions import rows_at_version
from txnlog.errors import ConcurrentTransactionsError, ConfigError, ObjectNotFoundError
from txnlog.protocol.copies import (
    COPYING,
    OF_A_COPY,
    WHOLE_COPY,
    Copy,
    WholeCopy,
    check_copy_of,
    group_in_copy,
    row_in_copy,
)
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.snapshots import Snapshot, TopicVersion
from txnlog.protocol.topics import end_app_id, may_be_topic
from txnlog.storage.delta.actions import Action, Add, Commit, Remove, Txn, decode_commit
from txnlog.storage.delta.delta_log import Outcome
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import PATH
from txnlog.storage.tables.copy_log import WHOLE_COPIES
from txnlog.storage.tables.row_log import (
    OffsetsLog,
    Row,
    RowCommit,
    RowLog,
    RowView,
    TransactionLog,
)
from txnlog.storage.tables.schemas import CONFIG_PREFIX
from txnlog.storage.tables.topic_log import HOME

ACTIONS_MAX = 100_000
"""Of one commit; nobody reads a copy before its last one."""
_FOREVER_MS = 100 * 366 * 86_400_000


class CopyTarget:
    """The root that is written."""

    def __init__(self, store: ObjectStore, origin: Root, *, shared: bool) -> None:
        self.num_ids = self.num_groups = 0
        self._shared = shared
        self._run = str(uuid.uuid4())
        self._origin = origin
        self._contents: dict[str, TableContents] = {}
        self._opened: dict[str, int] = {}
        self._copy: Copy | None = None
        self._files: list[str] = []
        # Its versions stay: the last whole copy is at those that it had.
        settings = LogSettings(log_retention_ms=_FOREVER_MS, watch=self._note)
        self.root = Root(store, settings=settings)
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        self._shards: dict[str, int] = {}

    def _note(self, path: str, commit: Commit) -> None:
        if may_be_topic(path):
            self._contents.setdefault(path, TableContents()).note(path, commit)

    def open(self, *, fsync: bool) -> None:
        """Read the logs that are there; a new place gets a `__cluster`.

        Raises ConfigError if the place is not for this copy.
        """
        root = self.root
        self._copy = root.read_copy()
        if not root.cluster_id:
            items = root.store.list_some("")
            others = [item.path for item in items if not item.path.startswith(f"{PATH}/")]
            if others:
                raise ConfigError(
                    f"{root.root} is not empty: it holds {min(others)!r}, and is no root. Choose "
                    "an empty place, or one with an earlier copy.",
                    root=root.root,
                )
            self.begin(fsync=fsync)
            return
        origin, shared = self._origin.cluster_id, self._shared
        check_copy_of(self._copy, origin=origin, shared=shared, url=root.root)
        self._files = [item.path for item in root.store.list_files(PATH)]
        whole = root.whole_copy()
        known = {} if whole is None else whole.versions
        self._opened = self._versions()
        for path, version in self._opened.items():
            self._check_unchanged(path, known.get(path, -1), version)

    def _versions(self) -> dict[str, int]:
        """The newest version of each table."""
        root = self.root
        logs = [root.topic_log(n) for n in root.store.list_folders() if may_be_topic(n)]
        root.refresh_together(logs)
        versions = {log.path: log.log.version for log in logs}
        versions |= {log.path: log.log.version for log in root.existing_shards()}
        versions |= {log.path: log.log.version for log in root.offsets_shards()}
        return {path: version for path, version in versions.items() if version >= 0}

    def _check_unchanged(self, table: str, version: int, head: int) -> None:
        """Raise ConfigError if a client has written to a table since."""
        for number in range(version + 1, head + 1):
            operation = operation_of(self.root.store, table, number)
            if operation not in OF_A_COPY:
                raise ConfigError(
                    f"{self.root.root} was written to since it was copied "
                    f"({commit_path(table, number)}: {operation}): "
                    "it is a root of its own now. Choose an empty place.",
                    root=self.root.root,
                )

    def begin(self, *, fsync: bool) -> None:
        """From now on this run makes the copy.

        Not if a client has begun to use the former one: that goes on. A client that opens it now is
        refused.
        """
        copy = Copy(origin=self._origin.cluster_id, shared=self._shared, run=self._run)
        self.root.begin_copy(copy, expected=self._copy, of=self._origin, fsync=fsync)
        if self._copy is not None and not self._copy.run:
            for path, version in self._versions().items():
                if version != self._opened.get(path, -1):
                    self.root.end_copy(self._run, self._copy.file)
                    self._check_version(path, version, self._opened.get(path, -1))

    def write(self, snapshot: Snapshot, topics: dict[str, CopiedTopic]) -> Snapshot:
        """Bring all tables to those of the snapshot; returns it with their versions.

        `topics` is emptied: what is written needs no memory any more.
        """
        newest = newest_markers(topics.values())
        for name, log in sorted(self.root.opened_topics().items()):
            if log.exists and name not in topics:
                self._delete_topic(name)
        versions: dict[str, TopicVersion] = {}
        while topics:
            name, one = topics.popitem()
            versions[name] = TopicVersion(version=self._write_topic(name, one))
            self._contents.pop(name, None)
        self.root.forget_topics()
        self._write_rows(snapshot, versions, newest)
        self._give_out_above(self._origin.producer_ids_end - 1)
        return Snapshot(
            cluster_id=self.root.cluster_id,
            at_ms=snapshot.at_ms,
            topics=versions,
            offsets=self._offsets,
            shards=self._shards,
        )

    def _write_topic(self, name: str, wanted: CopiedTopic) -> int:
        """Bring a topic to what it shall have; returns its version."""
        home = {f"{CONFIG_PREFIX}{HOME}": f"{self.root.cluster_id}/{name}"}
        configuration = {**wanted.metadata.configuration, **home}
        metadata = replace(wanted.metadata, configuration=configuration)
        log = self.root.topic_log(name)
        found = self._contents.get(name, TableContents())
        actions: list[Action] = [] if name in self._opened else [PROTOCOL]
        if log.log.metadata != metadata:
            actions.append(metadata)
        actions += [txn for txn in wanted.txns.values() if found.txns.get(txn.app_id) != txn]
        now_ms = self.root.store.now_ms()
        gone = sorted(found.adds.keys() - wanted.adds.keys())
        actions += [Remove(path, now_ms, data_change=True) for path in gone]
        actions += [
            replace(add, data_change=True)
            for path, add in wanted.adds.items()
            if _header(found.adds.get(path)) != _header(add)
        ]
        return self._commit(name, actions)

    def _delete_topic(self, name: str) -> int:
        """A topic that was deleted in the origin: its ends stay."""
        log = self.root.topic_log(name)
        metadata = log.log.metadata
        assert metadata is not None
        now_ms = self.root.store.now_ms()
        deleted = {**metadata.configuration, f"{CONFIG_PREFIX}deleted": "true"}
        actions: list[Action] = [replace(metadata, configuration=deleted)]
        actions += [
            Txn(end_app_id(number), log.view.high_watermark(number), now_ms)
            for number in range(log.partitions)
        ]
        actions += [Remove(path, now_ms, data_change=True) for path in log.view.by_path]
        return self._commit(name, actions)

    def _commit(self, name: str, actions: Sequence[Action]) -> int:
        log = self.root.topic_log(name).log
        expected = self._opened.get(name, -1)
        for at in range(0, max(len(actions), 1), ACTIONS_MAX):
            some = actions[at : at + ACTIONS_MAX]

            def decide(expected: int = expected) -> bool:
                self._check_version(name, log.version, expected)
                return True

            def commit(_: bool, some: Sequence[Action] = some) -> Outcome:
                return log.commit(some, operation=COPYING)

            transact(log, decide, commit)
            expected += 1
        return log.version

    def _check_version(self, table: str, found: int, expected: int) -> None:
        if found != expected:
            raise ConcurrentTransactionsError(
                f"{self.root.root}/{table} has version {found}, and had {expected} when this copy "
                "was begun: another process writes there. Run it again.",
                table=table,
            )

    def _write_rows(
        self, snapshot: Snapshot, topics: Collection[str], newest: Mapping[int, int]
    ) -> None:
        for table, version in sorted(snapshot.shards.items()):
            found = rows_at_version(self._origin, table, version)
            if isinstance(found, TransactionLog):
                rows = [
                    row_in_copy(row, marker=newest.get(row.producer_id, -1), topics=topics)
                    for row in found.view.rows.values()
                ]
                shown = {row.transactional_id: row for row in rows if row is not None}
                self.num_ids += len(shown)
                self._put_rows(self.root.shard(found.number), shown)
            else:
                groups = self._groups(found, snapshot, topics)
                self.num_groups += len(groups)
                self._put_rows(self.root.offsets_shard(found.number), groups)

    def _groups(
        self,
        found: OffsetsLog,
        snapshot: Snapshot,
        topics: Collection[str],
    ) -> dict[str, Group]:
        rows = found.view.rows
        names = [
            name
            for name in {*rows, *snapshot.offsets}
            if self._origin.offsets_shard_of(name) == found.number
        ]
        groups = {}
        for name in sorted(names):
            group = rows.get(name) or Group(group_id=name)
            groups[name] = group_in_copy(group, snapshot.offsets.get(name, {}), topics=topics)
            if positions := groups[name].positions():
                self._offsets[name] = positions
        return groups

    def _put_rows(self, log: RowLog[Row], rows: Mapping[str, Row]) -> None:
        def decide(view: RowView[Row], version: int) -> RowCommit[Row]:
            # One that was not there was created a moment ago.
            self._check_version(log.path, version - 1, self._opened.get(log.path, 0))
            paths = {name: row.path for name, row in view.rows.items()}
            kept = {name: replace(row, path=paths.get(name, "")) for name, row in rows.items()}
            return RowCommit(
                operation=COPYING,
                puts=tuple(row for name, row in kept.items() if view.rows.get(name) != row),
                removes=tuple(row for name, row in view.rows.items() if name not in kept),
            )

        log.transact(decide)
        self._shards[log.path] = log.log.version

    def _give_out_above(self, producer_id: int) -> None:
        """Producer ids of the copy are others than those of its origin."""
        self.root.read_copy()
        if self.root.producer_ids_end <= producer_id:
            self.root.next_producer_id(above=producer_id)

    def end(self, whole: WholeCopy) -> None:
        """The copy is whole."""
        path = f"{WHOLE_COPIES}{uuid.uuid4()}.json"
        self.root.store.put_new(path, WHOLE_COPY.encode(whole).encode())
        self.root.end_copy(self._run, path)
        # Whoever reads what it was last may do so still.
        former = "" if self._copy is None else self._copy.file
        self.root.store.delete(
            [one for one in self._files if one.startswith(WHOLE_COPIES) and one != former]
        )


def operation_of(store: ObjectStore, table: str, version: int) -> str:
    """What a commit of a table says that it is."""
    path = commit_path(table, version)
    try:
        return decode_commit(store.get(path), version=version, source=path).info.operation
    except ObjectNotFoundError:
        return "cleaned up"


def _header(add: Add | None) -> object:
    return None if add is None else (add.partition_values, add.size, add.stats)
