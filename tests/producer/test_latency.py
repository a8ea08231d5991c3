"""Message.latency(): from produce() to the report, for what was written, and for nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.producer.worlds import BOTH, Reports, producer, started, world
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.process.clock import VirtualClock
from txnlog.producer import Producer


def clock_of(made: Producer) -> VirtualClock:
    clock = made._clock
    assert isinstance(clock, VirtualClock)
    return clock


def latencies(reports: Reports) -> list[float | None]:
    return [message.latency() for _, message in reports.received]


def test_latency_is_the_time_from_produce_to_the_report_in_seconds() -> None:
    """Each record has its own, and what the callbacks wait for after that does not count."""
    made, reports = producer(world()), Reports()
    clock = clock_of(made)
    made.produce("orders", "a", partition=0, on_delivery=reports, timestamp=1)
    clock.advance_ms(250)
    made.produce("orders", "b", partition=0, on_delivery=reports)
    clock.step_wall_ms(-3_600_000)
    clock.advance_ms(1_000)
    made._sender.exclusively(made._deadline("test", None), made._sender.pump)
    clock.advance_ms(5_000)
    made.flush()
    assert latencies(reports) == [1.25, 1.0]


def test_latency_of_a_table_is_that_of_its_parts() -> None:
    made, reports = producer(world()), Reports()
    made.produce_batch("orders", pa.table({"value": [b"a", b"b"]}), on_delivery=reports)
    clock_of(made).advance_ms(40)
    made.flush()
    assert set(latencies(reports)) == {0.04}


@BOTH
def test_latency_in_a_transaction_ends_with_what_acknowledges_the_record(publish: str) -> None:
    """A deferred record is acknowledged by its commit, an eager one by its append."""
    made, reports = started(world(), publish), Reports()
    clock = clock_of(made)
    made.begin_transaction()
    made.produce("orders", "a", on_delivery=reports)
    clock.advance_ms(100)
    made.flush()
    clock.advance_ms(400)
    made.commit_transaction()
    made.flush()
    assert latencies(reports) == [0.1 if publish == "eager" else 0.5]


@BOTH
def test_record_that_was_not_written_has_no_latency(publish: str) -> None:
    made, reports = started(world(), publish), Reports()
    made.begin_transaction()
    made.produce("orders", "a", on_delivery=reports)
    made.abort_transaction()
    made.flush()
    assert reports.errors
    assert latencies(reports) == [None]


def test_consumed_record_has_no_latency() -> None:
    shared = world()
    made = producer(shared)
    made.produce("orders", "a", partition=0)
    made.flush()
    cluster = made._outlet.cluster
    with Consumer({"txnlog.root": "memory://"}, cluster=cluster, background=False) as reader:
        reader.assign([TopicPartition("orders", 0, 0)])
        message = reader.poll(1)
    assert message is not None
    assert message.latency() is None


@pytest.mark.parametrize("count", [1, 3])
def test_callback_that_raises_changes_no_latency(count: int) -> None:
    """The reports after it are served later."""
    made, reports = producer(world()), Reports()

    def fails_once(error: Exception | None, message: object) -> None:
        reports(error, message)  # type: ignore[arg-type]
        if len(reports.received) == 1:
            raise ZeroDivisionError

    for _ in range(count):
        made.produce("orders", "a", partition=0, on_delivery=fails_once)
    clock_of(made).advance_ms(70)
    with pytest.raises(ZeroDivisionError):
        made.flush()
    clock_of(made).advance_ms(70)
    made.flush()
    assert latencies(reports) == [0.07] * count
