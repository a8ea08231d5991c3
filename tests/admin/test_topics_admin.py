"""Topics and configurations through the admin client, with faults at every storage call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.admin.worlds import admin
from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts
from tests.world import (
    PLAIN,
    SETTINGS,
    both,
    check_settled,
    eager,
    faults,
    outcome_of,
    owned,
    process,
    staged,
    visible,
    world,
)
from txnlog.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    IsolationLevel,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import OFFSET_END, TopicPartition
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_cluster


def resource(name: str, *entries: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)


def alter(cluster: Cluster, *entries: ConfigEntry) -> None:
    wanted = resource("orders", *entries)
    admin(cluster).incremental_alter_configs([wanted])[wanted].result()


def values(cluster: Cluster) -> dict[str, str | None]:
    asked = resource("orders")
    entries = admin(cluster).describe_configs([asked])[asked].result()
    return {name: entry.value for name, entry in entries.items() if not entry.is_default}


def committed(shared: SharedMemory, *names: str) -> Cluster:
    """Both topics have one committed batch of two records per name, in partition 1 of `orders`."""
    cluster = process(shared)
    row = owned(cluster, "first")
    for name in names:
        row = cluster.coordinator.commit(row, both(cluster, name))
    return cluster


# --- Topics ---------------------------------------------------------------------------------------


def test_admin_futures_separate_failures_from_successes() -> None:
    """As in confluent-kafka: a future for each item, with its own error (R64)."""
    cluster = process(world())
    found = admin(cluster).create_topics(
        [
            NewTopic("a", 3),
            NewTopic("orders"),
            NewTopic("bad/name"),
            NewTopic("b", 0),
            NewTopic("c"),
        ]
    )
    assert found["a"].result() is None
    for name, error in [
        ("orders", TopicAlreadyExistsError),
        ("bad/name", InvalidTopicError),
        ("b", InvalidPartitionsError),
    ]:
        with pytest.raises(error):
            found[name].result()
    topics = admin(cluster).list_topics().topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {
        "a": 3, "c": 4, "orders": 2, "stock": 2,
    }  # fmt: skip
    gone = admin(cluster).delete_topics(["a", "nothing"])
    assert gone["a"].result() is None
    with pytest.raises(UnknownTopicOrPartitionError):
        gone["nothing"].result()
    with pytest.raises(UnknownTopicOrPartitionError):
        admin(cluster).describe_topics(["a"])["a"].result()


def test_admin_create_topics_creates_the_cluster_and_validate_only_creates_nothing() -> None:
    """On an empty root an operator first creates a topic."""
    store = SharedMemory().open()
    client = AdminClient({"txnlog.root": "memory://x"})
    with pytest.raises(ConfigError):
        client.cluster  # noqa: B018
    cluster = Cluster.open(store, create=True, shards=2, offsets_shards=1, settings=PLAIN)
    found = admin(cluster).create_topics([NewTopic("a", 2)], validate_only=True)
    assert found["a"].result() is None
    assert cluster.list_topics() == []
    again = admin(cluster).create_topics([NewTopic("a", 0)], validate_only=True)
    with pytest.raises(InvalidPartitionsError):
        again["a"].result()


def test_topic_created_again_has_the_partitions_that_were_asked_for_or_is_refused() -> None:
    """It silently had as many as before. Without a number, or created by a producer, it may."""
    cluster = process(world())
    client = admin(cluster)
    client.create_topics([NewTopic("wide", 6)])["wide"].result()
    client.delete_topics(["wide"])["wide"].result()
    for only in (True, False):
        with pytest.raises(InvalidPartitionsError, match="had 6 partitions"):
            client.create_topics([NewTopic("wide", 5)], validate_only=only)["wide"].result()
    assert client.create_topics([NewTopic("wide")], validate_only=True)["wide"].result() is None
    for create, count in (
        (lambda: client.create_topics([NewTopic("wide")])["wide"].result(), 6),
        (lambda: cluster.find_or_create_topic("wide", auto_create=True, partitions=2), 6),
        (lambda: client.create_topics([NewTopic("wide", 7)])["wide"].result(), 7),
    ):
        create()
        assert cluster.topic("wide").partitions == count
        client.delete_topics(["wide"])["wide"].result()


def test_describe_topics_returns_the_offsets_of_each_partition() -> None:
    """LSO and end differ while an eager transaction is open (R12)."""
    shared = world()
    cluster = committed(shared, "x")
    partition = staged(cluster, "orders", "x").partition
    eager(cluster, owned(cluster, "second", tid="other"), "y")
    described = admin(cluster).describe_topics(["orders"])["orders"].result()
    stands = {
        p.id: (p.log_start_offset, p.last_stable_offset, p.high_watermark)
        for p in described.partitions
    }
    assert stands[partition] == (0, 2, 2)
    assert stands[1 - partition] == (0, 0, 2)
    assert described.topic_id == cluster.topic("orders").topic_id


def test_create_partitions_only_adds_and_keeps_existing_data() -> None:
    """The number of partitions never decreases; sequences, ends and data do not change."""
    shared = world()
    cluster = committed(shared, "x")
    client = admin(cluster)
    with pytest.raises(InvalidPartitionsError, match="2 partitions"):
        client.create_partitions([NewPartitions("orders", 2)])["orders"].result()
    assert client.create_partitions([NewPartitions("orders", 5)])["orders"].result() is None
    other = process(shared)
    assert other.topic("orders").partitions == 5
    assert visible(other, "x") == (True, True)
    with pytest.raises(InvalidPartitionsError):
        client.create_partitions([NewPartitions("orders", 4)])["orders"].result()
    with pytest.raises(UnknownTopicOrPartitionError):
        client.create_partitions([NewPartitions("nothing", 4)])["nothing"].result()
    row = owned(other, "second")
    other.coordinator.commit(row, both(other, "y"))
    check_settled(shared)


# --- Configurations -------------------------------------------------------------------------------


def test_configs_are_table_properties_with_kafkas_defaults() -> None:
    """Values that are set are in the table, for every reader; the others have Kafka's default."""
    shared = world()
    alter(
        process(shared),
        ConfigEntry("Retention.MS", "1000"),
        ConfigEntry("cleanup.policy", "compact, delete"),
    )
    other = process(shared)
    assert values(other) == {"retention.ms": "1000", "cleanup.policy": "compact,delete"}
    properties = other.topic("orders").log.metadata
    assert properties is not None
    assert properties.configuration["txnlog.retention.ms"] == "1000"
    asked = resource("stock")
    entries = admin(other).describe_configs([asked])[asked].result()
    assert {name: entry.value for name, entry in entries.items()} == {
        "cleanup.policy": "delete", "delete.retention.ms": "86400000",
        "max.compaction.lag.ms": "9223372036854775807", "max.message.bytes": "1048588",
        "min.cleanable.dirty.ratio": "0.5", "min.compaction.lag.ms": "0", "retention.bytes": "-1",
        "retention.ms": "604800000", "segment.bytes": "134217728",
    }  # fmt: skip
    assert all(entry.is_default and entry.doc for entry in entries.values())


