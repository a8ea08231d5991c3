"""Every public call refuses what no reader could read, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.admin.worlds import admin
from tests.arguments.cold_reader import objects, read_everything
from tests.coordinator.processes import process, world
from tests.producer.worlds import Reports, group, producer, started
from txnlog.admin import (
    AbortTransactionSpec,
    AdminClient,
    ConsumerGroupTopicPartitions,
    NewPartitions,
    NewTopic,
)
from txnlog.config import parse_config
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    TxnLogError,
)
from txnlog.messages import ConsumerGroupMetadata, Message, TopicPartition
from txnlog.testing.faults import SharedMemory

NO_INTEGERS = (3.0, 1.5, True, np.True_, float("nan"), float("inf"), "3", b"3", None, [3])
NO_OFFSETS = (2**63, -(2**63) - 1, -5)


def consumer(shared: SharedMemory, **config: object) -> Consumer:
    """A consumer of `orders` with a place in its group."""
    given = {"group.id": "readers", **config}
    made = Consumer(given, cluster=process(shared), background=False)
    made.assign([TopicPartition("orders", 0, 0)])
    return made


def refused(shared: SharedMemory, call: Callable[[], Any]) -> Exception:
    """What a call raises, or its future; nothing was written, and everything can be read."""
    before = objects(shared)
    with pytest.raises((TxnLogError, TypeError)) as caught:
        futures = call()
        for future in futures.values():
            future.result()
    assert objects(shared) == before
    read_everything(shared)
    return caught.value


# --- Offsets and metadata -------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [*NO_INTEGERS, *NO_OFFSETS])
def test_offset_that_is_none_is_not_committed(offset: Any) -> None:
    """One such offset in a group's row makes the offsets of all groups unreadable for good."""
    shared = world()
    made = consumer(shared)
    wrong = [TopicPartition("orders", 0, offset)]
    error = refused(shared, lambda: made.commit(offsets=wrong, asynchronous=False))
    assert "offset" in str(error)
    refused(shared, lambda: made.commit(offsets=wrong))
    refused(shared, lambda: made.commit(message=Message("orders", 0, offset, b"", b"", 0)))


@pytest.mark.parametrize("offset", [*NO_INTEGERS, *NO_OFFSETS])
@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_offset_that_is_none_is_not_sent_to_a_transaction(offset: Any, publish: str) -> None:
    """It would be decided with the transaction, and nobody could ever publish that one."""
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    wrong = [TopicPartition("input", 0, offset)]
    refused(shared, lambda: made.send_offsets_to_transaction(wrong, group()))
    made.send_offsets_to_transaction([TopicPartition("input", np.int8(0), np.int64(3))], group())
    made.commit_transaction()
    assert read_everything(shared).groups["readers"] == {"input": {0: 3}}


@pytest.mark.parametrize(
    "wrong",
    [
        ConsumerGroupMetadata("readers", 1.0),  # type: ignore[arg-type]
        ConsumerGroupMetadata("readers", True),
        ConsumerGroupMetadata(b"readers", 1),  # type: ignore[arg-type]
        ConsumerGroupMetadata("readers", 1, 5),  # type: ignore[arg-type]
        ConsumerGroupMetadata("", 1),
        ConsumerGroupMetadata("g\ud800", 1),
        None,
        "readers",
    ],
)
def test_group_metadata_of_a_wrong_type_is_refused(wrong: Any) -> None:
    """What stands in the pending entry is read by every consumer of the cluster."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    positions = [TopicPartition("input", 0, 3)]
    refused(shared, lambda: made.send_offsets_to_transaction(positions, wrong))


@pytest.mark.parametrize("metadata", [5, 5.0, b"x", True, "\ud800", "x" * 4_097, ["x"]])
def test_metadata_that_is_no_short_text_is_refused(metadata: Any) -> None:
    """metadata=5 was written, and no reader could decode the row."""
    shared = world()
    made = consumer(shared)
    wrong = [TopicPartition("orders", 0, 1, metadata)]
    refused(shared, lambda: made.commit(offsets=wrong, asynchronous=False))


def test_metadata_is_limited_in_bytes_by_a_setting() -> None:
    """Kafka's offset.metadata.max.bytes: 4096, in UTF-8; an empty one is none."""
    shared = world()
    made = consumer(shared)
    for note in ("", "ä" * 2_048, "x" * 4_096):
        made.commit(offsets=[TopicPartition("orders", 0, 1, note)], asynchronous=False)
    with pytest.raises(OffsetMetadataTooLargeError, match="4096"):
        made.commit(offsets=[TopicPartition("orders", 0, 1, "ä" * 2_049)], asynchronous=False)
    wide = consumer(shared, **{"offset.metadata.max.bytes": 5_000})
    wide.commit(offsets=[TopicPartition("orders", 0, 1, "ä" * 2_500)], asynchronous=False)
    read_everything(shared)


