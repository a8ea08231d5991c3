"""The streaming source, the counterpart of Spark's KafkaMicroBatchStream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_source.offsets import SourceOffset, positions_json
from spark_source.positions import (
    MutablePositions,
    Snapshots,
    check_in_log,
    check_ranges,
    check_selected,
    continue_from,
    ends_of,
    limit_ends,
    records_between,
    resolve_committed,
    wanted_partitions,
)
from spark_source.reading import read_partition
from spark_source.schema import check_schema
from spark_source.settings import COMMITTED, SourceSettings, source_settings
from spark_source.topics import SourceTopics
from txnlog.connector.causes import items_reporting_causes, reports_causes, with_causes
from txnlog.connector.spark_versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    for_this_spark,
    warn_of_tcp,
)
from txnlog.errors import CheckpointError, TxnLogError
from txnlog.protocol.copies import is_in_copy
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.polling import Polling, poll_interval_ms
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


REST_MS_MAX = 100


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader for `spark.readStream`; no I/O. Invalid options raise at its first use.

    An error raised while Spark makes a reader is hidden by one of Spark's own.
    """
    try:
        return for_this_spark(open_reader(options, schema))
    except TxnLogError as error:
        # Without the traceback: Spark would show each frame, at each call.
        return for_this_spark(RefusedStreamReader(with_causes(error)))