def test_deleted_configs_return_to_their_defaults() -> None:
    """DELETE of one and SET of another are one change."""
    cluster = process(world())
    alter(cluster, ConfigEntry("retention.ms", "1000"))
    remove = ConfigEntry("retention.ms", None, AlterConfigOpType.DELETE)
    alter(cluster, remove, ConfigEntry("max.message.bytes", "2000"))
    assert values(cluster) == {"max.message.bytes": "2000"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention.m", "1", "Did you mean retention.ms"),
        ("retention.ms", "-2", "0 or more"),
        ("retention.ms", "soon", "whole number"),
        ("max.message.bytes", "0", "1 or more"),
        ("cleanup.policy", "burn", "delete, compact"),
        ("num.partitions", "9", "create_partitions"),
        ("partitions", "9", "create_partitions"),
        ("deleted", "true", "no topic configuration"),
    ],
)
def test_configs_unknown_or_malformed_change_nothing(name: str, value: str, said: str) -> None:
    """A stored invalid value would fail every producer and job later, far from its writer."""
    cluster = process(world())
    before = cluster.topic("orders").log.version
    with pytest.raises(ConfigError, match=said):
        alter(cluster, ConfigEntry("retention.bytes", "5"), ConfigEntry(name, value))
    config = {"retention.bytes": "5", name: value}
    found = admin(cluster).create_topics([NewTopic("t", 1, config=config)])
    with pytest.raises(ConfigError, match=said):
        found["t"].result()
    assert cluster.topic("orders").log.version == before
    assert "t" not in cluster.list_topics()


