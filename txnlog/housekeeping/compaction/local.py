"""Compaction in one process, for clusters whose data does not need Spark: topic after topic.

It may run beside jobs/compact.py, other compactors and every client: a group that another process
has compacted is dropped. What it remembers between rounds only saves planning.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.key_compaction import DEDUPE_BUFFER_BYTES_DEFAULT, key_compact
from txnlog.housekeeping.compaction.segments import (
    compact_group,
    key_compaction_settings_of,
    rewrite,
    settings_of,
)
from txnlog.process.back_offs import BackOffs
from txnlog.process.failures import Failures
from txnlog.protocol.compaction import plan_partition
from txnlog.protocol.key_compaction import plan_pass
from txnlog.settings.topic_configs import is_compacted
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

BACKOFF_MS_DEFAULT = 15_000
"""log.cleaner.backoff.ms."""

STEP_MS = 2_000
TOPICS_AT_ONCE = 16
"""Topics of an object store that are merged together; each may hold two row groups in memory."""
RETRY_MS = 60_000
"""When work that failed is tried again first; at the latest after FULL_PLAN_MS."""
FULL_PLAN_MS = 3_600_000
"""How often to plan a topic from its log start, not only from the last full file."""


@dataclass(slots=True)
class _Planned:
    """Where a topic has nothing to merge: at `version`, and below `resume_offsets`."""

    topic_id: str
    since_ms: int
    version: int = -1
    resume_offsets: dict[int, int] = field(default_factory=dict)


class Compactor:
    """Merges and key-compacts the topics of one cluster. The constructor does no I/O."""

    def __init__(
        self, cluster: Cluster, *, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES_DEFAULT
    ) -> None:
        self._cluster = cluster
        self._clock = cluster.store.clock
        self._dedupe_buffer_bytes = dedupe_buffer_bytes
        self._planned: dict[str, _Planned] = {}
        self._back_offs = BackOffs[tuple[str, str, str]](
            self._clock, pause_ms=RETRY_MS, pause_ms_max=FULL_PLAN_MS
        )
        """By topic, its id, and partition or pass."""
        self._round: Iterator[int] | None = None

    def step(self, budget_ms: int | None = None) -> int:
        """Work for `budget_ms` (default STEP_MS); returns the number of files replaced.

        It may take a little longer: a file or group is always finished. A round through all topics
        may take many steps, see `is_busy`. A topic that fails delays only itself (R37): the round
        raises its error at the end.
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
        """Compact one topic completely; returns the number of files replaced."""
        log = self._cluster.topic(topic)
        return sum(_each([("merging", self._merges(log)), ("keys", self._key_passes(log))]))

    def _work(self) -> Iterator[int]:
        names = self._cluster.topic_names()
        self._planned = {name: self._planned[name] for name in names if name in self._planned}
        self._back_offs.keep_if(lambda place: place[0] in names)
        failures = Failures("Compaction", logging.DEBUG)
        found: list[TopicLog] = []
        parts = [(f"topic {name!r}", self._existing(name, found)) for name in names]
        yield from self._together(parts, failures)
        # Each of these may take much memory.
        for log in found:
            with failures.of(f"topic {log.name!r}"):
                yield from self._key_passes(log)
        failures.check()

    def _existing(self, name: str, found: list[TopicLog]) -> Iterator[int]:
        """Merge, unless the topic is deleted; adds its log to `found`."""
        log = self._cluster.find_topic(name)
        if log is None:
            self._planned.pop(name, None)
        else:
            found.append(log)
            yield from self._merges(log)

    def _together(
        self, parts: list[tuple[str, Iterator[int]]], failures: Failures
    ) -> Iterator[int]:
        """Advance some topics at a time, each by one group; a log is used by one thread only."""
        store = self._cluster.store
        waiting, active = deque(parts), list[tuple[str, Iterator[int]]]()
        while waiting or active:
            while waiting and len(active) < (TOPICS_AT_ONCE if store.is_remote else 1):
                active.append(waiting.popleft())
            steps = [(name, partial(_step, name, part)) for name, part in active]
            done = failures.together(store.together, steps)
            active = [(name, part) for name, part, count in done if count is not None]
            yield sum(count or 0 for _, _, count in done)

    def _merges(self, log: TopicLog) -> Iterator[int]:
        """Merge the small files of a topic; a partition that cannot be read delays only itself."""
        planned = self._planned_of(log)
        version = log.log.version
        if planned.version == version:
            return
        # Later records are for the next round: beside a busy producer this one would never end.
        ends = [log.view.last_stable_offset(partition) for partition in range(log.partitions)]
        yield from _each(
            (
                f"partition {p}",
                self._apart(log, f"{p}", self._merge(log, p, planned, before_offset=end)),
            )
            for p, end in enumerate(ends)
        )
        planned.version = version

    def _key_passes(self, log: TopicLog) -> Iterator[int]:
        if is_compacted(log.config):
            yield from _each(
                (f"partition {p}", self._apart(log, f"{p}/keys", self._key_compact(log, p)))
                for p in range(log.partitions)
            )

    def _apart(self, log: TopicLog, part: str, work: Iterator[int]) -> Iterator[int]:
        """Do the work, unless it failed a short time ago, as at a damaged file: that error again.

        Each attempt reads, and writes, all before; so the next one waits for twice as long.
        """
        place = log.name, log.topic_id, part
        known = self._back_offs.error_of(place)
        if known is not None:
            raise known
        with self._back_offs.after_failure(place, lambda error: not error.retriable):
            yield from work

    def _planned_of(self, log: TopicLog) -> _Planned:
        now_ms = self._clock.boot_ms()
        known = self._planned.get(log.name)
        is_fresh = known is not None and now_ms - known.since_ms < FULL_PLAN_MS
        if known is None or not is_fresh or known.topic_id != log.topic_id:
            known = self._planned[log.name] = _Planned(log.topic_id, now_ms)
        return known

    def _merge(
        self, log: TopicLog, partition: int, planned: _Planned, *, before_offset: int
    ) -> Iterator[int]:
        """Merge group after group; each is planned on the result of the one before."""
        while True:
            plan = plan_partition(
                log.view,
                log.name,
                partition,
                settings_of(log.config),
                from_offset=planned.resume_offsets.get(partition, 0),
                before_offset=before_offset,
                groups_max=1,
            )
            planned.resume_offsets[partition] = plan.resume_offset
            replaced = None
            if plan.groups:
                rewriting = partial(rewrite, self._cluster.store)
                replaced = compact_group(self._cluster, plan.groups[0], rewriting)
            if replaced is None:
                return
            yield replaced

    def _key_compact(self, log: TopicLog, partition: int) -> Iterator[int]:
        key_pass = plan_pass(
            log.view,
            log.name,
            partition,
            key_compaction_settings_of(log.config),
            now_ms=self._cluster.store.now_ms(),
        )
        if key_pass is not None:
            yield from key_compact(
                self._cluster,
                key_pass,
                settings_of(log.config),
                dedupe_buffer_bytes=self._dedupe_buffer_bytes,
            )


def _step(name: str, part: Iterator[int]) -> tuple[str, Iterator[int], int | None]:
    """A part advanced by one step, and the step's count: None at its end."""
    return name, part, next(part, None)


def _each(work: Iterable[tuple[str, Iterator[int]]]) -> Iterator[int]:
    """Do each part, also after an error of another; errors are raised at the end."""
    failures = Failures("Compaction", logging.DEBUG)
    for name, part in work:
        with failures.of(name):
            yield from part
    failures.check()
