"""One run of compaction over a cluster; Spark's executors do the rewriting (jobs/compact.py).

The driver plans from headers, executors rewrite as housekeeping does, and the driver commits what
an executor has rewritten. A run has no state to recover: the next run plans again what was not
committed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from msgspec import structs

from txnlog.cluster import Cluster
from txnlog.errors import CommitStateUnknownError, ObjectNotFoundError
from txnlog.housekeeping.compaction.key_compaction import KeyCompactor
from txnlog.housekeeping.compaction.segments import (
    commit_end_of_pass,
    commit_segment,
    key_compaction_settings_of,
    rewrite,
    settings_of,
)
from txnlog.process.failpoint import reach
from txnlog.process.failures import unexpected
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import (
    CompactionGroup,
    CompactionSettings,
    Obsolete,
    Segment,
    plan_partition,
)
from txnlog.protocol.key_compaction import KeyCompactionPass, pass_groups, plan_pass
from txnlog.settings.topic_configs import is_compacted
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

T = TypeVar("T")
W = TypeVar("W", CompactionGroup, "PassPlan")

# A task costs more than a few small files do.
TASK_BYTES = 16 << 20
TASK_FILES = 500
# A pass is one task; where it would have more files than this, merge first.
PASS_FILES = 100_000
# Rounds of passes in which none was completed.
PASS_ATTEMPTS = 3
COMMIT_ATTEMPTS = 5

Place = tuple[str, int]
Outcome = Literal["done", "given up", "failed"]


class PassPlan(NamedTuple):
    """A pass of key compaction that is due, and its groups as planned."""

    key_pass: KeyCompactionPass
    settings: CompactionSettings
    groups: list[CompactionGroup]

    @property
    def topic(self) -> str:
        return self.key_pass.topic

    @property
    def partition(self) -> int:
        return self.key_pass.partition

    @property
    def inputs(self) -> list[BatchHeader]:
        return [batch for group in self.groups for batch in group.inputs]


Work = CompactionGroup | PassPlan
"""What one call of `rewrite_at` does: a group to merge, or a pass with all its groups."""


class Rewritten(NamedTuple):
    """The groups of a work up to `end_offset`; None for a group that needs no segment."""

    segments: list[tuple[CompactionGroup, Segment | None]]
    end_offset: int


Result = Rewritten | Obsolete | str
"""What was written, why that is obsolete, or an error message."""

Rewriting = Callable[[Iterator[Sequence[Work]]], Iterator[tuple[Work, Result]]]
"""Does the work of each list in one task. Gives results in any order, each task's when it ends."""


def rewrite_at(root: str, storage: Mapping[str, str], work: Work) -> Result:
    """Rewrite what the driver has planned; runs on an executor."""
    store = Cluster.cached(root, storage).store
    try:
        if isinstance(work, CompactionGroup):
            rewritten = Rewritten([(work, rewrite(store, work))], work.last_offset + 1)
        else:
            rewritten = _rewrite_pass(KeyCompactor(store, work.key_pass, work.settings), work)
    except ObjectNotFoundError as error:
        return Obsolete(f"it was replaced and vacuumed: {error.message}")
    except Exception as error:
        # Raised, it would fail all other work of the task, too (R37).
        return unexpected(error, f"Compaction of {_name(work)}").message
    reach("compaction.rewritten")
    return rewritten


def _rewrite_pass(compactor: KeyCompactor, plan: PassPlan) -> Rewritten:
    deque(compactor.read_keys(plan.groups), maxlen=0)
    end_offset = compactor.key_pass.end_offset
    groups = [group for group in plan.groups if group.base_offset < end_offset]
    return Rewritten([(one, compactor.rewrite(one)) for one in groups], end_offset)


@dataclass(slots=True)
class Summary:
    """What a run did. `given_up`: groups and passes that another process changed first."""

    groups: int = 0
    files_replaced: int = 0
    bytes_replaced: int = 0
    bytes_written: int = 0
    passes: int = 0
    given_up: int = 0
    failures: list[str] = field(default_factory=list)
    elapsed_ms: int = 0


class Planned(NamedTuple):
    """The work planned in a partition; `bytes` are to be read."""

    topic: str
    partition: int
    action: Literal["key-compact", "merge"]
    groups: int
    inputs: int
    bytes: int
    base_offset: int
    last_offset: int


