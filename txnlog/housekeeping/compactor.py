"""Compaction in one process, for clusters whose data does not need Spark: topic after topic.

All of it may run beside jobs/compact.py, other compactors and every client: a group that another
was faster with is dropped. What is remembered from round to round only saves looking.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction import (
    cleaning_settings_of,
    commit_segment,
    rewrite,
    settings_of,
)
from txnlog.housekeeping.key_compaction import DEDUPE_BUFFER_BYTES_DEFAULT, KeyCleaner
from txnlog.process.failures import Failures
from txnlog.protocol.compaction import CompactionGroup, Obsolete, plan_partition
from txnlog.protocol.key_compaction import plan_cleaning
from txnlog.settings.topic_configs import is_compacted
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

BACKOFF_MS_DEFAULT = 15_000
"""log.cleaner.backoff.ms."""

STEP_MS = 2_000
FULL_LOOK_MS = 3_600_000
"""How often to look again at all of it, also at what lies before the last full file."""


@dataclass(slots=True)
class _Looked:
    """What was found in a topic: nothing to merge at a version, or before an offset."""

    topic_id: str
    since_ms: int
    version: int = -1
    resume_offsets: dict[int, int] = field(default_factory=dict)


class Compactor:
    """Merges and cleans the topics of one cluster. The constructor does no I/O."""

    def __init__(
        self, cluster: Cluster, *, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES_DEFAULT
    ) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._dedupe_buffer_bytes = dedupe_buffer_bytes
        self._looked: dict[str, _Looked] = {}
        self._round: Iterator[int] | None = None

    def step(self, budget_ms: int | None = None) -> int:
        """Work for so long (STEP_MS), or a little longer: one file or group is done at a time.

        Returns how many files were replaced. A round through all topics may take many steps, see
        `is_busy`. Raises, at the end of a round, what a topic raised that could not be compacted:
        it delays itself only (R37).
        """
        end_ms = self._clock.boot_ms() + (STEP_MS if budget_ms is None else budget_ms)
        if self._round is None:
            self._round = self._work()
        replaced = 0
        try:
            for count in self._round:
                replaced += count
                if self._clock.boot_ms() >= end_ms:
                    return replaced
        except BaseException:
            self._round = None
            raise
        self._round = None
        return replaced

    def is_busy(self) -> bool:
        """Whether the last step left a round unfinished."""
        return self._round is not None

    def compact(self, topic: str) -> int:
        """Do all there is to do now in one topic; how many files were replaced."""
        self._cluster.topic(topic)
        return sum(self._topic(topic))

    def _work(self) -> Iterator[int]:
        names = self._cluster.topic_names()
        self._looked = {name: self._looked[name] for name in names if name in self._looked}
        yield from _each((f"topic {name!r}", self._existing(name)) for name in names)

    def _existing(self, name: str) -> Iterator[int]:
        if self._cluster.find_topic(name) is None:
            self._looked.pop(name, None)
        else:
            yield from self._topic(name)

    def _topic(self, name: str) -> Iterator[int]:
        """Merge, then clean; a partition that cannot be read delays itself only."""
        log = self._cluster.topic_log(name)
        looked = self._look(log)
        version = log.log.version
        # What comes later is for the next round: beside a busy producer this one would never end.
        ends = [log.view.last_stable_offset(partition) for partition in range(log.partitions)]
        work: list[tuple[str, Iterator[int]]] = []
        if looked.version != version:
            work += [
                (f"partition {p}", self._merge(log, p, looked, before_offset=end))
                for p, end in enumerate(ends)
            ]
        if is_compacted(log.config):
            work += [(f"partition {p}", self._clean(log, p)) for p in range(log.partitions)]
        yield from _each(work)
        looked.version = version

    def _look(self, log: TopicLog) -> _Looked:
        now_ms = self._clock.boot_ms()
        known = self._looked.get(log.name)
        is_fresh = known is not None and now_ms - known.since_ms < FULL_LOOK_MS
        if known is None or not is_fresh or known.topic_id != log.topic_id:
            known = self._looked[log.name] = _Looked(log.topic_id, now_ms)
        return known

    def _merge(
        self, log: TopicLog, partition: int, looked: _Looked, *, before_offset: int
    ) -> Iterator[int]:
        """Group after group, each planned on what the one before left."""
        while True:
            plan = plan_partition(
                log.view,
                log.name,
                partition,
                settings_of(log.config),
                from_offset=looked.resume_offsets.get(partition, 0),
                before_offset=before_offset,
                groups_max=1,
            )
            looked.resume_offsets[partition] = plan.resume_offset
            if not plan.groups or not self._compact(log, plan.groups[0]):
                return
            yield len(plan.groups[0].inputs)

    def _compact(self, log: TopicLog, group: CompactionGroup) -> bool:
        """False: another did it, or something else with these files."""
        log.refresh()
        if group.changed_input(log.view.by_path) is not None:
            return False
        segment = rewrite(self._cluster.store, group)
        decision = commit_segment(self._cluster, group, segment)
        if isinstance(decision, Obsolete):
            logger.info("A segment of %s was given up: %s", log.name, decision.why)
            return False
        return True

    def _clean(self, log: TopicLog, partition: int) -> Iterator[int]:
        cleaning = plan_cleaning(
            log.view,
            log.name,
            partition,
            cleaning_settings_of(log.config),
            now_ms=self._cluster.store.now_ms(),
        )
        if cleaning is not None:
            yield from KeyCleaner(
                self._cluster,
                cleaning,
                settings_of(log.config),
                dedupe_buffer_bytes=self._dedupe_buffer_bytes,
            ).run()


def _each(work: Iterable[tuple[str, Iterator[int]]]) -> Iterator[int]:
    """One part after the other, whatever the ones before raised; their errors at the end."""
    failures = Failures("Compaction")
    for name, part in work:
        with failures.of(name):
            yield from part
    failures.check()
