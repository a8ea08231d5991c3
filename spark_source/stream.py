"""The streaming source (Spark's KafkaMicroBatchStream, for topics without brokers)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_source.offsets import Positions, SourceOffset, positions_json
from spark_source.positions import (
    MutablePositions,
    Snapshots,
    check_in_log,
    check_ranges,
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
from txnlog.connector.causes import items_telling_causes, tells_causes
from txnlog.errors import CheckpointError, TxnLogError
from txnlog.settings.options import warn_about
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def stream_reader(
    options: Mapping[str, str], schema: StructType
) -> TxnLogStreamReader | RefusedStreamReader:
    """The reader for `spark.readStream`; no I/O. Options it cannot read raise at its first use."""
    try:
        return open_reader(options, schema)
    except TxnLogError as error:
        return RefusedStreamReader(error)


def open_reader(options: Mapping[str, str], schema: StructType) -> TxnLogStreamReader:
    """The reader itself. Raises ConfigError, InvalidTopicError."""
    settings = source_settings(options, "readStream")
    check_schema(schema, include_headers=settings.include_headers)
    return TxnLogStreamReader(settings)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader whose options are wrong.

    What is raised while Spark makes a reader ends, in Spark's message, with an error of Spark's own
    (its clean-up names a reader that is not there); what a reader raises ends with our sentence.
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
    """Lives in one worker of the driver for a query's run; a copy of it reads in each task."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._topics = SourceTopics(settings)
        self._available_now: Snapshots | None = None
        self._latest: Positions | None = None
        self._just_refreshed: dict[str, TopicLog] | None = None
        self._generation: int | None = None
        self._gave_batch_at_ms: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Nothing: Spark asks again when it replays batch 0, and by then `latest` has moved on.

        The resolved start travels in batch 0's end, which Spark logs before it runs the batch.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back at every trigger, unless the trigger wants all there is.

        Python's API takes one limit; beside an upper one the lower one is in the settings.
        """
        settings = self._settings
        if settings.max_offsets_per_trigger is not None:
            return ReadMaxRows(settings.max_offsets_per_trigger)
        if settings.min_offsets_per_trigger is not None:
            return ReadMinRows(settings.min_offsets_per_trigger)
        return ReadAllAvailable()

    @tells_causes
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: what is in the topics now (R61)."""
        self._available_now = self._topics.snapshots(self._topics.logs())

    @tells_causes
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch: `start` itself when there is nothing new.

        Raises: DataLossError, UnknownTopicOrPartitionError, ConfigError, CheckpointError,
        IllegalGenerationError, UnstableOffsetCommitError.
        """
        warn_about(self._settings.options)
        self._topics.cluster.sweeper.sweep_if_due()
        logged = self._logged(start) if start else None
        if logged is None:
            positions, snapshots = self._begin()
            moved = positions
        else:
            snapshots = self._look()
            self._topics.check_readable(logged.positions)
            positions, moved = self._continue(logged, snapshots)
        generation = self._join(logged)
        self._latest = ends_of(positions, snapshots)
        ends = ends_of(positions, snapshots, self._available_now)
        if self._is_too_little(records_between(positions, ends), limit) and logged is not None:
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

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Ends of the partitions read, as of the last look: {"topic":{"0":42}}."""
        return None if self._latest is None else positions_json(self._latest)

    @tells_causes
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Tasks for the records from start to end.

        Raises: DataLossError, UnknownTopicOrPartitionError, OffsetOutOfRangeError, CheckpointError.
        """
        if start == end:
            return []
        finish = self._logged(end)
        before = self._logged(start).positions if start else {}
        starts = _starts(before, finish)
        logs = self._just_refreshed
        self._just_refreshed = None
        if logs is None or set(finish.positions) - set(logs):
            logs = self._topics.logs()
            self._topics.check_readable(finish.positions)
        snapshots = self._topics.snapshots(logs)
        starts, ends, losses = check_ranges(starts, finish.positions, finish.topic_ids, snapshots)
        self._topics.report(losses)
        tasks = self._topics.plan(starts, ends, logs)
        # A batch planned before group.id was given, or when it was another one: the sink takes it
        # as it is only when the group was started.
        self._join(finish)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in Arrow batches. Runs on executors."""
        return items_telling_causes(read_partition(self._settings, partition))

    def _is_too_little(self, records: int, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger holds the batch back; else its maxTriggerDelay starts anew.

        As in Spark's Kafka connector, the first batch of a run is never held back.
        """
        least = self._settings.min_offsets_per_trigger
        if least is None or self._available_now is not None or isinstance(limit, ReadAllAvailable):
            return False
        now_ms = self._topics.cluster.store.clock.boot_ms()
        before_ms = self._gave_batch_at_ms
        is_due = before_ms is None or now_ms - before_ms >= self._settings.max_trigger_delay_ms
        if records < least and not is_due:
            return True
        self._gave_batch_at_ms = now_ms
        return False

    def _logged(self, offset: dict[str, Any]) -> SourceOffset:
        logged = SourceOffset.from_json(offset)
        cluster = self._topics.cluster
        if logged.cluster != cluster.cluster_id:
            raise CheckpointError(
                f"The checkpoint belongs to cluster {logged.cluster}, and the root holds cluster "
                f"{cluster.cluster_id}: offsets of one mean nothing in the other. Use the root the "
                "query had, or start it with a new checkpointLocation."
            )
        return logged

    def _join(self, logged: SourceOffset | None) -> int | None:
        """The generation the query commits under; a query new to its group starts a new one."""
        group_id = self._settings.group_id
        if group_id is None:
            return None
        if logged is not None and logged.group == group_id:
            return logged.generation
        if self._generation is None:
            self._generation = self._topics.cluster.groups.start(group_id)
        return self._generation

    def _look(self) -> Snapshots:
        """The topics at the head of their logs; the look is kept for planning this batch."""
        self._just_refreshed = self._topics.logs()
        return self._topics.snapshots(self._just_refreshed)

    def _begin(self) -> tuple[MutablePositions, Snapshots]:
        """Positions of a query without checkpoint.

        A query with wrong options fails before it joins its group: it must not stop a sound one.
        """
        settings = self._settings
        snapshots = self._look()
        self._topics.check_there(snapshots)
        self._topics.warn_if_empty(snapshots)
        wanted = wanted_partitions(settings.subscription, snapshots)
        if settings.starting == COMMITTED and settings.group_id is not None:
            generation = self._join(None)
            committed = self._topics.cluster.groups.fetch(settings.group_id, generation)
            # They may stand where the first look had no records yet.
            snapshots = self._look()
            self._topics.check_there(snapshots)
            self._topics.check_readable(committed)
            positions = resolve_committed(committed, settings.auto_offset_reset, wanted, snapshots)
        else:
            positions = self._topics.resolve(
                "startingOffsets", settings.starting, wanted, snapshots, self._just_refreshed or {}
            )
        positions, losses = check_in_log(positions, snapshots)
        self._topics.report(losses, settings.starting, "startingOffsets")
        return positions, snapshots

    def _continue(
        self, logged: SourceOffset, snapshots: Snapshots
    ) -> tuple[MutablePositions, MutablePositions]:
        """Positions of a query that goes on, and those its last offset does not say."""
        settings = self._settings
        wanted = wanted_partitions(settings.subscription, snapshots)
        positions, moved, losses = continue_from(logged, settings.subscription, wanted, snapshots)
        self._topics.report(losses)
        if settings.fail_on_data_loss:
            self._topics.check_there(snapshots)
        if logged.group != settings.group_id:
            moved = positions  # The group has none of this query's offsets yet.
        return positions, moved


def _starts(before: Positions, finish: SourceOffset) -> MutablePositions:
    """Where the batch that ends at `finish` begins: what its end says, else the offset before."""
    starts: MutablePositions = {}
    for topic, partitions in finish.positions.items():
        for partition in partitions:
            known = finish.start.get(topic, {}).get(partition)
            if known is None:
                known = before.get(topic, {}).get(partition)
            if known is None:
                raise CheckpointError(
                    f"The checkpoint does not say where partition {partition} of topic {topic} "
                    "starts: an offsets file of it is missing or was changed. Restore it, or start "
                    "with a new checkpointLocation."
                )
            starts.setdefault(topic, {})[partition] = known
    return starts
