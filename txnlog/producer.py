"""The producer: confluent-kafka's names and calls, on a cluster without brokers.

    producer = Producer({"txnlog.root": "/data/root", "transactional.id": "orders"})
    producer.init_transactions()
    with producer.transaction():
        producer.produce("orders", key="o-1", value="...")
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())

Any thread may call it. The table in txnlog.protocol.producer_states says what each state allows;
txnlog.producing.sender describes the locks. Every timeout is in seconds; None, or less than 0, is
max.block.ms.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.consuming.lookups import describe_topics
from txnlog.errors import (
    ClientStateError,
    OperationTimedOutError,
    RecordPurgedError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.messages import ClusterMetadata, ConsumerGroupMetadata, TopicPartition
from txnlog.process.client_metrics import Metric
from txnlog.process.closing import ClosedAtTheEnd
from txnlog.process.forking import watch
from txnlog.producing.accumulator import Accumulator, OnDelivery
from txnlog.producing.admission import Admission
from txnlog.producing.arrow_records import to_slices, to_table
from txnlog.producing.deadlines import BACKOFF_MS_MAX, BACKOFF_MS_MIN, Deadline
from txnlog.producing.deliveries import Deliveries
from txnlog.producing.destinations import Destinations
from txnlog.producing.lifecycle import Lifecycle
from txnlog.producing.producer_config import is_deferred, open_cluster, parse_producer_config
from txnlog.producing.producer_session import ProducerSession
from txnlog.producing.publishing import Deferred, Outlet
from txnlog.producing.record_arguments import (
    HeadersArgument,
    to_bytes,
    to_headers,
    to_place,
    to_timestamp_ms,
)
from txnlog.producing.requests import Idempotent
from txnlog.producing.sender import Sender
from txnlog.producing.statistics import ProducerStatistics
from txnlog.producing.transaction_manager import TransactionManager
from txnlog.protocol.producer_states import LifecycleState, ProducerCall, failed_call
from txnlog.settings import arguments
from txnlog.settings.config import client_events
from txnlog.storage.batches.records import RECORD_OVERHEAD_BYTES
from txnlog.storage.store.objects import LOCAL_BACKOFF_MS_MAX

__all__ = ["Producer"]

logger = logging.getLogger("txnlog")


class Producer(ClosedAtTheEnd):
    """Idempotent without `transactional.id`, transactional with it. See the module's text.

    Raises ConfigError for settings it does not know, or that contradict each other.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        cluster: Cluster | None = None,
        background: bool = True,
    ) -> None:
        """`cluster`, of this producer alone, and `background` are for tests with their own clock:
        without the thread, poll does its work.
        """
        self._config = parse_producer_config(config)
        if cluster is None:
            cluster = open_cluster(self._config)
        get = self._config.get
        is_transactional = get("transactional.id") is not None
        self._background = background
        self._clock = cluster.store.clock
        self._backoff_ms_max = LOCAL_BACKOFF_MS_MAX if cluster.store.is_local else BACKOFF_MS_MAX
        self._block_ms: int = get("max.block.ms")
        self._on_delivery: OnDelivery | None = get("on_delivery")
        self._deliveries = Deliveries(self._clock)
        self._is_closing = False
        self._destinations = Destinations(cluster, self._config)
        self._accumulator = Accumulator(self._clock, self._config)
        self._events = client_events(self._config, self._clock.boot_ms)
        failing = weakref.WeakMethod(self._fail_send)
        self._sender = Sender(cluster, self._accumulator, self._config, failing, self._events)
        self._outlet = Outlet(
            cluster=cluster,
            deliveries=self._deliveries,
            release=self._accumulator.release,
            compression=get("compression.type"),
            memory_bytes=get("buffer.memory"),
            delivery_timeout_ms=get("delivery.timeout.ms"),
        )
        self._lifecycle = Lifecycle(self._accumulator, is_transactional=is_transactional)
        self._admission = Admission(
            self._lifecycle, self._accumulator, self._destinations, self._sender, self._block_ms
        )
        self._transactions: TransactionManager | None = None
        if is_transactional:
            self._transactions = TransactionManager(
                ProducerSession(cluster, self._config),
                lifecycle=self._lifecycle,
                sender=self._sender,
                destinations=self._destinations,
                outlet=self._outlet,
                is_eager=not is_deferred(self._config),
            )
        else:
            self._sender.publication = Idempotent(self._outlet, on_lost=self._destinations.forget)
        self._statistics = self._made_statistics()
        watch(self)
        if background:
            self._sender.start()
            weakref.finalize(self, self._sender.request_stop).atexit = False
            weakref.finalize(self, self._sender.report_unsent, os.getpid())

    def _made_statistics(self) -> ProducerStatistics:
        return ProducerStatistics(
            self._config,
            self._clock,
            self._sender,
            self._accumulator,
            self._deliveries,
            self._lifecycle,
            self._transactions,
        )

    def __repr__(self) -> str:
        return f"Producer({self._config!r}, {self._lifecycle.state.value})"

    def __len__(self) -> int:
        """Records not sent or not visible yet; callbacks that wait for poll or flush.

        None in a child of a fork: they are the parent's.
        """
        if self._lifecycle.is_forked:
            return 0
        return self._sender.num_records() + len(self._deliveries)

    def __bool__(self) -> bool:
        return True

    # -- records ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: HeadersArgument = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Take a record; it is sent later, and poll or flush call `on_delivery(error, message)`.

        `timestamp` in ms since 1970, 0: now. In a deferred transaction the callback comes after the
        commit, with the offset that the commit assigned. Raises RecordTooLarge-,
        UnknownTopicOrPartition-, InvalidTxnState-, InvalidTopic-, InvalidRecordError,
        BufferExhaustedError, and TypeError for a value of the wrong type. Then nothing was taken.
        """
        size_bytes = RECORD_OVERHEAD_BYTES
        if value is not None:
            value = value if value.__class__ is bytes else to_bytes(value, "value")
            size_bytes += len(value)
        if key is not None:
            key = key if key.__class__ is bytes else to_bytes(key, "key")
            size_bytes += len(key)
        named = None
        if headers is not None:
            named, headers_bytes = to_headers(headers)
            size_bytes += headers_bytes
        if timestamp.__class__ is not int or timestamp:
            timestamp = to_timestamp_ms(timestamp)
        if partition.__class__ is not int or topic.__class__ is not str:
            topic, partition = to_place(topic, partition)
        called = on_delivery or callback or self._on_delivery
        if called is not None and not callable(called):
            arguments.function("on_delivery", called)
        if self._is_closing:
            self._check_closing()
        deadline: Deadline | None = None
        number = 0
        try:
            while not self._accumulator.append(
                topic, value, key, partition, timestamp, named, called, size_bytes
            ):
                if deadline is None:
                    deadline = self._deadline("produce()", None)
                    number = self._lifecycle.transaction
                self._admission.open_buffer(topic, key, partition, size_bytes, deadline, number)
                self._check_closing()
            if self._deliveries.serving:
                self._deliveries.note_follow_up()
        finally:
            if self._sender.after_call is not None:
                self._sender.make_after_call()

    def produce_batch(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Take all rows of an Arrow table as records, in order.

        Columns: value, and optionally key, headers, partition, timestamp; see arrow_records.
        `on_delivery` is called for the last record of each part, of one partition, that the table
        was split into. Raises as `produce` does, and InvalidRecordError. A table of more than
        16 MiB is taken slice by slice: an error after the first slice fails a transaction; outside
        of one the first `rows_taken` rows stay taken, and the error is not retriable.
        """
        self._check_closing()
        deadline = self._deadline("produce_batch()", None)
        topic = arguments.topic("topic", topic)
        called = arguments.function("on_delivery", on_delivery) or self._on_delivery
        rows_taken, number = 0, self._lifecycle.transaction
        try:
            for part in to_slices(table, self._clock.now_ms()):
                self._admission.add_table(topic, part, called, deadline, number)
                self._deliveries.note_follow_up()
                rows_taken += part.records.num_rows
        except TxnLogError as error:
            if not rows_taken:
                raise
            partial = error.replace(retriable=False, rows_taken=rows_taken)
            if self._transactions is None:
                raise partial from error
            self._fail_send(partial)
            raise failed_call(partial, self._lifecycle.state) from error

    def poll(self, timeout: float = 0) -> int:
        """Call the waiting delivery callbacks; wait up to `timeout` seconds for one. Returns how
        many were called.
        """
        self._lifecycle.check_usable()
        timeout = arguments.timeout_s("timeout", timeout) or 0
        if not self._background:
            self._sender.exclusively(self._deadline("poll()", timeout), self._sender.pump)
        if timeout > 0:
            self._deliveries.wait(timeout)
        return self._serve()

    def flush(self, timeout: float | None = None) -> int:
        """Send all waiting records, and call the callbacks; how many records are left after that.

        Records that callbacks produce are sent, too, and so on; for those that other threads
        produce meanwhile it does not wait. None waits until all are delivered or failed, each by
        delivery.timeout.ms at the latest; with callbacks that produce for ever that never ends. In
        a deferred transaction there is nothing to send before the commit.
        """
        self._lifecycle.check_usable()
        return self._drain("flush()", timeout, self._serve)

    def _drain(self, call: str, timeout: float | None, serve: Callable[[], int]) -> int:
        """Send and serve what is there, and what callbacks produce; how much is left. Each round
        has its own time, if there is no time-out and the producer is not being closed.
        """
        deadline = self._drain_deadline(call, timeout)
        while True:
            follow_ups = self._deliveries.follow_ups
            try:
                is_sent = self._send(deadline)
            except BaseException:
                serve()
                raise
            left = self._serve_and_wait(deadline, serve)
            if not isinstance(self._sender.publication, Deferred):
                left += self._sender.num_records()
            if not left or not is_sent or deadline.remaining_ms <= 0:
                return left
            if not self._is_closing:
                if self._deliveries.follow_ups == follow_ups:
                    # Other threads have produced it.
                    return left
                if timeout is None:
                    deadline = self._drain_deadline(call, timeout)

    def _drain_deadline(self, call: str, timeout: float | None) -> Deadline:
        twice_s = 2 * self._outlet.delivery_timeout_ms / 1000
        return self._deadline(call, twice_s if timeout is None else timeout)

    def _serve_and_wait(self, deadline: Deadline, serve: Callable[[], int]) -> int:
        """Serve, and wait until no other thread calls a callback of what was there. How many are
        left: new ones, and what a callback that has raised there has put back.
        """
        deliveries = self._deliveries
        end = deliveries.end
        serve()
        while deliveries.is_serving_elsewhere(end) and deadline.remaining_ms > 0:
            self._clock.sleep_ms(BACKOFF_MS_MIN)
        return len(deliveries) + deliveries.is_serving_elsewhere(end)

    def _send(self, deadline: Deadline) -> bool:
        """Send all waiting records; False: it may be tried again. Raises what will not pass."""
        transactions = self._transactions
        try:
            if transactions is None or transactions.is_eager:
                self._sender.exclusively(deadline, lambda: self._sender.flush(deadline))
        except TxnLogError as error:
            if not error.retriable:
                raise
            return False
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Discard records that are not delivered yet; poll or flush call their callbacks.

        `in_queue`: records that were not sent yet; all records of a deferred transaction are.
        `in_flight`: records that were sent without a reply, and may be in the topic. A transaction
        that has lost records can only be aborted (R40). Records of a commit under way stay.
        The call waits for a write under way, whatever `blocking` says.
        """
        in_queue = arguments.flag("in_queue", in_queue)
        in_flight = arguments.flag("in_flight", in_flight)
        self._lifecycle.check_usable()

        def discard() -> None:
            publication = self._sender.publication
            if publication is None or not self._lifecycle.may_purge:
                return
            if in_queue:
                self._sender.fill_publication()
            error = RecordPurgedError("The record was discarded by purge() before its delivery.")
            publication.purge(error, in_queue=in_queue, in_flight=in_flight)
            if publication.error is error:
                self._fail_send(error)

        self._sender.exclusively(self._deadline("purge()", None), discard)

    def list_topics(
        self, topic: str | None = None, timeout: float | None = None
    ) -> ClusterMetadata:
        """The cluster's topics and their partitions, or one of them."""
        if topic is not None:
            topic = arguments.topic("topic", topic)
        self._lifecycle.check_usable()
        return self._sender.exclusively(
            self._deadline("list_topics()", timeout),
            lambda: describe_topics(self._outlet.cluster, topic),
        )

    def metrics(self) -> list[Metric]:
        """What it has done since it was made, with the names of Kafka's client where they fit; for
        Prometheus see docs/monitoring.md. Any thread may call it, at any time.
        """
        return self._statistics.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Flush, call the callbacks, and end; an open transaction is aborted, a prepared one kept.

        From now on only callbacks may produce. Records that cannot be sent within `timeout` fail;
        None is twice delivery.timeout.ms, also where callbacks go on producing: then `produce`
        raises ClientStateError there, too. Records of a transaction that is prepared, or may be
        committed, are reported with CommitStateUnknownError. All callbacks are called, and those
        that other threads call are waited for, up to `timeout`; the first exception of one is
        raised in the end. A closed producer takes no more calls. In a signal handler that
        interrupts a call of the producer, that call closes it.
        """
        if self._lifecycle.is_over:
            return
        timeout = arguments.timeout_s("timeout", timeout)
        if self._sender.is_working or self._accumulator.is_locked_here:
            self._sender.after_call = partial(self.close, timeout)
            return
        raised: list[Exception] = []
        serve = partial(self._serve, raised)
        deadline = self._drain_deadline("close()", timeout)
        try:
            self._is_closing = True
            if self._transactions is None:
                self._drain("close()", timeout, serve)
            else:
                try:
                    self._end_transactions(timeout)
                finally:
                    while self._serve_and_wait(deadline, serve) and deadline.remaining_ms > 0:
                        pass
        except TxnLogError:
            # Another thread may have closed it meanwhile.
            if not self._lifecycle.is_over:
                raise
        finally:
            self._lifecycle.close()
            self._sender.stop()
            left = self._transactions and self._transactions.left_by_close()
            closed = ClientStateError("The producer was closed before the record was sent.")
            try:
                self._sender.discard(left or closed, self._deadline("close()", None))
            except OperationTimedOutError:
                logger.warning("A call of this producer is still under way: it was not waited for")
            self._deliveries.close()
            self._serve_and_wait(deadline, serve)
        if raised:
            raise raised[0]

    def _end_transactions(self, timeout: float | None) -> None:
        """Abort what is open. Raises what prevents that."""
        assert self._transactions is not None
        if self._lifecycle.must_abort_on_close:
            self.abort_transaction(timeout)
        self._transactions.close(self._deadline("close()", timeout))

    def forked(self) -> None:
        """In the child of a fork: refuse every call. Another thread may have held the lock."""
        self._lifecycle.forked()
        self._accumulator = Accumulator(self._clock, self._config)

    # -- transactions ----------------------------------------------------------------------------

    def init_transactions(
        self, timeout: float | None = None, *, keep_prepared: bool = False
    ) -> None:
        """Take over the transactional.id: fence its former owner, end that one's transaction (R27).

        With `keep_prepared` a prepared transaction stays: call complete_transaction() next.
        After a time-out call it again. Raises ProducerFencedError, InvalidTxnTimeoutError.
        """
        deadline = self._deadline(ProducerCall.INIT.value, timeout)
        keep_prepared = arguments.flag("keep_prepared", keep_prepared)
        self._manager(ProducerCall.INIT).init(deadline, keep_prepared=keep_prepared)

    def begin_transaction(self) -> None:
        """Begin; nothing is written (R29), unless the id expired while this producer was idle:
        then it gets a new producer id. Raises ProducerFencedError if another producer owns the id.
        """
        call = ProducerCall.BEGIN
        self._check_closing()
        self._manager(call).begin(self._deadline(call.value, None))

    def send_offsets_to_transaction(
        self,
        positions: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit these positions, the next offsets to read, with the transaction; calls add up.

        Raises IllegalGenerationError, UnknownMemberIdError when the group has a newer generation:
        abort. The commit checks the group again, which is what makes it safe.
        """
        call = ProducerCall.SEND_OFFSETS
        deadline = self._deadline(call.value, timeout)
        wanted = arguments.topic_partitions(
            "positions", positions, partition_least=0, offset_least=0
        )
        group = arguments.group_metadata("group_metadata", group_metadata)
        self._manager(call).add_offsets(wanted, group, deadline)

    def append(
        self, table: str, rows: pa.Table | pa.RecordBatch, timeout: float | None = None
    ) -> None:
        """Append rows to an enlisted Delta table, with the transaction.

        They are written as files now, which no reader sees before the commit. Columns are cast to
        the table's types; absent nullable ones are null. Raises UnknownTableError, TableDataError,
        TableFeatureError: abort. The commit raises TableChangedError if the table has changed so
        that the rows do not fit it; with `decided`, all but this table have the transaction.
        """
        call = ProducerCall.WRITE_TABLE
        deadline = self._deadline(call.value, timeout)
        name, given = arguments.text("table", table), to_table(rows)
        self._manager(call).write_table(lambda writes: writes.append(name, given), deadline)

    def overwrite(
        self,
        table: str,
        rows: pa.Table | pa.RecordBatch,
        partitions: Iterable[Mapping[str, object]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Replace all rows of partitions of an enlisted Delta table, with the transaction.

        `partitions` are values by partition column, [{"day": "2026-11-26"}]; None: the whole table.
        What is replaced is what is there when the transaction appears in the table. Raises as
        `append`, and TableDataError for rows outside of the partitions, or for values that their
        columns cannot have.
        """
        call = ProducerCall.WRITE_TABLE
        deadline = self._deadline(call.value, timeout)
        name, given = arguments.text("table", table), to_table(rows)
        named = arguments.partition_values("partitions", partitions)
        self._manager(call).write_table(
            lambda writes: writes.overwrite(name, given, named), deadline
        )

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit. After a time-out only this may be called again (R41).

        Raises TransactionAbortableError when a send failed: abort (R40); ProducerFencedError when
        a newer producer took the transactional.id.
        """
        deadline = self._deadline(ProducerCall.COMMIT.value, timeout)
        self._manager(ProducerCall.COMMIT).commit(deadline)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Discard the transaction. After a time-out only this may be called again (R41)."""
        deadline = self._deadline(ProducerCall.ABORT.value, timeout)
        self._manager(ProducerCall.ABORT).abort(deadline)

    @contextmanager
    def transaction(self) -> Iterator[Producer]:
        """Begin, and commit at the end of the block; abort when the block or the commit fails.

        The error is raised again. After a commit with an unknown outcome nothing is aborted: call
        commit_transaction() again. A block that ended or prepared its transaction itself is left
        as it is.
        """
        self.begin_transaction()
        try:
            yield self
            if self._lifecycle.state not in (LifecycleState.READY, LifecycleState.PREPARED):
                self.commit_transaction()
        except BaseException:
            state = self._lifecycle.state
            if state in (LifecycleState.IN_TRANSACTION, LifecycleState.ABORTABLE_ERROR):
                try:
                    self.abort_transaction()
                except TxnLogError as error:
                    logger.warning("Aborting after an error failed, too: %s", error)
            raise

    # -- two phases (KIP-939) ----------------------------------------------------------------------

    def prepare_transaction(self, timeout: float | None = None) -> str:
        """Flush, and hold the transaction until it is completed; it no longer times out.

        Returns its state, to be written to an outside database in that database's transaction.
        """
        deadline = self._deadline(ProducerCall.PREPARE.value, timeout)
        return self._manager(ProducerCall.PREPARE).prepare(deadline)

    def complete_transaction(self, state: str | None, timeout: float | None = None) -> bool:
        """Commit the prepared transaction if the outside database holds its state, else abort it.

        Returns whether it was committed. After a time-out call it again, with the same state.
        """
        call = ProducerCall.COMPLETE
        deadline = self._deadline(call.value, timeout)
        if state is not None:
            # A value of another type would differ from the state, and abort the transaction.
            state = arguments.text("state", state, may_be_blank=True)
        return self._manager(call).complete(state, deadline)

    @property
    def prepared_state(self) -> str | None:
        """State of the prepared transaction that is held; None when there is none."""
        return None if self._transactions is None else self._transactions.prepared_state

    # -- inside ----------------------------------------------------------------------------------

    def _deadline(self, call: str, timeout: float | None) -> Deadline:
        seconds = arguments.timeout_s("timeout", timeout)
        timeout_ms = self._block_ms if seconds is None or seconds < 0 else seconds * 1000
        retries = self._outlet.cluster.store.retries
        return Deadline(self._clock, retries, call, timeout_ms, backoff_ms_max=self._backoff_ms_max)

    def _check_closing(self) -> None:
        """Raises ClientStateError when close() has begun, except in a callback."""
        if self._is_closing and not self._deliveries.is_serving_here:
            raise ClientStateError("This producer is closed. Make a new one.")

    def _manager(self, call: ProducerCall) -> TransactionManager:
        """Raises what refuses `call` to a producer without transactional.id."""
        if self._transactions is None:
            self._lifecycle.enter(call)
        assert self._transactions is not None
        return self._transactions

    def _serve(self, raised: list[Exception] | None = None) -> int:
        """Call what waits to be called; how many delivery callbacks were."""
        return self._deliveries.serve(partial(self._events.serve, self._statistics), raised)

    def _fail_send(self, error: TxnLogError) -> None:
        """A send failed permanently: no record is accepted, and a commit raises it (R40)."""
        if isinstance(error, UnknownTopicIdError):
            self._destinations.forget_all()
        if self._transactions is not None:
            self._transactions.session.note_failure(error)
        self._lifecycle.fail_send(error)
