"""txnlog.compat.confluent_kafka.aio: callbacks on the loop, cancelled calls, close()."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tests.compat.test_confluent_kafka import put, reader_of
from tests.threads import WAIT_S, Thread
from txnlog import consumer as native
from txnlog.compat.confluent_kafka import (
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from txnlog.compat.confluent_kafka.admin import AdminClient
from txnlog.compat.confluent_kafka.aio import AIOConsumer, AIOProducer
from txnlog.consuming.fetcher import Fetcher

T = TypeVar("T")


def test_deferred_aio_producer_is_refused(root: str) -> None:
    """Awaiting a delivery before the commit would never end (D113)."""

    async def make() -> None:
        AIOProducer({"bootstrap.servers": root, "transaction.publish": "deferred"})

    with pytest.raises(KafkaException, match="publishes eagerly"):
        asyncio.run(make())


def test_aio_deliveries_are_awaited_without_a_flush(root: str) -> None:
    async def send() -> list[int | None]:
        async with AIOProducer({"bootstrap.servers": root, "transactional.id": "a"}) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            futures = [await producer.produce("t", f"{number}") for number in range(3)]
            delivered = [message.offset() for message in await asyncio.gather(*futures)]
            await producer.commit_transaction()
            await producer.begin_transaction()
            lost = await producer.produce("t", "never")
            await producer.purge()
            with pytest.raises(KafkaException):
                await lost
            await producer.abort_transaction()
        return delivered

    assert asyncio.run(send()) == [0, 1, 2]


@pytest.mark.parametrize("flushes", [True, False])
def test_aio_producer_delivers_what_its_callbacks_produce(root: str, flushes: bool) -> None:
    """They run on the loop, called by a thread that flush() and close() have to wait for."""

    async def send() -> int:
        async with AIOProducer({"bootstrap.servers": root}) as producer:

            async def forward(error: KafkaError | None, message: Message) -> None:
                value = (message.value() or b"") + b"0"
                if len(value) <= 3:
                    await producer.produce("t", value, on_delivery=forward)

            await producer.produce("t", "0", on_delivery=forward)
            return await producer.flush() if flushes else 0

    assert asyncio.run(send()) == 0
    with reader_of(root) as reader:
        reader.subscribe(["t"])
        assert [message.value() for message in reader.consume(3, 60)] == [b"0", b"00", b"000"]


def test_aio_producer_goes_on_after_a_callback_that_raises(root: str) -> None:
    """The thread that serves delivery reports ended, and every later future stayed open."""

    async def send() -> list[str]:
        said: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(str(context["exception"])))

        def refuse(error: KafkaError | None, message: Message) -> None:
            raise ValueError("no")

        async with AIOProducer({"bootstrap.servers": root}) as producer:
            await (await producer.produce("t", "1", on_delivery=refuse))
            await (await producer.produce("t", "2"))
        return said

    assert asyncio.run(send()) == ["no"]


def test_aio_consumer_calls_back_on_the_loop_and_keeps_messages_of_cancelled_polls(
    root: str,
) -> None:
    """A message that a cancelled poll had taken was lost: its position was past it."""

    async def read() -> tuple[list[bytes | None], list[str], list[str]]:
        told: list[str] = []
        stats: list[str] = []

        async def on_assign(one: AIOConsumer, partitions: list[TopicPartition]) -> None:
            await one.incremental_assign(partitions)
            told.append(f"{len(await one.assignment())}")

        async def stats_cb(text: str) -> None:
            stats.append(text)

        config = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
        given = {"stats_cb": stats_cb, "statistics.interval.ms": 1}
        async with AIOConsumer({**config, **given}) as reader:
            await reader.subscribe(["t"], on_assign=on_assign)
            found = []
            waiting = [asyncio.create_task(reader.poll(60)) for _ in range(2)]
            for task in waiting:
                await asyncio.sleep(0)
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            while len(found) < 3:
                message = await reader.poll(60)
                assert message is not None
                found.append(message.value())
            await reader.commit(asynchronous=False)
        return found, told, stats

    put(root, "a", "b", "c")
    found, told, stats = asyncio.run(read())
    assert found == [b"a", b"b", b"c"]
    assert told == ["1"]
    assert json.loads(stats[-1])["type"] == "consumer"


@pytest.mark.parametrize("name", ["on_delivery", "stats_cb"])
def test_aio_producer_can_be_closed_in_its_callbacks(root: str, name: str) -> None:
    """close() waited for a thread, which waited for the callback: for ever."""

    async def send() -> bytes | None:
        closed = asyncio.Event()

        async def close(*_: object) -> None:
            await producer.close()
            closed.set()

        given = {"bootstrap.servers": root, "statistics.interval.ms": 10}
        on_delivery = close if name == "on_delivery" else None
        producer = AIOProducer(given if on_delivery else {**given, "stats_cb": close})
        delivered = await producer.produce("t", "0", on_delivery=on_delivery)
        await closed.wait()
        await producer.close()
        return (await delivered).value()

    assert in_a_thread(send) == b"0"


@pytest.mark.parametrize("name", ["on_assign", "on_revoke", "on_commit", "stats_cb"])
def test_aio_consumer_can_be_closed_in_its_callbacks(root: str, name: str) -> None:
    """close() waited for a thread, which waited for the callback: for ever."""

    async def read() -> None:
        closed = asyncio.Event()

        async def close(*_: object) -> None:
            if not closed.is_set():
                await reader.close()
                closed.set()

        rebalance = {name: close} if name in ("on_assign", "on_revoke") else {}
        config = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
        given = {**config, "statistics.interval.ms": 10, "auto.commit.interval.ms": 10}
        reader = AIOConsumer(given if rebalance else {**given, name: close})
        await reader.subscribe(["t"], **rebalance)
        if name == "on_revoke":
            assert await reader.poll() is not None
            await reader.unsubscribe()
        while not closed.is_set():
            await reader.poll(1)
        await reader.close()

    put(root, "a")
    in_a_thread(read)
    groups = AdminClient({"bootstrap.servers": root}).list_consumer_groups().result().valid
    assert [group.state for group in groups if group.state != ConsumerGroupState.EMPTY] == []


def test_cancelled_polls_leave_no_calls_behind(root: str) -> None:
    """Each waited for the lock, and then read for a second, before the next one."""

    async def read() -> tuple[int, list[bytes | None]]:
        config = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
        async with AIOConsumer(config) as reader:
            await reader.subscribe(["t"])
            for _ in range(30):
                waiting = asyncio.create_task(reader.poll())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            left = len(asyncio.all_tasks()) - 1
            put(root, "a", "b", "c")
            messages = await reader.consume(3, 60)
        return left, [message.value() for message in messages]

    left, values = asyncio.run(read())
    assert left <= 2
    assert values == [b"a", b"b", b"c"]


async def cancelled_with(reader: AIOConsumer, call: Coroutine[Any, Any, object]) -> None:
    """Await a call that is cancelled once its thread has taken messages, before it has them."""
    loop = asyncio.get_running_loop()
    wait = native.Consumer._wait

    def cancel(*args: Any, **named: Any) -> Any:
        found = wait(*args, **named)
        loop.call_soon_threadsafe(task.cancel)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.Consumer, "_wait", cancel)
        task = asyncio.ensure_future(call)
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("then", ["position", "commit", "seek", "pause", "unassign", "close"])
def test_messages_of_a_cancelled_call_were_not_returned(root: str, then: str, count: int) -> None:
    """A commit counted them, so that nobody processed them; after seek, pause and unassign they
    came all the same."""
    first = TopicPartition("t", 0)

    async def read() -> list[object]:
        config = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
        reader = AIOConsumer({**config, "enable.auto.commit": then == "close"})
        await reader.assign([TopicPartition("t", 0, 0)])
        await cancelled_with(reader, reader.consume(count, 60) if count > 1 else reader.poll(60))
        found: list[object] = []
        if then == "position":
            found.append((await reader.position([first]))[0].offset)
        elif then == "commit":
            await reader.commit(asynchronous=False)
            found.append((await reader.committed([first]))[0].offset)
        elif then == "seek":
            await reader.seek(TopicPartition("t", 0, 2))
            found.append(values(await reader.consume(1, 60)))
        elif then == "pause":
            await reader.pause([first])
            found.append(values(await reader.consume(1, 0)))
            await reader.resume([first])
        elif then == "unassign":
            await reader.unassign()
            with pytest.raises(KafkaException, match="reads nothing"):
                await reader.poll(0)
            found.append("refused")
        if then in ("position", "commit", "pause"):
            found.append(values(await reader.consume(3, 60)))
        await reader.close()
        if then == "close":
            with pytest.raises(RuntimeError):
                await reader.poll(0)
            async with AIOConsumer(config) as other:
                found.append((await other.committed([first]))[0].offset)
        return found

    put(root, "a", "b", "c")
    every = [b"a", b"b", b"c"]
    assert (
        asyncio.run(read())
        == {
            "position": [0, every],
            "commit": [0, every],
            "seek": [[b"c"]],
            "pause": [[], every],
            "unassign": ["refused"],
            "close": [0],
        }[then]
    )


def test_end_of_a_partition_that_a_cancelled_poll_has_met_comes_again(root: str) -> None:
    """It is told once: who waits for it would wait for ever."""

    async def read() -> KafkaError | None:
        config = {"bootstrap.servers": root, "group.id": "g", "enable.partition.eof": True}
        async with AIOConsumer(config) as reader:
            await reader.assign([TopicPartition("t", 0, 3)])
            await cancelled_with(reader, reader.poll(60))
            message = await reader.poll(60)
        assert message is not None
        return message.error()

    put(root, "a", "b", "c")
    error = asyncio.run(read())
    assert error is not None
    assert error.code() == KafkaError._PARTITION_EOF


def test_what_a_cancelled_poll_has_fetched_is_kept(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls that are cancelled sooner than the store replies would never return a message."""
    fetch = Fetcher.fetch
    fetched: list[object] = []

    async def read() -> list[bytes | None]:
        loop = asyncio.get_running_loop()
        is_cancelled = threading.Event()

        def slow(*args: Any, **named: Any) -> Any:
            loop.call_soon_threadsafe(waiting.cancel)
            assert is_cancelled.wait(WAIT_S)
            chunk = fetch(*args, **named)
            fetched.append(chunk)
            return chunk

        monkeypatch.setattr(Fetcher, "fetch", slow)
        config = {"bootstrap.servers": root, "group.id": "g"}
        async with AIOConsumer(config) as reader:
            await reader.assign([TopicPartition("t", 0, 0)])
            waiting = asyncio.ensure_future(reader.poll(60))
            waiting.add_done_callback(lambda _: is_cancelled.set())
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return values(await reader.consume(3, 60))

    put(root, "a", "b", "c")
    assert asyncio.run(read()) == [b"a", b"b", b"c"]
    assert len(fetched) == 1


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def in_a_thread(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an event loop in a thread: one that waits for ever fails the test."""
    result: T = Thread(lambda: asyncio.run(main())).result()
    if isinstance(result, BaseException):
        raise result
    return result
