"""Topics and the coordinator's state for SQL: batch reads by Spark's Delta reader, as views.

A frame is one snapshot. The Delta version is pinned; the committed data and the log starts are
taken from our own log at the same version, as SQL cannot see `txn` actions. Later appends, aborts,
compaction and retention do not change a frame; only vacuum can delete its files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from spark_source.state_tables import consumer_offsets, snapshot_offsets, transaction_state
from txnlog.cluster import Cluster
from txnlog.connector.causes import line_of_cause
from txnlog.connector.spark_delta import (
    hadoop_options,
    is_of_this_spark,
    opening_any_version,
    spark_url,
    why_no_delta,
)
from txnlog.coordinator.versions import check_of_root, table_at, table_in, topic_at
from txnlog.errors import ConfigError, StorageError
from txnlog.protocol.batches import COMMITTED, NONE
from txnlog.protocol.snapshots import Snapshot, TableVersion
from txnlog.protocol.topics import TopicState
from txnlog.settings import arguments
from txnlog.settings.config import warn_once
from txnlog.settings.roots import checked_root, redacted_url
from txnlog.settings.storage_options import StoreSettings, checked_settings, settings_at
from txnlog.storage.batches.records import CREATE_TIME
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "CONSUMER_OFFSETS",
    "TRANSACTION_STATE",
    "Views",
    "create_views",
    "read_committed",
    "read_uncommitted",
]

TRANSACTION_STATE = "__transaction_state"
CONSUMER_OFFSETS = "__consumer_offsets"

_NO_BOUND = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """The common arguments of reads of one root; the repr of `storage` hides its values."""

    spark: SparkSession
    root: str
    spark_root: str | None
    storage: StoreSettings
    include_headers: bool
    read_committed: bool
    snapshot: Snapshot | None = None

    @property
    def cluster(self) -> Cluster:
        return Cluster.cached(self.root, self.storage)


def read_committed(
    spark: SparkSession,
    root: str,
    topic: str | Sequence[str],
    *,
    include_headers: bool = False,
    storage_options: Mapping[str, str] | None = None,
    spark_root: str | None = None,
) -> DataFrame:
    """The committed records of one or more topics, below the last stable offset, as of now.

    Columns are those of `spark.read.format("txnlog")`. Each topic is one snapshot, which does not
    change however often and late the frame is used. `storage_options` are the options
    `storage.<key>` without the prefix. Spark's Delta reader gets what follows from them for Hadoop
    (settings.hadoop), except what the session sets itself. With `spark_root`, the root in Spark's
    notation, Spark uses its own settings only.
    Raises ConfigError, UnknownTopicOrPartitionError naming the existing topics,
    UnsupportedProtocolError, StorageError if Spark cannot read what txnlog can.
    """
    reads = _reads(spark, root, storage_options, spark_root, include_headers)
    return _union(reads, topic)


def read_uncommitted(
    spark: SparkSession,
    root: str,
    topic: str | Sequence[str],
    *,
    include_headers: bool = False,
    storage_options: Mapping[str, str] | None = None,
    spark_root: str | None = None,
) -> DataFrame:
    """All records up to the high watermark, also open and aborted ones; see read_committed."""
    reads = _reads(spark, root, storage_options, spark_root, include_headers, committed=False)
    return _union(reads, topic)


class Views:
    """Temporary views over one root, as of the last `refresh`; see create_views."""

    def __init__(
        self,
        reads: _Reads,
        topics: Sequence[str] | None,
        prefix: str,
        snapshot: str | Snapshot | None,
    ) -> None:
        self._reads = reads
        self._topics = topics
        self._snapshot = snapshot
        self._prefix = prefix
        self.names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Views({', '.join(map(_quoted, self.names))})"

    def refresh(self) -> None:
        """Replace all views, as of now; views of deleted topics are dropped, new topics get one.

        Those of a snapshot show the one that has its name now. If a view cannot be created, nothing
        changes. Raises what create_views raises.
        """
        if isinstance(self._snapshot, str):
            found = self._reads.cluster.find_snapshot(self._snapshot)
            self._reads = replace(self._reads, snapshot=found)
        with opening_any_version(self._reads.spark):
            frames = dict(self._frames())
            _check_distinct(frames)
            for name, frame in frames.items():
                frame.createOrReplaceTempView(_quoted(name))
        # SQL names are case-insensitive: a new topic may have taken a deleted topic's view name.
        created = {name.lower() for name in frames}
        stale = [name for name in self.names if name.lower() not in created]
        self.names = tuple(frames)
        self._drop(stale)

    def drop(self) -> None:
        """Remove all views."""
        names, self.names = self.names, ()
        self._drop(names)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._reads.spark.catalog.dropTempView(name)

    def _frames(self) -> Iterator[tuple[str, DataFrame]]:
        """State first, topics last: what the state shows as committed is then in the topics."""
        spark, cluster, snapshot = self._reads.spark, self._reads.cluster, self._reads.snapshot
        if snapshot is not None:
            offsets = spark.createDataFrame(snapshot_offsets(snapshot))
            yield self._prefix + CONSUMER_OFFSETS, offsets
            enlisted = {*snapshot.tables, *snapshot.missing} - snapshot.topics.keys()
            names = self._topics
            if names is None:
                names = [*snapshot.topics, *snapshot.tables]
                for name, why in snapshot.missing.items():
                    warn_once(f"Table {name} is not in the snapshot, and has no view: {why}")
            for name in names:
                if name in enlisted:
                    frame = _table(self._reads, name, table_in(cluster, name, snapshot))
                else:
                    frame = _read(self._reads, topic_at(cluster, name, snapshot))
                yield self._prefix + name, frame
            return
        now_ms = time.time_ns() // 1_000_000
        tables: dict[str, pa.Table] = {
            TRANSACTION_STATE: transaction_state(cluster, now_ms=now_ms),
            CONSUMER_OFFSETS: consumer_offsets(cluster),
        }
        for name, table in tables.items():
            yield self._prefix + name, spark.createDataFrame(table)
        logs = (
            # list_topics has refreshed them.
            [cluster.topic_log(topic) for topic in cluster.list_topics()]
            if self._topics is None
            else _refreshed(cluster, self._topics)
        )
        for log in logs:
            yield self._prefix + log.name, _read(self._reads, log)


def create_views(
    spark: SparkSession,
    root: str,
    *,
    topics: Sequence[str] | None = None,
    prefix: str = "",
    include_headers: bool = False,
    storage_options: Mapping[str, str] | None = None,
    spark_root: str | None = None,
    snapshot: str | Snapshot | None = None,
) -> Views:
    """Temporary views over every topic (or `topics`), the transaction state and group offsets.

    A view is named `prefix` plus its topic. All are as of now, until `refresh` of the result or
    another create_views. `__transaction_state` has a row for each transactional.id,
    `__consumer_offsets` one for each group, topic and partition.
    With `snapshot`, its name or the result of `Cluster.snapshot`, topics and offsets are as it
    shows them; its Delta tables of others are views, too (`topics` selects among both), and there
    is no view of the transaction state.
    Raises SnapshotNotFoundError, ConfigError, also for topics that differ only by case, and what
    read_committed raises.
    """
    reads = _reads(spark, root, storage_options, spark_root, include_headers)
    if not isinstance(snapshot, str | None):
        reads = replace(reads, snapshot=arguments.one_of("snapshot", snapshot, Snapshot))
        check_of_root(reads.cluster, snapshot)
    views = Views(reads, topics, prefix, snapshot)
    views.refresh()
    return views


# --- One topic ------------------------------------------------------------------------------------


def _reads(
    spark: SparkSession,
    root: str,
    storage_options: Mapping[str, str] | None,
    spark_root: str | None,
    include_headers: bool,
    committed: bool = True,
) -> _Reads:
    root = checked_root(root)
    return _Reads(
        spark=spark,
        root=root,
        spark_root=spark_root,
        storage=checked_settings(root, storage_options or {}),
        include_headers=include_headers,
        read_committed=committed,
    )


def _union(reads: _Reads, topic: str | Sequence[str]) -> DataFrame:
    logs = _refreshed(reads.cluster, [topic] if isinstance(topic, str) else topic)
    if not logs:
        raise ConfigError("Name at least one topic.", option="topic")
    with opening_any_version(reads.spark):
        return reduce(DataFrame.unionAll, [_read(reads, log) for log in logs])


def _refreshed(cluster: Cluster, topics: Iterable[str]) -> list[TopicLog]:
    """All logs, refreshed before the first is read: Spark takes longer to set up a read."""
    return [cluster.topic(name) for name in dict.fromkeys(topics)]


def _read(reads: _Reads, log: TopicLog) -> DataFrame:
    """The topic at the version its log was refreshed to."""
    frame = _delta(reads, f"topic {log.name}", _table_path(reads, log.path), log.log.version)
    for condition in conditions(log.view, read_committed=reads.read_committed):
        frame = frame.where(condition)
    if reads.snapshot is not None:
        for producer_id, epoch in reads.snapshot.topics[log.name].excluded:
            frame = frame.where(f"NOT (producer_id = {producer_id} AND producer_epoch = {epoch})")
    columns = [
        "key",
        "value",
        # nullif makes the literal nullable, like the source's columns. It costs nothing: Spark
        # folds it into a constant.
        f"nullif('{log.name}', '') AS topic",
        "partition",
        "base_offset + offset_delta AS offset",
        "timestamp",
        f"nullif({CREATE_TIME}, {CREATE_TIME + 1}) AS timestampType",
    ]
    if reads.include_headers:
        columns.append("headers")
    return frame.selectExpr(*columns)


def _table(reads: _Reads, name: str, one: TableVersion) -> DataFrame:
    """An enlisted table as a snapshot shows it. Raises SnapshotNotFoundError."""
    table_at(reads.cluster, one, files=False)
    place = spark_url(reads.spark, one.url, _storage(reads, one.url))
    return _delta(reads, f"table {name}", place, one.version, url=one.url)


def conditions(view: TopicState, *, read_committed: bool) -> Iterator[str]:
    """The conditions of a visible record, in SQL over the columns of the topic's table.

    All but the last use only the header, so planning skips files. The last one is needed only
    while delete_records has set a log start inside a live file (R14, R15).
    """
    if read_committed:
        yield f"txn_status IN ('{NONE}', '{COMMITTED}')"
        if any(state.ongoing for state in view.partitions):
            ends = (
                state.last_stable_offset if state.ongoing else _NO_BOUND
                for state in view.partitions
            )
            # Not base_offset: if delete_records has moved the log start above an open batch, the
            # log start is the last stable offset, too, and may be inside a later batch.
            yield f"last_offset < {_of_partition(ends)}"
    starts = [state.log_start_offset for state in view.partitions]
    before = [
        batch
        for state, start in zip(view.partitions, starts, strict=True)
        for batch in state.slice(0, start, read_committed=False)
    ]
    if before:
        yield f"last_offset >= {_of_partition(starts)}"
    if any(batch.last_offset >= starts[batch.partition] for batch in before):
        yield f"base_offset + offset_delta >= {_of_partition(starts)}"


def _of_partition(offsets: Iterable[int]) -> str:
    """SQL that selects the offset of the row's partition."""
    return f"get(array({', '.join(f'{offset}L' for offset in offsets)}), partition)"


