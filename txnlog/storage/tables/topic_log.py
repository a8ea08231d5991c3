"""A topic on disk: its Delta table, tailed into a TopicState, changed by TopicCommits."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from txnlog.errors import (
    RESTORE_ALL,
    CorruptLogError,
    FolderNotFoundError,
    InvalidPartitionsError,
    LogGapError,
    StorePermissionError,
    TopicAlreadyExistsError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.batches import (
    HEADER_COLUMNS,
    BatchHeader,
    HeaderColumns,
    header_from_values,
    headers_from_columns,
)
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.topics import (
    TopicCommit,
    TopicState,
    check_bound,
    end_app_id,
    partition_count,
)
from txnlog.storage.delta.actions import Action, Add, Adds, Commit, Metadata, Remove, Txn
from txnlog.storage.delta.delta_log import DeltaLog, LogSettings, Outcome
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import CONFIG_PREFIX, config_of, create_actions, metadata_action

R = TypeVar("R")

_HEADER = {
    "type": "struct",
    "fields": [
        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
        {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
    ],
}
HOME = "home"
"""The setting that names a topic's cluster and the topic, by which a foreign log is known."""
DATA_COLUMNS: Mapping[str, object] = {
    "offset_delta": "long",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": {"type": "array", "elementType": _HEADER, "containsNull": True},
}


_IN_THE_WAY = re.compile(r"_delta_log/|part-[^/]+\Z")
OF_A_TOPIC = re.compile(r"_delta_log/|part-(\d{1,6})-[0-9a-f-]{32,36}\.parquet\Z")
"""Files that a topic has left, for sure: those of another tool are no topic's."""


class _Parsed(NamedTuple):
    """The actions of a commit to a topic, parsed and checked."""

    loads: list[HeaderColumns]
    txns: list[Txn]
    removes: list[str]
    topics: list[tuple[str, dict[str, str]]]
    adds: list[BatchHeader]


class TopicView(TopicState):
    """TopicState fed from Delta commits."""

    def __init__(self, path: str, home: str = "") -> None:
        self._source = path
        self._home = home
        super().__init__()

    def parse(self, commit: Commit) -> _Parsed:
        """Parse a commit, or a checkpoint in the form of one. Raises CorruptLogError."""
        parsed = _Parsed([], [], [], [], [])
        for action in commit.actions:
            if isinstance(action, Add):
                parsed.adds.append(self._header(action, commit.version))
            elif isinstance(action, Adds):
                parsed.loads.append(
                    headers_from_columns(
                        action.values,
                        paths=action.paths,
                        sizes_bytes=action.sizes,
                        stats=action.stats,
                        source=checkpoint_path(self._source, commit.version),
                    )
                )
            elif isinstance(action, Txn):
                check_bound(action.app_id, action.version)
                parsed.txns.append(action)
            elif isinstance(action, Remove):
                parsed.removes.append(action.path)
            elif isinstance(action, Metadata):
                config = config_of(action)
                partition_count(config)
                self._check_home(config.get(HOME, ""), commit.version)
                parsed.topics.append((action.id, config))
        if len(parsed.adds) > 1:
            parsed.adds.sort(key=_by_offset)
        return parsed

    def apply(self, parsed: _Parsed) -> None:
        """Apply what `parse` returned."""
        for topic_id, config in parsed.topics:
            self.set_topic(topic_id, config)
        for columns in parsed.loads:
            self.load(columns)
        for txn in parsed.txns:
            self.set_txn(txn.app_id, txn.version, txn.last_updated)
        if parsed.removes:
            self.remove(parsed.removes)
        for header in parsed.adds:
            self.add(header)

    def _check_home(self, found: str, version: int) -> None:
        """A log of another topic has other markers: what they settle here would be lost (D102)."""
        if self._home and found and found != self._home:
            raise CorruptLogError(
                f"{commit_path(self._source, version)}: this is the log of {found} (cluster/topic),"
                f" and here is {self._home}: the folder was copied, moved or restored from "
                "elsewhere. Stop all clients. Bring the topic's own folder back, or: "
                f"{RESTORE_ALL}",
                file=commit_path(self._source, version),
            )

    def _header(self, add: Add, version: int) -> BatchHeader:
        return header_from_values(
            add.partition_values,  # type: ignore[arg-type]
            path=add.path,
            size_bytes=add.size,
            stats=add.stats or "",
            source=commit_path(self._source, version),
        )


def _by_offset(header: BatchHeader) -> tuple[int, int]:
    return header.partition, header.base_offset


