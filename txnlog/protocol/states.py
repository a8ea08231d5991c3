"""The states of a transaction and the one table of allowed moves between them.

Mirrors org.apache.kafka.coordinator.transaction.TransactionState: same names, same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum


class TransactionState(IntEnum):
    """Kafka's states under Kafka's ids. DEAD rows are tombstones: the row is removed."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def kafka_name(self) -> str:
        """The name in Kafka's tools, e.g. CompleteCommit."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """The result is decided; any process may carry it out."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_aborted(self) -> bool:
        """The result is an abort, carried out or not."""
        return self in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


class TransactionResult(Enum):
    """The result that EndTxn requests; `status` is that of each settled batch's header."""

    COMMIT = "committed"
    ABORT = "aborted"

    @property
    def status(self) -> str:
        return self.value

    @property
    def prepared(self) -> TransactionState:
        if self is TransactionResult.COMMIT:
            return TransactionState.PREPARE_COMMIT
        return TransactionState.PREPARE_ABORT

    @property
    def complete(self) -> TransactionState:
        if self is TransactionResult.COMMIT:
            return TransactionState.COMPLETE_COMMIT
        return TransactionState.COMPLETE_ABORT

    @classmethod
    def of(cls, state: TransactionState) -> TransactionResult:
        """The result of a Prepare* or Complete* state."""
        return _RESULT_OF[state]


S = TransactionState
_RESULT_OF = {
    S.PREPARE_COMMIT: TransactionResult.COMMIT,
    S.COMPLETE_COMMIT: TransactionResult.COMMIT,
    S.PREPARE_ABORT: TransactionResult.ABORT,
    S.COMPLETE_ABORT: TransactionResult.ABORT,
}

_IDLE = frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT})

# PREPARE_COMMIT out of an idle state is ours: a deferred transaction has no state before it.
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = {
    S.EMPTY: _IDLE,
    S.ONGOING: _IDLE | {S.ONGOING},
    S.PREPARE_COMMIT: _IDLE | {S.ONGOING},
    S.PREPARE_ABORT: frozenset({S.ONGOING}),
    S.COMPLETE_COMMIT: frozenset({S.PREPARE_COMMIT}),
    S.COMPLETE_ABORT: frozenset({S.PREPARE_ABORT}),
    S.DEAD: _IDLE,
}
del S
