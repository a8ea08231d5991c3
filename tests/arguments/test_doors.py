"""Every public call rejects unreadable values before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint import Checkpoint
from spark_sink.listener import TxnLogListener
from spark_source.sql import read_committed
from tests.admin.worlds import admin
from tests.arguments.cold_reader import objects, read_everything
from tests.arguments.junk import Refusing
from tests.producer.worlds import group, started
from tests.world import process, world
from txnlog.admin import (
    AbortTransactionSpec,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupTopicPartitions,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConfigError,
    InvalidPartitionsError,
    OffsetMetadataTooLargeError,
    TxnLogError,
)
from txnlog.messages import ConsumerGroupMetadata, Message, TopicPartition
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.testing.faults import SharedMemory

NO_SPARK: Any = None
NO_INTEGERS = (3.0, 1.5, True, np.True_, float("nan"), float("inf"), "3", b"3", None, [3])
NO_OFFSETS = (2**63, -(2**63) - 1, -5)


def consumer(shared: SharedMemory, **config: object) -> Consumer:
    """A consumer of `orders` that is a member of its group."""
    given = {"group.id": "readers", **config}
    made = Consumer(given, cluster=process(shared), background=False)
    made.assign([TopicPartition("orders", 0, 0)])
    return made


def raise_errors_of(futures: Any) -> None:
    """Raise the errors of the futures of an operator's call."""
    for future in futures.values():
        future.result()


def refused(shared: SharedMemory, call: Callable[[], Any]) -> Exception:
    """The error of a call or its future; nothing was written, and everything is readable."""
    before = objects(shared)
    with pytest.raises((TxnLogError, TypeError)) as caught:
        raise_errors_of(call())
    assert objects(shared) == before
    read_everything(shared)
    return caught.value


