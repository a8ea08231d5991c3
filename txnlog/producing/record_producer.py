"""The half of the producer that takes records and sends them; transactions are in txnlog.producer.

`produce` runs once per record: it appends to lists under a lock, and everything else is done for
many records at once, by the sender's thread or by whoever flushes or commits.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.errors import (
    ClientStateError,
    ConfigError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.process.forking import refusal, watch
from txnlog.producing.accumulator import Accumulator, Destination, OnDelivery, Table
from txnlog.producing.arrow_records import Records, check_records, to_records
from txnlog.producing.deadlines import Deadline, exhausted
from txnlog.producing.deliveries import Deliveries
from txnlog.producing.destinations import Destinations, check_record
from txnlog.producing.producer_session import ProducerSession, new_owner
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
from txnlog.protocol.producer_states import (
    ProducerCall,
    ProducerState,
    failed_call,
    failed_state,
    failed_transaction,
    prepare_call,
    prepare_move,
)
from txnlog.settings import arguments
from txnlog.settings.config import parse_config
from txnlog.storage.batches.records import RECORD_OVERHEAD_BYTES

logger = logging.getLogger("txnlog")

P = TypeVar("P", bound="RecordProducer")

_OPEN = (ProducerState.IDLE, ProducerState.IN_TRANSACTION)


class RecordProducer:
    """Produce, poll, flush and close. See txnlog.producer.Producer."""

    def __init__(
        self,
        config: Mapping[str, object],
        *,
        cluster: Cluster | None = None,
        background: bool = True,
    ) -> None:
        """`cluster`, this producer's own, and `background` are for tests with a clock of theirs:
        without the thread, poll does its work.
        """
        self._config = parse_config(config, "producer")
        get = self._config.get
        transactional_id: str | None = get("transactional.id")
        if transactional_id and not get("enable.idempotence"):
            raise ConfigError(
                "enable.idempotence=false and transactional.id contradict each other: leave the "
                "former out.",
                option="enable.idempotence",
            )
        if cluster is None:
            cluster = Cluster.open(
                self._config.root,
                self._config.storage,
                create=get("auto.create.topics.enable"),
                shards=get("transaction.state.log.num.partitions"),
            )
        self._clock = cluster.store.clock
        self._now_ms = self._clock.now_ms
        self._memory_bytes: int = get("buffer.memory")
        self._block_ms: int = get("max.block.ms")
        self._on_delivery: OnDelivery | None = get("on_delivery")
        self._is_eager = get("transaction.publish") == "eager"
        self._linger_ms: int = get("linger.ms")
        waits = transactional_id is None or self._is_eager
        self._accumulator = Accumulator(tells_first=waits)
        self._destinations = Destinations(cluster, self._config)
        self._deliveries = Deliveries()
        itself = weakref.ref(self)
        self._sender = Sender(
            cluster,
            self._accumulator,
            linger_ms=self._linger_ms if waits else None,
            sticky_run_bytes=get("batch.size"),
            on_error=lambda error: _tell(itself, error),
        )
        self._outlet = Outlet(
            cluster=cluster,
            deliveries=self._deliveries,
            release=self._accumulator.release,
            compression=get("compression.type"),
            memory_bytes=self._memory_bytes,
            delivery_timeout_ms=get("delivery.timeout.ms"),
        )
        self._error: TxnLogError | None = None
        self._is_forked = False
        self._background = background
        self._transactions: ProducerSession | None = None
        self._state = ProducerState.IDLE
        if transactional_id is None:
            self._sender.publication = Idempotent(self._outlet, on_lost=self._destinations.forget)
            self._accumulator.is_open = True
        else:
            self._state = ProducerState.UNINITIALIZED
            self._transactions = ProducerSession(
                cluster,
                transactional_id=transactional_id,
                owner=new_owner(get("client.id")),
                timeout_ms=get("transaction.timeout.ms"),
            )
        watch(self)
        if background:
            self._sender.start()
            weakref.finalize(self, self._sender.tell_to_stop).atexit = False

    def __repr__(self) -> str:
        return f"Producer({self._config!r}, {self._state.value})"

    def __len__(self) -> int:
        """Records that are not sent yet, and delivery callbacks that wait for poll or flush."""
        return self._sender.waiting() + len(self._deliveries)

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
        """Take a record; it is sent later, and `on_delivery(error, message)` told by poll or flush.

        `timestamp` in ms since 1970, 0: now. In a deferred transaction the callback comes after the
        commit, with the offset that it gave out. Raises RecordTooLarge-, UnknownTopicOrPartition-,
        InvalidTxnState-, InvalidTopic-, InvalidRecordError, BufferExhaustedError, and TypeError
        for a value of the wrong type. Then nothing was taken.
        """
        if value.__class__ is not bytes and value is not None:
            value = to_bytes(value, "value")
        if key.__class__ is not bytes and key is not None:
            key = to_bytes(key, "key")
        size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
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
        deadline: Deadline | None = None
        while True:
            accumulator = self._accumulator
            with accumulator.lock:
                rows = accumulator.buffers.get(topic)
                if (
                    rows is not None
                    and accumulator.is_open
                    and accumulator.held_bytes < self._memory_bytes
                ):
                    destination = rows.destination
                    if (
                        size_bytes > destination.record_bytes_max
                        or (key is None and destination.needs_key)
                        or not -1 <= partition < destination.partitions
                    ):
                        check_record(destination, key, partition, size_bytes)
                    values = rows.values
                    at = len(values)
                    if len(rows.timestamps_ms) != at:
                        rows.drop_torn()
                    rows.timestamps_ms.append(timestamp or self._now_ms())
                    if partition >= 0:
                        rows.partitions[at] = partition
                    if named:
                        rows.headers[at] = named
                    if called is not None:
                        rows.callbacks[at] = called
                    rows.keys.append(key)
                    values.append(value)
                    rows.size_bytes += size_bytes
                    accumulator.held_bytes += size_bytes
                    if rows.size_bytes >= destination.wake_bytes and not accumulator.is_full:
                        accumulator.wake()
                    return
            if deadline is None:
                deadline = self._deadline("produce()", None)
            destination = self._make_ready(topic, deadline)
            check_record(destination, key, partition, size_bytes)
            with accumulator.lock:
                if accumulator.is_open:
                    accumulator.open_rows(destination, self._clock.boot_ms())

    def produce_batch(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Take all rows of an Arrow table as records, in order.

        Columns: value, and key, headers, partition, timestamp where they are; see arrow_records.
        `on_delivery` is called for the last record of each part, of one partition, that the table
        was split into. Raises as `produce` does, and InvalidRecordError. A table of more than
        16 MiB is taken slice by slice: an error after the first slice fails a transaction; outside
        of one it leaves what came before, `rows_taken` rows, and is not retriable.
        """
        deadline = self._deadline("produce_batch()", None)
        topic = arguments.topic("topic", topic)
        called = arguments.function("on_delivery", on_delivery) or self._on_delivery
        rows_taken = 0
        try:
            for found in to_records(table, self._now_ms()):
                self._take_table(topic, found, called, deadline)
                rows_taken += found.records.num_rows
        except TxnLogError as error:
            if not rows_taken:
                raise
            partial = error.replace(retriable=False, rows_taken=rows_taken)
            if self._transactions is None:
                raise partial from error
            self._send_failed(partial)
            raise failed_call(partial, self._state) from error

    def _take_table(
        self, topic: str, found: Records, called: OnDelivery | None, deadline: Deadline
    ) -> None:
        is_taken = False
        while not is_taken:
            destination = self._make_ready(topic, deadline)
            check_records(found, destination)
            table_piece = Table(
                destination,
                self._clock.boot_ms(),
                found.records,
                found.partitions,
                found.size_bytes,
                called,
            )
            is_taken = self._accumulator.add_table(table_piece)

    def poll(self, timeout: float = 0) -> int:
        """Call the delivery callbacks that wait; wait for one for `timeout` seconds. How many."""
        self._check_usable()
        timeout = arguments.timeout_s("timeout", timeout) or 0
        if not self._background and self._sender.publication is not None:
            with self._sender.exclusive(self._deadline("poll()", timeout)):
                self._sender.pump()
        if timeout > 0:
            self._deliveries.wait(timeout)
        return self._deliveries.serve()

    def flush(self, timeout: float | None = None) -> int:
        """Send all that waits, and call the callbacks; how many records are left after `timeout`.

        None waits until all are delivered or failed, by delivery.timeout.ms at the latest. In a
        deferred transaction there is nothing to send before the commit.
        """
        self._check_usable()
        delivery_s = self._outlet.delivery_timeout_ms / 1000
        deadline = self._deadline("flush()", 2 * delivery_s if timeout is None else timeout)
        if self._transactions is None or self._is_eager:
            try:
                with self._sender.exclusive(deadline):
                    self._drain(deadline)
            except TxnLogError as error:
                if not error.retriable:
                    raise
        self._deliveries.serve()
        is_deferred = isinstance(self._sender.publication, Deferred)
        return 0 if is_deferred else self._sender.waiting()

    def close(self, timeout: float | None = None) -> None:
        """Flush, call the callbacks, and end; an open transaction is aborted, a prepared one kept.

        What cannot be sent within `timeout` fails. A closed producer takes no more calls.
        """
        if self._state is ProducerState.CLOSED or self._is_forked:
            return
        timeout = arguments.timeout_s("timeout", timeout)
        try:
            self._end_work(timeout)
        finally:
            with self._accumulator.lock:
                self._state = ProducerState.CLOSED
                self._accumulator.is_open = False
            self._sender.stop()
            self._throw_away(
                ClientStateError("The producer was closed before the record was sent.")
            )
            self._deliveries.serve()

    def __enter__(self: P) -> P:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def forked(self) -> None:
        """In the child of a fork: refuse everything. Another thread may have held the lock."""
        self._is_forked = True
        self._accumulator = Accumulator()

    # -- inside ----------------------------------------------------------------------------------

    def _end_work(self, timeout: float | None) -> None:
        self.flush(timeout)

    def _deadline(self, call: str, timeout: float | None) -> Deadline:
        seconds = arguments.timeout_s("timeout", timeout)
        timeout_ms = self._block_ms if seconds is None or seconds < 0 else seconds * 1000
        return Deadline(self._clock, call, timeout_ms)

    def _drain(self, deadline: Deadline) -> None:
        """Pump until nothing waits; `io` is held. Raises OperationTimedOutError."""
        while True:
            self._sender.pump()
            publication = self._sender.publication
            if publication is None or not publication.waiting:
                return
            deadline.pause(publication.last_error)

    def _make_ready(self, topic: str, deadline: Deadline) -> Destination:
        """Look the topic up where it is not known, and make room. Raises what forbids a record."""
        self._check_usable()
        self._check_call(ProducerCall.SEND)
        destination = self._destinations.known(topic)
        if destination is None:
            with self._sender.exclusive(deadline):
                destination = deadline.retry(lambda: self._destinations.look_up(topic))
        while self._accumulator.held_bytes >= self._memory_bytes:
            with self._sender.exclusive(deadline):
                self._sender.pump()
            self._check_call(ProducerCall.SEND)
            if self._accumulator.held_bytes >= self._memory_bytes:
                publication = self._sender.publication
                error = None if publication is None else publication.last_error
                if deadline.remaining_ms <= 0:
                    raise exhausted(self._memory_bytes, self._block_ms, error) from error
                deadline.pause(error)
        return destination

    def _throw_away(self, error: TxnLogError) -> None:
        """Fail everything that is not sent; nobody appends any more."""
        with self._sender.io:
            publication = self._sender.hand_over()
            if publication is not None:
                publication.discard(error)

    def _send_failed(self, error: TxnLogError) -> None:
        """A send failed for good: no record is taken any more, and a commit will say so (R40)."""
        if isinstance(error, UnknownTopicIdError):
            self._destinations.forget_all()
        if self._transactions is not None:
            self._transactions.note_failure(error)
        with self._accumulator.lock:
            if self._error is None:
                self._error = error
            if self._state in _OPEN:
                self._set(failed_state(error, self._state))

    def _move(self, to: ProducerState) -> None:
        with self._accumulator.lock:
            self._set(prepare_move(self._state, to))

    def _set(self, to: ProducerState) -> None:
        """The accumulator's lock is held."""
        self._state = to
        self._accumulator.is_open = to in _OPEN

    def _check_usable(self) -> None:
        if self._is_forked:
            raise refusal("producer")
        if self._state is ProducerState.CLOSED:
            raise ClientStateError("This producer is closed. Make a new one.")

    def _check_call(self, call: ProducerCall) -> ProducerState:
        """The state while `call` runs; in an error state the error that is to blame (R39, R42)."""
        error = self._error
        if self._state is ProducerState.FATAL_ERROR and error is not None:
            raise type(error)(error.message, **error.context) from error
        if self._state is ProducerState.ABORTABLE_ERROR and call is not ProducerCall.ABORT:
            raise failed_transaction(error) from error
        return prepare_call(self._state, call)


def _tell(reference: weakref.ref[RecordProducer], error: TxnLogError) -> None:
    producer = reference()
    if producer is not None:
        producer._send_failed(error)