class CompactionRun:
    """One run over the topics of a cluster, up to their last stable offsets when it begins."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] | None = None,
        *,
        segment_bytes: int | None = None,
        report: Callable[[str], None] = logger.info,
    ) -> None:
        """`segment_bytes` overrides the topics' setting; `report` gets a line per action.

        Without `topics` the run covers all topics, and one that cannot be read fails alone (R37).
        Raises StorageError; for `topics` also the errors of Cluster.topic.
        """
        self._cluster = cluster
        self._report = report
        self._segment_bytes = segment_bytes
        self.summary = Summary()
        # Later records are for the next run: beside a busy producer this one would never end.
        self._ends: dict[str, list[int]] = {}
        if topics is None:
            logs = self._refreshed(cluster.topic_names())
        else:
            logs = map(cluster.topic, dict.fromkeys(topics))
        for log in logs:
            self._ends[log.name] = [log.view.last_stable_offset(p) for p in range(log.partitions)]

    def plan(self) -> Iterator[Planned]:
        """The first work in each partition; after key compaction a partition is merged, too.

        Planning errors are in the summary.
        """
        for log in self._refreshed(self._ends):
            passes = {plan.partition: plan for plan in self._due(log)}
            for partition in range(log.partitions):
                if partition in passes:
                    groups = passes[partition].groups
                else:
                    groups = list(self._mergeable(log, partition))
                if groups:
                    yield Planned(
                        topic=log.name,
                        partition=partition,
                        action="key-compact" if partition in passes else "merge",
                        groups=len(groups),
                        inputs=sum(len(group.inputs) for group in groups),
                        bytes=sum(group.size_bytes for group in groups),
                        base_offset=groups[0].base_offset,
                        last_offset=groups[-1].last_offset,
                    )

    def run(self, rewriting: Rewriting) -> Summary:
        """Compact; errors are in the summary."""
        started_s = time.monotonic()
        files = {log.name: len(log.view.by_path) for log in self._refreshed(self._ends)}
        self._merge_all(rewriting, {name for name in files if files[name] > PASS_FILES})
        places: set[Place] | None = None
        attempts = PASS_ATTEMPTS
        while attempts and places != set():
            passes = self.summary.passes
            places = self._key_compact(rewriting, places)
            attempts -= self.summary.passes == passes
        self._merge_all(rewriting, set(self._ends))
        self.summary.elapsed_ms = round((time.monotonic() - started_s) * 1000)
        return self.summary

    # -- merging ---------------------------------------------------------------------------------

    def _merge_all(self, rewriting: Rewriting, topics: set[str]) -> None:
        while topics:
            topics = self._merge(rewriting, topics)

    def _merge(self, rewriting: Rewriting, topics: set[str]) -> set[str]:
        """One round; the topics in which it committed, since these may have more to merge."""
        tasks = (live for groups in _packed(self._small(topics)) if (live := self._live(groups)))
        return {
            work.topic
            for work, result in rewriting(tasks)
            if "done" in self._commit_all(work, result)
        }

    def _small(self, topics: Iterable[str]) -> Iterator[CompactionGroup]:
        for log in self._refreshed(sorted(topics)):
            for partition in range(log.partitions):
                yield from self._mergeable(log, partition)

    def _mergeable(self, log: TopicLog, partition: int) -> Iterator[CompactionGroup]:
        end = self._end(log, partition)
        with self._failing_alone(log.name):
            yield from plan_partition(
                log.view, log.name, partition, self._settings(log), before_offset=end
            ).groups

    def _end(self, log: TopicLog, partition: int) -> int:
        """Where the partition ended when the run began."""
        ends = self._ends[log.name]
        return ends[partition] if partition < len(ends) else 0

    def _live(self, groups: Sequence[CompactionGroup]) -> list[CompactionGroup]:
        """The groups whose files are live as planned: a check is cheaper than a useless rewrite."""
        names = sorted({group.topic for group in groups})
        paths = {log.name: log.view.by_path for log in self._refreshed(names)}
        return [
            group
            for group in groups
            if group.topic in paths and group.changed_input(paths[group.topic]) is None
        ]

    # -- key compaction --------------------------------------------------------------------------

    def _passes(self, places: set[Place] | None) -> Iterator[PassPlan]:
        """The passes that are due; only at `places`, if given."""
        for log in self._refreshed(self._ends):
            for plan in self._due(log):
                if places is None or (plan.topic, plan.partition) in places:
                    yield plan

    def _due(self, log: TopicLog) -> Iterator[PassPlan]:
        with self._failing_alone(log.name):
            if not is_compacted(log.config):
                return
            settings, now_ms = self._settings(log), self._cluster.store.now_ms()
            limits = key_compaction_settings_of(log.config)
            for partition in range(log.partitions):
                with self._failing_alone(f"{log.name}-{partition}"):
                    key_pass = plan_pass(log.view, log.name, partition, limits, now_ms=now_ms)
                    if key_pass and key_pass.dirty_offset < self._end(log, partition):
                        groups = pass_groups(log.view, key_pass, settings)
                        yield PassPlan(key_pass, settings, groups)

    def _key_compact(self, rewriting: Rewriting, places: set[Place] | None) -> set[Place]:
        """Do the passes that are due; returns the places where another pass may do more."""
        again = set()
        for plan, result in rewriting(_packed(self._passes(places))):
            assert isinstance(plan, PassPlan)
            outcomes = self._commit_all(plan, result)
            done_offset = 0
            if isinstance(result, Rewritten) and outcomes == {"done"}:
                done_offset = result.end_offset
                self._finish(structs.replace(plan.key_pass, end_offset=done_offset))
            if "failed" not in outcomes and done_offset < plan.key_pass.end_offset:
                again.add((plan.topic, plan.partition))
        return again

    def _finish(self, key_pass: KeyCompactionPass) -> None:
        """Record the end of a pass all of whose groups are done."""
        what = f"{key_pass.topic}-{key_pass.partition}"
        try:
            decision = _until_known(lambda: commit_end_of_pass(self._cluster, key_pass))
        except Exception as error:
            self._fail_with(what, error)
            return
        if isinstance(decision, Obsolete):
            self._give_up(what, decision.why)
            return
        self.summary.passes += 1
        end = f"{key_pass.end_offset:,}"
        self._report(f"{what}: before offset {end} only the newest record of each key")

    # -- merging and key compaction ----------------------------------------------------------------

    def _commit_all(self, work: Work, result: Result) -> set[Outcome]:
        """Commit what was rewritten, each group by itself."""
        if isinstance(result, Rewritten):
            return {self._commit(group, segment) for group, segment in result.segments}
        if isinstance(result, Obsolete):
            return {self._give_up(_name(work), result.why)}
        return {self._fail(_name(work), result)}

    def _commit(self, group: CompactionGroup, segment: Segment | None) -> Outcome:
        if segment is None:
            return "done"
        what = _name(group)
        try:
            decision = _until_known(lambda: commit_segment(self._cluster, group, segment))
        except Exception as error:
            return self._fail_with(what, error)
        if isinstance(decision, Obsolete):
            return self._give_up(what, decision.why)
        size_bytes = sum(batch.size_bytes for batch in group.inputs)
        self.summary.groups += 1
        self.summary.files_replaced += len(group.inputs)
        self.summary.bytes_replaced += size_bytes
        self.summary.bytes_written += segment.size_bytes
        self._report(
            f"{what}: {_files(len(group.inputs))} of {size_bytes:,} bytes became one of "
            f"{segment.size_bytes:,} with {segment.num_records:,} records"
        )
        return "done"

    def _refreshed(self, topics: Iterable[str]) -> Iterator[TopicLog]:
        """The logs of topics that still exist; one that cannot be read fails alone."""
        for name in topics:
            with self._failing_alone(name):
                log = self._cluster.find_topic(name)
                if log is not None:
                    yield log

    @contextmanager
    def _failing_alone(self, what: str) -> Iterator[None]:
        """Record an error and continue: the other topics must still be compacted (R37)."""
        try:
            yield
        except Exception as error:
            self._fail_with(what, error)

    def _settings(self, log: TopicLog) -> CompactionSettings:
        settings = settings_of(log.config)
        if self._segment_bytes is None:
            return settings
        return replace(settings, segment_bytes=self._segment_bytes)

    def _give_up(self, what: str, why: str) -> Outcome:
        self.summary.given_up += 1
        self._report(f"{what}: given up: {why}")
        return "given up"

    def _fail_with(self, what: str, error: Exception) -> Outcome:
        """Record an error."""
        return self._fail(what, unexpected(error, f"Compaction: {what}").message)

    def _fail(self, what: str, why: str) -> Outcome:
        failure = f"{what}: {why}"
        if failure not in self.summary.failures:
            self.summary.failures.append(failure)
            self._report(f"FAILED {failure}")
        return "failed"


def _packed(work: Iterable[W]) -> Iterator[list[W]]:
    """Put neighbours together up to what a task may have; a larger one stays alone."""
    packed: list[W] = []
    size_bytes = files = 0
    for one in work:
        inputs = one.inputs
        more_bytes = sum(batch.size_bytes for batch in inputs)
        is_full = size_bytes + more_bytes > TASK_BYTES or files + len(inputs) > TASK_FILES
        if packed and is_full:
            yield packed
            packed, size_bytes, files = [], 0, 0
        packed.append(one)
        size_bytes += more_bytes
        files += len(inputs)
    if packed:
        yield packed


def _until_known(commit: Callable[[], T]) -> T:
    """Repeat a commit whose outcome is unknown. Raises CommitStateUnknownError in the end."""
    for _ in range(COMMIT_ATTEMPTS - 1):
        try:
            return commit()
        except CommitStateUnknownError:
            continue
    return commit()


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _name(of: Work) -> str:
    place = f"{of.topic}-{of.partition}"
    if isinstance(of, PassPlan):
        return place
    return f"{place}, offsets {of.base_offset:,} to {of.last_offset:,}"
