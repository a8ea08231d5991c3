"""txnlog.compat.confluent_kafka: errors, callbacks, serializers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks
from txnlog import errors
from txnlog.compat.confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    DeserializingConsumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    SerializingProducer,
    TopicPartition,
)
from txnlog.compat.confluent_kafka.error import (
    ConsumeError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
    kafka_error,
)
from txnlog.compat.confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    SerializationError,
    StringDeserializer,
    StringSerializer,
)


def put(root: str, *values: str, topic: str = "t") -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for value in values:
            producer.produce(topic, value)


def reader_of(root: str, **config: object) -> Consumer:
    callbacks = ("error_cb", "on_commit")
    given = {n if n in callbacks else n.replace("_", "."): v for n, v in config.items()}
    return Consumer(
        {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest", **given}
    )


def test_latency_is_that_of_a_delivered_record_only(root: str) -> None:
    delivered: list[float | None] = []
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce(
            "t", "a", on_delivery=lambda _, message: delivered.append(message.latency())
        )
        producer.flush()
    [latency] = delivered
    assert isinstance(latency, float)
    assert latency >= 0
    with reader_of(root) as reader:
        reader.subscribe(["t"])
        message = reader.poll(30)
    assert message is not None
    assert message.latency() is None


def test_first_lines_of_the_page_commit_and_read_a_record(root: str) -> None:
    """What a program changes: the import and the address."""
    [block] = [
        each for each in blocks(ROOT / "docs/confluent-kafka.md") if each.language == "python"
    ]
    names: dict[str, Any] = {}
    exec(compile(block.text.replace("/data/lake", root), block.place, "exec"), names)
    producer = names["producer"]
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", b"apple")
    producer.commit_transaction()
    with reader_of(root) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"apple"


# --- Errors ---------------------------------------------------------------------------------------


def test_codes_and_names_are_confluents() -> None:
    """Handlers compare with them."""
    assert (KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN) == (-191, -187)
    assert (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.PRODUCER_FENCED) == (3, 90)
    error = KafkaError(KafkaError._TIMED_OUT, "too late", retriable=True)
    assert (error.code(), error.name(), error.str()) == (-185, "_TIMED_OUT", "too late")
    assert (error.retriable(), error.fatal(), error.txn_requires_abort()) == (True, False, False)
    assert error == KafkaError._TIMED_OUT
    assert error == KafkaError(-185)
    assert error != KafkaError._FENCED
    assert "too late" in str(error)
    assert pickle.loads(pickle.dumps(error)).str() == "too late"
    assert KafkaError(KafkaError._NO_OFFSET).str() == "no offset"
    # The text may be a deserializer's words about a value.
    assert KafkaError(1, "a\n\x1b[2J").str() == r"a\x0a\x1b[2J"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_every_error_has_a_code(name: str) -> None:
    """An error without one would be a KafkaError of code None."""
    raised = getattr(errors, name)("what happened")
    error = kafka_error(raised)
    assert error.name() != f"ERR_{error.code()}?"
    assert error.str() == "what happened"
    assert (error.fatal(), error.retriable()) == (raised.fatal, raised.retriable)
    assert error.txn_requires_abort() == raised.abortable


def test_failed_call_raises_a_kafka_exception_with_the_cause(root: str) -> None:
    producer = Producer({"bootstrap.servers": root})
    with pytest.raises(KafkaException) as caught:
        producer.begin_transaction()
    assert caught.value.args[0].code() == KafkaError._STATE
    assert isinstance(caught.value.__cause__, errors.TxnLogError)
    with pytest.raises(TypeError):
        producer.produce("t", 5)  # type: ignore[arg-type]
    producer.close()


def test_address_of_a_server_is_refused() -> None:
    """It would be a relative path, or a new cluster."""
    with pytest.raises(KafkaException, match="give the root"):
        Producer({"bootstrap.servers": "localhost:9092"})
    with pytest.raises(KafkaException, match=r"setting group\.id"):
        Consumer({"bootstrap.servers": "/tmp/x"})
    with pytest.raises(KafkaException, match="There is no producer setting") as caught:
        Producer({"bootstrap.servers": "/tmp/x", "linger.mss": 5})
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG


# --- Producer and consumer ------------------------------------------------------------------------


def test_deliveries_come_with_flush_inside_a_transaction(root: str) -> None:
    """As in Kafka; programs wait for them before they commit."""
    producer = Producer({"bootstrap.servers": root, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    told: list[tuple[object, object]] = []
    producer.produce("t", "a", on_delivery=lambda error, message: told.append((error, message)))
    assert producer.flush() == 0
    assert len(producer) == 0
    ((error, message),) = told
    assert error is None
    assert isinstance(message, Message)
    assert (message.offset(), message.value()) == (0, b"a")
    producer.commit_transaction()
    producer.close()


def test_deferred_flush_returns_zero_and_deliveries_come_with_the_commit(root: str) -> None:
    """The documented answer: there is nothing to deliver before the commit."""
    config = {"transactional.id": "shop", "transaction.publish": "deferred"}
    producer = Producer({"bootstrap.servers": root, **config})
    producer.init_transactions()
    producer.begin_transaction()
    told: list[object] = []
    producer.produce("t", "a", callback=lambda error, message: told.append(message.offset()))
    assert producer.flush() == 0
    assert told == []
    producer.commit_transaction()
    producer.poll(0)
    assert told == [0]
    producer.close()


def test_failed_delivery_is_a_kafka_error(root: str) -> None:
    producer = Producer({"bootstrap.servers": root, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    told: list[Any] = []
    producer.produce("t", "a", on_delivery=lambda error, message: told.append((error, message)))
    producer.purge()
    producer.poll(0)
    ((error, message),) = told
    assert error.code() == KafkaError._PURGE_QUEUE
    assert message.error() == error
    producer.abort_transaction()
    producer.close()


def test_positions_without_an_offset_are_left_out_of_a_transaction(root: str) -> None:
    """eos_transactions.py sends position(assignment()) whatever it has read."""
    put(root, "a")
    reader = reader_of(root)
    reader.assign([TopicPartition("t", 0)])
    producer = Producer({"bootstrap.servers": root, "transactional.id": "shop"})
    producer.init_transactions()
    producer.begin_transaction()
    positions = reader.position(reader.assignment())
    assert positions[0].offset == OFFSET_INVALID
    producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
    producer.commit_transaction()
    assert reader.committed([TopicPartition("t", 0)])[0].offset == OFFSET_INVALID
    producer.close()
    reader.close()


def test_errors_of_a_poll_are_messages(root: str) -> None:
    """confluent's loops look at message.error(), and catch nothing."""
    put(root, "a", "b", "c")
    seen: list[KafkaError] = []
    reader = reader_of(root, enable_partition_eof=True, error_cb=seen.append)
    reader.subscribe(["t", "missing"])
    found = reader.consume(5, 60)
    codes = [message.error().code() for message in found if message.error()]  # type: ignore[attr-defined]
    assert codes == [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._PARTITION_EOF]
    assert [message.value() for message in found if not message.error()] == [b"a", b"b", b"c"]
    reader.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        reader.poll(0)
    reader = reader_of(root, group_id="h", auto_offset_reset="error")
    reader.subscribe(["t"])
    message = reader.poll(60)
    assert message is not None
    assert message.error().code() == KafkaError.OFFSET_OUT_OF_RANGE  # type: ignore[union-attr]
    assert (message.topic(), message.partition()) == ("t", 0)
    assert seen == []
    reader.close()


