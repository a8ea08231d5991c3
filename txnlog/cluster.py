"""A cluster: one root folder with its topics, transaction log, groups and coordinator state."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING

from txnlog.coordinator.groups import GroupCoordinator
from txnlog.coordinator.pins import drop_snapshot, find_snapshot, keep_snapshot
from txnlog.coordinator.root import Root
from txnlog.coordinator.snapshots import take_snapshot
from txnlog.coordinator.sweeper import Sweeper
from txnlog.coordinator.transactions import TransactionCoordinator
from txnlog.coordinator.versions import check_of_root, rows_of_table, topic_at
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    ForeignTableError,
    InvalidPartitionsError,
    InvalidTopicError,
    NotCoordinatorError,
    StorageError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.process.caches import ProcessCache
from txnlog.process.failures import Failures, caught
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.snapshots import TTL_MS_DEFAULT, TTL_MS_MAX, Pin, Snapshot
from txnlog.protocol.topics import check_topic_name, may_be_topic
from txnlog.settings import arguments
from txnlog.settings.names import (
    NUM_PARTITIONS_DEFAULT,
    OFFSETS_SHARDS_DEFAULT,
    SHARDS_DEFAULT,
    SHARDS_MAX,
)
from txnlog.settings.roots import checked_root
from txnlog.settings.storage_options import checked_types
from txnlog.settings.storage_values import switch
from txnlog.settings.topic_configs import check_configs
from txnlog.settings.values import positive_int
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store.clock_watch import note_clock
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables import cluster_log
from txnlog.storage.tables.cluster_log import ClusterLog
from txnlog.storage.tables.forced_deletion import delete_unreadable
from txnlog.storage.tables.topic_log import OF_A_TOPIC, TopicLog
from txnlog.storage.tables.topic_reading import read_topic

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

logger = logging.getLogger("txnlog")

_NAMES_SHOWN = 20
"""So many names of topics an error shows at most: of more, those that are similar."""


class Cluster(Root):
    """One root: its logs, its topics, and the coordinators of transactions and groups.

    `is_new`: `open` has created it. Not thread-safe.
    """

    def __init__(self, store: ObjectStore, *, settings: LogSettings | None = None) -> None:
        super().__init__(store, settings=settings or settings_from_environment())
        self.coordinator = TransactionCoordinator(self)
        self.groups = GroupCoordinator(self)
        self.sweeper = Sweeper(self)
        self.is_new = False

    @classmethod
    def open(
        cls,
        root: str | ObjectStore,
        storage_options: Mapping[str, str] | None = None,
        *,
        create: bool = False,
        shards: int = SHARDS_DEFAULT,
        offsets_shards: int = OFFSETS_SHARDS_DEFAULT,
        settings: LogSettings | None = None,
    ) -> Cluster:
        """Open the cluster at `root`; `create` creates it if it does not exist.

        `shards` and `offsets_shards` are the numbers of shards of a new cluster's transaction log
        and consumer offsets; each is created when it is first written.

        On a local disk `storage.fsync` is recorded for a new cluster, which every process follows.

        Raises ConfigError if there is no cluster, if `root` is not absolute or storage.fsync is
        given with another value than the recorded one; TypeError for storage options that are not
        text, UnsupportedStoreError if the store has no working conditional put.
        """
        shards = arguments.integer("shards", shards, least=1, most=SHARDS_MAX)
        offsets_shards = arguments.integer(
            "offsets_shards", offsets_shards, least=1, most=SHARDS_MAX
        )
        if isinstance(root, ObjectStore):
            store = root
        else:
            store = ObjectStore.from_url(checked_root(root), storage_options, create=create)
        cluster = cls(store, settings=settings)
        is_new = cluster._meta.open(
            create=create,
            shards=shards,
            offsets_shards=offsets_shards,
            fsync=fsync_from_environment(),
        )
        if not isinstance(root, ObjectStore):
            _check_fsync(store, cluster._meta.fsync)
        store.watch_folder(cluster_log.PATH, cluster._check_cluster_id)
        cluster_log.follow_root(store)
        if is_new:
            cluster.is_new = True
            note_clock(store)
        return cluster

    @classmethod
    def cached(
        cls,
        root: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        create: bool = False,
    ) -> Cluster:
        """This thread's instance for this root: Spark's workers live across micro-batches."""
        root, options = checked_root(root), checked_types(storage_options)
        return CLUSTERS.get(root, options, lambda: cls.open(root, options, create=create))

    def _check_cluster_id(self) -> None:
        """Raise NotCoordinatorError if this root now holds another cluster than the opened one.

        Checked after the root was missing: something else may be mounted in its place.
        """
        found = ClusterLog(self.store.reopened(), settings=self.settings)
        found.open(create=False)
        if found.cluster_id != self.cluster_id:
            raise NotCoordinatorError(
                f"The cluster at {self.root} has id {found.cluster_id}, but this process opened "
                f"{self.cluster_id}: the root was missing for a while, and something else is "
                "mounted there now. Nothing was written. Mount the former root again, or restart.",
                root=self.root,
            )

    # -- topics ----------------------------------------------------------------------------------

    def topic(self, name: str, *, internal: bool = False) -> TopicLog:
        """The topic's log, tailed to its head.

        Raises InvalidTopicError, UnknownTopicOrPartitionError listing the existing topics.
        """
        log = self.topic_log(name, internal=internal)
        log.refresh()
        return self._existing(log)

    def topics(self, names: Iterable[str]) -> dict[str, TopicLog]:
        """The topics' logs by name, tailed to their heads together.

        Raises as `topic`, one error for all of them.
        """
        logs = {name: self.topic_log(name) for name in arguments.items("names", names)}
        self.refresh_together(logs.values())
        failures = Failures("Looking up topics", logging.DEBUG)
        for name, log in logs.items():
            with failures.of(name):
                self._existing(log)
        failures.check()
        return logs

    def look_up(self, names: Iterable[str]) -> dict[str, TopicLog | TxnLogError]:
        """As `topics`, with the error in the place of a log that cannot be had."""
        found: dict[str, TopicLog | TxnLogError] = {}
        for name in arguments.items("names", names):
            try:
                found[name] = self.topic_log(name)
            except TxnLogError as error:
                found[name] = error
        logs = [log for log in found.values() if isinstance(log, TopicLog)]
        for log, failure in zip(logs, self.tail_each(logs), strict=True):
            existing = partial(self._existing, log)
            found[log.name] = failure if failure else caught(existing, _reading(log.name))
        return found

    def _existing(self, log: TopicLog) -> TopicLog:
        name = log.name
        if not log.exists:
            self.store.check_folder(cluster_log.PATH)
            raise UnknownTopicOrPartitionError(
                f"There is no topic {name!r} at {self.root}{self._existing_topics(name)}. Create "
                "it first, or correct the name.",
                topic=name,
            )
        return log

    def _existing_topics(self, missing: str) -> str:
        try:
            names = [name for name in self.topic_names() if name != missing]
        except StorageError:
            # A reader of some topics may have no permission to list the root.
            return ""
        if len(names) <= _NAMES_SHOWN:
            return f"; there are: {', '.join(names) or 'none'}"
        closest = ", ".join(get_close_matches(missing, names, _NAMES_SHOWN)) or "none is similar"
        return f"; there are {len(names)}: {closest}"

    def list_topics(self) -> list[str]:
        """Names of the live topics, sorted.

        Topics that cannot be read are logged and left out: see `survey_topics`.
        Raises StorageError for a retriable failure.
        """
        found = []
        failures = Failures("Reading topics", logging.DEBUG)
        for name, log in self.survey_topics().items():
            if isinstance(log, TopicLog):
                found.append(name)
            elif log.retriable:
                failures.add(name, log)
            else:
                logger.warning("Topic %r cannot be read and is left out: %s", name, log)
        failures.check()
        return found

    def survey_topics(
        self, matches: Callable[[str], bool] = bool, names: Iterable[str] | None = None
    ) -> dict[str, TopicLog | TxnLogError]:
        """Each matching topic, by name: its log, tailed to its head, or why it is unreadable.

        Other Delta tables and folders under the root are ignored. `names`: those of `topic_names`,
        if they are known.
        """
        names = self.topic_names() if names is None else arguments.items("names", names)
        logs = {name: self.topic_log(name) for name in names if matches(name)}
        surveyed = self.store.together(
            [partial(caught, partial(_find, log), _reading(name)) for name, log in logs.items()]
        )
        found = zip(logs, surveyed, strict=True)
        return {name: log for name, log in found if log is not None}

    def topic_names(self) -> list[str]:
        """Sorted names of folders that are, were or may be topics; none of them is read."""
        return [name for name in sorted(self.store.list_folders()) if may_be_topic(name)]

    def find_topic(self, name: str) -> TopicLog | None:
        """The topic's log, tailed to its head; None if it is deleted, or another tool's folder."""
        return _find(self.topic_log(name))

    def find_or_create_topic(
        self, name: str, *, auto_create: bool, partitions: int | None = None
    ) -> TopicLog:
        """The topic's log, tailed to its head; a missing topic is created if `auto_create`.

        Raises what `topic` and `create_topic` raise.
        """
        try:
            return self.topic(name)
        except UnknownTopicOrPartitionError:
            if not auto_create:
                raise
        return self.create_topic(name, partitions=partitions, exist_ok=True)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> TopicLog:
        """Create a topic.

        A deleted one gets at least as many partitions as it had (D12): fewer `partitions` are
        refused, unless `exist_ok`. `config`: see txnlog.settings.topic_configs. Raises
        InvalidTopicError, ConfigError, InvalidPartitionsError, TopicAlreadyExistsError unless
        exist_ok.
        """
        log = self.topic_log(arguments.topic("topic", name))
        count = NUM_PARTITIONS_DEFAULT if partitions is None else partitions
        count = arguments.integer(
            "partitions", count, least=1, most=PARTITIONS_MAX, refusal=InvalidPartitionsError
        )
        checked = check_configs({} if config is None else config)
        log.create(
            partitions=count,
            config=checked,
            exist_ok=exist_ok,
            at_least=exist_ok or partitions is None,
        )
        return log

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self, name: str | None = None, *, ttl_ms: int | None = None) -> Snapshot:
        """All topics, enlisted tables and offsets of groups at one boundary between transactions.

        No writer is stopped. With a name it is kept until `ttl_ms` (default: 7 days) have passed:
        its files and the versions of its logs stay. Without one it can be read for as long as these
        stay anyway, an hour or more. `offsets` of the result: group -> topic -> partition -> the
        next offset. See txnlog.coordinator.snapshots for what it raises.
        """
        if name is None:
            if ttl_ms is not None:
                raise ConfigError("ttl_ms is for a snapshot with a name.", option="ttl_ms")
            return take_snapshot(self)
        ttl_ms = TTL_MS_DEFAULT if ttl_ms is None else ttl_ms
        ttl_ms = arguments.integer("ttl_ms", ttl_ms, least=1, most=TTL_MS_MAX)
        return keep_snapshot(self, arguments.text("name", name), ttl_ms=ttl_ms)

    def snapshots(self) -> dict[str, Pin]:
        """The named snapshots that have not expired: when they were taken, and until when."""
        now_ms = self.store.now_ms()
        return {name: pin for name, pin in self.pins().items() if pin.expires_ms > now_ms}

    def find_snapshot(self, name: str) -> Snapshot:
        """A named snapshot. Raises SnapshotNotFoundError."""
        return find_snapshot(self, arguments.text("name", name))

    def drop_snapshot(self, name: str) -> None:
        """Keep a named snapshot no longer. Raises SnapshotNotFoundError."""
        drop_snapshot(self, arguments.text("name", name))

    def read(
        self,
        name: str,
        *,
        snapshot: str | Snapshot | None = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.Table:
        """The committed records of a topic, or the rows of an enlisted table, as an Arrow table, as
        of now or as of a snapshot. Of a topic and a table of one name it reads the topic.

        Columns of a topic are those of the Spark source, with headers; those of a table its own.
        `columns` selects some. `filter` is a condition on any of them, as in
        `pyarrow.compute.field("offset") >= 100`: files whose headers, or partition values, rule it
        out are not read. Raises UnknownTopicOrPartitionError, SnapshotNotFoundError, ConfigError;
        for a table TableFeatureError, CorruptLogError, ObjectNotFoundError.
        """
        name = arguments.text("name", name)
        names = None if columns is None else arguments.each("columns", columns, arguments.text)
        if snapshot is not None:
            snapshot = self._snapshot(snapshot)
        try:
            topic = self.topic_as_of(name, snapshot)
        except (InvalidTopicError, UnknownTopicOrPartitionError):
            known = {**snapshot.tables, **snapshot.missing} if snapshot else self.enlisted()
            if name not in known:
                raise
            return rows_of_table(self, name, snapshot, columns=names, filter=filter)
        return read_topic(topic, columns=names, filter=filter)

    def topic_as_of(self, topic: str, snapshot: str | Snapshot | None) -> TopicLog:
        """The topic's log, tailed to its head, or opened as a snapshot shows it; raises as read."""
        if snapshot is None:
            return self.topic(topic)
        return topic_at(self, topic, self._snapshot(snapshot))

    def _snapshot(self, snapshot: str | Snapshot) -> Snapshot:
        if isinstance(snapshot, str):
            return self.find_snapshot(snapshot)
        found: Snapshot = arguments.one_of("snapshot", snapshot, Snapshot)
        check_of_root(self, found)
        return found

    # -- deletion --------------------------------------------------------------------------------

    def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic. Created again it has a new id, and its offsets continue (R71).

        `force` also deletes a topic whose log is damaged, or lost; what might still be restored is
        deleted after the vacuum age. Its offsets continue far above the old ones, since the old end
        may be in the damaged part. Raises CorruptLogError for such a topic without `force`.
        """
        log = self.topic_log(check_topic_name(name))
        try:
            log.delete()
        except ForeignTableError:
            raise
        except CorruptLogError as error:
            if not force:
                raise error.replace(
                    f"{error.message} Or delete the topic, with the records that are left, "
                    "with force (delete_topics(..., force=True), `txnlog topics delete --force`)."
                ) from error
            self._delete_unreadable(log)
        except UnknownTopicOrPartitionError:
            if not force or log.log.exists or log.remains(OF_A_TOPIC) is None:
                raise
            self._delete_unreadable(log)

    def _delete_unreadable(self, log: TopicLog) -> None:
        delete_unreadable(self.store, log.name)
        log.log.invalidate()


def _reading(topic: str) -> str:
    return f"Reading topic {topic!r}"


def _find(log: TopicLog) -> TopicLog | None:
    """See Cluster.find_topic."""
    try:
        log.refresh()
    except ForeignTableError:
        return None
    return log if log.exists else None


CLUSTERS: ProcessCache[Cluster] = ProcessCache(size_max=64, per_thread=True)


def settings_from_environment() -> LogSettings:
    """LogSettings with TXNLOG_CHECKPOINT_INTERVAL (commits) where it is set."""
    text = os.environ.get("TXNLOG_CHECKPOINT_INTERVAL")
    if text is None:
        return LogSettings()
    interval = positive_int("TXNLOG_CHECKPOINT_INTERVAL", text)
    return LogSettings(checkpoint_interval=interval)


def fsync_from_environment() -> bool:
    """Whether roots that this process creates are synced, where the option is not given."""
    return switch("TXNLOG_FSYNC", os.environ.get("TXNLOG_FSYNC", cluster_log.ON)) == cluster_log.ON


def _check_fsync(store: ObjectStore, recorded: str | None) -> None:
    """Raise ConfigError if the option contradicts what the root says."""
    given = store.fsync
    if given is None or recorded is None or given == (recorded != cluster_log.OFF):
        return
    wanted = cluster_log.ON if given else cluster_log.OFF
    raise ConfigError(
        f"storage.fsync={wanted} is given, and {store.url} has storage.fsync={recorded}, which "
        "every process follows. Leave the option out; `txnlog configs alter --entity-type brokers "
        f"--add-config storage.fsync={wanted}` changes the root.",
        option="storage.fsync",
    )
