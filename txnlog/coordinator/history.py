"""Committed transactions and the times of their phases, from the transaction log's history.

A commit's operationParameters name its transaction. Those of a write that completes a streaming
query's batch, the decision of its next one, have the figures of that batch, if the same process
made both. They are in the log's commits only, not in its checkpoints: commits below the newest
checkpoint are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from txnlog.coordinator.root import Root
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.actions import Commit
from txnlog.storage.delta.delta_log import DeltaLog

_SUFFIX = "Ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTransaction:
    """One with its figures: `parameters` as in the log, `ended_ms` when they were written, by the
    writer's wall clock.
    """

    transactional_id: str
    version: int
    ended_ms: int
    parameters: Mapping[str, str]

    @property
    def phases_ms(self) -> dict[str, float]:
        """Milliseconds of each phase, `total` and `stageLongest` among them; see Phases."""
        return {
            name[: -len(_SUFFIX)]: float(value)
            for name, value in self.parameters.items()
            if name.endswith(_SUFFIX)
        }


class CommittedTransactions:
    """Tails shards of the transaction log, read-only. Not thread-safe."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._shards: dict[int, tuple[DeltaLog, _Commits]] = {}

    def read(self, transactional_id: str) -> tuple[int, CommittedTransaction | None]:
        """(number of the id's committed transactions read so far, the newest that has figures).

        The first call for a shard reads its log from the newest checkpoint on.
        """
        number = self._root.shard_of(transactional_id)
        if number not in self._shards:
            view = _Commits()
            # Not root.shard(), which creates the table if it does not exist.
            log = DeltaLog(
                self._root.store,
                f"__transaction_state-{number}",
                view,
                settings=self._root.settings,
            )
            self._shards[number] = log, view
        log, view = self._shards[number]
        log.refresh()
        return view.counts[transactional_id], view.newest.get(transactional_id)


class _Commits:
    """Committed transactions of a shard; reopening the log does not count them again."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.newest: dict[str, CommittedTransaction] = {}
        self._version = -1

    def reset(self) -> None:
        pass

    def parse(self, commit: Commit) -> Commit:
        return commit

    def apply(self, commit: Commit) -> None:
        if commit.version <= self._version:
            return
        self._version = commit.version
        parameters = commit.info.operation_parameters
        transactional_id = parameters.get("transactionalId")
        if transactional_id is None:
            return
        if commit.info.operation == TransactionState.PREPARE_COMMIT.name:
            self.counts[transactional_id] += 1
        if "totalMs" not in parameters:
            return
        self.newest[transactional_id] = CommittedTransaction(
            transactional_id=transactional_id,
            version=commit.version,
            ended_ms=commit.info.timestamp,
            parameters=commit.info.operation_parameters,
        )
