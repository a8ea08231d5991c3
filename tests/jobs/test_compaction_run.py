"""A run of jobs/compact.py with its tasks in this process: who comes in between, and what fails."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.housekeeping.compaction.logs import TOPIC, Record, begin, commit, live, records_of
from txnlog.cluster import Cluster
from txnlog.errors import CommitStateUnknownError
from txnlog.housekeeping.compaction import spark_run
from txnlog.housekeeping.compaction.key_compaction import KeyCompactor
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite, settings_of
from txnlog.housekeeping.compaction.spark_run import (
    PASS_ATTEMPTS,
    CompactionRun,
    Result,
    Work,
    rewrite_at,
)
from txnlog.protocol.compaction import Obsolete, plan

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
KEYS = 4
BATCHES = 12


class InProcess:
    """Does one after the other what Spark does. `before` is called before each result."""

    def __init__(self, root: Path, before: Callable[[int], None] = lambda number: None) -> None:
        self._root = str(root)
        self._before = before
        self._numbers = iter(range(1_000))

    def __call__(self, tasks: Iterator[Sequence[Work]]) -> Iterator[tuple[Work, Result]]:
        for work in (work for task in tasks for work in task):
            result = rewrite_at(self._root, {}, pickle.loads(pickle.dumps(work)))
            self._before(next(self._numbers))
            yield work, pickle.loads(pickle.dumps(result))


def write(cluster: Cluster, numbers: Sequence[int], *, partition: int = 0) -> None:
    """A transaction of one record for each number."""
    row = begin(cluster, "writer")
    for number in numbers:
        key, value = b"k%d" % (number % KEYS), b"%d" % number
        row = commit(cluster, row, [Record(key, value, number)], partition=partition)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def filled(root: Path, config: dict[str, str] | None = None) -> Cluster:
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=1, config=config)
    write(cluster, range(BATCHES))
    return cluster


def values(root: Path) -> list[bytes | None]:
    log = Cluster.open(str(root)).topic(TOPIC)
    return [record.value for _, record in records_of(log)]


def files(root: Path) -> int:
    return len(Cluster.open(str(root)).topic(TOPIC).view.by_path)


EVERYTHING = [b"%d" % number for number in range(BATCHES)]
NEWEST = EVERYTHING[-KEYS:]


@pytest.mark.parametrize(("config", "left"), [(None, EVERYTHING), (COMPACTED, NEWEST)])
def test_second_compactor_in_between_costs_work_and_nothing_else(
    root: Path, config: dict[str, str] | None, left: list[bytes]
) -> None:
    """It rewrote the same files and was faster: the segment is given up, the pass tried again."""
    cluster = filled(root, config)

    def other(number: int) -> None:
        if number == 0:
            Compactor(Cluster.open(str(root))).compact(TOPIC)

    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root, other))
    assert (summary.given_up, summary.failures) == (1, [])
    assert values(root) == left
    assert files(root) == 1
    assert Compactor(Cluster.open(str(root))).compact(TOPIC) == 0


def test_pass_that_is_given_up_is_not_written_down(root: Path) -> None:
    """Else the next pass would skip records that no pass has compacted (R23)."""
    cluster = filled(root, COMPACTED)
    written = [BATCHES]

    def other(number: int) -> None:
        """Take the files away under it, each time, and leave all keys as they are."""
        another = Cluster.open(str(root))
        write(another, range(written[-1], written[-1] + BATCHES))
        written.append(written[-1] + BATCHES)
        log = another.topic(TOPIC)
        for group in plan(log.view, TOPIC, settings_of(log.config)):
            commit_segment(another, group, rewrite(another.store, group))

    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root, other))
    assert len(written) > PASS_ATTEMPTS
    assert (summary.passes, summary.failures) == (0, [])
    assert cluster.topic(TOPIC).view.partitions[0].cleaned_offset <= 0
    assert CompactionRun(Cluster.open(str(root)), [TOPIC]).run(InProcess(root)).passes == 1
    assert values(root) == [b"%d" % number for number in range(written[-1])[-KEYS:]]


def test_topic_created_again_in_between_keeps_its_own_records(root: Path) -> None:
    """Offsets continue in the same log, where a segment of the old topic has no place (R71)."""
    cluster = filled(root)

    def other(number: int) -> None:
        another = Cluster.open(str(root))
        another.delete_topic(TOPIC)
        another.create_topic(TOPIC, partitions=1)
        write(another, [7])

    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root, other))
    assert (summary.groups, summary.given_up, summary.failures) == (0, 1, [])
    assert values(root) == [b"7"]


def test_broken_file_fails_its_partition_and_no_other(root: Path) -> None:
    """Passes share a task, which one file that cannot be read would end for all (R37)."""
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=2, config=COMPACTED)
    write(cluster, range(BATCHES))
    write(cluster, range(BATCHES), partition=1)
    victim = cluster.topic(TOPIC).view.partitions[0].batches[0].path
    (root / TOPIC / victim).write_bytes(b"no parquet")
    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root))
    assert summary.passes == 1
    assert [live(cluster.topic(TOPIC).view, partition) for partition in (0, 1)] == [
        [(number, number, "committed") for number in range(BATCHES)],
        [(0, BATCHES - 1, "none")],
    ]
    assert {failure.partition(":")[0] for failure in summary.failures} == {
        f"{TOPIC}-0",
        f"{TOPIC}-0, offsets 0 to {BATCHES - 1}",
    }
    assert all(victim in failure for failure in summary.failures)


def test_lost_reply_is_settled_by_asking_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit may have landed: giving up would report a failure that was none (D2)."""
    cluster = filled(root)
    tries = iter(range(100))

    def commit_then_lose(*arguments: object) -> object:
        decision = commit_segment(*arguments)
        if next(tries) < 2:
            raise CommitStateUnknownError("lost", table=TOPIC)
        return decision

    monkeypatch.setattr(spark_run, "commit_segment", commit_then_lose)
    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root))
    assert (summary.groups, summary.failures) == (1, [])
    assert values(root) == EVERYTHING


