"""confluent_kafka.admin: an AdminClient whose futures raise KafkaException.

Names of ACLs and users are confluent-kafka's own. There are none here: the calls that take them are
refused as by a broker without an authorizer, with SECURITY_DISABLED.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from txnlog import admin as native
from txnlog.admin import (
    AlterConfigOpType,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    DeletedRecords,
    IsolationLevel,
    MemberAssignment,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from txnlog.compat.confluent_kafka import admin_results as results
from txnlog.compat.confluent_kafka.admin_results import (
    ConfigEntry,
    ConfigSource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    DescribeClusterResult,
    GroupMember,
    GroupMetadata,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    MemberDescription,
    TopicDescription,
)
from txnlog.compat.confluent_kafka.client_config import client_config
from txnlog.compat.confluent_kafka.confluent import load
from txnlog.compat.confluent_kafka.error import (
    KafkaError,
    KafkaException,
    kafka_exception,
    translated,
)
from txnlog.compat.confluent_kafka.error_codes import CODES
from txnlog.compat.confluent_kafka.metadata import cluster_metadata
from txnlog.compat.confluent_kafka.model import (
    ConsumerGroupType,
    ElectionType,
    Node,
    TopicCollection,
)
from txnlog.errors import TxnLogError
from txnlog.messages import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition

_OF_SECURITY = (
    "AclBinding",
    "AclBindingFilter",
    "AclOperation",
    "AclPermissionType",
    "ResourcePatternType",
    "ScramCredentialInfo",
    "ScramMechanism",
    "UserScramCredentialAlteration",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
    "UserScramCredentialsDescription",
)
__all__ = [
    *_OF_SECURITY,
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
    "ElectionType",
    "GroupMember",
    "GroupMetadata",
    "ListConsumerGroupsResult",
    "ListOffsetsResultInfo",
    "MemberAssignment",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "PartitionMetadata",
    "ResourceType",
    "TopicDescription",
    "TopicMetadata",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Futures = dict[K, "Future[V]"]


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

    def __len__(self) -> int:
        """How many configurations `set_config` has set."""
        return len(self.set_config_dict)

    def __hash__(self) -> int:
        return hash((self.restype, self.name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfigResource):
            return NotImplemented
        return (self.restype, self.name) == (other.restype, other.name)

    def __repr__(self) -> str:
        return f"ConfigResource({self.restype.name}, {self.name})"


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
        node = self._node
        return _each(
            lambda: self._client.describe_topics(topics.topic_names),
            lambda found: results.topic(found, node),
        )

    def describe_cluster(self, **ignored: Any) -> Future[DescribeClusterResult]:
        """The cluster id of the root."""
        with translated():
            return _one(self._client.describe_cluster(), results.cluster)

    @property
    def _node(self) -> Node:
        """What stands for the brokers."""
        return self.describe_cluster().result().controller

    def cluster_id(self, timeout: float = -1) -> str:
        """The id of the cluster at the root."""
        return self.describe_cluster().result().cluster_id

    def describe_configs(
        self, resources: Iterable[ConfigResource], **ignored: Any
    ) -> Futures[ConfigResource, dict[str, ConfigEntry]]:
        """Every configuration of topics."""
        return _of_resources(resources, self._client.describe_configs, results.configs)

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource], **ignored: Any
    ) -> Futures[ConfigResource, None]:
        """Change the given configurations."""
        return _of_resources(resources, self._client.incremental_alter_configs)

    def alter_configs(
        self, resources: Iterable[ConfigResource], **ignored: Any
    ) -> Futures[ConfigResource, None]:
        """Set the given configurations, and all others of these topics to their defaults.

        It looks first, and changes then: incremental_alter_configs does it at once.
        """
        asked = list(resources)
        whole = []
        for resource, found in self.describe_configs(asked).items():
            kept = resource.set_config_dict
            others = [] if found.exception() else found.result().values()
            resets = [
                ConfigEntry(each.name, None, incremental_operation=AlterConfigOpType.DELETE)
                for each in others
                if not each.is_default and each.name not in kept
            ]
            whole.append(
                ConfigResource(resource.restype, resource.name, kept, incremental_configs=resets)
            )
        changed = self.incremental_alter_configs(whole)
        return {resource: changed[resource] for resource in asked}

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
            ),
            lambda found: ListOffsetsResultInfo(found.offset),
        )

    def list_consumer_groups(
        self,
        states: Collection[ConsumerGroupState] = (),
        types: Collection[ConsumerGroupType] = (),
        **ignored: Any,
    ) -> Future[ListConsumerGroupsResult]:
        """Groups with offsets or members; all are of the type CLASSIC."""
        is_empty = bool(types) and ConsumerGroupType.CLASSIC not in types

        def listed(found: native.ListConsumerGroupsResult) -> ListConsumerGroupsResult:
            return ListConsumerGroupsResult(()) if is_empty else results.listing(found)

        with translated():
            return _one(self._client.list_consumer_groups(states=states), listed)

    def list_groups(
        self, group: str | None = None, timeout: float = -1, **ignored: Any
    ) -> list[GroupMetadata]:
        """Groups with their members, or one of them."""
        with translated():
            found = self._client.list_consumer_groups().result().valid
            names = [each.group_id for each in found if group in (None, each.group_id)]
            described = self._client.describe_consumer_groups(names)
            return [results.group_metadata(described[name].result()) for name in names]

    def describe_consumer_groups(
        self, group_ids: Iterable[str], **ignored: Any
    ) -> Futures[str, ConsumerGroupDescription]:
        """Groups with their members."""
        node = self._node
        return _each(
            lambda: self._client.describe_consumer_groups(group_ids),
            lambda found: results.group(found, node),
        )

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

    # -- what does not exist here ------------------------------------------------------------------

    def create_acls(self, acls: Iterable[K], **ignored: Any) -> Futures[K, None]:
        """Refused: there are no ACLs."""
        return {each: _refused("ACLs") for each in acls}

    def describe_acls(self, acl_binding_filter: object, **ignored: Any) -> Future[Any]:
        """Refused: there are no ACLs."""
        return _refused("ACLs")

    def delete_acls(self, acl_binding_filters: Iterable[K], **ignored: Any) -> Futures[K, Any]:
        """Refused: there are no ACLs."""
        return {each: _refused("ACLs") for each in acl_binding_filters}

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, **ignored: Any
    ) -> Future[Any] | Futures[str, Any]:
        """Refused: there are no users."""
        return _refused("users") if users is None else {user: _refused("users") for user in users}

    def alter_user_scram_credentials(
        self, alterations: Iterable[Any], **ignored: Any
    ) -> Futures[str, None]:
        """Refused: there are no users."""
        return {each.user: _refused("users") for each in alterations}

    def elect_leaders(
        self,
        election_type: ElectionType,
        partitions: Iterable[TopicPartition] | None = None,
        **ignored: Any,
    ) -> Future[Any]:
        """Refused: there are no leaders."""
        return _refused("leaders")

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


def _refused(what: str) -> Future[Any]:
    """As by a broker without an authorizer."""
    failed: Future[Any] = Future()
    text = (
        f"There are no {what} here: txnlog has no brokers, and permissions are those of the store "
        "that holds the root (docs/confluent-kafka.md)."
    )
    failed.set_exception(KafkaException(KafkaError(CODES["SECURITY_DISABLED"], text)))
    return failed


def _each(
    call: Callable[[], Mapping[K, Future[Any]]],
    convert: Callable[[Any], Any] = lambda found: found,
) -> Futures[K, Any]:
    with translated():
        return {key: _one(future, convert) for key, future in call().items()}


def _of_resources(
    resources: Iterable[ConfigResource],
    call: Callable[[list[native.ConfigResource]], Mapping[native.ConfigResource, Future[Any]]],
    convert: Callable[[Any], Any] = lambda found: found,
) -> Futures[ConfigResource, Any]:
    given = {}
    for resource in resources:
        changes = [
            native.ConfigEntry(name, value) for name, value in resource.set_config_dict.items()
        ]
        changes += [entry.change() for entry in resource.incremental_configs]
        given[native.ConfigResource(resource.restype, resource.name, changes)] = resource
    with translated():
        return {given[key]: _one(future, convert) for key, future in call(list(given)).items()}


def __getattr__(name: str) -> Any:
    if name in _OF_SECURITY:
        return getattr(load("admin"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
