"""One run of compaction over a cluster, with the rewriting left to Spark: jobs/compact.py.

The driver plans from headers, `Rewriters` rewrite, and the driver commits each group as soon as its
result is there. Nothing of a run has to survive: what is committed is committed, what is not is
planned again by the next run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

from txnlog.cluster import Cluster
from txnlog.errors import CommitStateUnknownError, TxnLogError
from txnlog.housekeeping.compaction import (
    cleaning_settings_of,
    commit_cleaned,
    commit_segment,
    settings_of,
)
from txnlog.housekeeping.compaction_tasks import Part, Payload, Result, packed
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.compaction import (
    CompactionGroup,
    CompactionSettings,
    Obsolete,
    Segment,
    plan_partition,
)
from txnlog.protocol.key_compaction import Cleaning, cleaning_groups, plan_cleaning
from txnlog.settings.topic_configs import is_compacted
from txnlog.storage.tables.topic_log import TopicLog

logger = logging.getLogger("txnlog")

T = TypeVar("T")

# Passes over so much share one shuffle: a thousand small topics take a few of them.
SHUFFLE_BYTES = 8 << 30
SHUFFLE_FILES = 100_000
PASS_ATTEMPTS = 3
COMMIT_ATTEMPTS = 5

Place = tuple[str, int]
Outcome = Literal["done", "given up", "failed"]
Results = Iterator[tuple[CompactionGroup, Result]]


class Rewriters(Protocol):
    """Who rewrites. Results come in any order, each as soon as it is there, and once."""

    def merge(self, groups: Iterator[list[CompactionGroup]]) -> Results:
        """Rewrite groups with all their records, those of a list together."""

    def clean(self, parts: Sequence[Part], payloads: Sequence[Payload]) -> Results:
        """Rewrite the payloads' groups with what survives of the records in `parts`.

        Raises TxnLogError when keys could not be read.
        """


@dataclass(slots=True)
class Summary:
    """What a run did. `given_up`: groups and passes that others were faster with."""

    groups: int = 0
    files_replaced: int = 0
    bytes_replaced: int = 0
    bytes_written: int = 0
    passes: int = 0
    given_up: int = 0
    failures: list[str] = field(default_factory=list)
    elapsed_ms: int = 0


class Planned(NamedTuple):
    """What there is to do in a partition; `bytes` are to be read."""

    topic: str
    partition: int
    action: Literal["clean", "merge"]
    groups: int
    inputs: int
    bytes: int
    base_offset: int
    last_offset: int


class Pass(NamedTuple):
    """A pass of key compaction that is due; its groups as it was planned: none crosses its end."""

    cleaning: Cleaning
    settings: CompactionSettings
    groups: list[CompactionGroup]

    @property
    def inputs(self) -> list[BatchHeader]:
        return [batch for group in self.groups for batch in group.inputs]


class CompactionRun:
    """One run over the topics of a cluster, as they are when it begins."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str] | None = None,
        *,
        segment_bytes: int | None = None,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        """`segment_bytes` in place of the topics' own; `tell` hears of each thing that is done.

        Without `topics` it is over all there are, and one that cannot be read fails alone (R37).
        Raises StorageError; for one of `topics` what Cluster.topic raises.
        """
        self._cluster = cluster
        self._tell = tell
        self._segment_bytes = segment_bytes
        self.summary = Summary()
        # What comes later is the next run's: beside a busy producer this one would never end.
        self._ends: dict[str, list[int]] = {}
        if topics is None:
            logs = self._refreshed(cluster.topic_names())
        else:
            logs = map(cluster.topic, dict.fromkeys(topics))
        for log in logs:
            self._ends[log.name] = [log.view.last_stable_offset(p) for p in range(log.partitions)]

    def plan(self) -> Iterator[Planned]:
        """What there is to do in each partition, first of all: what is cleaned is merged after.

        What cannot be planned, and why, is in the summary.
        """
        for log in self._refreshed(self._ends):
            passes = {found.cleaning.partition: found for found in self._due(log)}
            for partition in range(log.partitions):
                if partition in passes:
                    groups = passes[partition].groups
                else:
                    groups = list(self._mergeable(log, partition))
                if groups:
                    yield Planned(
                        topic=log.name,
                        partition=partition,
                        action="clean" if partition in passes else "merge",
                        groups=len(groups),
                        inputs=sum(len(group.inputs) for group in groups),
                        bytes=sum(group.size_bytes for group in groups),
                        base_offset=groups[0].base_offset,
                        last_offset=groups[-1].last_offset,
                    )

    def run(self, rewriters: Rewriters) -> Summary:
        """Do it; what fails, and why, is in the summary."""
        started_s = time.monotonic()
        # Spark is given all files of a pass at once: where there are very many, merge first.
        files = {log.name: len(log.view.by_path) for log in self._refreshed(self._ends)}
        self._merge_all(rewriters, {name for name in files if files[name] > SHUFFLE_FILES})
        places: set[Place] | None = None
        for _ in range(PASS_ATTEMPTS):
            passes = self._passes(places)
            places = set()
            for some in packed(passes, _inputs_of, SHUFFLE_BYTES, SHUFFLE_FILES):
                places |= self._clean(rewriters, some)
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
        """One round; the topics in which it committed something, and there may be more to do."""
        planned = packed(self._small(topics), _inputs_of)
        tasks = (live for groups in planned if (live := self._live(groups)))
        return {
            group.topic
            for group, result in rewriters.merge(tasks)
            if self._settle(group, result) == "done"
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
        """Those nobody has touched since they were planned: a rewrite costs more than a look."""
        names = sorted({group.topic for group in groups})
        paths = {log.name: log.view.by_path for log in self._refreshed(names)}
        return [
            group
            for group in groups
            if group.topic in paths and group.changed_input(paths[group.topic]) is None
        ]

    # -- key compaction --------------------------------------------------------------------------

    def _passes(self, places: set[Place] | None) -> Iterator[Pass]:
        """Those that are due; at these places only."""
        for log in self._refreshed(self._ends):
            for found in self._due(log):
                if places is None or _place(found.cleaning) in places:
                    yield found

    def _due(self, log: TopicLog) -> Iterator[Pass]:
        with self._failing_alone(log.name):
            if not is_compacted(log.config):
                return
            settings, now_ms = self._settings(log), self._cluster.store.now_ms()
            limits = cleaning_settings_of(log.config)
            for partition in range(log.partitions):
                with self._failing_alone(f"{log.name}-{partition}"):
                    cleaning = plan_cleaning(log.view, log.name, partition, limits, now_ms=now_ms)
                    if cleaning is not None:
                        groups = cleaning_groups(log.view, cleaning, settings)
                        yield Pass(cleaning, settings, groups)

    def _clean(self, rewriters: Rewriters, passes: Sequence[Pass]) -> set[Place]:
        """Do some passes together; where others came in between, and it is worth another try."""
        parts: list[Part] = []
        payloads: list[Payload] = []
        for number, (cleaning, settings, groups) in enumerate(passes):
            for group in groups:
                at = len(payloads)
                payloads.append(Payload(at, group, settings))
                parts += (
                    Part(number, at, group.topic, header, cleaning.tombstone_offset)
                    for header in group.sources
                )
        outcomes: dict[Place, set[Outcome]] = {}
        try:
            for group, result in rewriters.clean(parts, payloads):
                outcomes.setdefault(_place(group), set()).add(self._settle(group, result))
        except TxnLogError as error:
            if len(passes) > 1:
                # One file that cannot be read must not keep the others from being cleaned (R37).
                return {place for one in passes for place in self._clean(rewriters, [one])}
            self._fail(_name(passes[0].cleaning), error.message)
            return set()
        again = set()
        for cleaning, _, _ in passes:
            found = outcomes[_place(cleaning)]
            if found == {"done"}:
                self._finish(cleaning)
            elif "failed" not in found:
                again.add(_place(cleaning))
        return again

    def _finish(self, cleaning: Cleaning) -> None:
        """Write a pass down, all of whose groups are clean."""
        try:
            decision = _known(lambda: commit_cleaned(self._cluster, cleaning))
        except TxnLogError as error:
            self._fail(_name(cleaning), error.message)
            return
        if isinstance(decision, Obsolete):
            self._give_up(_name(cleaning), decision.why)
            return
        self.summary.passes += 1
        end = f"{cleaning.end_offset:,}"
        self._tell(f"{_name(cleaning)}: before offset {end} only the newest record of each key")

    # -- both ------------------------------------------------------------------------------------

    def _settle(self, group: CompactionGroup, result: Result) -> Outcome:
        """Commit a group that was rewritten."""
        if result is None:
            return "done"
        what = f"{_name(group)}, offsets {group.base_offset:,} to {group.last_offset:,}"
        decision: object = result
        if isinstance(result, Segment):
            try:
                decision = _known(lambda: commit_segment(self._cluster, group, result))
            except TxnLogError as error:
                decision = error.message
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
        self._tell(
            f"{what}: {_files(len(group.inputs))} of {size_bytes:,} bytes became one of "
            f"{result.size_bytes:,} with {result.num_records:,} records"
        )
        return "done"

    def _refreshed(self, topics: Iterable[str]) -> Iterator[TopicLog]:
        """The logs of those that exist still; a topic that cannot be read fails alone."""
        for name in topics:
            with self._failing_alone(name):
                log = self._cluster.find_topic(name)
                if log is not None:
                    yield log

    @contextmanager
    def _failing_alone(self, what: str) -> Iterator[None]:
        """What cannot be read or understood must not keep the others from being compacted (R37)."""
        try:
            yield
        except TxnLogError as error:
            self._fail(what, error.message)

    def _settings(self, log: TopicLog) -> CompactionSettings:
        settings = settings_of(log.config)
        if self._segment_bytes is None:
            return settings
        return replace(settings, segment_bytes=self._segment_bytes)

    def _give_up(self, what: str, why: str) -> None:
        self.summary.given_up += 1
        self._tell(f"{what}: given up: {why}")

    def _fail(self, what: str, why: str) -> None:
        failure = f"{what}: {why}"
        if failure not in self.summary.failures:
            self.summary.failures.append(failure)
            self._tell(f"FAILED {failure}")


def _known(commit: Callable[[], T]) -> T:
    """Commit until it is known to have landed or not. Raises CommitStateUnknownError in the end."""
    for _ in range(COMMIT_ATTEMPTS - 1):
        try:
            return commit()
        except CommitStateUnknownError:
            continue
    return commit()


def _inputs_of(one: CompactionGroup | Pass) -> Sequence[BatchHeader]:
    return one.inputs


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _place(of: CompactionGroup | Cleaning) -> Place:
    return of.topic, of.partition


def _name(of: CompactionGroup | Cleaning) -> str:
    return f"{of.topic}-{of.partition}"
