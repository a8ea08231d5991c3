"""A run of jobs/compact.py past topics that cannot be read, planned or found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jobs.compact import main
from tests.housekeeping.compaction.logs import TOPIC, live, records_of
from tests.housekeeping.steps import FOREVER
from tests.housekeeping.test_unreadable_topic import Break, process, unreadable, whole
from tests.jobs.test_compaction_run import BATCHES, COMPACTED, InProcess, filled, write
from tests.world import TOPICS, world
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
from txnlog.housekeeping.compaction import key_compaction, spark_run
from txnlog.housekeeping.compaction.segments import rewrite
from txnlog.housekeeping.compaction.spark_run import CompactionRun, Result, Rewritten, Work
from txnlog.producer import Producer
from txnlog.protocol.compaction import CompactionGroup, Segment
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

UNREADABLE, READABLE = TOPICS
BROKEN = "broken"


class InMemory:
    """Merges in a store that no other process could open."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __call__(self, tasks: Iterator[Sequence[Work]]) -> Iterator[tuple[Work, Result]]:
        for group in (group for task in tasks for group in task):
            assert isinstance(group, CompactionGroup), "no topic here is compacted by key"
            segment = rewrite(self._store, group)
            yield group, Rewritten([(group, segment)], group.last_offset + 1)


@unreadable
def test_run_over_all_topics_continues_past_one_it_cannot_read(
    broken: Break, error: type[TxnLogError]
) -> None:
    """Else one damaged log makes all topics slow to read (R37)."""
    shared = world(config=FOREVER)
    config = {"txnlog.root": "memory://", "transactional.id": "tx"}
    with Producer(config, cluster=process(shared, whole), background=False) as producer:
        producer.init_transactions()
        for _ in range(BATCHES):
            with producer.transaction():
                for topic in TOPICS:
                    producer.produce(topic, b"v", partition=0)
    cluster = process(shared, broken)
    dry = CompactionRun(cluster)
    assert {row.topic for row in dry.plan()} == {READABLE}
    summary = CompactionRun(cluster).run(InMemory(cluster.store))
    assert (summary.groups, summary.files_replaced) == (1, BATCHES)
    (failure,) = summary.failures
    assert failure.startswith(f"{UNREADABLE}: ")
    assert dry.summary.failures == [failure]
    assert len(process(shared, whole).topic(READABLE).view.by_path) == 1


@unreadable
def test_topic_that_is_named_and_cannot_be_read_is_an_error(
    broken: Break, error: type[TxnLogError]
) -> None:
    """A run that names an unreadable topic fails before Spark is started."""
    cluster = process(world(), broken)
    with pytest.raises(error, match=UNREADABLE):
        CompactionRun(cluster, [READABLE, UNREADABLE])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.mark.parametrize("dry_run", [["--dry-run"], []], ids=["dry", "wet"])
def test_command_tells_which_topic_failed_and_does_the_others(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dry_run: list[str],
) -> None:
    """A scheduler looks at the exit code, an operator at the line, a program at the JSON."""
    filled(root).create_topic(BROKEN)
    (root / BROKEN / "_delta_log" / f"{0:020}.json").write_text('{"metaD')
    monkeypatch.setattr(
        "jobs.compact.rewrite_on_executors",
        lambda _, root, storage, tasks: InProcess(Path(root))(tasks),
    )
    monkeypatch.setattr("pyspark.sql.SparkSession", NoSpark)
    assert main(["--root", str(root), *dry_run]) == 1
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    (failure,) = told["failures"]
    assert f"FAILED {failure}" in shown.err.splitlines()
    assert failure.startswith(f"{BROKEN}: ")
    assert "Restore this very file" in failure
    if dry_run:
        assert [row["topic"] for row in told["plan"]] == [TOPIC]
    else:
        assert told["files_replaced"] == BATCHES
    assert main(["--root", str(root), "--topic", BROKEN]) == 1
    assert capsys.readouterr().err.startswith("error: ")


class NoSpark:
    """SparkSession, so far as the command knows it."""

    builder: NoSpark

    def appName(self, name: str) -> NoSpark:
        return self

    def getOrCreate(self) -> NoSpark:
        return self

    def stop(self) -> None: ...


NoSpark.builder = NoSpark()


