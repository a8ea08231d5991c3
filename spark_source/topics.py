"""The topics a query reads, at the head of their logs; the source's only door to the cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from spark_source.offsets import Positions
from spark_source.planning import SourcePartition, plan_ranges, plan_tasks
from spark_source.positions import TopicSnapshot, data_loss
from spark_source.settings import SourceSettings
from txnlog.cluster import Cluster
from txnlog.errors import UnknownTopicOrPartitionError
from txnlog.options import warn_once
from txnlog.storage.topic_log import TopicLog


class SourceTopics:
    """Opens the cluster at first use, never in the constructor."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened once per process."""
        options = self._settings.options
        return Cluster.cached(options.root, options.storage)

    def logs(self) -> dict[str, TopicLog]:
        """The subscribed topics that are there, each refreshed to its head."""
        cluster = self.cluster
        found: dict[str, TopicLog] = {}
        for topic in self._settings.subscription.partitions:
            with suppress(UnknownTopicOrPartitionError):
                found[topic] = cluster.topic(topic)
        return found

    def check_there(self, found: Collection[str]) -> None:
        """Raises UnknownTopicOrPartitionError, naming the topics there are, if one is missing."""
        for topic in self._settings.subscription.partitions:
            if topic not in found:
                self.cluster.topic(topic)
                raise UnknownTopicOrPartitionError(
                    f"Topic {topic} was not there when the query started. Start it again.",
                    topic=topic,
                )

    def snapshots(self, logs: Mapping[str, TopicLog]) -> dict[str, TopicSnapshot]:
        """What the logs say now of each partition's offsets."""
        return {
            topic: TopicSnapshot.of(
                log.view,
                topic_id=log.topic_id,
                partitions=log.partitions,
                read_committed=self._settings.read_committed,
            )
            for topic, log in logs.items()
        }

    def plan(
        self, starts: Positions, ends: Positions, logs: Mapping[str, TopicLog]
    ) -> list[SourcePartition]:
        """Tasks for the records from `starts` to `ends`."""
        ranges = plan_ranges(
            starts,
            ends,
            {topic: log.view for topic, log in logs.items()},
            {topic: log.path for topic, log in logs.items()},
            read_committed=self._settings.read_committed,
        )
        return plan_tasks(ranges)

    def report(self, losses: list[str]) -> None:
        """Fail for lost records, or with failOnDataLoss=false say so once. Raises DataLossError."""
        if not losses:
            return
        if self._settings.fail_on_data_loss:
            raise data_loss(losses)
        warn_once(
            f"Records are gone that this query has not read; it goes on without them: "
            f"{'; '.join(losses)}."
        )