def test_commit_of_nothing_is_no_offset(root: str) -> None:
    """Raised by a synchronous commit, given to on_commit by another."""
    told: list[Any] = []
    reader = reader_of(root, on_commit=lambda error, partitions: told.append((error, partitions)))
    with pytest.raises(KafkaException) as caught:
        reader.commit(asynchronous=False)
    assert caught.value.args[0].code() == KafkaError._NO_OFFSET
    assert reader.commit() is None
    assert told == [(KafkaError(KafkaError._NO_OFFSET), [])]
    reader.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    reader.close()


def test_rebalance_callbacks_get_the_consumer_that_was_made(root: str) -> None:
    put(root, "a")
    told: list[object] = []
    reader = reader_of(root)
    reader.subscribe(
        ["t"], on_assign=lambda *args: told.append(args), on_revoke=lambda one, _: one.unassign()
    )
    assert reader.poll(60) is not None
    assert told == [(reader, [TopicPartition("t", 0)])]
    reader.close()


# --- Serializers ----------------------------------------------------------------------------------


def test_serializing_clients(root: str) -> None:
    producer = SerializingProducer(
        {
            "bootstrap.servers": root,
            "key.serializer": StringSerializer("utf_8"),
            "value.serializer": IntegerSerializer(),
        }
    )
    producer.produce("t", key="a", value=7)
    producer.produce("t", key="b", value=None)
    with pytest.raises(ValueSerializationError) as caught:
        producer.produce("t", key="c", value="seven")
    assert caught.value.code == KafkaError._VALUE_SERIALIZATION
    with pytest.raises(KeySerializationError):
        producer.produce("t", key=5, value=7)
    producer.flush()
    producer.close()
    put(root, "x")
    reader = DeserializingConsumer(
        {
            "bootstrap.servers": root,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "key.deserializer": StringDeserializer("utf_8"),
            "value.deserializer": IntegerDeserializer(),
        }
    )
    reader.subscribe(["t"])
    found = [reader.poll(60), reader.poll(60)]
    assert [(one.key(), one.value()) for one in found if one] == [("a", 7), ("b", None)]
    with pytest.raises(ValueDeserializationError) as bad:
        reader.poll(60)
    assert bad.value.kafka_message.value() == b"x"
    assert isinstance(bad.value, SerializationError)
    with pytest.raises(ConsumeError) as end:
        reader.poll(60)
    assert end.value.code == KafkaError._PARTITION_EOF
    reader.close()
