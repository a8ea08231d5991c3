"""The topics a query reads, refreshed to the head of their logs; the source's cluster access."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from spark_source.filters import Bounds
from spark_source.offsets import LATEST_OFFSET
from spark_source.planning import SourcePartition, plan_ranges, plan_tasks
from spark_source.positions import (
    MutablePositions,
    Snapshots,
    TopicSnapshot,
    Wanted,
    check_named,
    data_loss,
    resolve,
)
from spark_source.settings import ERROR, SourceSettings, Times
from txnlog.cluster import Cluster
from txnlog.coordinator.versions import topic_at
from txnlog.errors import ConfigError, TxnLogError, UnknownTopicOrPartitionError
from txnlog.process.failures import Failures
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.snapshots import Snapshot
from txnlog.settings.config import warn_once
from txnlog.settings.roots import redacted_url
from txnlog.storage.tables.offset_lookup import offsets_for_times
from txnlog.storage.tables.topic_log import TopicLog

LIST_MS = 10_000
"""How often new topics are looked for on an object store: a listing costs as much as 12 reads."""


class SourceTopics:
    """Opens the cluster at first use, never in the constructor."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._unreadable: dict[str, TxnLogError] = {}
        self._names: list[str] = []
        self._listed_ms: int | None = None
        self._snapshot: Snapshot | None = None
        self.count = 0
        """Number of topics at the last `logs`."""

    @property
    def cluster(self) -> Cluster:
        """The cluster, opened once per process."""
        options = self._settings.options
        return Cluster.cached(options.root, options.storage)

    def logs(self) -> dict[str, TopicLog]:
        """The subscribed topics that exist, each refreshed to the head of its log."""
        cluster = self.cluster
        subscription = self._settings.subscription
        if self._settings.snapshot is not None:
            return self._logs_at(cluster.find_snapshot(self._settings.snapshot))
        if subscription.pattern is not None:
            return self._matching(subscription.matches)
        logs = {topic: cluster.topic_log(topic) for topic in subscription.partitions}
        self.count = len(logs)
        cluster.refresh_together(logs.values())
        return {topic: log for topic, log in logs.items() if log.exists}

    def _logs_at(self, snapshot: Snapshot) -> dict[str, TopicLog]:
        """The subscribed topics as a snapshot shows them. Raises for one that it does not have."""
        subscription = self._settings.subscription
        names = [topic for topic in snapshot.topics if subscription.matches(topic)]
        self._snapshot = snapshot
        return {
            topic: topic_at(self.cluster, topic, snapshot)
            for topic in dict.fromkeys([*subscription.partitions, *names])
        }

    def committed(self, group_id: str) -> Positions:
        """The offsets of a group; those of the snapshot, if one is read."""
        if self._snapshot is not None:
            return self._snapshot.offsets.get(group_id, {})
        return self.cluster.groups.fetch(group_id, None)

    def _matching(self, matches: Callable[[str], bool]) -> dict[str, TopicLog]:
        """Topics that match the pattern; an unreadable one does not affect the others."""
        logs: dict[str, TopicLog] = {}
        self._unreadable = {}
        self._list_names(matches)
        surveyed = self.cluster.survey_topics(matches, self._names)
        self.count = len(surveyed)
        failures = Failures("Reading topics", logging.DEBUG)
        for topic, log in surveyed.items():
            if isinstance(log, TopicLog):
                logs[topic] = log
            elif log.retriable:
                failures.add(topic, log)
            else:
                self._unreadable[topic] = log
                warn_once(
                    f"Topic {topic} matches subscribePattern, but cannot be read and is skipped: "
                    f"{log.message}"
                )
        failures.check()
        return logs

    def _list_names(self, matches: Callable[[str], bool]) -> None:
        """List the names that match: always, or on an object store every LIST_MS."""
        store = self.cluster.store
        now_ms = store.clock.boot_ms()
        listed_ms = self._listed_ms
        if store.is_remote and listed_ms is not None and now_ms - listed_ms < LIST_MS:
            return
        self._names = [name for name in self.cluster.topic_names() if matches(name)]
        self._listed_ms = now_ms

    def check_readable(self, wanted: Collection[str] | None = None) -> None:
        """Raise the errors of wanted topics (None: all topics) that the last `logs` skipped.

        A topic a query has read must not be taken for deleted, nor a batch lack a topic.
        """
        failures = Failures("Reading topics", logging.DEBUG)
        for topic, error in self._unreadable.items():
            if wanted is None or topic in wanted:
                failures.add(topic, error)
        failures.check()

    def check_exist(self, existing: Collection[str]) -> None:
        """Raise UnknownTopicOrPartitionError, naming the existing topics, if one is missing."""
        for topic in self._settings.subscription.partitions:
            if topic not in existing:
                self.cluster.topic(topic)
                raise UnknownTopicOrPartitionError(
                    f"Topic {topic} did not exist when the query started. Restart the query.",
                    topic=topic,
                )

    def warn_if_empty(self, existing: Collection[str]) -> None:
        """Warn once if a pattern matches no topic yet: it may be misspelt."""
        subscription = self._settings.subscription
        if subscription.pattern is not None and not existing:
            others = [n for n in self.cluster.topic_names() if not subscription.matches(n)]
            warn_once(
                f"Option subscribePattern={subscription.pattern} matches no topic at "
                f"{redacted_url(self.cluster.root)}; there are: {', '.join(others) or 'none'}."
            )

    def snapshots(self, logs: Mapping[str, TopicLog]) -> dict[str, TopicSnapshot]:
        """Each partition's offsets, at the version its log was refreshed to."""
        return {
            topic: TopicSnapshot.of(
                log.view,
                topic_id=log.topic_id,
                partitions=log.partitions,
                read_committed=self._settings.read_committed,
            )
            for topic, log in logs.items()
        }

    def resolve(
        self,
        option: str,
        value: str | Positions | Times,
        wanted: Wanted,
        snapshots: Snapshots,
        logs: Mapping[str, TopicLog],
    ) -> MutablePositions:
        """Positions for the value of an option; times are looked up in the data files.

        Raises: ConfigError if JSON does not name exactly the wanted partitions, or if no record is
        at or after a time and the strategy is error (R60).
        """
        if isinstance(value, Times):
            value = self._offsets_for_times(value, wanted, logs)
        return resolve(option, value, wanted, snapshots)

    def _offsets_for_times(
        self, times: Times, wanted: Wanted, logs: Mapping[str, TopicLog]
    ) -> MutablePositions:
        named = times.timestamps_ms
        if not isinstance(named, int):
            check_named(times.option, named, wanted, "timestamps are milliseconds since 1970")
        asked = [(topic, partition) for topic in wanted for partition in wanted[topic]]
        at_ms = [named if isinstance(named, int) else named[topic][p] for topic, p in asked]
        offsets = offsets_for_times(
            [(logs[topic], p, ms) for (topic, p), ms in zip(asked, at_ms, strict=True)],
            read_committed=self._settings.read_committed,
        )
        positions: MutablePositions = {}
        for (topic, partition), ms, offset in zip(asked, at_ms, offsets, strict=True):
            if offset is None and times.on_no_match == ERROR:
                raise _no_match(times.option, topic, partition, ms)
            offset = LATEST_OFFSET if offset is None else offset
            positions.setdefault(topic, {})[partition] = offset
        return positions

    def plan(
        self,
        starts: Positions,
        ends: Positions,
        logs: Mapping[str, TopicLog],
        times_us: Bounds | None = None,
    ) -> list[SourcePartition]:
        """Tasks for the records from `starts` to `ends`; see plan_ranges."""
        ranges = plan_ranges(
            starts,
            ends,
            {topic: log.view for topic, log in logs.items()},
            {topic: log.path for topic, log in logs.items()},
            read_committed=self._settings.read_committed,
            times_us=times_us,
        )
        settings = self._settings
        tasks = plan_tasks(
            ranges,
            min_tasks=settings.min_partitions,
            records_max=settings.max_records_per_partition,
        )
        for task in tasks:
            task.cluster_id = self.cluster.cluster_id
        return tasks

    def report(
        self, losses: list[str], limit: str | Positions | Times = "", name: str = ""
    ) -> None:
        """Raise DataLossError for lost records, or with failOnDataLoss=false warn once.

        The error names option `name` if its value, `limit`, is offsets that the user wrote.
        """
        if not losses:
            return
        if self._settings.fail_on_data_loss:
            raise data_loss(losses, None if isinstance(limit, str | Times) else name)
        warn_once(
            f"Records were removed before this query read them; it continues without them: "
            f"{'; '.join(losses)}."
        )


def _no_match(option: str, topic: str, partition: int, timestamp_ms: int) -> ConfigError:
    return ConfigError(
        f"Option {option}: partition {partition} of topic {topic} has no record with timestamp "
        f"{timestamp_ms} or later. Give an earlier timestamp, or set "
        "startingOffsetsByTimestampStrategy=latest to start at the end of such a partition.",
        option=option,
        topic=topic,
        partition=partition,
    )