def test_run_beside_a_busy_producer_ends(root: Path) -> None:
    """What was written since it began is left to the next run, or there would be no end."""
    cluster = filled(root)
    started = CompactionRun(cluster, [TOPIC])

    def busy(number: int) -> None:
        assert number < 10
        write(Cluster.open(str(root)), range(BATCHES * (number + 1), BATCHES * (number + 2)))

    summary = started.run(InProcess(root, busy))
    assert summary.groups == 1
    assert files(root) == 1 + BATCHES


def test_plan_tells_what_a_run_does(root: Path) -> None:
    """A dry run that says something else is worse than none."""
    cluster = filled(root)
    (row,) = CompactionRun(cluster, [TOPIC]).plan()
    assert (row.topic, row.action, row.groups, row.inputs) == (TOPIC, "merge", 1, BATCHES)
    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root))
    assert (summary.groups, summary.files_replaced) == (row.groups, row.inputs)
    assert summary.bytes_replaced == row.bytes
    assert list(CompactionRun(cluster, [TOPIC]).plan()) == []


def test_planning_opens_no_data_file(root: Path) -> None:
    """A driver that read what it plans would take as long as the executors."""
    for config in (None, COMPACTED):
        cluster = filled(root, config)
        expected = list(CompactionRun(cluster, [TOPIC]).plan())
        for batch in cluster.topic_log(TOPIC).view.partitions[0].batches:
            (root / TOPIC / batch.path).unlink()
        fresh = Cluster.open(str(root))
        assert list(CompactionRun(fresh, [TOPIC]).plan()) == expected != []
        shutil.rmtree(root)


def test_each_group_is_one_commit_as_soon_as_it_is_rewritten(root: Path) -> None:
    """A driver that is killed has lost what its executors were at, and no more."""
    cluster = filled(root, {"segment.bytes": str(segment_of(root, 3))})
    begun = cluster.topic(TOPIC).log.version
    committed: list[int] = []

    def look(number: int) -> None:
        committed.append(Cluster.open(str(root)).topic(TOPIC).log.version - begun)

    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root, look))
    assert committed == list(range(summary.groups))
    assert summary.groups >= 3
    assert Cluster.open(str(root)).topic(TOPIC).log.version == begun + summary.groups
    assert values(root) == EVERYTHING


def segment_of(root: Path, batches: int) -> int:
    """Bytes of a segment that has room for so many."""
    cluster = filled(root)
    size_bytes = max(batch.size_bytes for batch in cluster.topic(TOPIC).view.by_path.values())
    shutil.rmtree(root)
    return batches * size_bytes


def test_file_that_is_gone_gives_its_group_up(root: Path) -> None:
    """Another compactor replaced it long ago, and vacuum took it: nothing is wrong (R72)."""
    cluster = filled(root)
    Compactor(Cluster.open(str(root))).compact(TOPIC)
    for batch in cluster.topic_log(TOPIC).view.partitions[0].batches:
        (root / TOPIC / batch.path).unlink()
    (group,) = plan(cluster.topic_log(TOPIC).view, TOPIC, settings_of({}))
    assert isinstance(rewrite_at(str(root), {}, group), Obsolete)


def test_very_many_files_are_merged_before_they_are_cleaned(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass hands all its files to one task: a million of them would take the driver down."""
    monkeypatch.setattr(spark_run, "PASS_FILES", BATCHES - 1)
    cluster = filled(root, COMPACTED)
    summary = CompactionRun(cluster, [TOPIC]).run(InProcess(root))
    assert (summary.files_replaced, summary.passes) == (BATCHES + 1, 1)
    assert values(root) == NEWEST


def test_passes_that_end_where_their_memory_is_full_cover_the_partition(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task holds the newest offset of each key; a partition may have more keys than fit (R23)."""
    tight = partial(KeyCompactor, dedupe_buffer_bytes=1)
    monkeypatch.setattr(spark_run, "KeyCompactor", tight)
    cluster = filled(root, COMPACTED | {"segment.bytes": str(segment_of(root, 1))})
    started = CompactionRun(cluster, [TOPIC])

    def busy(number: int) -> None:
        write(Cluster.open(str(root)), [BATCHES + number])

    summary = started.run(InProcess(root, busy))
    assert (summary.passes, summary.failures, summary.given_up) == (BATCHES, [], 0)
    assert cluster.topic(TOPIC).view.partitions[0].cleaned_offset == BATCHES > PASS_ATTEMPTS
    assert values(root) == NEWEST + [b"%d" % (BATCHES + number) for number in range(BATCHES)]
