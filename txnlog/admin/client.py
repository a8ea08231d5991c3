"""The admin client: confluent-kafka's names and calls, on a cluster without brokers.

As there, most calls take several things and give a future for each, so that one failure hides no
success. The work is done inside the call; the futures are done when it returns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from txnlog.admin import groups, topics, transactions
from txnlog.admin.descriptions import (
    AbortTransactionSpec,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    DeletedRecords,
    FencedProducer,
    HangingTransaction,
    IsolationLevel,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ProducerState,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from txnlog.cluster import Cluster
from txnlog.config import parse_config
from txnlog.consuming.lookups import describe_topics
from txnlog.errors import TxnLogError
from txnlog.messages import ClusterMetadata, TopicPartition
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import TIMEOUT_MS_MAX
from txnlog.storage.objects import ObjectStore
from txnlog.verifying.report import Progress, Verification, VerifySettings, no_progress
from txnlog.verifying.verifier import verify

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Futures = dict[K, "Future[V]"]


class AdminClient:
    """Everything an operator does. One thread at a time; the constructor does no I/O.

    `config` holds `txnlog.root`, `storage.<key>` and `client.id`; see txnlog.config.
    Raises ConfigError.
    """

    def __init__(self, config: dict[str, Any], *, cluster: Cluster | None = None) -> None:
        if cluster is not None:
            config = {"txnlog.root": cluster.root, **config}
        self._config = parse_config(config, "admin")
        self._cluster = cluster
        who = self._config.get("client.id")
        self._by = f"{who}, an admin client in process {os.getpid()} on {socket.gethostname()}"

    def __repr__(self) -> str:
        return f"AdminClient({self._config!r})"

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened when it is first asked for. Raises ConfigError when there is none."""
        return self._open(create=False)

    def _open(self, *, create: bool) -> Cluster:
        if self._cluster is None:
            shards = self._config.get("transaction.state.log.num.partitions")
            self._cluster = Cluster.open(
                self._config.root, self._config.storage, create=create, shards=shards
            )
        return self._cluster

    # -- topics ----------------------------------------------------------------------------------

    def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Futures[str, None]:
        """Create topics, and the cluster if there is none.

        Errors: TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError, ConfigError.
        """
        cluster = self._open(create=not validate_only)
        new = {topic.topic: topic for topic in new_topics}
        return _each(
            new, lambda name: topics.create_topic(cluster, new[name], validate_only=validate_only)
        )

    def delete_topics(self, names: Iterable[str]) -> Futures[str, None]:
        """Delete topics. One that is created again goes on at the old offsets (R71)."""
        return _each(names, self.cluster.delete_topic)

    def create_partitions(self, new_partitions: Sequence[NewPartitions]) -> Futures[str, None]:
        """Add partitions to topics. Errors: InvalidPartitionsError."""
        counts = {new.topic: new.new_total_count for new in new_partitions}
        return _each(
            counts, lambda name: topics.create_partitions(self.cluster, name, counts[name])
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's topics and their partitions, or one of them."""
        return describe_topics(self.cluster, topic)

    def describe_topics(self, names: Iterable[str]) -> Futures[str, TopicDescription]:
        """Topics with the log start, last stable offset and end of each partition."""
        return _each(names, lambda name: topics.describe_topic(self.cluster, name))

    def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> Futures[ConfigResource, dict[str, ConfigEntry]]:
        """Every configuration of topics, with defaults. See txnlog.topic_configs."""
        return _each(resources, lambda resource: topics.describe_configs(self.cluster, resource))

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource]
    ) -> Futures[ConfigResource, None]:
        """Change the configurations that are named, per topic all or none. Errors: ConfigError."""
        return _each(resources, lambda resource: topics.alter_configs(self.cluster, resource))

    def delete_records(
        self, partitions: Sequence[TopicPartition]
    ) -> Futures[TopicPartition, DeletedRecords]:
        """Make each `offset` the first one left (OFFSET_END: none is left).

        Readers below it get OffsetOutOfRangeError; files wholly below it leave the table when
        retention is checked next (txnlog.retention).
        Errors: OffsetOutOfRangeError for an offset above the end.
        """

        def delete(asked: TopicPartition) -> DeletedRecords:
            before = {asked.partition: asked.offset}
            found = topics.delete_records(self.cluster, asked.topic, before)
            return DeletedRecords(found[asked.partition])

        return _each(partitions, delete)

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Futures[TopicPartition, ListOffsetsResultInfo]:
        """Earliest, latest, or by timestamp. (Kafka's default isolation is READ_UNCOMMITTED.)"""
        read_committed = isolation_level is IsolationLevel.READ_COMMITTED
        return _each(
            topic_partition_offsets,
            lambda asked: topics.list_offset(
                self.cluster, asked, topic_partition_offsets[asked], read_committed=read_committed
            ),
        )

    # -- transactions ----------------------------------------------------------------------------

    def list_transactions(
        self,
        *,
        states: Collection[TransactionState] = (),
        producer_ids: Collection[int] = (),
        duration_ms: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> Future[list[TransactionListing]]:
        """Transactional ids that match every filter; `duration_ms`: open for longer than that."""
        return _one(
            lambda: transactions.list_transactions(
                self.cluster,
                states=states,
                producer_ids=producer_ids,
                duration_ms=duration_ms,
                pattern=transactional_id_pattern,
            )
        )

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> Futures[str, TransactionDescription]:
        """Who owns an id, what it has open, who fenced it and why.

        Errors: TransactionalIdNotFoundError.
        """
        return _each(
            transactional_ids, lambda name: transactions.describe_transaction(self.cluster, name)
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Futures[TopicPartition, list[ProducerState]]:
        """The producers that partitions know, and what they have open there."""
        return _each(
            partitions,
            lambda p: transactions.describe_producers(self.cluster, p.topic, p.partition),
        )

    def abort_transaction(
        self, transaction: str | AbortTransactionSpec, *, reason: str = "aborted by an operator"
    ) -> Future[None]:
        """End what an id, or a producer in a partition, has open, and fence its owner (R43).

        Whoever wrote under it is told this client's name and the reason.
        Errors: TransactionalIdNotFoundError, InvalidTxnStateError when it has committed.
        """

        def abort() -> None:
            if isinstance(transaction, str):
                transactions.abort_transaction(
                    self.cluster, transaction, by=self._by, reason=reason
                )
            else:
                transactions.abort_hanging(self.cluster, transaction, by=self._by, reason=reason)

        return _one(abort)

    def fence_producers(
        self, transactional_ids: Iterable[str], *, reason: str = "fenced by an operator"
    ) -> Futures[str, FencedProducer]:
        """Refuse the owners of ids from now on, runs of Spark queries, too (R43).

        Errors: TransactionalIdNotFoundError.
        """
        return _each(
            transactional_ids,
            lambda name: transactions.fence_producers(
                self.cluster, name, by=self._by, reason=reason
            ),
        )

    def find_hanging(
        self,
        partitions: Collection[TopicPartition] | None = None,
        *,
        max_transaction_timeout_ms: int = TIMEOUT_MS_MAX,
    ) -> Future[list[HangingTransaction]]:
        """Undecided data older than any time-out (R21), everywhere or in these partitions."""

        def find() -> list[HangingTransaction]:
            where = partitions
            if where is None:
                where = topics.all_partitions(self.cluster, self.cluster.list_topics())
            return transactions.find_hanging(
                self.cluster, where, timeout_ms_max=max_transaction_timeout_ms
            )

        return _one(find)

    # -- groups ----------------------------------------------------------------------------------

    def list_consumer_groups(
        self, *, states: Collection[ConsumerGroupState] = ()
    ) -> Future[ListConsumerGroupsResult]:
        """Groups that have offsets or members."""
        return _one(
            lambda: ListConsumerGroupsResult(groups.list_groups(self.cluster, states=states))
        )

    def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> Futures[str, ConsumerGroupDescription]:
        """Generation, members with their partitions, open transactions with offsets.

        Errors: GroupIdNotFoundError.
        """
        return _each(group_ids, lambda name: groups.describe_group(self.cluster, name))

    def list_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions], *, require_stable: bool = False
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Committed offsets of groups. Errors: GroupIdNotFoundError, UnstableOffsetCommitError."""
        return _each_group(
            requests,
            lambda asked: groups.list_offsets(self.cluster, asked, require_stable=require_stable),
        )

    def alter_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions]
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Set positions, under a new generation of the group.

        Other than in Kafka the group may have members: they begin anew from there, and nothing
        that was read before is committed after it. A Spark query of the group fails, and must be
        started anew.
        """
        return _each_group(requests, lambda asked: groups.alter_offsets(self.cluster, asked))

    def delete_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions]
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Forget positions, under a new generation of the group. Errors: GroupIdNotFoundError."""
        return _each_group(
            requests, lambda asked: groups.delete_offsets(self.cluster, asked, by=self._by)
        )

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> Futures[str, None]:
        """Forget groups without members. Errors: GroupIdNotFoundError, NonEmptyGroupError."""
        return _each(group_ids, lambda name: groups.delete_group(self.cluster, name, by=self._by))

    # -- everything ------------------------------------------------------------------------------

    def verify(
        self, settings: VerifySettings | None = None, *, progress: Progress | None = None
    ) -> Future[Verification]:
        """Check all that is below the root; writes nothing. See txnlog.verifying.verifier.

        Errors: ConfigError when there is no cluster, StorageError, UnknownTopicOrPartitionError.
        """

        def check() -> Verification:
            if self._cluster is not None:
                store = self._cluster.store
            else:
                # Opening the cluster fails where it is damaged.
                store = ObjectStore.from_url(self._config.root, self._config.storage, create=False)
            return verify(store, settings, progress=progress or no_progress)

        return _one(check)


def _one(act: Callable[[], V]) -> Future[V]:
    future: Future[V] = Future()
    try:
        future.set_result(act())
    except TxnLogError as error:
        future.set_exception(error)
    return future


def _each(keys: Iterable[K], act: Callable[[K], V]) -> Futures[K, V]:
    found: Futures[K, V] = {}
    for key in keys:
        found[key] = _one(lambda key=key: act(key))  # type: ignore[misc]
    return found


def _each_group(
    requests: Sequence[ConsumerGroupTopicPartitions],
    act: Callable[[ConsumerGroupTopicPartitions], V],
) -> Futures[str, V]:
    by_group = {request.group_id: request for request in requests}
    return _each(by_group, lambda name: act(by_group[name]))
