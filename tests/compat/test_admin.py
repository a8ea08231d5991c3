"""confluent_kafka.admin: fields of what calls return, and calls that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnlog.compat.confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from txnlog.compat.confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with a topic t of one partition."""
    made = str(tmp_path / "root")
    AdminClient({"bootstrap.servers": made}).create_topics([NewTopic("t", 1)])["t"].result()
    return made


@pytest.fixture
def admin(root: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": root})


def put(root: str, *values: str) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for value in values:
            producer.produce("t", value)


def reader_of(root: str) -> Consumer:
    return Consumer({"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"})


def test_admin_client_describes_the_cluster_and_its_groups(root: str, admin: AdminClient) -> None:
    put(root, "a", "b")
    cluster = admin.describe_cluster(request_timeout=10).result()
    assert cluster.cluster_id == admin.list_topics(timeout=5).cluster_id
    with Producer({"bootstrap.servers": root}) as producer, reader_of(root) as reader:
        ids = {client.cluster_id() for client in (admin, producer, reader)}
    assert ids == {cluster.cluster_id}
    assert [node.host for node in cluster.nodes] == [f"file://{root}"]
    reader = reader_of(root)
    reader.subscribe(["t"])
    assert reader.poll(60) is not None
    (group,) = admin.list_groups(timeout=5)
    assert (group.id, group.state, group.protocol_type) == ("g", "Stable", "consumer")
    assert [member.id for member in group.members] == [reader.memberid()]
    assert admin.list_groups("other") == []
    reader.close()
    assert [group.state for group in admin.list_groups("g")] == ["Empty"]
    asked = [ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0)])]
    offsets = admin.list_consumer_group_offsets(asked)["g"].result().topic_partitions
    assert offsets is not None
    assert offsets[0].offset == 1


def test_admin_client_changes_topics(root: str, admin: AdminClient) -> None:
    put(root, "a", "b")
    topic = ConfigResource("topic", "t", set_config={"retention.ms": "5000"})
    admin.incremental_alter_configs([topic])[topic].result()
    asked = ConfigResource(ResourceType.TOPIC, "t")
    assert admin.describe_configs([asked])[topic].result()["retention.ms"].value == "5000"
    assert len(admin.describe_topics(TopicCollection(["t"]))["t"].result().partitions) == 1
    ends = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()})
    assert ends[TopicPartition("t", 0)].result().offset == 2
    assert admin.delete_records([TopicPartition("t", 0, 1)])
    failed = admin.create_topics([NewTopic("t", 1)], request_timeout=5)["t"]
    with pytest.raises(KafkaException) as caught:
        failed.result()
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert admin.list_topics("no").topics["no"].error.code() == 3  # type: ignore[union-attr]


def test_one_node_stands_for_leaders_replicas_and_coordinators(
    admin: AdminClient, root: str
) -> None:
    """Programs that print them had an AttributeError."""
    (node,) = admin.describe_cluster().result().nodes
    found = admin.describe_topics(TopicCollection(["t"]))["t"].result()
    (partition,) = found.partitions
    assert (partition.id, partition.leader, len(partition.replicas)) == (0, node, 1)
    assert (found.is_internal, partition.isr) == (False, partition.replicas)
    with reader_of(root) as reader:
        reader.subscribe(["t"])
        reader.poll(0)
        group = admin.describe_consumer_groups(["g"])["g"].result()
        assert (group.coordinator, group.type) == (node, ConsumerGroupType.CLASSIC)
        assert group.members[0].assignment is not None
        assert group.members[0].group_instance_id is None
    offset = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()})
    assert offset[TopicPartition("t", 0)].result().timestamp == -1


def test_groups_are_listed_by_type(admin: AdminClient, root: str) -> None:
    with reader_of(root) as reader:
        reader.commit(offsets=[TopicPartition("t", 0, 0)], asynchronous=False)
    for types, names in ((), ["g"]), ({ConsumerGroupType.CONSUMER}, []):
        found = admin.list_consumer_groups(types=types).result()
        assert [each.group_id for each in found.valid] == names


def test_alter_configs_resets_what_it_is_not_given(admin: AdminClient) -> None:
    """As in Kafka, unlike incremental_alter_configs."""
    change = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource("topic", "t", incremental_configs=[change])
    admin.incremental_alter_configs([topic])[topic].result()
    assert (
        admin.alter_configs([ConfigResource("topic", "t", {"segment.bytes": "1000000"})])[
            topic
        ].result()
        is None
    )
    found = admin.describe_configs([topic])[topic].result()
    changed = [name for name, entry in found.items() if not entry.is_default]
    assert changed == ["segment.bytes"]
    assert found["segment.bytes"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    missing = ConfigResource("topic", "no", {"segment.bytes": "1000000"})
    with pytest.raises(KafkaException) as caught:
        admin.alter_configs([missing])[missing].result()
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_acls_users_and_elections_are_refused(admin: AdminClient) -> None:
    """By futures, as by a broker without an authorizer."""
    acl = (
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    binding, chosen = AclBinding(*acl), AclBindingFilter(*acl)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 10_000)
    ann = UserScramCredentialUpsertion("ann", info, b"secret")
    bob = UserScramCredentialDeletion("bob", ScramMechanism.SCRAM_SHA_512)
    altered = admin.alter_user_scram_credentials([ann, bob])
    assert sorted(altered) == ["ann", "bob"]
    for future in (
        admin.create_acls([binding])[binding],
        admin.describe_acls(chosen),
        admin.delete_acls([chosen])[chosen],
        admin.describe_user_scram_credentials(),
        admin.describe_user_scram_credentials(["ann"])["ann"],
        altered["ann"],
        admin.elect_leaders(ElectionType.PREFERRED),
    ):
        with pytest.raises(KafkaException, match="permissions are those of the store") as caught:
            future.result()
        assert caught.value.args[0].code() == KafkaError.SECURITY_DISABLED