def test_configs_of_brokers_have_no_effect_and_are_not_stored() -> None:
    """A script written for Kafka still works; no configuration pretends to replicate."""
    cluster = process(world())
    alter(cluster, ConfigEntry("min.insync.replicas", "2"), ConfigEntry("segment.ms", "1"))
    assert values(cluster) == {}


def test_configs_keep_properties_of_other_tools() -> None:
    """A change must not remove table properties of Delta or other tools."""
    shared = world()
    log = process(shared).topic("orders")
    assert log.log.metadata is not None
    log.log.metadata.configuration["delta.appendOnly"] = "false"
    log.alter(lambda config: {**config, "retention.ms": "5"})
    found = process(shared).topic("orders").log.metadata
    assert found is not None
    assert found.configuration["delta.appendOnly"] == "false"
    assert found.configuration["txnlog.partitions"] == "2"


# --- Records and offsets --------------------------------------------------------------------------


def test_delete_records_moves_the_log_start_for_every_reader() -> None:
    """Readers below get OffsetOutOfRange, also in a process that opens from a checkpoint (R14)."""
    shared = world(settings=SETTINGS)
    cluster = process(shared, settings=SETTINGS)
    row = owned(cluster, "first")
    for count in range(1, 7):
        row = cluster.coordinator.commit(row, [staged(cluster, "orders", "x" * count)])
    partition = staged(cluster, "orders", "x").partition
    asked = TopicPartition("orders", partition, 1)
    client = admin(cluster)
    assert client.delete_records([asked])[asked].result().low_watermark == 1
    lower = TopicPartition("orders", partition, 0)
    assert client.delete_records([lower])[lower].result().low_watermark == 1
    for number in range(8):
        alter(cluster, ConfigEntry("retention.ms", str(number)))
    view = process(shared, settings=SETTINGS).topic("orders").view
    assert view.log_start_offset(partition) == 1
    reader = Consumer({"auto.offset.reset": "none"}, cluster=cluster, background=False)
    reader.assign([TopicPartition("orders", partition, 0)])
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(0)
    check_cluster(cluster)


def test_delete_records_to_the_end_keeps_the_end() -> None:
    """Offsets continue at the end: none is ever assigned twice."""
    shared = world()
    cluster = committed(shared, "x", "xx")
    partition = staged(cluster, "orders", "x").partition
    asked = TopicPartition("orders", partition, OFFSET_END)
    assert admin(cluster).delete_records([asked])[asked].result().low_watermark == 4
    view = process(shared).topic("orders").view
    assert (view.log_start_offset(partition), view.high_watermark(partition)) == (4, 4)
    cluster.coordinator.commit(owned(cluster, "again"), [staged(cluster, "orders", "xxx")])
    view = process(shared).topic("orders").view
    assert (view.log_start_offset(partition), view.high_watermark(partition)) == (4, 6)


@pytest.mark.parametrize("offset", [3, -1001, -2])
def test_delete_records_outside_the_log_is_refused(offset: int) -> None:
    """A mistyped offset must not delete records, nor move a log start above the end."""
    cluster = committed(world(), "x")
    partition = staged(cluster, "orders", "x").partition
    wrong, unknown = TopicPartition("orders", partition, offset), TopicPartition("orders", 9, 0)
    found = admin(cluster).delete_records([wrong, unknown])
    with pytest.raises(OffsetOutOfRangeError):
        found[wrong].result()
    with pytest.raises(UnknownTopicOrPartitionError):
        found[unknown].result()
    assert cluster.topic("orders").view.log_start_offset(partition) == 0


