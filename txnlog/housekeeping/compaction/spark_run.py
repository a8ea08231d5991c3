"""One run of compaction over a cluster; Spark does the rewriting (jobs/compact.py).

The driver plans from headers, `Rewriters` rewrite, and the driver commits each group as soon as it
is rewritten. A run has no state to recover: the next run plans again what was not committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

from txnlog.cluster import Cluster
from txnlog.errors import CommitStateUnknownError, TxnLogError, unexpected
from txnlog.housekeeping.compaction.segments import (
    commit_end_of_pass,
    commit_segment,
    key_compaction_settings_of,
    settings_of,
)
from txnlog.housekeeping.compaction.spark_tasks import Part, Payload, Result, packed
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

# Passes share one shuffle up to these sizes: a thousand small topics need only a few shuffles.
SHUFFLE_BYTES = 8 << 30
SHUFFLE_FILES = 100_000
PASS_ATTEMPTS = 3
COMMIT_ATTEMPTS = 5

Place = tuple[str, int]
Outcome = Literal["done", "given up", "failed"]
Results = Iterator[tuple[CompactionGroup, Result]]


class Rewriters(Protocol):
    """Rewrites groups. Gives one result per group, in any order, each as soon as it is done."""

    def merge(self, groups: Iterator[list[CompactionGroup]]) -> Results:
        """Rewrite groups with all their records, the groups of a list together."""

    def key_compact(self, parts: Sequence[Part], payloads: Sequence[Payload]) -> Results:
        """Rewrite the payloads' groups with the newest record of each key in `parts`.

        Raises TxnLogError if keys cannot be read.
        """


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


class PassPlan(NamedTuple):
    """A pass of key compaction that is due, and its groups as planned."""

    key_pass: KeyCompactionPass
    settings: CompactionSettings
    groups: list[CompactionGroup]

    @property
    def inputs(self) -> list[BatchHeader]:
        return [batch for group in self.groups for batch in group.inputs]


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
            passes = {plan.key_pass.partition: plan for plan in self._due(log)}
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

    def run(self, rewriters: Rewriters) -> Summary:
        """Compact; errors are in the summary."""
        started_s = time.monotonic()
        # One shuffle reads all files of a pass: where there are very many, merge first.
        files = {log.name: len(log.view.by_path) for log in self._refreshed(self._ends)}
        self._merge_all(rewriters, {name for name in files if files[name] > SHUFFLE_FILES})
        places: set[Place] | None = None
        for _ in range(PASS_ATTEMPTS):
            passes = self._passes(places)
            places = set()
            for some in packed(passes, _inputs_of, SHUFFLE_BYTES, SHUFFLE_FILES):
                places |= self._key_compact(rewriters, some)
            if not places:
                break
        self._merge_all(rewriters, set(self._ends))
        self.summary.elapsed_ms = round((time.monotonic() - started_s) * 1000)
        return self.summary

    # -- merging ---------------------------------------------------------------------------------

    def _merge_all(self, rewriters: Rewriters, topics: set[str]) -> None:
        while topics:
            topics = self._merge(rewriters, topics)

    def _merge(self, rewriters: Rewriters, topics: set[str]) -> set[str]:
        """One round; the topics in which it committed, since these may have more to merge."""
        planned = packed(self._small(topics), _inputs_of)
        tasks = (live for groups in planned if (live := self._live(groups)))
        return {
            group.topic
            for group, result in rewriters.merge(tasks)
            if self._commit(group, result) == "done"
        }

    def _small(self, topics: Iterable[str]) -> Iterator[CompactionGroup]:
        for log in self._refreshed(sorted(topics)):
            for partition in range(log.partitions):
                yield from self._mergeable(log, partition)

    def _mergeable(self, log: TopicLog, partition: int) -> Iterator[CompactionGroup]:
        ends = self._ends[log.name]
        end = ends[partition] if partition < len(ends) else 0
        with self._failing_alone(log.name):
            yield from plan_partition(
                log.view, log.name, partition, self._settings(log), before_offset=end
            ).groups

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
                if places is None or _place(plan.key_pass) in places:
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
                    if key_pass is not None:
                        groups = pass_groups(log.view, key_pass, settings)
                        yield PassPlan(key_pass, settings, groups)

    def _key_compact(self, rewriters: Rewriters, passes: Sequence[PassPlan]) -> set[Place]:
        """Do some passes together; returns the places that another process changed meanwhile."""
        parts: list[Part] = []
        payloads: list[Payload] = []
        for number, (key_pass, settings, groups) in enumerate(passes):
            for group in groups:
                at = len(payloads)
                payloads.append(Payload(at, group, settings))
                parts += (
                    Part(number, at, group.topic, header, key_pass.tombstone_offset)
                    for header in group.sources
                )
        outcomes: dict[Place, set[Outcome]] = {}
        try:
            for group, result in rewriters.key_compact(parts, payloads):
                outcomes.setdefault(_place(group), set()).add(self._commit(group, result))
        except Exception as error:
            if len(passes) > 1:
                # An unreadable file must fail its own pass only (R37).
                return {place for one in passes for place in self._key_compact(rewriters, [one])}
            self._fail_with(_name(passes[0].key_pass), error)
            return set()
        again = set()
        for key_pass, _, _ in passes:
            found = outcomes[_place(key_pass)]
            if found == {"done"}:
                self._finish(key_pass)
            elif "failed" not in found:
                again.add(_place(key_pass))
        return again

    def _finish(self, key_pass: KeyCompactionPass) -> None:
        """Record the end of a pass all of whose groups are done."""
        try:
            decision = _until_known(lambda: commit_end_of_pass(self._cluster, key_pass))
        except Exception as error:
            self._fail_with(_name(key_pass), error)
            return
        if isinstance(decision, Obsolete):
            self._give_up(_name(key_pass), decision.why)
            return
        self.summary.passes += 1
        end = f"{key_pass.end_offset:,}"
        self._report(f"{_name(key_pass)}: before offset {end} only the newest record of each key")

    # -- merging and key compaction ----------------------------------------------------------------

    def _commit(self, group: CompactionGroup, result: Result) -> Outcome:
        """Commit a rewritten group."""
        if result is None:
            return "done"
        what = f"{_name(group)}, offsets {group.base_offset:,} to {group.last_offset:,}"
        decision: object = result
        if isinstance(result, Segment):
            try:
                decision = _until_known(lambda: commit_segment(self._cluster, group, result))
            except Exception as error:
                self._fail_with(what, error)
                return "failed"
        if isinstance(decision, str):
            self._fail(what, decision)
            return "failed"
        if isinstance(decision, Obsolete):
            self._give_up(what, decision.why)
            return "given up"
        assert isinstance(result, Segment)
        size_bytes = sum(batch.size_bytes for batch in group.inputs)
        self.summary.groups += 1
        self.summary.files_replaced += len(group.inputs)
        self.summary.bytes_replaced += size_bytes
        self.summary.bytes_written += result.size_bytes
        self._report(
            f"{what}: {_files(len(group.inputs))} of {size_bytes:,} bytes became one of "
            f"{result.size_bytes:,} with {result.num_records:,} records"
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

    def _give_up(self, what: str, why: str) -> None:
        self.summary.given_up += 1
        self._report(f"{what}: given up: {why}")

    def _fail_with(self, what: str, error: Exception) -> None:
        """Record an error; that of a bug or a library is logged with its traceback."""
        if not isinstance(error, TxnLogError):
            logger.error("Compaction: %s failed", what, exc_info=error)
        self._fail(what, unexpected(error, "Compaction").message)

    def _fail(self, what: str, why: str) -> None:
        failure = f"{what}: {why}"
        if failure not in self.summary.failures:
            self.summary.failures.append(failure)
            self._report(f"FAILED {failure}")


def _until_known(commit: Callable[[], T]) -> T:
    """Repeat a commit whose outcome is unknown. Raises CommitStateUnknownError in the end."""
    for _ in range(COMMIT_ATTEMPTS - 1):
        try:
            return commit()
        except CommitStateUnknownError:
            continue
    return commit()


def _inputs_of(one: CompactionGroup | PassPlan) -> Sequence[BatchHeader]:
    return one.inputs


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _place(of: CompactionGroup | KeyCompactionPass) -> Place:
    return of.topic, of.partition


def _name(of: CompactionGroup | KeyCompactionPass) -> str:
    return f"{of.topic}-{of.partition}"
