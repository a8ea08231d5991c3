"""The admin client: confluent-kafka's names and calls, on a cluster without brokers.

As there, most calls take several items and return a future for each, so that one failure does not
hide the others' success. The call does the work: its futures are done when it returns.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from txnlog.admin import (
    groups,
    hanging,
    root_configs,
    state_rows,
    tables,
    topics,
    traces,
    transactions,
)
from txnlog.admin.descriptions import (
    AbortTransactionSpec,
    ClusterDescription,
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
    ResourceType,
    TopicDescription,
    TransactionDescription,
    TransactionListing,
)
from txnlog.admin.requests import (
    config_resource,
    group_partitions,
    new_count,
    new_topic,
    of_kind,
    offset_specs,
    transaction_or_spec,
)
from txnlog.admin.root_configs import OnStep
from txnlog.admin.root_state import read_root
from txnlog.admin.tables import TableDescription
from txnlog.admin.upkeep import HousekeepingDescription, describe_housekeeping
from txnlog.cluster import Cluster, fsync_from_environment, settings_from_environment
from txnlog.consuming.lookups import describe_topics
from txnlog.coordinator.copies import CopyReport, OnCopied, check_apart, copy_root
from txnlog.coordinator.root import Root
from txnlog.messages import ClusterMetadata, TopicPartition
from txnlog.process.caches import local_path
from txnlog.process.failures import unexpected
from txnlog.process.forking import refusal, watch
from txnlog.protocol.enlisted.registry import checked_staging
from txnlog.protocol.explanations import GroupExplanation, IdExplanation, RecordTrace
from txnlog.protocol.problems import Problem
from txnlog.protocol.repair.losses import RepairReport
from txnlog.protocol.states import TransactionState
from txnlog.repairing.repair import WATCH_MS_DEFAULT, Repair
from txnlog.settings import arguments
from txnlog.settings.config import parse_config
from txnlog.settings.roots import checked_root, redacted_url
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.verifying.report import (
    Progress,
    Verification,
    VerifySettings,
    checked_settings,
    no_progress,
)
from txnlog.verifying.verifier import verify

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Futures = dict[K, "Future[V]"]


class AdminClient:
    """All operations of an operator. Any thread may call it; the constructor does no I/O.

    Calls of several threads work one after the other, topic by topic and group by group; only
    `verify`, `repair`, `backup` and `clone`, which may take long, work beside others.
    `config` holds `txnlog.root`, `storage.<key>` and `client.id`; see txnlog.settings.config.
    Raises ConfigError.
    """

    def __init__(self, config: dict[str, Any], *, cluster: Cluster | None = None) -> None:
        if cluster is not None:
            config = {"txnlog.root": cluster.root, **config}
        self._config = parse_config(config, "admin")
        self._cluster = cluster
        # The cluster's logs are for one thread at a time.
        self._lock = threading.RLock()
        self._inherited: Cluster | None = None
        """In the child of a fork, that of the parent: kept, and never used."""
        watch(self)
        who = self._config.get("client.id")
        self._by = f"{who}, an admin client in process {os.getpid()} on {socket.gethostname()}"

    def __repr__(self) -> str:
        return f"AdminClient({self._config!r})"

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened at the first use. Raises ConfigError when there is none."""
        return self._open(create=False)

    def forked(self) -> None:
        """In the child of a fork: refuse every call, if this was used before."""
        self._lock = threading.RLock()
        if self._cluster is not None:
            self._inherited, self._cluster = self._cluster, None

    def _open(self, *, create: bool) -> Cluster:
        with self._lock:
            if self._cluster is None:
                if self._inherited is not None:
                    raise refusal("admin client")
                self._cluster = Cluster.open(
                    self._config.root,
                    self._config.storage,
                    create=create and self._config.get("txnlog.create"),
                    shards=self._config.get("transaction.state.log.num.partitions"),
                    offsets_shards=self._config.get("offsets.topic.num.partitions"),
                )
            return self._cluster

    def describe_cluster(self) -> Future[ClusterDescription]:
        """The cluster's id and root. Errors: ConfigError when there is no cluster."""
        return self._one(
            lambda: ClusterDescription(self.cluster.cluster_id, redacted_url(self.cluster.root))
        )

    # -- topics ----------------------------------------------------------------------------------

    def create_topics(
        self, new_topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> Futures[str, None]:
        """Create topics, and the cluster if there is none.

        Errors: TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError, ConfigError.
        """
        validate_only = arguments.flag("validate_only", validate_only)
        new = {topic.topic: topic for topic in arguments.each("new_topics", new_topics, new_topic)}
        cluster = self._open(create=not validate_only)
        return self._each(
            new, lambda name: topics.create_topic(cluster, new[name], validate_only=validate_only)
        )

    def delete_topics(self, names: Iterable[str], *, force: bool = False) -> Futures[str, None]:
        """Delete topics. A topic created again continues at the old end offsets (R71).

        `force` also deletes topics with a damaged log; see Cluster.delete_topic.
        Errors: UnknownTopicOrPartitionError, CorruptLogError.
        """
        by_force = arguments.flag("force", force)
        return self._each(
            arguments.each("names", names, arguments.text),
            lambda name: self.cluster.delete_topic(name, force=by_force),
        )

    def create_partitions(self, new_partitions: Sequence[NewPartitions]) -> Futures[str, None]:
        """Add partitions to topics. Errors: InvalidPartitionsError."""
        checked = arguments.each("new_partitions", new_partitions, new_count)
        counts = {new.topic: new.new_total_count for new in checked}
        return self._each(
            counts, lambda name: topics.create_partitions(self.cluster, name, counts[name])
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """The cluster's topics and their partitions, or one of them."""
        if topic is not None:
            topic = arguments.topic("topic", topic)
        arguments.timeout_s("timeout", timeout)
        with self._lock:
            return describe_topics(self.cluster, topic)

    def describe_topics(self, names: Iterable[str]) -> Futures[str, TopicDescription]:
        """Topics with the log start, last stable offset and end of each partition."""
        checked = arguments.each("names", names, arguments.text)
        log_of = self._tailed(checked)
        return self._each(checked, lambda name: topics.describe_topic(log_of(name)))

    def describe_configs(
        self, resources: Iterable[ConfigResource]
    ) -> Futures[ConfigResource, dict[str, ConfigEntry]]:
        """Every configuration of topics, with defaults, and of the root (ResourceType.BROKER).

        See txnlog.settings.topic_configs and txnlog.admin.root_configs.
        """
        checked = arguments.each("resources", resources, config_resource)
        named = [resource.name for resource in checked if resource.restype is ResourceType.TOPIC]
        log_of = self._tailed(named)

        def describe(resource: ConfigResource) -> dict[str, ConfigEntry]:
            if resource.restype is ResourceType.BROKER:
                return root_configs.describe_root(self.cluster)
            return topics.describe_configs(log_of(resource.name))

        return self._each(checked, describe)

    def incremental_alter_configs(
        self, resources: Iterable[ConfigResource], *, on_step: OnStep | None = None
    ) -> Futures[ConfigResource, None]:
        """Change the given configurations, per topic all or none. Errors: ConfigError.

        storage.fsync=true of the root syncs all its files, which may take long:
        `on_step(text, done, count)` is called for progress. Errors there: NotSyncedError.
        """
        checked = arguments.each("resources", resources, config_resource)
        report = arguments.function("on_step", on_step) or (lambda text, done, count: None)

        def alter(resource: ConfigResource) -> None:
            if resource.restype is ResourceType.BROKER:
                root_configs.alter_root(self.cluster, resource.incremental_configs, report)
            else:
                topics.alter_configs(self.cluster, resource)

        return self._each(checked, alter)

    def delete_records(
        self, partitions: Sequence[TopicPartition]
    ) -> Futures[TopicPartition, DeletedRecords]:
        """Move the log start to each `offset` (OFFSET_END: delete all records).

        Readers below it get OffsetOutOfRangeError; the next retention run removes files wholly
        below it (txnlog.housekeeping.retention).
        Errors: OffsetOutOfRangeError for an offset above the end.
        """

        def delete(asked: TopicPartition) -> DeletedRecords:
            before = {asked.partition: asked.offset}
            starts = topics.delete_records(self.cluster, asked.topic, before)
            return DeletedRecords(starts[asked.partition])

        return self._each(arguments.topic_partitions("partitions", partitions), delete)

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Futures[TopicPartition, ListOffsetsResultInfo]:
        """Earliest, latest or by timestamp. (Kafka's default isolation is READ_UNCOMMITTED.)"""
        arguments.one_of("isolation_level", isolation_level, IsolationLevel)
        read_committed = isolation_level is IsolationLevel.READ_COMMITTED
        specs = offset_specs("topic_partition_offsets", topic_partition_offsets)
        log_of = self._tailed(asked.topic for asked in specs)
        return self._each(
            specs,
            lambda asked: topics.list_offset(
                log_of(asked.topic), asked, specs[asked], read_committed=read_committed
            ),
        )

    def _tailed(self, names: Iterable[str]) -> Callable[[str], TopicLog]:
        """Tail topics together; the result gives each one's log, or raises why there is none."""
        tailed = self._one(lambda: self.cluster.look_up(names))

        def log_of(name: str) -> TopicLog:
            found = tailed.result()[name]
            if isinstance(found, TopicLog):
                return found
            raise found.replace()

        return log_of

    # -- Delta tables of others ------------------------------------------------------------------

    def enlist_tables(
        self, urls: Mapping[str, str], *, staging: str = "hidden"
    ) -> Futures[str, None]:
        """Let transactions write to the Delta tables at these URLs, by their names.

        Rows are staged in a hidden folder, which only txnlog vacuums; with `staging="visible"` in
        the table's own folders, where any VACUUM deletes what was removed. Errors: ConfigError,
        UnknownTableError, TableFeatureError.
        """
        given = arguments.one_of("urls", urls, Mapping)
        checked = {
            arguments.text("urls", name): arguments.text(f"urls[{name!r}]", url)
            for name, url in given.items()
        }
        where = checked_staging(arguments.text("staging", staging))
        return self._each(
            checked, lambda name: tables.enlist(self.cluster, name, checked[name], where)
        )

    def list_tables(self) -> Future[list[TableDescription]]:
        """The enlisted tables, with the parts of decided transactions that are not in them."""
        return self._one(lambda: tables.describe_all(self.cluster))

    def describe_tables(self, names: Iterable[str]) -> Futures[str, TableDescription]:
        """The same of tables by name. Errors: UnknownTableError."""
        checked = arguments.each("names", names, arguments.text)
        return self._each(checked, lambda name: tables.describe(self.cluster, name))

    def republish_tables(self, names: Iterable[str]) -> Futures[str, int]:
        """Publish again what other writers have overwritten, as `verify` finds it; the number of
        transactions. Errors: UnknownTableError; TableChangedError for an overwrite of ours;
        CorruptLogError, ObjectNotFoundError if the files are gone.
        """
        checked = arguments.each("names", names, arguments.text)
        return self._each(checked, lambda name: tables.republish(self.cluster, name))

    def restage_tables(
        self, names: Iterable[str], *, drop_columns: Iterable[str] = ()
    ) -> Futures[str, int]:
        """Write rows of decided transactions, which these tables do not take any more, again in the
        schema that they have now, and publish them; the number of transactions. Values of a column
        that is gone are lost only if `drop_columns` names it.

        Errors: UnknownTableError; TableDataError for rows that do not fit, TableChangedError,
        TableFeatureError for a table that only an engine can write: then nothing has changed.
        """
        checked = arguments.each("names", names, arguments.text)
        drop = arguments.each("drop_columns", drop_columns, arguments.text)
        return self._each(checked, lambda name: tables.restage(self.cluster, name, drop))

    def delist_tables(self, names: Iterable[str]) -> Futures[str, None]:
        """Let no new transaction write to these tables. Their data stays, also what is in their
        folder `_txnlog`; what is decided is still published. Errors: UnknownTableError.
        """
        checked = arguments.each("names", names, arguments.text)
        return self._each(checked, lambda name: self.cluster.delist(name))

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
        wanted = arguments.each("states", states, of_kind(TransactionState))
        ids = arguments.each("producer_ids", producer_ids, arguments.integer)
        duration_ms = arguments.integer("duration_ms", duration_ms)
        name = "transactional_id_pattern"
        pattern = transactional_id_pattern
        if pattern is not None:
            pattern = arguments.text(name, pattern, may_be_blank=True)
        return self._one(
            lambda: transactions.list_transactions(
                self.cluster,
                states=wanted,
                producer_ids=ids,
                duration_ms=duration_ms,
                pattern=pattern,
            )
        )

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> Futures[str, TransactionDescription]:
        """The id's owner, its open transaction, and who fenced it and why.

        Errors: TransactionalIdNotFoundError.
        """
        ids = arguments.each("transactional_ids", transactional_ids, arguments.identifier)
        return self._each(ids, lambda name: transactions.describe_transaction(self.cluster, name))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> Futures[TopicPartition, list[ProducerState]]:
        """The producers with state in partitions, and their open transactions there."""
        asked = arguments.topic_partitions("partitions", partitions)
        log_of = self._tailed(p.topic for p in asked)
        return self._each(
            asked, lambda p: transactions.describe_producers(log_of(p.topic), p.partition)
        )

    def abort_transaction(
        self, transaction: str | AbortTransactionSpec, *, reason: str = "aborted by an operator"
    ) -> Future[None]:
        """Abort the open transaction of an id, or of a producer in a partition; fence its owner.

        The owner's error names this client and the reason (R43).
        Errors: TransactionalIdNotFoundError, InvalidTxnStateError when it has committed.
        """

        why = arguments.text("reason", reason, may_be_blank=True)
        what = transaction_or_spec("transaction", transaction)

        def abort() -> None:
            if isinstance(what, str):
                transactions.abort_transaction(self.cluster, what, by=self._by, reason=why)
            else:
                transactions.abort_hanging(self.cluster, what, by=self._by, reason=why)

        return self._one(abort)

    def fence_producers(
        self, transactional_ids: Iterable[str], *, reason: str = "fenced by an operator"
    ) -> Futures[str, FencedProducer]:
        """Fence the current owners of ids, also runs of Spark queries (R43).

        Errors: TransactionalIdNotFoundError.
        """
        why = arguments.text("reason", reason, may_be_blank=True)
        return self._each(
            arguments.each("transactional_ids", transactional_ids, arguments.identifier),
            lambda name: transactions.fence_producers(self.cluster, name, by=self._by, reason=why),
        )

    def delete_transactions(self, transactional_ids: Iterable[str]) -> Futures[str, None]:
        """Delete unreadable state rows; their open and unpublished transactions are lost, and so
        are offsets that no group's row has yet.

        See state_rows.delete_transaction. Errors: TransactionalIdNotFoundError,
        InvalidTxnStateError for a row that can be read.
        """
        return self._each(
            arguments.each("transactional_ids", transactional_ids, arguments.text),
            lambda name: state_rows.delete_transaction(self.cluster, name),
        )

    def find_hanging(
        self,
        partitions: Collection[TopicPartition] | None = None,
        *,
        max_transaction_timeout_ms: int = 0,
    ) -> Future[list[HangingTransaction]]:
        """What readers of these or all partitions wait for now (R21): who, until when, its end.

        Only what is at least as old as `max_transaction_timeout_ms`. Nothing but an operator ends
        what has no `state`.
        """

        given = partitions
        if given is not None:
            given = arguments.topic_partitions("partitions", given)
        timeout_ms = arguments.integer("max_transaction_timeout_ms", max_transaction_timeout_ms)

        def find() -> list[HangingTransaction]:
            where = given
            if where is None:
                where = topics.all_partitions(self.cluster, self.cluster.list_topics())
            return hanging.find_hanging(self.cluster, where, age_ms_min=timeout_ms)

        return self._one(find)

    # -- groups ----------------------------------------------------------------------------------

    def list_consumer_groups(
        self, *, states: Collection[ConsumerGroupState] = ()
    ) -> Future[ListConsumerGroupsResult]:
        """Groups with offsets or members; `errors` are those of unreadable rows."""
        wanted = arguments.each("states", states, of_kind(ConsumerGroupState))
        return self._one(
            lambda: ListConsumerGroupsResult(
                groups.list_groups(self.cluster, states=wanted),
                groups.unreadable_groups(self.cluster),
            )
        )

    def describe_consumer_groups(
        self, group_ids: Iterable[str]
    ) -> Futures[str, ConsumerGroupDescription]:
        """Generation, members with their partitions, open transactions with pending offsets.

        Errors: GroupIdNotFoundError.
        """
        ids = arguments.each("group_ids", group_ids, arguments.identifier)
        return self._each(ids, lambda name: groups.describe_group(self.cluster, name))

    def list_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions], *, require_stable: bool = False
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Committed offsets of groups; those of a transaction count once it is decided.

        With `require_stable` no open transaction may have offsets of these partitions. Errors:
        GroupIdNotFoundError, UnstableOffsetCommitError.
        """
        require_stable = arguments.flag("require_stable", require_stable)
        return self._each_group(
            requests,
            lambda asked: groups.list_offsets(self.cluster, asked, require_stable=require_stable),
        )

    def alter_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions]
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Set committed offsets, under a new generation of the group.

        Unlike in Kafka the group may have members: they rejoin and continue there, and cannot
        commit what they read before. A Spark query of the group fails and must be restarted.
        """
        return self._each_group(requests, lambda asked: groups.alter_offsets(self.cluster, asked))

    def delete_consumer_group_offsets(
        self, requests: Sequence[ConsumerGroupTopicPartitions]
    ) -> Futures[str, ConsumerGroupTopicPartitions]:
        """Delete committed offsets, under a new generation. Errors: GroupIdNotFoundError."""
        return self._each_group(
            requests, lambda asked: groups.delete_offsets(self.cluster, asked, by=self._by)
        )

    def delete_consumer_groups(self, group_ids: Iterable[str]) -> Futures[str, None]:
        """Delete groups without members, or with unreadable rows.

        Errors: GroupIdNotFoundError, NonEmptyGroupError.
        """
        ids = arguments.each("group_ids", group_ids, arguments.identifier)
        return self._each(ids, lambda name: groups.delete_group(self.cluster, name, by=self._by))

    # -- why -------------------------------------------------------------------------------------

    def find_problems(self) -> Future[list[Problem]]:
        """What is wrong below the root: who, since when, why, what ends it, and the command.

        Reads what one consumer of all topics reads. Errors: StorageError, an authorization error.
        """
        return self._one(lambda: traces.root_problems(self.cluster))

    def describe_housekeeping(self) -> Future[HousekeepingDescription]:
        """Who does the housekeeping, the last run of each duty, and what is overdue. Reads what
        `find_problems` reads.
        """
        return self._one(lambda: describe_housekeeping(self.cluster, read_root(self.cluster)))

    def explain_group(self, group_id: str) -> Future[GroupExplanation]:
        """Why a group waits or lags. Errors: GroupIdNotFoundError."""
        name = arguments.identifier("group_id", group_id)
        return self._one(lambda: traces.explain_group_of(self.cluster, name))

    def explain_transactional_id(self, transactional_id: str) -> Future[IdExplanation]:
        """Who fenced an id, when and why, what to do, and its story as far as the log has it.

        Errors: TransactionalIdNotFoundError.
        """
        name = arguments.identifier("transactional_id", transactional_id)
        return self._one(lambda: traces.explain_id_of(self.cluster, name))

    def trace_record(self, record: TopicPartition) -> Future[RecordTrace]:
        """The transaction that wrote the record at an offset, all that it wrote, and which groups
        have read the record. Errors: UnknownTopicOrPartitionError.
        """
        asked = arguments.topic_partition("record", record, partition_least=0, offset_least=0)
        return self._one(lambda: traces.trace_record(self.cluster, asked))

    def trace_key(self, topic: str, key: bytes) -> Future[RecordTrace]:
        """The same of the newest record with a key; reads files from the end on, until it is found.

        Errors: UnknownTopicOrPartitionError.
        """
        name = arguments.topic("topic", topic)
        wanted = arguments.one_of("key", key, bytes)
        return self._one(lambda: traces.trace_key(self.cluster, name, wanted))

    # -- verification ----------------------------------------------------------------------------

    def verify(
        self, settings: VerifySettings | None = None, *, progress: Progress | None = None
    ) -> Future[Verification]:
        """Check everything below the root; writes nothing. See VerifySettings.

        Errors: ConfigError when there is no cluster, StorageError, UnknownTopicOrPartitionError.
        """
        wanted = checked_settings(settings)
        report = arguments.function("progress", progress) or no_progress

        return _done(lambda: verify(self._store(), wanted, progress=report))

    def _store(self) -> ObjectStore:
        """Opened without the cluster, which would fail for a damaged one."""
        if self._cluster is not None:
            return self._cluster.store
        return ObjectStore.from_url(self._config.root, self._config.storage, create=False)

    def repair(
        self,
        *,
        dry_run: bool = True,
        watch_ms: int = WATCH_MS_DEFAULT,
        progress: Progress | None = None,
    ) -> Future[RepairReport]:
        """Bring a damaged root back to what is whole of it, after all its clients were stopped.

        Only with `dry_run=False` anything is written, and not if a table changes within `watch_ms`.
        A repair that was interrupted is finished. What is taken away is kept in a folder of the
        root. `progress(table, done, count, files)` is called for progress.
        Errors: ConfigError when there is no cluster, UnsupportedProtocolError,
        ConcurrentTransactionsError while clients write.
        """
        is_dry = arguments.flag("dry_run", dry_run)
        watched_ms = arguments.integer("watch_ms", watch_ms, least=0)
        report = arguments.function("progress", progress) or no_progress

        def repair() -> RepairReport:
            storage = dict(self._config.storage)
            if local_path(self._config.root) is not None:
                # The next power cut must not find half of it.
                storage["fsync"] = "true"
            store = ObjectStore.from_url(self._config.root, storage, create=False)
            work = Repair(store, watch_ms=watched_ms, progress=report)
            return work.find() if is_dry else work.run()

        return _done(repair)

    # -- copies ----------------------------------------------------------------------------------

    def backup(
        self, destination: str, *, deep: bool = False, progress: OnCopied | None = None
    ) -> Future[CopyReport]:
        """Copy the root, as of a snapshot, to another place, which is a root of its own then.

        Writers go on. `destination` is empty, or has an earlier copy of this root: then only new
        files are copied. A copy that was interrupted is continued. At the end it is verified,
        `deep` as in VerifySettings. Delta tables of others are not copied.
        `progress(topic, bytes done, bytes in all)` is called for progress.
        Errors: ConfigError for a place that has something else, CorruptLogError if what was copied
        is damaged, ConcurrentTransactionsError if another process copies there, StorageError.
        """
        return self._copy(destination, deep, progress, shared=False)

    def clone(
        self, destination: str, *, deep: bool = False, progress: OnCopied | None = None
    ) -> Future[CopyReport]:
        """As `backup`, to a place in the same file system or bucket, without moving data.

        On a local disk the data files are the same ones by another name, in an object store they
        are copied by the service. Errors: as `backup`, ConfigError for a place elsewhere.
        """
        return self._copy(destination, deep, progress, shared=True)

    def _copy(
        self, destination: str, deep: bool, progress: OnCopied | None, *, shared: bool
    ) -> Future[CopyReport]:
        url = checked_root(destination)
        settings = VerifySettings(deep=arguments.flag("deep", deep))
        report = arguments.function("progress", progress) or _not_reported

        def copy() -> CopyReport:
            origin = Root(self._store(), settings=settings_from_environment())
            target = origin.store.beside(url)
            check_apart(origin.root, target.url)
            return copy_root(
                origin,
                target,
                check=lambda: verify(target, settings).check(),
                fsync=fsync_from_environment(),
                report=report,
                shared=shared,
            )

        return _done(copy)

    # -- inside ----------------------------------------------------------------------------------

    def _one(self, act: Callable[[], V]) -> Future[V]:
        with self._lock:
            return _done(act)

    def _each(self, keys: Iterable[K], act: Callable[[K], V]) -> Futures[K, V]:
        return {key: self._one(partial(act, key)) for key in keys}

    def _each_group(
        self,
        requests: Sequence[ConsumerGroupTopicPartitions],
        act: Callable[[ConsumerGroupTopicPartitions], V],
    ) -> Futures[str, V]:
        checked = arguments.each("requests", requests, group_partitions)
        by_group = {request.group_id: request for request in checked}
        return self._each(by_group, lambda name: act(by_group[name]))


def _not_reported(topic: str, done_bytes: int, total_bytes: int) -> None:
    """Reports no progress."""


def _done(act: Callable[[], V]) -> Future[V]:
    """The outcome of a call, as a future that is done."""
    future: Future[V] = Future()
    try:
        future.set_result(act())
    except Exception as error:
        # Unexpected exceptions, too: they must not hide the others' success. What an argument is
        # refused with stays as it is (D64).
        refused = isinstance(error, TypeError)
        future.set_exception(error if refused else unexpected(error, "The call"))
    return future
