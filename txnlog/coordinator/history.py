"""Committed transactions and the times of their phases, from the transaction log's history.

A commit's operationParameters name its transaction and the time of each of its phases. They are in
the log's commits only, not in its checkpoints: commits below the newest checkpoint are not read.
It is the history of streaming queries: a producer's next decision stands for COMPLETE_COMMIT.
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
    """One COMPLETE_COMMIT: `parameters` as in the log, `ended_ms` by its writer's wall clock."""

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
        """(number of the id's committed transactions read so far, the newest of them).

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
        transactional_id = commit.info.operation_parameters.get("transactionalId")
        is_committed = commit.info.operation == TransactionState.COMPLETE_COMMIT.name
        if transactional_id is None or not is_committed:
            return
        self.counts[transactional_id] += 1
        self.newest[transactional_id] = CommittedTransaction(
            transactional_id=transactional_id,
            version=commit.version,
            ended_ms=commit.info.timestamp,
            parameters=commit.info.operation_parameters,
        )
