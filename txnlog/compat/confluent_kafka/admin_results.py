"""What the calls of the AdminClient return, with confluent-kafka's fields.

Where confluent-kafka has brokers, there is one node that stands for the root: it leads every
partition, holds its only replica, and coordinates every group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from txnlog import admin as native
from txnlog.admin import AlterConfigOpType, ConsumerGroupState, MemberAssignment
from txnlog.compat.confluent_kafka.model import ConsumerGroupType, Node, TopicPartitionInfo


class ConfigSource(Enum):
    """Where the value of a configuration comes from: its topic, or the default."""

    UNKNOWN_CONFIG = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DEFAULT_CONFIG = 5


@dataclass(slots=True)
class ConfigEntry:
    """A configuration of a topic, or a change of one: None sets the value."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN_CONFIG
    is_read_only: bool = False
    is_default: bool = False
    is_sensitive: bool = False
    is_synonym: bool = False
    synonyms: Mapping[str, ConfigEntry] = field(default_factory=dict)
    incremental_operation: AlterConfigOpType | None = None

    def change(self) -> native.ConfigEntry:
        """As txnlog's AdminClient takes it."""
        operation = self.incremental_operation or AlterConfigOpType.SET
        return native.ConfigEntry(self.name, self.value, operation)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: Sequence[TopicPartitionInfo]
    authorized_operations: None = None


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """An offset; -1 if there is no record at or after the timestamp."""

    offset: int
    timestamp: int = -1
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupListing:
    """A group."""

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState
    type: ConsumerGroupType = ConsumerGroupType.CLASSIC


@dataclass(frozen=True, slots=True)
class ListConsumerGroupsResult:
    """The groups, and the errors of unreadable ones."""

    valid: Sequence[ConsumerGroupListing]
    errors: Sequence[Exception] = ()


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group; a static one is not told apart."""

    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment
    group_instance_id: str | None = None
    target_assignment: MemberAssignment | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A group with its members; the strategy by which they divide partitions is not recorded."""

    group_id: str
    is_simple_consumer_group: bool
    members: Sequence[MemberDescription]
    partition_assignor: str
    state: ConsumerGroupState
    coordinator: Node
    authorized_operations: None = None
    type: ConsumerGroupType = ConsumerGroupType.CLASSIC


@dataclass(frozen=True, slots=True)
class DescribeClusterResult:
    """The root: its cluster id, and the node that stands for it."""

    cluster_id: str
    controller: Node
    nodes: Sequence[Node]
    authorized_operations: None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group of `list_groups`."""

    id: str
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group of `list_groups`."""

    id: str
    state: str
    protocol_type: str
    members: Sequence[GroupMember] = field(default=())
    protocol: str = ""
    error: None = None

    def __str__(self) -> str:
        return self.id


def cluster(found: native.ClusterDescription) -> DescribeClusterResult:
    """A cluster with its node."""
    node = Node(-1, found.root, 0)
    return DescribeClusterResult(found.cluster_id, node, (node,))


def configs(found: Mapping[str, native.ConfigEntry]) -> dict[str, ConfigEntry]:
    """Configurations by name."""
    sources = {True: ConfigSource.DEFAULT_CONFIG, False: ConfigSource.DYNAMIC_TOPIC_CONFIG}
    return {
        name: ConfigEntry(
            name, entry.value, source=sources[entry.is_default], is_default=entry.is_default
        )
        for name, entry in found.items()
    }


def topic(found: native.TopicDescription, node: Node) -> TopicDescription:
    """A topic."""
    partitions = [TopicPartitionInfo(p.id, node, (node,), (node,)) for p in found.partitions]
    return TopicDescription(found.name, found.topic_id, False, partitions)


def listing(found: native.ListConsumerGroupsResult) -> ListConsumerGroupsResult:
    """Groups; errors are left as they are."""
    valid = [
        ConsumerGroupListing(each.group_id, each.is_simple_consumer_group, each.state)
        for each in found.valid
    ]
    return ListConsumerGroupsResult(valid, found.errors)


def group(found: native.ConsumerGroupDescription, node: Node) -> ConsumerGroupDescription:
    """A group."""
    members = [
        MemberDescription(each.member_id, each.client_id, each.host, each.assignment)
        for each in found.members
    ]
    return ConsumerGroupDescription(
        found.group_id, found.is_simple_consumer_group, members, "", found.state, node
    )


def group_metadata(found: native.ConsumerGroupDescription) -> GroupMetadata:
    """A group as `list_groups` gives it."""
    members = [GroupMember(each.member_id, each.client_id, each.host) for each in found.members]
    return GroupMetadata(found.group_id, found.state.value, "consumer", members)