# --- Clusters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": "soon"}, {"max.message.bytes": "x"}, {"deleted": "true"},
        {"partitions": "5"}, {"retention.m": "5"}, {5: "5"}, {"retention.ms": b"5"},
        {"retention.ms": None}, ["retention.ms"], "retention.ms", 5, {"retention.ms": "\ud800"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("exist_ok", [True, False])
def test_invalid_config_of_a_topic_is_refused_by_the_cluster(config: Any, exist_ok: bool) -> None:
    """It failed each housekeeping run, or each producer; or the topic was born deleted."""
    shared = world()
    for name in ("late", "orders"):
        cluster = process(shared)
        with pytest.raises((ConfigError, TypeError)):
            cluster.create_topic(name, config=config, exist_ok=exist_ok)
    assert process(shared).list_topics() == ["orders", "stock"]
    created = process(shared).create_topic("late", config={"Retention.MS ": 5}).config
    assert (created["partitions"], created["retention.ms"]) == ("4", "5")


@pytest.mark.parametrize(
    "options", [[1], 5, "fsync", {"fsync": 5}, {"fsync": True}, {"fsync": None}, {5: "true"}, {1}]
)
def test_storage_options_of_a_wrong_type_are_a_type_error(options: Any, tmp_path: Path) -> None:
    """The error came from the middle of the parser; a value may be a secret (R67)."""
    root = f"{tmp_path}/root"
    for call in (
        lambda: Cluster.open(root, options, create=True),
        lambda: Cluster.cached(root, options, create=True),
        lambda: read_committed(NO_SPARK, root, "t", storage_options=options),
        lambda: TxnLogListener(root, storage_options=options),
        lambda: Checkpoint(str(tmp_path), options),
    ):
        with pytest.raises(TypeError, match="(?i)storage option"):
            call()
    with pytest.raises(TypeError) as caught:
        Cluster.open(root, {"secret_access_key": b"hunter2"})  # type: ignore[dict-item]
    assert "hunter2" not in str(caught.value)
    assert not Path(root).exists()


# --- Offsets and metadata -------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [*NO_INTEGERS, *NO_OFFSETS])
def test_invalid_offset_is_not_committed(offset: Any) -> None:
    """One such offset in a group's row makes the offsets of all groups unreadable."""
    shared = world()
    made = consumer(shared)
    wrong = [TopicPartition("orders", 0, offset)]
    error = refused(shared, lambda: made.commit(offsets=wrong, asynchronous=False))
    assert "offset" in str(error)
    refused(shared, lambda: made.commit(offsets=wrong))
    refused(shared, lambda: made.commit(message=Message("orders", 0, offset, b"", b"", 0)))


@pytest.mark.parametrize("offset", [*NO_INTEGERS, *NO_OFFSETS])
@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_invalid_offset_is_not_sent_to_a_transaction(offset: Any, publish: str) -> None:
    """It would be decided with the transaction, which no process could ever publish."""
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    wrong = [TopicPartition("input", 0, offset)]
    refused(shared, lambda: made.send_offsets_to_transaction(wrong, group()))
    made.send_offsets_to_transaction([TopicPartition("input", np.int8(0), np.int64(3))], group())
    made.commit_transaction()
    assert read_everything(shared).groups["readers"] == {"input": {0: 3}}


@pytest.mark.parametrize("partition", [PARTITIONS_MAX, 2**31 - 1, 2**31, -2])
def test_partition_that_no_topic_has_is_refused_at_the_call(partition: int) -> None:
    """commit() asked for a bug report, and only the commit of the transaction failed."""
    shared = world()
    sending = started(shared)
    sending.begin_transaction()
    made = consumer(shared, **{"group.id": "others"})
    wrong = TopicPartition("orders", partition, 1)
    groups = [ConsumerGroupTopicPartitions("others", [wrong])]
    for call in (
        lambda: made.commit(offsets=[wrong], asynchronous=False),
        lambda: made.commit(offsets=[wrong]),
        lambda: made.commit(message=Message("orders", partition, 1, b"", b"", 0)),
        lambda: made.assign([wrong]),
        lambda: made.seek(wrong),
        lambda: sending.send_offsets_to_transaction([wrong], group()),
        lambda: admin(process(shared)).alter_consumer_group_offsets(groups),
        lambda: admin(process(shared)).delete_records([wrong]),
    ):
        assert "partition" in str(refused(shared, call))
    largest = [TopicPartition("input", PARTITIONS_MAX - 1, 3)]
    sending.send_offsets_to_transaction(largest, group())
    sending.commit_transaction()
    assert read_everything(shared).groups["readers"] == {"input": {PARTITIONS_MAX - 1: 3}}


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
    """Every consumer of the group reads the row that names it."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    positions = [TopicPartition("input", 0, 3)]
    refused(shared, lambda: made.send_offsets_to_transaction(positions, wrong))


@pytest.mark.parametrize("metadata", [5, 5.0, b"x", True, "\ud800", "x" * 4_097, ["x"]])
def test_offset_metadata_of_a_wrong_type_or_size_is_refused(metadata: Any) -> None:
    """metadata=5 was written, and no reader could decode the row."""
    shared = world()
    made = consumer(shared)
    wrong = [TopicPartition("orders", 0, 1, metadata)]
    refused(shared, lambda: made.commit(offsets=wrong, asynchronous=False))


def test_metadata_is_limited_in_bytes_by_a_setting() -> None:
    """Kafka's offset.metadata.max.bytes: 4096, in UTF-8; an empty string means no metadata."""
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
    """A message of a failed delivery has no offset; it was treated as offset 0."""
    shared = world()
    made = consumer(shared)
    failed = Message("orders", 0, None, b"", b"", 0)
    assert "no offset" in str(refused(shared, lambda: made.commit(message=failed)))


@pytest.mark.parametrize(
    "where",
    [("no/topic", 0), ("", 0), (b"orders", 0), (None, 0), ("orders", -1), ("orders", 2**31)],
)
def test_invalid_partition_is_not_committed(where: tuple[Any, Any]) -> None:
    """Kafka's rule for topics; partitions are 32 bits."""
    shared = world()
    made = consumer(shared)
    refused(shared, lambda: made.commit(offsets=[TopicPartition(*where, 1)], asynchronous=False))


def test_value_without_a_short_repr_is_refused() -> None:
    """Its repr raises, or is very long: the error message stays short."""

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    shared = world()
    made = consumer(shared)
    for value in (Silent(), 10**5_000, "x" * 10**6):
        wrong = [TopicPartition("orders", 0, value)]  # type: ignore[arg-type]
        error = refused(shared, lambda wrong=wrong: made.commit(offsets=wrong))
        assert len(str(error)) < 400


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
def test_invalid_offset_of_an_operator_is_refused(offset: Any) -> None:
    """delete_records(1.5) wrote a `txn` action that no Delta reader can read."""
    shared = world()
    ops = admin(process(shared))
    asked = TopicPartition("orders", 0, offset)
    refused(shared, lambda: ops.delete_records([asked]))
    request = ConsumerGroupTopicPartitions("readers", [asked])
    refused(shared, lambda: ops.alter_consumer_group_offsets([request]))


@pytest.mark.parametrize("offset", NO_INTEGERS)
def test_invalid_position_of_a_reader_is_refused_at_the_call(offset: Any) -> None:
    """seek, assign and times: a wrong type must not surface only at the next poll."""
    shared = world()
    made = consumer(shared)
    asked = TopicPartition("orders", 0, offset)
    refused(shared, lambda: made.seek(asked))
    refused(shared, lambda: made.assign([asked]))
    refused(shared, lambda: made.offsets_for_times([asked]))
    with pytest.raises(ConfigError, match="not a valid position"):
        made.seek(TopicPartition("orders", 0, -7))
    with pytest.raises(ConfigError, match="not a valid position"):
        made.assign([TopicPartition("orders", 0, -7)])


# --- Topics and partitions ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [True, np.float64(3), 3.0, "3", None, 2**31, -2, 0])
def test_invalid_number_of_partitions_is_refused(count: Any) -> None:
    """NewTopic(partitions=True) created a table that no reader could open."""
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
    """A string is a sequence of letters: delete_topics("ab") would delete topics a and b."""
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


@pytest.mark.parametrize("names", [Refusing(), 3, None, "orders"])
@pytest.mark.parametrize("name", ["topics", "look_up", "survey_topics"])
def test_names_that_are_no_list_are_refused_by_the_cluster(name: str, names: Any) -> None:
    """Also those whose iteration fails: its error would tell nothing of the argument."""
    if (name, names) == ("survey_topics", None):
        assert set(process(world()).survey_topics(names=names)) == {"orders", "stock"}
        return
    with pytest.raises(TypeError, match="names must be a list"):
        getattr(process(world()), name)(names=names)


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
    # SET needs a value; DELETE resets to the default.
    entry = ConfigEntry("retention.ms", None)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
    refused(shared, lambda: ops.incremental_alter_configs([resource]))
    ops.create_topics([NewTopic("n", 1, config={"retention.ms": None, "segment.bytes": 9})])
    assert process(shared).topic("n").config["segment.bytes"] == "9"


def test_spec_or_id_of_another_type_is_refused() -> None:
    """abort_transaction(5) raised an AttributeError from within txnlog."""
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