def test_message_without_an_offset_is_not_committed() -> None:
    """A delivery that failed has none; it was taken for offset 0."""
    shared = world()
    made = consumer(shared)
    failed = Message("orders", 0, None, b"", b"", 0)
    assert "no offset" in str(refused(shared, lambda: made.commit(message=failed)))


@pytest.mark.parametrize(
    "where",
    [("no/topic", 0), ("", 0), (b"orders", 0), (None, 0), ("orders", -1), ("orders", 2**31)],
)
def test_partition_that_cannot_be_is_not_committed(where: tuple[Any, Any]) -> None:
    """Kafka's rule for topics; partitions are 32 bits."""
    shared = world()
    made = consumer(shared)
    refused(shared, lambda: made.commit(offsets=[TopicPartition(*where, 1)], asynchronous=False))


def test_numpy_integers_become_ints() -> None:
    """They come from pandas and Arrow, and are integers."""
    shared = world()
    made = consumer(shared)
    position = TopicPartition(np.str_("orders"), np.int32(1), np.uint64(7))
    made.commit(offsets=[position], asynchronous=False)
    found = admin(process(shared)).alter_consumer_group_offsets(
        [ConsumerGroupTopicPartitions("others", [position])]
    )
    found["others"].result()
    assert read_everything(shared).groups == {
        "readers": {"orders": {1: 7}},
        "others": {"orders": {1: 7}},
    }


@pytest.mark.parametrize("offset", [*NO_INTEGERS, 2**63, -(2**63) - 1])
def test_operators_offset_that_is_none_is_refused(offset: Any) -> None:
    """delete_records(1.5) left a version of a transaction that no Delta reader reads."""
    shared = world()
    ops = admin(process(shared))
    asked = TopicPartition("orders", 0, offset)
    refused(shared, lambda: ops.delete_records([asked]))
    request = ConsumerGroupTopicPartitions("readers", [asked])
    refused(shared, lambda: ops.alter_consumer_group_offsets([request]))


@pytest.mark.parametrize("offset", NO_INTEGERS)
def test_readers_position_that_is_none_is_refused_at_the_call(offset: Any) -> None:
    """seek, assign and times: a wrong type must not wait for the next poll."""
    shared = world()
    made = consumer(shared)
    asked = TopicPartition("orders", 0, offset)
    refused(shared, lambda: made.seek(asked))
    refused(shared, lambda: made.assign([asked]))
    refused(shared, lambda: made.offsets_for_times([asked]))
    with pytest.raises(ConfigError, match="no position"):
        made.seek(TopicPartition("orders", 0, -7))
    with pytest.raises(ConfigError, match="no position"):
        made.assign([TopicPartition("orders", 0, -7)])


# --- Topics and partitions ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [True, np.float64(3), 3.0, "3", None, 2**31, -2, 0])
def test_number_of_partitions_that_is_none_is_refused(count: Any) -> None:
    """NewTopic(partitions=True) made a table that no reader could open."""
    shared = world()
    ops = admin(process(shared))
    refused(shared, lambda: ops.create_topics([NewTopic("new", count)]))
    refused(shared, lambda: ops.create_topics([NewTopic("new", count)], validate_only=True))
    refused(shared, lambda: ops.create_partitions([NewPartitions("orders", count)]))
    with pytest.raises((TypeError, InvalidPartitionsError)):
        process(shared).create_topic("new", partitions=count if count is not None else 0)
    ops.create_topics([NewTopic("new", np.int64(3))])["new"].result()
    ops.create_partitions([NewPartitions("new", np.int16(5))])["new"].result()
    assert read_everything(shared).partitions["new"] == 5


