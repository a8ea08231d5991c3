"""A topic on disk: its Delta table, tailed into a TopicState, changed by TopicCommits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

from txnlog.clock import backoff_ms
from txnlog.errors import (
    CommitStateUnknownError,
    ConcurrentTransactionsError,
    InvalidPartitionsError,
    StorePermissionError,
    TopicAlreadyExistsError,
    TopicAuthorizationError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.batches import HEADER_COLUMNS, BatchHeader, header_from_values
from txnlog.protocol.topics import TopicCommit, TopicState, end_app_id
from txnlog.storage.actions import Action, Add, Commit, Metadata, Remove, Txn
from txnlog.storage.checkpoints import commit_path
from txnlog.storage.delta_log import (
    UNKNOWNS_MAX,
    Committed,
    Conflict,
    DeltaLog,
    LogSettings,
    Outcome,
    Unknown,
)
from txnlog.storage.objects import ObjectStore
from txnlog.storage.tables import config_of, create_actions, metadata_action

R = TypeVar("R")

ATTEMPTS_MAX = 1_000
PARTITIONS_MAX = 100_000

_HEADER = {
    "type": "struct",
    "fields": [
        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
        {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
    ],
}
DATA_COLUMNS: Mapping[str, object] = {
    "offset_delta": "long",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": {"type": "array", "elementType": _HEADER, "containsNull": True},
}


class TopicView(TopicState):
    """TopicState fed from Delta commits."""

    def __init__(self, path: str) -> None:
        self._source = path
        super().__init__()

    def apply(self, commit: Commit) -> None:
        """Take in a commit, or a checkpoint in the shape of one."""
        adds: list[BatchHeader] = []
        for action in commit.actions:
            if isinstance(action, Add):
                adds.append(self._header(action, commit.version))
            elif isinstance(action, Txn):
                self.set_txn(action.app_id, action.version)
            elif isinstance(action, Remove):
                self.remove(action.path)
            elif isinstance(action, Metadata):
                self.set_topic(action.id, config_of(action))
        if len(adds) > 1:
            adds.sort(key=_by_offset)
        for header in adds:
            self.add(header)

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
        self, store: ObjectStore, name: str, *, settings: LogSettings | None = None
    ) -> None:
        self.store = store
        self.name = name
        self.path = name
        self.view = TopicView(name)
        self.log = DeltaLog(store, name, self.view, settings=settings)

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
        self.log.refresh()

    def transact(self, decide: Callable[[TopicState], TopicCommit | R]) -> TopicCommit | R:
        """Refresh, decide, commit; again from the start after a conflict or a lost reply.

        Where the log is likely current the first try leaves out the refresh: only a commit that
        lands is believed then. `decide` is pure, and must say that its effect is there when it is: it gives the commit to
        write, or anything else, which is returned. A commit that landed is returned too.
        Raises what `decide` raises, TopicAuthorizationError, CommitStateUnknownError.
        """
        unknowns = 0
        for attempt in range(ATTEMPTS_MAX):
            guess = attempt == 0 and self.log.likely_current
            if not guess:
                self.refresh()
            try:
                decision = decide(self.view)
                if not isinstance(decision, TopicCommit):
                    if guess:
                        continue
                    return decision
                now_ms = self.store.clock.now_ms()
                actions = encode_topic_commit(decision, now_ms=now_ms)
                outcome = self._commit(actions, decision.operation, decision)
            except TxnLogError as error:
                if guess:
                    continue
                if unknowns:
                    # An earlier try may have landed, or may yet: this refusal is no "no" to it.
                    raise _gave_up(self.name, True) from error
                raise
            match outcome:
                case Committed():
                    return decision
                case Conflict():
                    pass
                case Unknown():
                    unknowns += 1
                    if unknowns == UNKNOWNS_MAX:
                        break
            self.store.clock.sleep_ms(backoff_ms(attempt))
        raise _gave_up(self.name, unknowns > 0)

    def create(self, *, partitions: int, config: Mapping[str, str], exist_ok: bool = False) -> None:
        """Create the topic, or create a deleted one again with a new id in the same log (R71).

        Raises TopicAlreadyExistsError, InvalidPartitionsError.
        """
        if not 0 < partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"Topic {self.name!r}: {partitions} partitions; give 1 to {PARTITIONS_MAX}.",
                topic=self.name,
            )
        topic_id = str(uuid.uuid4())
        unknowns = 0
        for attempt in range(ATTEMPTS_MAX):
            self.refresh()
            if self.topic_id == topic_id:
                # Ours landed; somebody may have deleted it since.
                return
            if self.exists:
                if exist_ok:
                    return
                raise TopicAlreadyExistsError(
                    f"Topic {self.name!r} exists already, with {self.partitions} partitions.",
                    topic=self.name,
                )
            count = max(partitions, self.partitions) if self.log.exists else partitions
            settings = {**config, "partitions": str(count)}
            actions = create_actions(
                table_id=topic_id,
                data_columns=DATA_COLUMNS,
                partition_columns=HEADER_COLUMNS,
                config=settings,
                created_ms=self.store.clock.now_ms(),
            )
            if self.log.exists:
                del actions[0]
            match self._commit(actions, "CREATE TOPIC"):
                case Committed():
                    return
                case Unknown():
                    unknowns += 1
                    if unknowns == UNKNOWNS_MAX:
                        break
            self.store.clock.sleep_ms(backoff_ms(attempt))
        raise _gave_up(self.name, True)

    def delete(self) -> None:
        """Delete the topic by a commit: files removed, ends kept; the log goes on (rule 9).

        Raises UnknownTopicOrPartitionError when there is none.
        """
        topic_id = None
        unknowns = 0
        for attempt in range(ATTEMPTS_MAX):
            self.refresh()
            if not self.exists or (topic_id is not None and self.topic_id != topic_id):
                if topic_id is not None:
                    return
                raise UnknownTopicOrPartitionError(
                    f"There is no topic {self.name!r} to delete.", topic=self.name
                )
            topic_id = self.topic_id
            now_ms = self.store.clock.now_ms()
            actions: list[Action] = [
                metadata_action(
                    topic_id,
                    DATA_COLUMNS,
                    HEADER_COLUMNS,
                    {**self.config, "deleted": "true"},
                    now_ms,
                )
            ]
            for number in range(self.partitions):
                end = self.view.high_watermark(number)
                actions.append(Txn(end_app_id(number), end, now_ms))
            actions += [Remove(path, now_ms, data_change=True) for path in self.view.by_path]
            match self._commit(actions, "DELETE TOPIC"):
                case Committed():
                    return
                case Unknown():
                    unknowns += 1
                    if unknowns == UNKNOWNS_MAX:
                        break
            self.store.clock.sleep_ms(backoff_ms(attempt))
        raise _gave_up(self.name, True)

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
            raise TopicAuthorizationError(
                f"No permission to write topic {self.name!r}: {error.message}", topic=self.name
            ) from error


def encode_topic_commit(commit: TopicCommit, *, now_ms: int) -> list[Action]:
    """A TopicCommit as Delta actions; re-added headers count as data changes for Delta streams."""
    actions: list[Action] = [
        Txn(app_id, version, now_ms) for app_id, version in commit.txns.items()
    ]
    actions += [Remove(path, now_ms, data_change=True) for path in commit.removes]
    actions += [
        Add(
            batch.path,
            dict(batch.to_values()),
            batch.size_bytes,
            now_ms,
            data_change=True,
            stats=batch.stats,
        )
        for batch in commit.adds
    ]
    return actions


def _gave_up(topic: str, unknown: bool) -> CommitStateUnknownError | ConcurrentTransactionsError:
    if unknown:
        return CommitStateUnknownError(
            f"Topic {topic!r}: gave up before learning whether the commit landed; calling again "
            "settles it.",
            topic=topic,
        )
    return ConcurrentTransactionsError(
        f"Topic {topic!r}: lost {ATTEMPTS_MAX} races in a row for its log; try again.", topic=topic
    )