def _delta(
    reads: _Reads, name: str, table: str, version: int, *, url: str | None = None
) -> DataFrame:
    """The Delta table at a URL of Spark's, at a version; `url`: its own place, if it has one."""
    reader = reads.spark.read.format("delta").option("versionAsOf", version)
    if reads.spark_root is None:
        options = hadoop_options(reads.spark, url or reads.root, _storage(reads, url))
        reader = reader.options(**options)
    try:
        frame = reader.load(table)
        # Spark Connect resolves nothing before the schema is requested.
        _ = frame.schema
        if not is_of_this_spark(reads.spark):
            frame.head(1)  # A jar for another Spark fails only here.
    except Exception as error:
        # The errors of Spark, Java and Spark Connect have no common base class.
        cause = line_of_cause(error)
        if why := why_no_delta(reads.spark, error):
            raise ConfigError(
                f"SQL reads {name} by Spark's Delta reader: {why}; or read with "
                f'spark.read.format("txnlog"), which does not need Delta. Spark says: {cause}'
            ) from error
        raise StorageError(
            f"Spark cannot read {redacted_url(table)} at version {version}, but txnlog "
            f"can: {cause}. Spark needs the store's jars (hadoop-aws for s3a://), and credentials "
            "of its own where they do not follow from storage_options: see `txnlog spark-conf`. If "
            "Spark's URL of the folder differs, pass spark_root.",
            url=redacted_url(table),
            retriable=False,
        ) from error
    return frame


def _table_path(reads: _Reads, path: str) -> str:
    if reads.spark_root is not None:
        return f"{reads.spark_root.rstrip('/')}/{path}"
    return f"{spark_url(reads.spark, reads.root, reads.storage)}/{path}"


def _storage(reads: _Reads, url: str | None) -> StoreSettings:
    return settings_at(reads.storage, root=reads.root, url=url or reads.root)


def _quoted(name: str) -> str:
    """The name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def _check_distinct(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"Views {other} and {name} have the same name in SQL, which ignores case. Select "
                "topics with topics=[...], and use a prefix for the others.",
                option="topics",
            )
