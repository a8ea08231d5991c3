"""The producer: confluent-kafka's names and calls, on a cluster without brokers.

    producer = Producer({"txnlog.root": "/data/root", "transactional.id": "orders"})
    producer.init_transactions()
    with producer.transaction():
        producer.produce("orders", key="o-1", value="...")
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())

Any thread may call it. What each state allows is the table in txnlog.protocol.producer_states; the
locks are told in txnlog.producing.sender. Every timeout is in seconds; None, or less than 0, is
max.block.ms.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from txnlog.consuming.lookups import describe_topics
from txnlog.errors import (
    InvalidTxnStateError,
    OperationTimedOutError,
    RecordPurgedError,
    TxnLogError,
    UnknownTopicIdError,
    unexpected,
)
from txnlog.messages import ClusterMetadata, ConsumerGroupMetadata, TopicPartition
from txnlog.producing.deadlines import Deadline
from txnlog.producing.producer_session import ProducerSession
from txnlog.producing.publishing import Deferred, aborted
from txnlog.producing.record_producer import RecordProducer
from txnlog.producing.requests import Eager
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.producer_states import (
    ProducerCall,
    ProducerState,
    failed_call,
    failed_state,
    failed_transaction,
)
from txnlog.settings import arguments

__all__ = ["Producer"]

logger = logging.getLogger("txnlog")

_ABORTED_BY_CLOSE = frozenset(
    {
        ProducerState.IN_TRANSACTION,
        ProducerState.PREPARING,
        ProducerState.ABORTING,
        ProducerState.ABORTABLE_ERROR,
    }
)


_OUTSIDE = frozenset({ProducerCall.INIT, ProducerCall.BEGIN, ProducerCall.ABORT})
"""Calls after whose errors no transaction is open that could be aborted."""

_PURGEABLE = frozenset(
    {ProducerState.IDLE, ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR}
)


class Producer(RecordProducer):
    """Idempotent without `transactional.id`, transactional with it. See the module's text.

    Raises ConfigError for settings it does not know, or that contradict each other.
    """

    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: bool = False
    ) -> None:
        """Own the transactional.id: fence who had it, and end what that one left (R27).

        With `keep_prepared` a prepared transaction stays: call complete_transaction() next.
        After a time-out call it again. Raises ProducerFencedError, InvalidTxnTimeoutError.
        """
        deadline = self._deadline(ProducerCall.INIT.value, timeout)
        keep_prepared = arguments.flag("keep_prepared", keep_prepared)
        transactions = self._enter(ProducerCall.INIT)
        with self._failing(ProducerCall.INIT), self._sender.exclusive(deadline):
            if self._is_done_by_another(ProducerCall.INIT, ProducerState.INITIALIZING):
                return
            is_kept = deadline.retry(lambda: transactions.init(keep_prepared=keep_prepared))
            self._move(ProducerState.PREPARED if is_kept else ProducerState.READY)

    def begin_transaction(self) -> None:
        """Begin; nothing is written (R29), unless the id expired while this producer was idle:
        then it takes a new producer id. Raises ProducerFencedError if another one owns the id.
        """
        call = ProducerCall.BEGIN
        transactions = self._enter(call, move=False)
        if transactions.is_stale:
            deadline = self._deadline(call.value, None)
            with self._failing(call), self._sender.exclusive(deadline):
                deadline.retry(transactions.renew)
        transactions.begin()
        self._sender.publication = (
            Eager(self._outlet, open_partitions=transactions.open)
            if self._is_eager
            else Deferred(self._outlet)
        )
        self._move(ProducerState.IN_TRANSACTION)

    def send_offsets_to_transaction(
        self,
        positions: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit these positions, the next offsets to read, with the transaction; calls add up.

        Raises IllegalGenerationError, UnknownMemberIdError when the group has moved on: abort.
        They are asked again at the commit, which is what makes it safe.
        """
        call = ProducerCall.SEND_OFFSETS
        deadline = self._deadline(call.value, timeout)
        wanted = arguments.topic_partitions(
            "positions", positions, partition_least=0, offset_least=0
        )
        group = arguments.group_metadata("group_metadata", group_metadata)
        transactions = self._enter(call)
        with self._failing(call), self._sender.exclusive(deadline):
            deadline.retry(lambda: transactions.add_offsets(wanted, group, eager=self._is_eager))

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit. After a time-out only this may be called again (R41).

        Raises TransactionAbortableError when a send failed: abort (R40); ProducerFencedError when
        a newer producer took the transactional.id.
        """
        deadline = self._deadline(ProducerCall.COMMIT.value, timeout)
        self._enter(ProducerCall.COMMIT)
        self._commit(deadline)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Throw the transaction away. After a time-out only this may be called again (R41)."""
        deadline = self._deadline(ProducerCall.ABORT.value, timeout)
        self._enter(ProducerCall.ABORT)
        self._abort(deadline)

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Begin, and commit at the end of the block; abort when it, or the commit, fails.

        The error is raised again. Where it is not known whether a commit landed, nothing is
        aborted: call commit_transaction() again. A block that ended its transaction itself, or
        prepared it, is left as it is.
        """
        self.begin_transaction()
        try:
            yield self
            if self._state not in (ProducerState.READY, ProducerState.PREPARED):
                self.commit_transaction()
        except BaseException:
            if self._state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
                try:
                    self.abort_transaction()
                except TxnLogError as error:
                    logger.warning("Aborting after an error failed, too: %s", error)
            raise

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Throw away records that are not delivered yet; poll or flush tells their callbacks.

        `in_queue`: those that were not tried yet; all records of a deferred transaction are.
        `in_flight`: those that were, and may be in the topic for all that is known. A transaction
        that has lost records can only be aborted (R40). Records of a commit under way stay.
        What is just being sent is waited for, whatever `blocking` says.
        """
        in_queue = arguments.flag("in_queue", in_queue)
        in_flight = arguments.flag("in_flight", in_flight)
        self._check_usable()
        with self._sender.exclusive(self._deadline("purge()", None)):
            publication = self._sender.publication
            if publication is None or self._state not in _PURGEABLE:
                return
            if in_queue:
                self._sender.hand_over()
            error = RecordPurgedError("The record was thrown away by purge() before its delivery.")
            publication.purge(error, in_queue=in_queue, in_flight=in_flight)
            if publication.error is error:
                self._send_failed(error)

    def list_topics(
        self, topic: str | None = None, timeout: float | None = None
    ) -> ClusterMetadata:
        """The cluster's topics and their partitions, or one of them."""
        if topic is not None:
            topic = arguments.topic("topic", topic)
        self._check_usable()
        with self._sender.exclusive(self._deadline("list_topics()", timeout)):
            return describe_topics(self._outlet.cluster, topic)

    # -- two phases (KIP-939) ----------------------------------------------------------------------

    def prepare_transaction(self, timeout: float | None = None) -> str:
        """Flush, and hold the transaction until it is completed; it does not time out any more.

        Returns its state, to be written to an outside database in that database's transaction.
        """
        call = ProducerCall.PREPARE
        deadline = self._deadline(call.value, timeout)
        transactions = self._enter(call)
        with self._failing(call), self._sender.exclusive(deadline):
            if self._state is ProducerState.PREPARED:
                return transactions.prepared_state
            batches = self._flushed(deadline)
            state = deadline.retry(lambda: transactions.prepare(batches))
            self._move(ProducerState.PREPARED)
        return state

    def complete_transaction(self, state: str | None, timeout: float | None = None) -> bool:
        """Commit the prepared transaction if the outside database holds its state, else abort it.

        Returns whether it was committed. After a time-out call it again, with the same state.
        """
        deadline = self._deadline(ProducerCall.COMPLETE.value, timeout)
        if state is not None:
            # A wrong type would be another state than ours, and abort the transaction.
            state = arguments.text("state", state, may_be_blank=True)
        transactions = self._enter(ProducerCall.COMPLETE)
        is_ours = state == transactions.prepared_state
        if is_ours and self._state is not ProducerState.ABORTING:
            self._enter(ProducerCall.COMMIT)
            self._commit(deadline)
        elif self._state is ProducerState.COMMITTING:
            raise InvalidTxnStateError(
                f"This producer is committing {transactions.prepared_state}; it cannot complete "
                f"{state!r} now. Call commit_transaction() again.",
                state=self._state.name,
            )
        else:
            self._enter(ProducerCall.ABORT)
            self._abort(deadline)
        return is_ours

    @property
    def prepared_state(self) -> str | None:
        """State of the prepared transaction that is held; None when there is none."""
        if self._transactions is None or self._state is not ProducerState.PREPARED:
            return None
        return self._transactions.prepared_state

    # -- inside ----------------------------------------------------------------------------------

    def _commit(self, deadline: Deadline) -> None:
        transactions = self._own()
        with self._failing(ProducerCall.COMMIT), self._sender.exclusive(deadline):
            if self._is_done_by_another(ProducerCall.COMMIT, ProducerState.COMMITTING):
                return
            batches = self._flushed(deadline)
            if not transactions.is_empty(batches):
                deadline.retry(lambda: transactions.commit(batches))
            publication = self._sender.publication
            if isinstance(publication, Deferred):
                publication.report()
            self._ended()

    def _abort(self, deadline: Deadline) -> None:
        transactions = self._own()
        self._throw_away(aborted(transactions.transactional_id))
        with self._failing(ProducerCall.ABORT), self._sender.exclusive(deadline):
            if self._is_done_by_another(ProducerCall.ABORT, ProducerState.ABORTING):
                return
            deadline.retry(transactions.abort)
            self._ended()

    def _ended(self) -> None:
        transactions = self._own()
        self._sender.publication = None
        self._error = transactions.lost
        self._move(ProducerState.READY)
        if transactions.lost is not None:
            self._move(ProducerState.FATAL_ERROR)

    def _flushed(self, deadline: Deadline) -> list[StagedBatch]:
        """Send what waits; the files of a deferred transaction. Raises for a failed send (R40)."""
        publication = self._sender.publication
        if publication is None:
            return []
        self._drain(deadline)
        if publication.error is not None:
            error = publication.error
            if failed_state(error, self._state) is ProducerState.FATAL_ERROR:
                raise error
            raise failed_transaction(error) from error
        if isinstance(publication, Deferred):
            return deadline.retry(publication.stage_all)
        return []

    def _is_done_by_another(self, call: ProducerCall, during: ProducerState) -> bool:
        """While this thread waited for `io`, another one's call did the same, or failed."""
        if self._state is during:
            return False
        if self._state not in (ProducerState.READY, ProducerState.PREPARED):
            self._check_call(call)
        return True

    def _own(self) -> ProducerSession:
        assert self._transactions is not None
        return self._transactions

    def _enter(self, call: ProducerCall, *, move: bool = True) -> ProducerSession:
        """Begin a call: refused, or the state while it runs."""
        self._check_usable()
        with self._accumulator.lock:
            entered = self._check_call(call)
            if move:
                self._set(entered)
        return self._own()

    @contextmanager
    def _failing(self, call: ProducerCall) -> Iterator[None]:
        """What an error of a call makes of the producer."""
        try:
            yield
        except OperationTimedOutError:
            # The state says what may be called again.
            raise
        except Exception as raised:
            error = unexpected(raised, call.value)
            self._fail(call, error)
            told = failed_call(error, self._state)
            if told is raised:
                raise
            raise told from raised

    def _fail(self, call: ProducerCall, error: TxnLogError) -> None:
        transactions = self._own()
        transactions.note_failure(error)
        if isinstance(error, UnknownTopicIdError):
            self._destinations.forget_all()
        to = failed_state(error, self._state)
        if call is ProducerCall.COMMIT and self._is_decided():
            return
        if to is ProducerState.ABORTABLE_ERROR and call in _OUTSIDE:
            return
        self._error = error
        self._move(to)

    def _is_decided(self) -> bool:
        """A commit that is decided stays one, whatever its finishing meets; no answer: maybe."""
        try:
            return self._own().is_committed()
        except Exception:
            return True

    def _end_work(self, timeout: float | None) -> None:
        if self._transactions is None:
            self.flush(timeout)
        elif self._state in _ABORTED_BY_CLOSE:
            self.abort_transaction(timeout)
