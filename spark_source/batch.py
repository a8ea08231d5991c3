"""The batch source: `spark.read.format("txnlog")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_source.filters import Pruning, filters_are_pushed
from spark_source.positions import (
    MutablePositions,
    Snapshots,
    Wanted,
    check_in_log,
    check_ranges,
    ends_of,
    resolve_committed,
    wanted_partitions,
)
from spark_source.reading import read_partition
from spark_source.schema import check_schema
from spark_source.settings import COMMITTED, SourceSettings, Times, source_settings
from spark_source.topics import SourceTopics
from txnlog.connector.causes import items_reporting_causes, reports_causes
from txnlog.connector.spark_versions import warn_of_tcp
from txnlog.errors import ConfigError
from txnlog.storage.tables.topic_log import TopicLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


@reports_causes
def batch_reader(options: Mapping[str, str], schema: StructType) -> TxnLogBatchReader:
    """The reader for `spark.read`; no I/O. Raises ConfigError."""
    warn_of_tcp()
    settings = source_settings(options, "read")
    check_schema(schema, include_headers=settings.include_headers)
    if filters_are_pushed():
        return PruningBatchReader(settings)
    return TxnLogBatchReader(settings)


class TxnLogBatchReader(DataSourceReader):
    """Plans in a Python worker of the driver; each task reads with a copy."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._pruning: Pruning | None = None

    @reports_causes
    def partitions(self) -> Sequence[InputPartition]:
        """Tasks for the records from startingOffsets to endingOffsets, of interest to filters.

        Raises: DataLossError, UnknownTopicOrPartitionError, OffsetOutOfRangeError, ConfigError.
        """
        settings = self._settings
        topics = SourceTopics(settings)
        logs = topics.logs()
        topics.check_exist(logs)
        if settings.fail_on_data_loss:
            topics.check_readable()
        topics.warn_if_empty(logs)
        snapshots = topics.snapshots(logs)
        wanted = wanted_partitions(settings.subscription, snapshots)
        starts, losses = check_in_log(self._starts(topics, wanted, snapshots, logs), snapshots)
        topics.report(losses, settings.starting, "startingOffsets")
        if isinstance(settings.ending, str):
            ends = ends_of(starts, snapshots)
        else:
            ends = topics.resolve("endingOffsets", settings.ending, wanted, snapshots, logs)
            _check_order(starts, ends, settings, snapshots)
        topic_ids = {topic: snapshot.topic_id for topic, snapshot in snapshots.items()}
        starts, ends, losses = check_ranges(starts, ends, topic_ids, snapshots)
        topics.report(losses, settings.ending, "endingOffsets")
        pruning = self._pruning
        if pruning is None:
            return topics.plan(starts, ends, logs)
        return topics.plan(pruning.starts(starts), pruning.ends(ends), logs, pruning.times_us)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in Arrow batches. Runs on executors."""
        return items_reporting_causes(read_partition(self._settings, partition))

    def _starts(
        self,
        topics: SourceTopics,
        wanted: Wanted,
        snapshots: Snapshots,
        logs: Mapping[str, TopicLog],
    ) -> MutablePositions:
        settings = self._settings
        if settings.starting == COMMITTED and settings.group_id:
            # Reads only: a batch commits no offsets, so it does not start a generation.
            committed = topics.committed(settings.group_id)
            return resolve_committed(
                committed, settings.auto_offset_reset, wanted, snapshots, settings.subscription
            )
        return topics.resolve("startingOffsets", settings.starting, wanted, snapshots, logs)


class PruningBatchReader(TxnLogBatchReader):
    """The reader while spark.sql.python.filterPushdown.enabled is true (D119)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note what can be skipped; Spark evaluates all filters on the rest, too."""
        self._pruning = Pruning.of(filters)
        return filters


def _check_order(
    starts: MutablePositions, ends: MutablePositions, settings: SourceSettings, snapshots: Snapshots
) -> None:
    """Raise ConfigError for a range that ends before it starts; given up, if it was removed."""
    ending = settings.ending.option if isinstance(settings.ending, Times) else "endingOffsets"
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            start = starts[topic][partition]
            is_removed = end < snapshots[topic].log_start[partition]
            if end < start and (settings.fail_on_data_loss or not is_removed):
                raise ConfigError(
                    f"Partition {partition} of topic {topic} starts at offset {start}, after the "
                    f"offset {end} of option {ending}. Start earlier or end later.",
                    option=ending,
                    topic=topic,
                    partition=partition,
                )
