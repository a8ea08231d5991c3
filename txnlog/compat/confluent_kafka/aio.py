"""confluent_kafka.aio: a producer and a consumer for asyncio.

Calls run in worker threads, so none blocks the event loop. Callbacks run on the loop; they may be
coroutine functions. What they call of their client runs in the thread that called them, as in the
other clients: that thread is in the midst of a call.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from txnlog.compat.confluent_kafka.consumer import Consumer
from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException
from txnlog.compat.confluent_kafka.error_codes import CODES
from txnlog.compat.confluent_kafka.producer import Producer
from txnlog.consuming.record_stream import Before
from txnlog.messages import ClusterMetadata, ConsumerGroupMetadata, Message, TopicPartition
from txnlog.process.client_metrics import Metric
from txnlog.process.closing import AwaitedAtTheEnd

__all__ = ["AIOConsumer", "AIOProducer"]

T = TypeVar("T")

CALLBACKS = ("error_cb", "stats_cb", "throttle_cb", "on_commit")
SLICE_S = 1.0
"""A longer poll is made in pieces: other calls may wait for its thread, or for their turn."""


class _Callback:
    """A callback that runs on the loop; `calls` are those that it makes of its client.

    `is_over` changes on the loop, where its calls are added: none comes after that.
    """

    def __init__(self, client: object) -> None:
        self.client = client
        self.calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.is_over = False

    async def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        _CALLBACK.set(self)
        try:
            found = callback(*args)
            return await found if inspect.isawaitable(found) else found
        finally:
            self.is_over = True

    async def call(self, work: Callable[[], T]) -> T:
        """Have a call made by the thread that waits in `serve`."""
        outcome: Future[T] = Future()
        self.calls.put(partial(_make, work, outcome))
        return await asyncio.wrap_future(outcome)

    def serve(self, result: Future[Any]) -> Any:
        """Make the callback's calls until it has ended; its result."""
        result.add_done_callback(lambda _: self.calls.put(None))
        while (call := self.calls.get()) is not None:
            call()
        return result.result()


def _make(work: Callable[[], T], outcome: Future[T]) -> None:
    if outcome.set_running_or_notify_cancel():
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)


_CALLBACK: ContextVar[_Callback | None] = ContextVar("txnlog_callback", default=None)
"""The callback that runs in this context, or has made the task that does."""