def test_topic_deleted_while_the_run_begins_is_passed_over(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was there when the topics were listed; that it is gone is no failure."""
    filled(root).create_topic("gone")
    find = Cluster.find_topic

    def find_then_lose(self: Cluster, name: str) -> TopicLog | None:
        found = find(self, name)
        if name == "gone" and found is not None:
            Cluster.open(str(root)).delete_topic(name)
        return found

    monkeypatch.setattr(Cluster, "find_topic", find_then_lose)
    assert main(["--root", str(root), "--dry-run"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["topic"] for row in told["plan"]] == [TOPIC]
    assert told["failures"] == []


@pytest.mark.parametrize(
    "config",
    [
        {"segment.bytes": "much"},
        {"cleanup.policy": "sometimes"},
        COMPACTED | {"min.cleanable.dirty.ratio": "often"},
    ],
)
@pytest.mark.parametrize("own", [None, COMPACTED], ids=["merge", "key-compact"])
def test_malformed_setting_fails_its_topic_and_no_other(
    root: Path, config: dict[str, str], own: dict[str, str] | None
) -> None:
    """A table property may be written by any process; its error is reported once (R37)."""
    cluster = filled(root, own)
    cluster.topic_log(BROKEN).create(partitions=1, config=config)
    planned = CompactionRun(cluster)
    assert [row.topic for row in planned.plan()] == [TOPIC]
    summary = CompactionRun(cluster).run(InProcess(root))
    assert (summary.groups, summary.passes) == (1, 0 if own is None else 1)
    (failure,) = summary.failures
    assert failure.startswith(f"{BROKEN}: Option {list(config)[-1]} is ")
    assert planned.summary.failures == [failure]


def test_garbled_statistics_fail_their_partition_and_no_other(root: Path) -> None:
    """max.compaction.lag.ms asks them for the oldest record, while the pass is planned (R37)."""
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=2, config=COMPACTED | {"max.compaction.lag.ms": "1"})
    for partition in (0, 1):
        write(cluster, range(BATCHES), partition=partition)
    log = cluster.topic(TOPIC)
    victim = replace(log.view.partitions[0].batches[0], stats="garbled")
    log.transact(lambda _: TopicCommit(operation="WRITE", adds=(victim,)))
    before = records_of(log, 1)
    summary = CompactionRun(cluster).run(InProcess(root))
    assert summary.passes == 1
    assert live(cluster.topic(TOPIC).view, 1) == [(0, BATCHES - 1, "none")]
    assert records_of(cluster.topic(TOPIC), 1) == before[-4:]
    assert summary.failures
    assert all(failure.startswith(f"{TOPIC}-0") for failure in summary.failures)
    assert all(victim.path in failure for failure in summary.failures)


@pytest.mark.parametrize("place", ["plan_pass", "commit_segment", "commit_end_of_pass"])
def test_bug_in_one_partition_fails_it_and_no_other(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only errors of txnlog were recorded: any other ended the run over all topics (R37)."""
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=2, config=COMPACTED)
    for partition in (0, 1):
        write(cluster, range(BATCHES), partition=partition)
    works = getattr(spark_run, place)

    def fail_in_one(*given: Any, **named: Any) -> object:
        if 0 in (given[2] if place == "plan_pass" else -1, getattr(given[1], "partition", -1)):
            raise ZeroDivisionError(place)
        return works(*given, **named)

    monkeypatch.setattr(spark_run, place, fail_in_one)
    summary = CompactionRun(cluster).run(InProcess(root))
    assert live(cluster.topic(TOPIC).view, 1) == [(0, BATCHES - 1, "none")]
    assert summary.failures
    assert all(failure.startswith(f"{TOPIC}-0") for failure in summary.failures)
    assert all("ZeroDivisionError" in failure for failure in summary.failures)
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("config", [None, COMPACTED], ids=["merge", "key-compact"])
def test_bug_on_an_executor_fails_its_partition_and_no_other_of_the_task(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, str] | None,
) -> None:
    """Small ones share a task (R37)."""
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=2, config=config)
    for partition in (0, 1):
        write(cluster, range(BATCHES), partition=partition)

    def fail_in_one(store: ObjectStore, group: CompactionGroup, keep: object = None) -> Segment:
        if group.partition == 0:
            raise ZeroDivisionError
        return rewrite(store, group, keep)  # type: ignore[arg-type]

    for module in (spark_run, key_compaction):
        monkeypatch.setattr(module, "rewrite", fail_in_one)
    summary = CompactionRun(cluster).run(InProcess(root))
    assert (summary.groups, summary.files_replaced) == (1, BATCHES)
    assert summary.failures
    assert all(failure.startswith(f"{TOPIC}-0") for failure in summary.failures)
    assert all("ZeroDivisionError" in failure for failure in summary.failures)
    assert "Traceback" in caplog.text


def test_partitions_added_since_it_began_are_the_next_runs(root: Path) -> None:
    """Their ends were not there to be noted."""
    cluster = filled(root)
    started = CompactionRun(cluster)
    other = Cluster.open(str(root))
    other.topic(TOPIC).alter(lambda config: {**config, "partitions": "3"})
    write(other, range(BATCHES), partition=2)
    assert [row.partition for row in started.plan()] == [0]
    assert started.run(InProcess(root)).failures == []
    assert [row.partition for row in CompactionRun(cluster).plan()] == [2]