def test_list_offsets_under_both_isolation_levels() -> None:
    """Latest is the LSO for read_committed, the high watermark for others (R12, R15, R18)."""
    cluster = process(world())
    row = eager(cluster, owned(cluster, "first"), "x")
    partition = staged(cluster, "orders", "x").partition
    asked = TopicPartition("orders", partition)
    client = admin(cluster)

    def latest(level: IsolationLevel) -> int:
        specs = {asked: OffsetSpec.latest()}
        return client.list_offsets(specs, isolation_level=level)[asked].result().offset

    assert latest(IsolationLevel.READ_COMMITTED) == 0
    assert latest(IsolationLevel.READ_UNCOMMITTED) == 2
    cluster.coordinator.commit(row)
    assert latest(IsolationLevel.READ_COMMITTED) == 2
    for spec, offset in [
        (OffsetSpec.earliest(), 0),
        # The timestamps in the header are microseconds 1 to 2.
        (OffsetSpec.for_timestamp(0), 0),
        (OffsetSpec.for_timestamp(1), -1),
    ]:
        found = client.list_offsets({asked: spec})[asked].result()
        assert found.offset == offset, spec
    missing = TopicPartition("orders", 7)
    with pytest.raises(UnknownTopicOrPartitionError):
        client.list_offsets({missing: OffsetSpec.earliest()})[missing].result()


# --- Faults ---------------------------------------------------------------------------------------


def _grow(cluster: Cluster) -> None:
    admin(cluster).create_partitions([NewPartitions("orders", 5)])["orders"].result()


def _configure(cluster: Cluster) -> None:
    alter(cluster, ConfigEntry("retention.ms", "1000"))


def _delete_records(cluster: Cluster) -> None:
    asked = TopicPartition("orders", staged(cluster, "orders", "x").partition, 1)
    admin(cluster).delete_records([asked])[asked].result()


def _effect(cluster: Cluster) -> tuple[object, ...]:
    log = cluster.topic("orders")
    starts = sum(log.view.log_start_offset(p) for p in range(log.partitions))
    return log.partitions, log.config.get("retention.ms"), starts


BEFORE = (2, None, 0)


@pytest.mark.parametrize(
    ("act", "after"),
    [(_grow, (5, None, 0)), (_configure, (2, "1000", 0)), (_delete_records, (2, None, 1))],
)
def test_admin_write_with_a_fault_at_any_call_happens_once_or_not_at_all(
    act: Callable[[Cluster], None], after: tuple[object, ...], some: Some[int]
) -> None:
    """A lost reply is not a failure, and a repeated call after an error succeeds (R63)."""

    def begin() -> Trial:
        shared = world()
        committed(shared, "x")
        cluster = process(shared)
        return Trial(shared, cluster, partial(act, cluster))

    for trial in cuts(begin, some):
        fresh = process(trial.shared)
        assert trial.outcome in ("done", "crashed", *RETRIABLE)
        assert _effect(fresh) in (BEFORE, after)
        assert trial.outcome != "done" or _effect(fresh) == after
        again = trial.again()
        assert again in ("done", "crashed") or (act, again) == (_grow, "InvalidPartitionsError")
        assert trial.outcome == "crashed" or _effect(process(trial.shared)) == after
        assert visible(fresh, "x") == (True, True)


def test_admin_without_permission_raises_an_error_with_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TopicAuthorization names the topic; nothing becomes visible (R68)."""
    shared = world()
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    assert outcome_of(lambda: _configure(cluster)) == "TopicAuthorizationError"
    assert _effect(process(shared)) == BEFORE


def test_admin_secrets_of_the_store_are_never_shown() -> None:
    """storage.* values are credentials (R67)."""
    secret = "hunter2"
    client = AdminClient({"txnlog.root": "s3://bucket/x", "storage.aws_secret_access_key": secret})
    assert secret not in repr(client)
    assert ObjectStore.__name__ not in repr(client)