class _Client(AwaitedAtTheEnd):
    """What both clients share: the loop, the worker threads, callbacks on the loop."""

    def __init__(self, max_workers: int, executor: Executor | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._owns_executor = executor is None
        self._executor = executor or ThreadPoolExecutor(max_workers, "txnlog-aio")

    def _config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, with callbacks that run on the loop."""
        config = dict(given)
        for name in CALLBACKS:
            if callable(config.get(name)):
                config[name] = partial(self._call_back, config[name])
        return config

    def _call_back(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call a callback on the loop, from a worker thread, and wait for it."""
        made = _Callback(self)
        return made.serve(asyncio.run_coroutine_threadsafe(made.run(callback, *args), self._loop))

    def _callback(self) -> _Callback | None:
        """The callback of this client that is under way in this context."""
        made = _CALLBACK.get()
        return None if made is None or made.client is not self or made.is_over else made

    async def _run(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        work, made = partial(call, *args, **named), self._callback()
        if made is not None:
            return await made.call(work)
        return await self._loop.run_in_executor(self._executor, work)

    async def _shut_down(self) -> None:
        """End the threads; in a callback without waiting: one of them waits for the callback."""
        if self._owns_executor:
            self._executor.shutdown(wait=False)
        if self._callback() is None:
            await self._loop.run_in_executor(None, self._join)

    def _join(self) -> None:
        """Wait until the threads have ended."""
        if self._owns_executor:
            self._executor.shutdown()


class AIOProducer(_Client):
    """A Producer for asyncio. Transactions are eager: a delivery can be awaited before the commit.

    `transaction.publish=deferred` is refused (D113): its deliveries come after the commit, so
    awaiting one before it would never end.
    """

    def __init__(
        self,
        producer_conf: Mapping[str, Any],
        max_workers: int = 4,
        executor: Executor | None = None,
        **batching: Any,
    ) -> None:
        if str(producer_conf.get("transaction.publish", "eager")).strip().lower() != "eager":
            raise KafkaException(
                KafkaError(
                    CODES["_INVALID_ARG"],
                    "An AIOProducer publishes eagerly: with transaction.publish=deferred, awaiting "
                    "a delivery before the commit would never end. Leave the setting out, or use "
                    "Producer.",
                )
            )
        super().__init__(max_workers, executor)
        self._producer = Producer(self._config(producer_conf))
        self._is_closed = False
        self._poller = threading.Thread(target=self._poll, name="txnlog-aio-poll", daemon=True)
        self._poller.start()

    def _poll(self) -> None:
        """Serve delivery reports, until the producer is closed; a callback's error ends nothing."""
        while not self._is_closed:
            try:
                self._producer.poll(0.1)
            except KafkaException:
                pass
            except (Exception, CancelledError) as error:
                found = {"message": "A delivery callback has raised", "exception": error}
                with suppress(RuntimeError):  # The loop is closed.
                    self._loop.call_soon_threadsafe(self._loop.call_exception_handler, found)

    async def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Any = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> asyncio.Future[Message]:
        """Take a record; the result is a future of its delivered message.

        The future raises KafkaException if the record was not written.
        """
        delivered: asyncio.Future[Message] = self._loop.create_future()

        def report(error: KafkaError | None, message: Message) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(_settle, delivered, error, message)
            if on_delivery is not None:
                self._call_back(on_delivery, error, message)

        produce = self._producer.produce
        await self._run(produce, topic, value, key, partition, report, timestamp, headers)
        return delivered

    async def poll(self, timeout: float = 0) -> int:
        """Call waiting callbacks; the producer does so by itself, too."""
        return await self._run(self._producer.poll, max(0, timeout))

    async def flush(self, timeout: float | None = None) -> int:
        """Deliver what was produced: the futures are done. How many records are left."""
        return await self._run(self._producer.flush, timeout)

    async def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Discard records that are not delivered yet."""
        await self._run(self._producer.purge, in_queue, in_flight, blocking)

    def metrics(self) -> list[Metric]:
        """See txnlog.Producer.metrics."""
        return self._producer.metrics()

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The topics of the root, or one of them."""
        return await self._run(self._producer.list_topics, topic, timeout)

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Take over the transactional.id."""
        await self._run(self._producer.init_transactions, timeout)

    async def begin_transaction(self) -> None:
        """Begin a transaction."""
        await self._run(self._producer.begin_transaction)

    async def send_offsets_to_transaction(
        self,
        positions: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit positions with the transaction."""
        send = self._producer.send_offsets_to_transaction
        await self._run(send, positions, group_metadata, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush and commit."""
        await self._run(self._producer.commit_transaction, timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Discard the transaction."""
        await self._run(self._producer.abort_transaction, timeout)

    async def close(self) -> None:
        """Flush, and end; an open transaction is aborted."""
        if not self._is_closed:
            try:
                await self._run(self._producer.close)
            finally:
                self._is_closed = True
                await self._shut_down()

    def _join(self) -> None:
        self._poller.join()
        super()._join()


def _settle(delivered: asyncio.Future[Message], error: KafkaError | None, message: Message) -> None:
    """On the loop: the outcome of a record."""
    if delivered.done():
        return
    if error is None:
        delivered.set_result(message)
    else:
        delivered.set_exception(KafkaException(error))


class AIOConsumer(_Client):
    """A Consumer for asyncio. Several tasks may call it: each message goes to one of them.

    What a cancelled poll or consume has taken was not returned: no commit counts it, and it comes
    again.
    """

    def __init__(
        self,
        consumer_conf: Mapping[str, Any],
        max_workers: int = 2,
        executor: Executor | None = None,
    ) -> None:
        super().__init__(max_workers, executor)
        self._consumer = Consumer(self._config(consumer_conf))
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def poll(self, timeout: float | None = -1) -> Message | None:
        """The next message, which may have an error(); None after `timeout` seconds."""
        found = await self._take(1, timeout)
        return found[0] if found else None

    async def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to `num_messages`: what comes within a second of the first one, none after `timeout`
        seconds; each may have an error().
        """
        return await self._take(num_messages, timeout) if num_messages else []

    async def _take(self, count: int, timeout: float | None) -> list[Message]:
        """Messages as soon as there are some; none after `timeout`.

        They count as returned once this task has them: it may be cancelled at any time before.
        """
        end_s = self._end_s(timeout)
        while True:
            # In a callback, the call that waits for it has the lock.
            has_lock = self._callback() is None and await self._lock.acquire()
            left_s = self._left_s(end_s)
            slice_s = SLICE_S if left_s < 0 else min(SLICE_S, left_s)
            before = Before()
            reading: asyncio.Future[Any] = asyncio.ensure_future(
                self._run(self._consumer._consume, count, slice_s, before)
            )
            try:
                found: list[Message] = await asyncio.shield(reading)
                before.is_returned = True
            except asyncio.CancelledError:
                before.is_unwanted = True
                reading = asyncio.ensure_future(self._take_back(before, reading))
                raise
            finally:
                if has_lock:
                    reading.add_done_callback(lambda _: self._lock.release())
            if found or left_s == 0 or self._is_closed:
                return found

    async def _take_back(self, before: Before, reading: asyncio.Future[Any]) -> None:
        """Once the call that nobody awaits has ended: what it took comes again."""
        with suppress(asyncio.CancelledError, Exception):
            await reading
        if not self._is_closed:
            await self._run(self._consumer._take_back, before)

    def _end_s(self, timeout: float | None) -> float | None:
        return None if timeout is None or timeout < 0 else self._loop.time() + timeout

    def _left_s(self, end_s: float | None) -> float:
        return -1.0 if end_s is None else max(0.0, end_s - self._loop.time())

    async def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callable[..., Any] | None = None,
        on_revoke: Callable[..., Any] | None = None,
        on_lost: Callable[..., Any] | None = None,
    ) -> None:
        """Read topics, by name or "^pattern", as a member of the group."""
        given = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        wrapped = {name: self._rebalance_callback(call) for name, call in given.items() if call}
        await self._run(self._consumer.subscribe, topics, **wrapped)

    def _rebalance_callback(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        return lambda _, partitions: self._call_back(callback, self, partitions)

    async def unsubscribe(self) -> None:
        """Leave the group and stop reading."""
        await self._run(self._consumer.unsubscribe)

    async def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit the position after a message, offsets, or what is stored or was returned."""
        return await self._run(self._consumer.commit, message, offsets, asynchronous)

    async def store_offsets(
        self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Store what is to be committed next."""
        await self._run(self._consumer.store_offsets, message, offsets)

    async def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The group's committed offsets."""
        return await self._run(self._consumer.committed, partitions, timeout)

    async def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The offset of the next message of each partition."""
        return await self._run(self._consumer.position, partitions)

    async def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`."""
        await self._run(self._consumer.seek, partition)

    async def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no messages of these partitions until resume."""
        await self._run(self._consumer.pause, partitions)

    async def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return messages of these partitions again."""
        await self._run(self._consumer.resume, partitions)

    async def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions."""
        await self._run(self._consumer.assign, partitions)

    async def unassign(self) -> None:
        """Remove all assigned partitions."""
        await self._run(self._consumer.unassign)

    async def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Add partitions."""
        await self._run(self._consumer.incremental_assign, partitions)

    async def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove some partitions."""
        await self._run(self._consumer.incremental_unassign, partitions)

    async def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return await self._run(self._consumer.assignment)

    async def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """For Producer.send_offsets_to_transaction."""
        return await self._run(self._consumer.consumer_group_metadata)

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(log start, end) of a partition."""
        return await self._run(self._consumer.get_watermark_offsets, partition, timeout, cached)

    async def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """The first offset at or after the time (ms) in each `offset`."""
        return await self._run(self._consumer.offsets_for_times, partitions, timeout)

    def metrics(self) -> list[Metric]:
        """See txnlog.Consumer.metrics."""
        return self._consumer.metrics()

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The topics of the root, or one of them."""
        return await self._run(self._consumer.list_topics, topic, timeout)

    async def close(self) -> None:
        """Commit (with enable.auto.commit), call on_revoke, leave the group."""
        if not self._is_closed:
            self._is_closed = True
            try:
                await self._run(self._consumer.close)
            finally:
                await self._shut_down()