class TopicLog:
    """Handle of one topic: `refresh` tails, `transact` commits. The constructor does no I/O."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        *,
        settings: LogSettings | None = None,
        cluster_id: str = "",
    ) -> None:
        """`cluster_id`, if known: the log of another topic or cluster is refused as damage."""
        self.store = store
        self.name = name
        self.path = name
        self._home = f"{cluster_id}/{name}" if cluster_id else ""
        self.view = TopicView(name, self._home)
        # One Delta table of another tool below the root must not fail every listing (D46).
        mark = CONFIG_PREFIX + "partitions"
        self.log = DeltaLog(store, name, self.view, settings=settings, mark=mark)

    @property
    def topic_id(self) -> str:
        return self.view.topic_id

    @property
    def partitions(self) -> int:
        return len(self.view.partitions)

    @property
    def config(self) -> Mapping[str, str]:
        """Topic settings: `partitions`, `max.message.bytes`, ... as strings."""
        return self.view.config

    @property
    def exists(self) -> bool:
        """Created and not deleted, as of the last refresh."""
        return self.log.exists and not self.view.deleted

    def refresh(self) -> None:
        """Tail to the head of the log."""
        self._read(self.log.refresh)

    def get_ready(self) -> None:
        """See DeltaLog.get_ready; errors as of `refresh`."""
        self._read(self.log.get_ready)

    def _read(self, read: Callable[[], None]) -> None:
        try:
            read()
        except StorePermissionError as error:
            raise self._denied("read", error) from error
        except CorruptLogError:
            # After a repair, or a newer checkpoint that hides the damage, it must be opened again.
            self.log.invalidate()
            raise

    def transact(
        self,
        decide: Callable[[TopicState], TopicCommit | R],
        *,
        refresh: Callable[[], object] | None = None,
        guesses: bool = True,
    ) -> TopicCommit | R:
        """Commit the TopicCommit that `decide` returns; return anything else it returns.

        For `refresh` and `guesses` see txnlog.storage.delta.transact. Raises what `decide` raises,
        TopicAuthorizationError, CommitStateUnknownError.
        """

        def commit(decision: TopicCommit | R) -> Outcome | None:
            if not isinstance(decision, TopicCommit):
                return None
            actions = encode_topic_commit(decision, now_ms=self.store.now_ms())
            return self._commit(actions, decision.operation, decision)

        return transact(
            self.log,
            lambda: decide(self._require_log()),
            commit,
            refresh=refresh,
            guesses=guesses,
        )

    def _require_log(self) -> TopicState:
        """The state. A deleted topic has a log that says so; a topic without a log is lost."""
        if not self.log.exists:
            raise FolderNotFoundError(
                f"Topic {self.name!r} has no log at {self.store.url}: its folder was removed or "
                "is not mounted. Nothing was written. Mount it, and the work continues by itself. "
                f"If it is lost: {RESTORE_ALL} Or delete the topic, with its records, by force.",
                topic=self.name,
            )
        return self.view

    def create(
        self,
        *,
        partitions: int,
        config: Mapping[str, str],
        exist_ok: bool = False,
        at_least: bool = False,
    ) -> None:
        """Create the topic; one that was deleted gets a new id, in the same log (R71).

        `at_least`: one that had more partitions gets as many again, which is refused otherwise.
        Raises TopicAlreadyExistsError, InvalidPartitionsError, LogGapError if the folder holds
        data of a topic whose log is lost.
        """
        if not 0 < partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"Topic {self.name!r}: {partitions} partitions; give 1 to {PARTITIONS_MAX}.",
                topic=self.name,
            )
        topic_id = str(uuid.uuid4())

        def decide() -> list[Action]:
            # Our commit landed; another process may have deleted the topic since.
            if self.topic_id == topic_id or (self.exists and exist_ok):
                return []
            if self.exists:
                raise TopicAlreadyExistsError(
                    f"Topic {self.name!r} exists already, with {self.partitions} partitions.",
                    topic=self.name,
                )
            if not self.log.exists:
                self._check_new()
            elif not at_least:
                self.check_not_fewer(partitions)
            count = max(partitions, self.partitions)
            actions = create_actions(
                table_id=topic_id,
                data_columns=DATA_COLUMNS,
                partition_columns=HEADER_COLUMNS,
                config={**config, **self._own_home(), "partitions": str(count)},
                created_ms=self.store.clock.now_ms(),
            )
            return actions[1:] if self.log.exists else actions

        self._change("CREATE TOPIC", decide)

    def check_not_fewer(self, partitions: int) -> None:
        """Raise InvalidPartitionsError if the topic had more before it was deleted: no partition
        of a log ends, and each continues at its old end (D12). As of the last refresh.
        """
        if self.log.exists and partitions < self.partitions:
            raise InvalidPartitionsError(
                f"Topic {self.name!r} had {self.partitions} partitions when it was deleted, and "
                f"cannot be created again with {partitions}: the offsets of all of them continue. "
                f"Give at least {self.partitions}, or no number, or choose another name.",
                topic=self.name,
                partitions=self.partitions,
            )

    def _own_home(self) -> dict[str, str]:
        return {HOME: self._home} if self._home else {}

    def _check_new(self) -> None:
        """Raise LogGapError if there are files: with a new log, vacuum would delete them, and the
        offsets of a topic whose log is lost would begin again (D12).
        """
        left = self.remains(_IN_THE_WAY)
        # Another process may have created the topic since the refresh.
        if left and not self.store.exists(commit_path(self.path, 0)):
            raise LogGapError(
                f"{self.store.url}/{self.path}: this folder holds {left!r}, and no log: the log of "
                f"topic {self.name!r} is lost, or the folder is not of txnlog. Nothing was "
                f"created. {RESTORE_ALL} Or delete the topic by force "
                "(delete_topics(..., force=True), `txnlog topics delete --force`), and create it "
                "again without its former records. If the folder is of another tool, move it, or "
                "choose another name.",
                topic=self.name,
                file=f"{self.path}/_delta_log",
            )

    def remains(self, pattern: re.Pattern[str]) -> str | None:
        """The name of a file in the topic's folder, or in its log, that matches `pattern`."""
        start = len(self.path) + 1
        names = (item.path[start:] for item in self.store.list_some(self.path))
        return next((name for name in names if pattern.match(name)), None)

    def delete(self) -> None:
        """Delete the topic by a commit: files removed, ends kept; the log continues (D12).

        Raises UnknownTopicOrPartitionError if it does not exist.
        """
        topic_id: str | None = None

        def decide() -> list[Action]:
            nonlocal topic_id
            if not self.exists or topic_id not in (None, self.topic_id):
                if topic_id is not None:
                    return []
                raise UnknownTopicOrPartitionError(
                    f"There is no topic {self.name!r} to delete.", topic=self.name
                )
            topic_id = self.topic_id
            now_ms = self.store.now_ms()
            config = {**self.config, "deleted": "true"}
            actions: list[Action] = [
                metadata_action(topic_id, DATA_COLUMNS, HEADER_COLUMNS, config, now_ms)
            ]
            for number in range(self.partitions):
                end = self.view.high_watermark(number)
                actions.append(Txn(end_app_id(number), end, now_ms))
            # A later topic of this name has none of this one's batch writes.
            actions += [Txn(app_id, -1, now_ms) for app_id in self.view.txns.applications]
            actions += [Remove(path, now_ms, data_change=True) for path in self.view.by_path]
            return actions

        self._change("DELETE TOPIC", decide)

    def alter(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Replace the topic's settings by what `change` returns for them; other properties stay.

        Raises UnknownTopicOrPartitionError, and what `change` raises.
        """

        def decide() -> list[Action]:
            metadata = self.log.metadata
            if not self.exists or metadata is None:
                raise UnknownTopicOrPartitionError(
                    f"There is no topic {self.name!r} to alter.", topic=self.name
                )
            config = change(self.config)
            if config == self.config:
                return []
            others = {
                key: value
                for key, value in metadata.configuration.items()
                if not key.startswith(CONFIG_PREFIX)
            }
            ours = {CONFIG_PREFIX + key: value for key, value in config.items()}
            return [replace(metadata, configuration={**others, **ours})]

        self._change("ALTER TOPIC", decide)

    def _change(self, operation: str, decide: Callable[[], list[Action]]) -> None:
        """Commit actions that are no TopicCommit; an empty list means nothing to change."""
        transact(
            self.log,
            decide,
            lambda actions: self._commit(actions, operation) if actions else None,
        )

    def _commit(
        self, actions: list[Action], operation: str, commit: TopicCommit | None = None
    ) -> Outcome:
        parameters = {}
        if commit is not None:
            parameters = {
                "producerId": str(commit.producer_id),
                "producerEpoch": str(commit.producer_epoch),
            }
        try:
            return self.log.commit(actions, operation=operation, parameters=parameters)
        except StorePermissionError as error:
            raise self._denied("write", error) from error

    def _denied(self, what: str, error: StorePermissionError) -> TopicAuthorizationError:
        return TopicAuthorizationError(
            f"No permission to {what} topic {self.name!r}: {error.message}",
            **{**error.context, "topic": self.name},
        )


def encode_topic_commit(commit: TopicCommit, *, now_ms: int) -> list[Action]:
    """A TopicCommit as Delta actions; re-added headers count as data changes for Delta streams.

    `now_ms` is by the store's clock, by which ages of markers and tombstones are measured.
    """
    actions: list[Action] = [
        Txn(app_id, version, now_ms) for app_id, version in commit.txns.items()
    ]
    change = commit.data_change
    actions += [Remove(path, now_ms, data_change=change) for path in commit.removes]
    actions += [
        Add(
            batch.path,
            dict(batch.to_values()),
            batch.size_bytes,
            now_ms,
            data_change=change,
            stats=batch.stats,
        )
        for batch in commit.adds
    ]
    return actions