def open_reader(options: Mapping[str, str], schema: StructType) -> TxnLogStreamReader:
    """The reader itself. Raises ConfigError, InvalidTopicError."""
    warn_of_tcp()
    settings = source_settings(options, "readStream")
    check_schema(schema, include_headers=settings.include_headers)
    return TxnLogStreamReader(settings)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes the place of a reader with invalid options, and raises their error.

    If creating a reader raises, Spark's message ends with an error of Spark's own (its clean-up
    refers to a reader that does not exist); if a reader's method raises, it ends with our error.
    """

    def __init__(self, error: TxnLogError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class TxnLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one Python worker of the driver for a query's run; each task reads with a copy."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._topics = SourceTopics(settings)
        self._available_now: Snapshots | None = None
        self._latest: Positions | None = None
        self._refreshed_logs: dict[str, TopicLog] | None = None
        self._generation: int | None = None
        self._last_batch_ms: int | None = None
        self._polling = Polling()
        self._idle_at: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Empty: Spark calls this again when it replays batch 0, when `latest` has changed.

        Batch 0's end carries the resolved start (D9); Spark logs it before it runs the batch.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to latestOffset, unless the trigger reads all available.

        Python's API takes one limit; beside a maximum, the minimum is read from the settings.
        """
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.min_offsets_per_trigger is not None:
            return ReadMinRows(settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    @reports_causes
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run at the present end of the topics (R61)."""
        self._available_now = self._topics.snapshots(self._topics.logs())

    @reports_causes
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` if there is nothing new.

        Raises: DataLossError, UnknownTopicOrPartitionError, ConfigError, CheckpointError,
        IllegalGenerationError, UnstableOffsetCommitError.
        """
        if start and start == self._idle_at and self._must_rest():
            return start
        found = self._latest_offset(start, limit)
        self._idle_at = start if found is start else None
        self._rested(is_idle=found is start)
        return found

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._topics.cluster.sweeper.sweep_if_due()
        logged = self._logged(start) if start else None
        if logged is None:
            positions, snapshots = self._initial_positions()
            moved = positions
        else:
            snapshots = self._refresh()
            self._topics.check_readable(logged.positions)
            positions, moved = self._next_positions(logged, snapshots)
        generation = self._generation_of(logged)
        self._latest = ends_of(positions, snapshots)
        ends = ends_of(positions, snapshots, self._available_now)
        if self._must_wait(records_between(positions, ends), limit) and logged is not None:
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends(positions, ends, limit.max_rows)
        if logged is not None and not moved and ends == logged.positions:
            return start
        return SourceOffset(
            positions=ends,
            cluster=self._topics.cluster.cluster_id,
            topic_ids={topic: snapshots[topic].topic_id for topic in ends},
            group=self._settings.group_id,
            generation=generation,
            start=moved,
        ).to_json()

    def _must_rest(self) -> bool:
        """Whether an idle stream does not check its topics yet; waits for a part of that time.

        Spark calls again after 10 ms, and each call takes the driver a millisecond. It calls the
        sources of a query in turn, so none may wait for long.
        """
        clock = self._topics.cluster.store.clock
        left_ms = self._polling.left_ms(clock.boot_ms())
        if left_ms <= 0 or self._available_now is not None:
            return False
        clock.sleep_ms(min(left_ms, REST_MS_MAX))
        return not self._polling.is_due(clock.boot_ms())

    def _rested(self, *, is_idle: bool) -> None:
        """Plan the next check: at once on a local disk, where it costs nothing."""
        store, configured_ms = self._topics.cluster.store, self._settings.poll_interval_ms
        if not is_idle or (configured_ms is None and not store.is_remote):
            self._polling = Polling()
            return
        interval_ms = poll_interval_ms(
            configured_ms, is_remote=store.is_remote, topics=self._topics.count
        )
        self._polling.checked(
            store.clock.boot_ms(), interval_ms=interval_ms, is_remote=store.is_remote
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Ends of the partitions at the last latestOffset call: {"topic":{"0":42}}."""
        return None if self._latest is None else positions_json(self._latest)

    @reports_causes
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the records from start to end.

        Raises: DataLossError, UnknownTopicOrPartitionError, OffsetOutOfRangeError, CheckpointError.
        """
        if start == end:
            return []
        finish = self._logged(end)
        before = self._logged(start).positions if start else {}
        starts = _starts(before, finish)
        logs = self._refreshed_logs
        self._refreshed_logs = None
        if logs is None or set(finish.positions) - set(logs):
            logs = self._topics.logs()
            self._topics.check_readable(finish.positions)
        snapshots = self._topics.snapshots(logs)
        starts, ends, losses = check_ranges(starts, finish.positions, finish.topic_ids, snapshots)
        self._topics.report(losses)
        tasks = self._topics.plan(starts, ends, logs)
        # Starts the group for a batch that was planned without group.id or under another one: the
        # sink accepts such a batch only if the group has been started.
        self._generation_of(finish)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in Arrow batches. Runs on executors."""
        return items_reporting_causes(read_partition(self._settings, partition))

    def _must_wait(self, records: int, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger delays the batch; if not, maxTriggerDelay starts again.

        As in Spark's Kafka connector, the first batch of a run is never delayed.
        """
        records_min = self._settings.min_offsets_per_trigger
        if records_min is None or self._available_now is not None:
            return False
        if isinstance(limit, ReadAllAvailable):
            return False
        now_ms = self._topics.cluster.store.clock.boot_ms()
        before_ms = self._last_batch_ms
        is_due = before_ms is None or now_ms - before_ms >= self._settings.max_trigger_delay_ms
        if records < records_min and not is_due:
            return True
        self._last_batch_ms = now_ms
        return False

    def _logged(self, offset: dict[str, Any]) -> SourceOffset:
        logged = SourceOffset.from_json(offset)
        cluster = self._topics.cluster
        origins = {} if logged.cluster == cluster.cluster_id else cluster.origins()
        if logged.cluster in origins:
            if is_in_copy(logged.positions, origins[logged.cluster]):
                return logged
            raise CheckpointError(
                f"The root is a copy of cluster {logged.cluster}, which the checkpoint belongs to, "
                "and the checkpoint is newer: it has read records that the copy does not have. Use "
                "an older copy of the checkpoint, or start the query with a new checkpointLocation "
                "and startingOffsets=committed."
            )
        if logged.cluster != cluster.cluster_id:
            raise CheckpointError(
                f"The checkpoint belongs to cluster {logged.cluster}, and the root is cluster "
                f"{cluster.cluster_id}: offsets of one are meaningless in the other. Use the "
                "query's former root, or start it with a new checkpointLocation."
            )
        return logged

    def _generation_of(self, logged: SourceOffset | None) -> int | None:
        """The generation the query commits under; a query new to its group starts one."""
        group_id = self._settings.group_id
        if group_id is None:
            return None
        if logged is not None and logged.group == group_id:
            return logged.generation
        if self._generation is None:
            self._generation = self._topics.cluster.groups.start(group_id)
        return self._generation

    def _refresh(self) -> Snapshots:
        """The topics at the head of their logs; planning of this batch reuses the logs."""
        self._refreshed_logs = self._topics.logs()
        return self._topics.snapshots(self._refreshed_logs)

    def _initial_positions(self) -> tuple[MutablePositions, Snapshots]:
        """Positions of a query without a checkpoint.

        A query with invalid options fails before it starts in its group: it must not fence a valid
        one.
        """
        settings = self._settings
        snapshots = self._refresh()
        self._topics.check_exist(snapshots)
        self._topics.warn_if_empty(snapshots)
        wanted = wanted_partitions(settings.subscription, snapshots)
        if settings.starting == COMMITTED and settings.group_id is not None:
            generation = self._generation_of(None)
            committed = self._topics.cluster.groups.fetch(settings.group_id, generation)
            # The committed offsets may be above the ends of the first refresh.
            snapshots = self._refresh()
            self._topics.check_exist(snapshots)
            self._topics.check_readable(committed)
            positions = resolve_committed(
                committed, settings.auto_offset_reset, wanted, snapshots, settings.subscription
            )
        else:
            positions = self._topics.resolve(
                "startingOffsets", settings.starting, wanted, snapshots, self._refreshed_logs or {}
            )
        positions, losses = check_in_log(positions, snapshots)
        self._topics.report(losses, settings.starting, "startingOffsets")
        return positions, snapshots

    def _next_positions(
        self, logged: SourceOffset, snapshots: Snapshots
    ) -> tuple[MutablePositions, MutablePositions]:
        """Positions of a query that continues, and those that differ from its last offset."""
        settings = self._settings
        wanted = wanted_partitions(settings.subscription, snapshots)
        if settings.fail_on_data_loss:
            check_selected(logged, settings.subscription)
        positions, moved, losses = continue_from(logged, settings.subscription, wanted, snapshots)
        self._topics.report(losses)
        if settings.fail_on_data_loss:
            self._topics.check_exist(snapshots)
        if logged.group != settings.group_id:
            moved = positions  # The group has no offsets of this query yet.
        return positions, moved


def _starts(before: Positions, finish: SourceOffset) -> MutablePositions:
    """Where the batch that ends at `finish` starts: by its `start`, else the previous end (D19).

    `start` has what the batch before does not give: batch 0, added partitions, resets after a loss.
    So a replay reads the same range.
    """
    starts: MutablePositions = {}
    for topic, partitions in finish.positions.items():
        for partition in partitions:
            known = finish.start.get(topic, {}).get(partition)
            if known is None:
                known = before.get(topic, {}).get(partition)
            if known is None:
                raise CheckpointError(
                    f"The checkpoint has no start position for partition {partition} of topic "
                    f"{topic}: one of its offsets files is missing or was changed. Restore it, or "
                    "start with a new checkpointLocation."
                )
            starts.setdefault(topic, {})[partition] = known
    return starts