def test_one_name_in_place_of_a_list_is_refused() -> None:
    """A text is a sequence of letters: delete_topics("ab") would delete topics a and b."""
    shared = world()
    for name in ("a", "b"):
        process(shared).create_topic(name, partitions=1)
    ops = admin(process(shared))
    reader = Consumer({"group.id": "g"}, cluster=process(shared), background=False)
    calls: list[Callable[[], Any]] = [
        lambda: ops.delete_topics("ab"),
        lambda: ops.describe_topics("ab"),
        lambda: ops.fence_producers("ab"),
        lambda: ops.delete_consumer_groups("ab"),
        lambda: reader.subscribe("ab"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="list"):
            call()
    assert set(process(shared).list_topics()) >= {"a", "b"}


def test_configs_of_a_wrong_type_are_refused() -> None:
    """b"compact" was stored as the text of a Python literal."""
    shared = world()
    ops = admin(process(shared))
    wrong: list[dict[Any, Any]] = [
        {"cleanup.policy": b"compact"},
        {"retention.ms": 2**63},
        {"retention.ms": 1.5},
        {"max.message.bytes": 2**31},
        {"min.cleanable.dirty.ratio": float("nan")},
        {5: 5},
    ]
    for config in wrong:
        refused(shared, lambda config=config: ops.create_topics([NewTopic("n", 1, config=config)]))
    ops.create_topics([NewTopic("n", 1, config={"retention.ms": None, "segment.bytes": 9})])
    assert process(shared).topic("n").config["segment.bytes"] == "9"


def test_spec_or_id_of_another_type_is_refused() -> None:
    """abort_transaction(5) was an AttributeError of ours."""
    shared = world()
    ops = admin(process(shared))
    spec = AbortTransactionSpec(
        topic_partition=TopicPartition("orders", 0),
        producer_id=1.0,  # type: ignore[arg-type]
        producer_epoch=0,
    )
    for wrong in (5, None, spec, "\ud800", "x" * 32_768):
        with pytest.raises((TypeError, ConfigError)):
            ops.abort_transaction(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reason"):
        ops.fence_producers(["tx"], reason="\ud800")


# --- Records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [1.0, True, False, np.float64(1), "1", None, float("nan")])
@pytest.mark.parametrize("name", [None, "tx"])
def test_partition_of_a_wrong_type_is_refused_at_the_call(partition: Any, name: Any) -> None:
    """produce(partition=1.0) stopped the thread, and no callback ever came."""
    shared = world()
    made, told = producer(shared, name), Reports()
    if name:
        made.init_transactions()
        made.begin_transaction()
    for _ in range(2):
        with pytest.raises(TypeError, match="partition"):
            made.produce("orders", "lost", partition=partition, on_delivery=told)
        made.produce("orders", "kept", partition=np.int64(1), on_delivery=told)
    made.flush() if name is None else made.commit_transaction()
    made.poll(0)
    assert told.offsets == [("orders", 1, 0), ("orders", 1, 1)]
    read_everything(shared)


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": "\ud800"},
        {"key": "\udfff"},
        {"headers": {"h": "\ud800"}},
        {"headers": {"\ud800": b"x"}},
        {"headers": [("h", 5)]},
        {"headers": "text"},
        {"headers": 5},
        {"timestamp": 1.0},
        {"timestamp": True},
        {"timestamp": 0.0},
        {"timestamp": 2**63},
        {"timestamp": -1},
        {"on_delivery": "print"},
        {"callback": 5},
        {"value": 5},
        {"key": 5.0},
        {"topic": b"orders"},
        {"topic": None},
        {"topic": ["orders"]},
        {"topic": "x" * 250},
        {"topic": "\ud800"},
    ],
)
def test_record_that_is_none_is_refused_at_the_call(wrong: dict[str, Any]) -> None:
    """Later there is nobody to tell, and the other records of the batch would go with it."""
    shared = world()
    made = producer(shared)
    given = {"topic": "orders", "value": b"x", **wrong}
    with pytest.raises((TypeError, InvalidRecordError, InvalidTopicError)):
        made.produce(**given)
    made.produce("orders", "kept", timestamp=None)  # type: ignore[arg-type]
    assert made.flush() == 0
    assert read_everything(shared).records["orders"] == [b"kept"]


@pytest.mark.parametrize(
    "columns",
    [
        {"partition": pa.array([1.0])},
        {"partition": pa.array([True])},
        {"partition": pa.array(["1"])},
        {"partition": pa.array([2**31])},
        {"timestamp": pa.array([2**62])},
        {"timestamp": pa.array([True])},
        {"timestamp": pa.array([2**60], pa.timestamp("s", "UTC"))},
        {"headers": pa.array([[{"key": "h", "value": 5}]])},
    ],
)
def test_arrow_column_of_a_wrong_type_is_refused(columns: dict[str, pa.Array]) -> None:
    """Arrow would make partition 1 of True, and wrap a time that is too large."""
    shared = world()
    made = producer(shared)
    with pytest.raises(InvalidRecordError):
        made.produce_batch("orders", pa.table({"value": pa.array([b"x"]), **columns}))
    assert made.flush() == 0
    assert read_everything(shared).records["orders"] == []


