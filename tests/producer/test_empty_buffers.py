"""The sender runs between the two steps of `produce`: open a topic's buffer, append to it."""

from __future__ import annotations

import pytest

from tests.producer.worlds import producer, values, world
from txnlog.producer import Producer


def open_buffer(made: Producer, topic: str) -> None:
    """The state after another thread's `produce` has opened the buffer, before it appends."""
    deadline = made._deadline("produce()", None)
    made._admission.open_buffer(topic, None, 0, 1, deadline, made._lifecycle.transaction)


@pytest.mark.parametrize("publish", ["deferred", "eager", None])
def test_empty_buffer_loses_no_record_of_another_topic(publish: str | None) -> None:
    """An error on the empty buffer would lose drained records: a torn transaction (R40, R53)."""
    shared = world()
    made = producer(shared, publish and "p", publish or "deferred")
    if publish is not None:
        made.init_transactions()
        made.begin_transaction()
    open_buffer(made, "stock")
    made.produce("orders", "x", partition=0)
    made.poll()
    made.produce("stock", "y", partition=0)
    made.flush()
    if publish is not None:
        made.commit_transaction()
    assert values(made._outlet.cluster, "orders") == ["x"]
    assert values(made._outlet.cluster, "stock") == ["y"]
