"""A producer's statistics, with the names of librdkafka's, as far as they have a meaning here."""

from __future__ import annotations

from typing import Any

from txnlog.process.client_metrics import Metric, Value, made_metrics
from txnlog.process.clock import Clock
from txnlog.producing.accumulator import Accumulator
from txnlog.producing.deliveries import Deliveries
from txnlog.producing.lifecycle import Lifecycle
from txnlog.producing.sender import Sender
from txnlog.producing.transaction_manager import TransactionManager
from txnlog.protocol.producer_states import LifecycleState
from txnlog.settings.config import Config

_TXN_STATES = {
    LifecycleState.UNINITIALIZED: "Init",
    LifecycleState.READY: "Ready",
    LifecycleState.IN_TRANSACTION: "InTransaction",
    LifecycleState.COMMITTING: "CommittingTransaction",
    LifecycleState.ABORTING: "AbortingTransaction",
    LifecycleState.ABORTABLE_ERROR: "AbortableError",
    LifecycleState.FATAL_ERROR: "FatalError",
}


class ProducerStatistics:
    """Makes them: records, bytes and callbacks that wait, and the state of the transaction."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        sender: Sender,
        accumulator: Accumulator,
        deliveries: Deliveries,
        lifecycle: Lifecycle,
        transactions: TransactionManager | None,
    ) -> None:
        self._client_id: str = config.get("client.id")
        self._clock = clock
        self._started_ms = clock.boot_ms()
        self._sender = sender
        self._accumulator = accumulator
        self._deliveries = deliveries
        self._lifecycle = lifecycle
        self._transactions = transactions
        self._session = None if transactions is None else transactions.session

    def __call__(self) -> dict[str, Any]:
        now_ms = self._clock.boot_ms()
        found: dict[str, Any] = {
            "name": f"{self._client_id}#producer",
            "client_id": self._client_id,
            "type": "producer",
            "ts": now_ms * 1000,
            "time": self._clock.now_ms() // 1000,
            "age": (now_ms - self._started_ms) * 1000,
            "replyq": len(self._deliveries),
            "msg_cnt": self._sender.num_records(),
            "msg_size": self._accumulator.held_bytes,
            "msg_size_max": self._accumulator.memory_bytes,
            "brokers": {},
            "topics": {topic: {"topic": topic} for topic in sorted(self._accumulator.buffers)},
        }
        if self._session is not None:
            state = self._lifecycle.state
            found["eos"] = {"txn_state": _TXN_STATES.get(state, state.value)}
            if self._session.has_row:
                found["eos"]["producer_id"] = self._session.row.producer_id
                found["eos"]["producer_epoch"] = self._session.row.producer_epoch
        return found

    def metrics(self) -> list[Metric]:
        """See Producer.metrics."""
        sent, accumulator = self._deliveries.sent, self._accumulator
        numbers = {
            "record-send-total": sent.records,
            "record-error-total": sent.failed_records,
            "record-retry-total": sent.retried_records,
            "byte-total": sent.size_bytes,
            "batch-total": sent.files,
            "buffer-total-bytes": accumulator.memory_bytes,
            "buffer-available-bytes": max(0, accumulator.memory_bytes - accumulator.held_bytes),
        }
        found: list[Value] = [(name, {}, value) for name, value in numbers.items()]
        if self._transactions is not None:
            found.append(("txn-abort-total", {}, self._transactions.aborts))
            found += self._transactions.commits.values("txn-commit-seconds")
        return made_metrics("producer", self._client_id, found)
