"""`__cluster`: the format version, the number of shards, and the producer ids given out so far."""

from __future__ import annotations

import os
import uuid

from txnlog.clock import backoff_ms
from txnlog.errors import (
    CommitStateUnknownError,
    ConfigError,
    StorageError,
    UnsupportedProtocolError,
)
from txnlog.storage.actions import Commit, Metadata, Txn
from txnlog.storage.delta_log import UNKNOWNS_MAX, Committed, DeltaLog, LogSettings, Unknown
from txnlog.storage.objects import ObjectStore
from txnlog.storage.tables import config_of, create_actions

PATH = "__cluster"
FORMAT = 1
SHARDS_DEFAULT = 8
PRODUCER_ID_BLOCK = 1_000
_PRODUCER_IDS = "txnlog/producer-ids"
_ATTEMPTS_MAX = 1_000


class _View:
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.cluster_id = ""
        self.config: dict[str, str] = {}
        self.producer_ids_end = 0

    def apply(self, commit: Commit) -> None:
        for action in commit.actions:
            if isinstance(action, Metadata):
                self.cluster_id = action.id
                self.config = config_of(action)
            elif isinstance(action, Txn) and action.app_id == _PRODUCER_IDS:
                self.producer_ids_end = action.version


class ClusterLog:
    """Handle of `__cluster`. The constructor does no I/O."""

    def __init__(self, store: ObjectStore, *, settings: LogSettings | None = None) -> None:
        self._store = store
        self._view = _View()
        self._log = DeltaLog(store, PATH, self._view, settings=settings)
        self._block: tuple[int, int, int] = (-1, 0, 0)

    def open(self, *, create: bool, shards: int = SHARDS_DEFAULT) -> bool:
        """Read the cluster's settings, making the cluster first if asked to; whether it was made.

        Raises ConfigError when there is none, UnsupportedStoreError when the store cannot hold
        one, UnsupportedProtocolError when a newer txnlog made it.
        """
        self._log.refresh()
        made = not self._log.exists
        if made:
            if not create:
                raise ConfigError(
                    f"There is no txnlog cluster at {self._store.url}. Check the path, or create "
                    "a topic there first (writing to a topic creates the cluster).",
                    root=self._store.url,
                )
            self._create(shards)
        found = self._view.config.get("format", "")
        if found != str(FORMAT):
            raise UnsupportedProtocolError(
                f"The cluster at {self._store.url} has format {found!r}; this txnlog knows "
                f"{FORMAT}. Upgrade txnlog.",
                root=self._store.url,
            )
        return made

    def _create(self, shards: int) -> None:
        self._store.probe(PATH)
        actions = create_actions(
            table_id=str(uuid.uuid4()),
            data_columns={"created_at": "timestamp"},
            partition_columns={},
            config={"format": str(FORMAT), "transaction.state.log.num.partitions": str(shards)},
            created_ms=self._store.clock.now_ms(),
        )
        unknowns = 0
        for attempt in range(_ATTEMPTS_MAX):
            if self._log.exists:
                return
            if isinstance(self._log.commit(actions, operation="CREATE CLUSTER"), Unknown):
                unknowns += 1
                if unknowns == UNKNOWNS_MAX:
                    break
            self._store.clock.sleep_ms(backoff_ms(attempt))
            self._log.refresh()
        raise StorageError(f"{self._store.url}: the cluster could not be created; try again.")

    @property
    def cluster_id(self) -> str:
        return self._view.cluster_id

    @property
    def shards(self) -> int:
        """Number of `__transaction_state-<n>` tables; written once, at creation."""
        return int(self._view.config["transaction.state.log.num.partitions"])

    def next_producer_id(self) -> int:
        """An id nobody else ever gets (R10). One commit reserves a block for this process."""
        pid, number, end = self._block
        if pid != os.getpid() or number >= end:
            number, end = self._reserve()
        self._block = (os.getpid(), number + 1, end)
        return number

    def _reserve(self) -> tuple[int, int]:
        unknowns = 0
        for attempt in range(_ATTEMPTS_MAX):
            self._log.refresh()
            start = self._view.producer_ids_end
            end = start + PRODUCER_ID_BLOCK
            action = Txn(_PRODUCER_IDS, end, self._store.clock.now_ms())
            # A block whose commit was Unknown is lost, never given out twice.
            match self._log.commit([action], operation="ALLOCATE PRODUCER IDS"):
                case Committed():
                    return start, end
                case Unknown():
                    unknowns += 1
                    if unknowns == UNKNOWNS_MAX:
                        break
            self._store.clock.sleep_ms(backoff_ms(attempt))
        raise CommitStateUnknownError(
            f"{self._store.url}: no block of producer ids could be reserved; try again."
        )
