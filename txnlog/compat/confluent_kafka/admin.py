"""confluent_kafka.admin: an AdminClient whose futures raise KafkaException."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from txnlog import admin as native
from txnlog.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    DeletedRecords,
    IsolationLevel,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)
from txnlog.compat.confluent_kafka.client_config import client_config
from txnlog.compat.confluent_kafka.error import kafka_exception, translated
from txnlog.compat.confluent_kafka.metadata import cluster_metadata
from txnlog.compat.confluent_kafka.model import Node, TopicCollection
from txnlog.errors import TxnLogError
from txnlog.messages import ClusterMetadata, TopicPartition

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConsumerGroupDescription",
    "ConsumerGroupListing",
    "DeletedRecords",
    "DescribeClusterResult",
    "GroupMember",
    "GroupMetadata",
    "ListConsumerGroupsResult",
    "ListOffsetsResultInfo",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "ResourceType",
    "TopicDescription",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Futures = dict[K, "Future[V]"]


class ConfigSource(Enum):
    """Where the value of a configuration comes from."""

    DYNAMIC_TOPIC_CONFIG = 1
    DEFAULT_CONFIG = 5


class ConfigResource:
    """A topic by name, with the configurations to set: `set_config`, or `incremental_configs`."""

    Type = ResourceType

    def __init__(
        self,
        restype: ResourceType | str | int,
        name: str,
        set_config: Mapping[str, str] | None = None,
        described_configs: object = None,
        error: object = None,
        incremental_configs: Sequence[ConfigEntry] | None = None,
    ) -> None:
        if isinstance(restype, str):
            restype = ResourceType[restype.upper()]
        self.restype = ResourceType(restype) if isinstance(restype, int) else restype
        self.name = name
        self.set_config_dict = dict(set_config or {})
        self.incremental_configs = list(incremental_configs or ())
        self.configs = described_configs
        self.error = error

    def set_config(self, name: str, value: str, overwrite: bool = True) -> None:
        """Set a configuration."""
        if overwrite or name not in self.set_config_dict:
            self.set_config_dict[name] = value

    def add_incremental_config(self, config_entry: ConfigEntry) -> None:
        """Add a change."""
        self.incremental_configs.append(config_entry)

    def __hash__(self) -> int:
        return hash((self.restype, self.name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfigResource):
            return NotImplemented
        return (self.restype, self.name) == (other.restype, other.name)

    def __repr__(self) -> str:
        return f"ConfigResource({self.restype.name}, {self.name})"


@dataclass(frozen=True, slots=True)
class DescribeClusterResult:
    """The root: its cluster id, and one node that stands for it, since there are no brokers."""

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


class AdminClient:
    """txnlog.admin.AdminClient with confluent-kafka's arguments and errors.

    Time-outs and the broker to ask have no effect: the calls do their work at once, by themselves.
    Users, ACLs, replicas and leaders do not exist here.
    """

    def __init__(self, *given: Mapping[str, Any], **named: Any) -> None:
        with translated():
            self._client = native.AdminClient(client_config(given, named))

    def create_topics(
        self, new_topics: Sequence[NewTopic], validate_only: bool = False, **ignored: Any
    ) -> Futures[str, None]:
        """Create topics, and the cluster if there is none."""
        return _each(lambda: self._client.create_topics(new_topics, validate_only=validate_only))

    def delete_topics(self, topics: Iterable[str], **ignored: Any) -> Futures[str, None]:
        """Delete topics."""
        return _each(lambda: self._client.delete_topics(topics))

    def create_partitions(
        self, new_partitions: Sequence[NewPartitions], **ignored: Any
    ) -> Futures[str, None]:
        """Add partitions to topics."""
        return _each(lambda: self._client.create_partitions(new_partitions))

    def list_topics(
        self, topic: str | None = None, timeout: float = -1, **ignored: Any
    ) -> ClusterMetadata:
        """The topics of the root, or one of them."""
        with translated():
            return cluster_metadata(self._client.list_topics(topic, timeout))

    def describe_topics(
        self, topics: TopicCollection, **ignored: Any
    ) -> Futures[str, TopicDescription]:
        """Topics with their partitions."""
        return _each(lambda: self._client.describe_topics(topics.topic_names))

    def describe_cluster(self, **ignored: Any) -> Future[DescribeClusterResult]:
        """The cluster id of the root."""

        def described(found: native.ClusterDescription) -> DescribeClusterResult:
            node = Node(-1, found.root, 0)
            return DescribeClusterResult(found.cluster_id, node, (node,))

        with translated():
            return _one(self._client.describe_cluster(), described)

    def cluster_id(self, timeout: float = -1) -> str:
        """The id of the cluster at the root."""
        return self.describe_cluster().result().cluster_id

    def describe_configs(
        self, resources: Iterable[ConfigResource], **ignored: Any
    ) -> Futures[ConfigResource, dict[str, ConfigEntry]]:
        """Every configuration of topics."""
        return _of_resources(resources, self._client.describe_configs)

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource], **ignored: Any
    ) -> Futures[ConfigResource, None]:
        """Change the given configurations."""
        return _of_resources(resources, self._client.incremental_alter_configs)

    def delete_records(
        self, topic_partition_offsets: Sequence[TopicPartition], **ignored: Any
    ) -> Futures[TopicPartition, DeletedRecords]:
        """Delete the records before each offset."""
        return _each(lambda: self._client.delete_records(topic_partition_offsets))

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        **ignored: Any,
    ) -> Futures[TopicPartition, ListOffsetsResultInfo]:
        """Earliest, latest or by timestamp."""
        return _each(
            lambda: self._client.list_offsets(
                topic_partition_offsets, isolation_level=isolation_level
            )
        )

    def list_consumer_groups(
        self, states: Collection[ConsumerGroupState] = (), **ignored: Any
    ) -> Future[ListConsumerGroupsResult]:
        """Groups with offsets or members."""
        with translated():
            return _one(self._client.list_consumer_groups(states=states))

    def list_groups(
        self, group: str | None = None, timeout: float = -1, **ignored: Any
    ) -> list[GroupMetadata]:
        """Groups with their members, or one of them."""
        with translated():
            found = self._client.list_consumer_groups().result().valid
            names = [each.group_id for each in found if group in (None, each.group_id)]
            described = self._client.describe_consumer_groups(names)
            return [_group(described[name].result()) for name in names]

    def describe_consumer_groups(
        self, group_ids: Iterable[str], **ignored: Any
    ) -> Futures[str, ConsumerGroupDescription]:
        """Groups with their members."""
        return _each(lambda: self._client.describe_consumer_groups(group_ids))

    def delete_consumer_groups(
        self, group_ids: Iterable[str], **ignored: Any
    ) -> Futures[str, None]:
        """Delete groups without members."""
        return _each(lambda: self._client.delete_consumer_groups(group_ids))

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: Sequence[ConsumerGroupTopicPartitions],
        require_stable: bool = False,
        **ignored: Any,
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Committed offsets of groups."""
        asked = list_consumer_group_offsets_request
        return _each(
            lambda: self._client.list_consumer_group_offsets(asked, require_stable=require_stable)
        )

    def alter_consumer_group_offsets(
        self,
        alter_consumer_group_offsets_request: Sequence[ConsumerGroupTopicPartitions],
        **ignored: Any,
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Set committed offsets."""
        asked = alter_consumer_group_offsets_request
        return _each(lambda: self._client.alter_consumer_group_offsets(asked))

    def poll(self, timeout: float = -1) -> int:
        """How many callbacks were called: none, as calls do their work at once."""
        return 0

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is open between two calls."""


def _one(future: Future[Any], convert: Callable[[Any], Any] = lambda found: found) -> Future[Any]:
    """A future with a KafkaException in the place of a TxnLogError; the given one is done."""
    translated_future: Future[Any] = Future()
    error = future.exception()
    if error is None:
        translated_future.set_result(convert(future.result()))
    else:
        failed = kafka_exception(error) if isinstance(error, TxnLogError) else error
        translated_future.set_exception(failed)
    return translated_future


def _each(call: Callable[[], Mapping[K, Future[V]]]) -> Futures[K, V]:
    with translated():
        return {key: _one(future) for key, future in call().items()}


def _of_resources(
    resources: Iterable[ConfigResource],
    call: Callable[[list[native.ConfigResource]], Mapping[native.ConfigResource, Future[V]]],
) -> Futures[ConfigResource, V]:
    given = {}
    for resource in resources:
        changes = [ConfigEntry(name, value) for name, value in resource.set_config_dict.items()]
        changes += resource.incremental_configs
        given[native.ConfigResource(resource.restype, resource.name, changes)] = resource
    with translated():
        return {given[key]: _one(future) for key, future in call(list(given)).items()}


def _group(found: ConsumerGroupDescription) -> GroupMetadata:
    members = [GroupMember(each.member_id, each.client_id, each.host) for each in found.members]
    return GroupMetadata(found.group_id, found.state.value, "consumer", members)