def test_arrow_headers_that_are_no_utf8_are_refused() -> None:
    """Arrow believes what an array says of itself; every reader of the file would fail."""
    shared = world()
    made = producer(shared)
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    struct = pa.StructArray.from_arrays([broken, pa.array([b"v"])], names=["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), struct)
    with pytest.raises(InvalidRecordError, match="headers"):
        made.produce_batch("orders", pa.table({"value": pa.array([b"x"]), "headers": headers}))


def test_state_of_another_type_completes_nothing() -> None:
    """Bytes of the right state are another state, which would abort a prepared transaction."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "kept")
    state = made.prepare_transaction()
    with pytest.raises(TypeError, match="state"):
        made.complete_transaction(state.encode())  # type: ignore[arg-type]
    assert made.complete_transaction(state)
    assert read_everything(shared).records["orders"] == [b"kept"]


@pytest.mark.parametrize("timeout", ["1", True, b"1", float("nan"), [1], 1j])
def test_timeout_that_is_no_number_is_refused(timeout: Any) -> None:
    """A NaN is over never, or always."""
    shared = world()
    reader, made, tx = consumer(shared), producer(shared), started(shared)
    tx.begin_transaction()
    calls: list[Callable[[], Any]] = [
        lambda: reader.poll(timeout),
        lambda: reader.consume(1, timeout),
        lambda: reader.committed([TopicPartition("orders", 0)], timeout),
        lambda: made.poll(timeout),
        lambda: made.flush(timeout),
        lambda: tx.commit_transaction(timeout),
    ]
    for call in calls:
        with pytest.raises((TypeError, ConfigError), match="timeout"):
            call()


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", 2**31])
def test_number_of_messages_that_is_none_is_refused(count: Any) -> None:
    """consume(1.0) and consume(-1) waited for ever."""
    reader = consumer(world())
    for call in (reader.consume, reader.consume_batch):
        if count != 2**31 or call == reader.consume:
            with pytest.raises((TypeError, ConfigError), match="num_"):
                call(count)
    assert reader.consume(0) == []
    assert reader.consume_batch(0).num_rows == 0


# --- Settings -------------------------------------------------------------------------------------

ROOT = {"txnlog.root": "/data"}


def test_none_in_settings_means_not_set() -> None:
    """`transactional.id: None` was the id "None", which all such producers fenced each other by."""
    given = {**ROOT, "path": None, "transactional.id": None, "linger.ms": None, "on_delivery": None}
    config = parse_config({**given, "storage.secret": None}, "producer")
    assert config.get("transactional.id") is None
    assert not config.is_set("linger.ms")
    assert config.get("linger.ms") == 5
    assert config.storage == {}
    assert parse_config({**ROOT, "group.id": None}, "consumer").get("group.id") is None
    assert AdminClient({**ROOT, "client.id": None})._config.get("client.id") == "txnlog"


@pytest.mark.parametrize("name", ["group.id", "group.instance.id", "client.id"])
@pytest.mark.parametrize(
    "wrong", [b"g", 1.0, True, "", " ", "\ud800", "x" * 32_768, "ä" * 16_384, ["g"], object()]
)
def test_id_that_is_no_text_of_kafka_is_refused(name: str, wrong: Any) -> None:
    """group.id=b"g" was the group named b'g', and a surrogate failed at the first commit."""
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")) as caught:
        parse_config({**ROOT, name: wrong}, "consumer")
    assert len(str(caught.value)) < 400
    parse_config({**ROOT, name: "ä" * 16_383}, "consumer")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("transaction.timeout.ms", 2**31),
        ("transaction.timeout.ms", 1.5),
        ("transaction.timeout.ms", "9" * 5_000),
        ("batch.size", 2**31),
        ("linger.ms", 2**63),
        ("num.partitions", 100_001),
        ("transaction.state.log.num.partitions", 2**31 - 1),
        ("buffer.memory", float("inf")),
        ("on_delivery", 5),
        (5, 5),
    ],
)
def test_number_beyond_kafkas_type_is_refused(name: Any, wrong: Any) -> None:
    """A member's time-out of 2**70 ms is a number that no reader of the group's row takes."""
    with pytest.raises(ConfigError):
        parse_config({**ROOT, name: wrong}, "producer")


def test_settings_that_are_no_dict_are_refused() -> None:
    """With what to give, and not with an AttributeError."""
    with pytest.raises(ConfigError, match="dict"):
        parse_config("txnlog.root=/data", "producer")  # type: ignore[arg-type]
