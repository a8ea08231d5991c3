"""`with` blocks that fail: their error reaches the caller, whatever closing the client raises."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.producer.worlds import cluster_of, producer, world
from txnlog import consumer as native_consumer
from txnlog import producer as native_producer
from txnlog.compat import confluent_kafka as compat
from txnlog.compat.confluent_kafka.aio import AIOConsumer, AIOProducer
from txnlog.messages import Message
from txnlog.process.closing import AwaitedAtTheEnd, ClosedAtTheEnd


class Fails(ClosedAtTheEnd):
    def close(self) -> None:
        raise ValueError("of closing")


class FailsLater(AwaitedAtTheEnd):
    async def close(self) -> None:
        raise ValueError("of closing")


def use(error: BaseException | None) -> None:
    with Fails():
        if error is not None:
            raise error


def await_use(error: BaseException | None) -> None:
    async def block() -> None:
        async with FailsLater():
            if error is not None:
                raise error

    asyncio.run(block())


@pytest.mark.parametrize("block", [use, await_use])
@pytest.mark.parametrize("error", [KeyError("of the block"), KeyboardInterrupt("of the block")])
def test_error_of_a_block_is_raised_and_that_of_closing_logged(
    block: object, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The program saw the second error only: `except` by class missed the first."""
    with caplog.at_level(logging.WARNING, "txnlog"), pytest.raises(type(error), match="block"):
        block(error)  # type: ignore[operator]
    assert "ValueError: of closing" in caplog.text


@pytest.mark.parametrize("block", [use, await_use])
def test_error_of_closing_is_raised_after_a_block_without_one(block: object) -> None:
    with pytest.raises(ValueError, match="of closing"):
        block(None)  # type: ignore[operator]


@pytest.mark.parametrize(
    "client",
    [native_producer.Producer, native_consumer.Consumer, compat.Producer, compat.Consumer,
     compat.SerializingProducer, compat.DeserializingConsumer,
     AIOProducer, AIOConsumer],
)  # fmt: skip
def test_every_client_ends_its_block_so(client: type) -> None:
    ends = [ClosedAtTheEnd.__exit__, AwaitedAtTheEnd.__aexit__]
    assert getattr(client, "__exit__", None) in ends or getattr(client, "__aexit__", None) in ends


def test_error_of_a_block_is_not_replaced_by_that_of_a_delivery_callback() -> None:
    made = producer(world())

    def callback(error: Exception | None, message: Message) -> None:
        raise ValueError("of the callback")

    def block() -> None:
        with made:
            made.produce("orders", "0", partition=0, on_delivery=callback)
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        block()
    assert made._lifecycle.is_over
    assert cluster_of(made).topic("orders").view.high_watermark(0) == 1
