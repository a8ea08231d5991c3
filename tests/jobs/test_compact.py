"""jobs/compact.py on a real Spark: what readers see before, after, and beside it."""

from __future__ import annotations

import json
import shutil
import sys
import types
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs.compact import main, rewrite_on_executors
from spark_source.sql import read_committed
from tests.housekeeping.compaction.logs import (
    TOPIC,
    Idempotent,
    Record,
    Seen,
    append,
    begin,
    bounds,
    commit,
    live,
    records_of,
)
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.compaction.spark_run import CompactionRun, Summary
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.settings.storage_options import StoreSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
}
ORDER = ["partition", "offset"]


def fill(root: Path, config: dict[str, str] | None = None, *, rounds: int = 12) -> Cluster:
    """A topic of two partitions: transactions of both kinds, aborted ones, an idempotent producer.

    One transaction is left open; everything that comes after it is not committed.
    """
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=2, config=config)
    deferred, eager = begin(cluster, "deferred"), begin(cluster, "eager")
    idempotent = Idempotent.start(cluster)
    for number in range(rounds):
        partition = number % 2
        deferred = commit(cluster, deferred, some(number, b"d"), partition=partition)
        eager = append(cluster, eager, some(number, b"aborted"), partition=partition)
        idempotent.send(some(number, b"i"), partition=partition)
        eager = end(cluster, eager, is_commit=number % 3 == 0)
    append(cluster, eager, some(rounds, b"open"), partition=0)
    commit(cluster, deferred, some(rounds, b"behind it"), partition=0)
    return cluster


def end(cluster: Cluster, row: TransactionMetadata, *, is_commit: bool) -> TransactionMetadata:
    return cluster.coordinator.commit(row, []) if is_commit else cluster.coordinator.abort(row)


def some(number: int, name: bytes) -> list[Record]:
    """Three records: with headers, without a key, and a tombstone or not."""
    value = None if number % 4 == 3 else b"%s %d" % (name, number)
    return [
        Record(b"k%d" % (number % 5), b"%s %d" % (name, number), number, [("n", b"%d" % number)]),
        Record(None, b"%s, no key" % name, number),
        Record(b"t%d" % (number % 3), value, number),
    ]


def seen(cluster: Cluster) -> list[list[Seen]]:
    """What a reader gets of each partition."""
    log = cluster.topic(TOPIC)
    return [records_of(log, partition) for partition in range(log.partitions)]


def run(spark: SparkSession, root: Path, **options: int) -> Summary:
    """The job in this session."""
    cluster = Cluster.open(str(root))
    executors = partial(rewrite_on_executors, spark, str(root), StoreSettings())
    return CompactionRun(cluster, **options).run(executors)


def rows(frame: DataFrame) -> pa.Table:
    return frame.orderBy(*ORDER).toArrow()


def by_source(spark: SparkSession, root: Path) -> pa.Table:
    reader = spark.read.format("txnlog").option("subscribe", TOPIC).option("includeHeaders", "true")
    return rows(reader.load(str(root)))


@pytest.mark.spark
def test_compacted_topic_is_the_same_to_readers(spark: SparkSession, tmp_path: Path) -> None:
    """Offsets, times, headers and ends stay; aborted data is gone, open transactions not (R22)."""
    root = tmp_path / "root"
    cluster = fill(root, rounds=24)
    before, files = seen(cluster), live(cluster.topic(TOPIC).view)
    summary = run(spark, root)
    assert (summary.failures, summary.given_up) == ([], 0)
    assert seen(Cluster.open(str(root))) == before
    assert len(live(Cluster.open(str(root)).topic(TOPIC).view)) < len(files)
    found = by_source(spark, root).to_pylist()
    assert [row["offset"] for row in found] == [one.offset for part in before for one in part]
    assert there_is_nothing_to_do(root)


@pytest.mark.spark
def test_key_compaction_keeps_the_newest_committed_record(
    spark: SparkSession, tmp_path: Path
) -> None:
    """By offset and within a partition; aborted and undecided records count for nothing (R23)."""
    root = tmp_path / "root"
    before = seen(fill(root, COMPACTED))
    summary = run(spark, root)
    assert (summary.passes, summary.failures, summary.given_up) == (2, [], 0)
    assert seen(Cluster.open(str(root))) == [newest(part) for part in before]
    assert there_is_nothing_to_do(root)


@pytest.mark.spark
@pytest.mark.parametrize("config", [None, COMPACTED], ids=["merge", "key-compact"])
def test_topic_of_aborted_transactions_only_is_compacted_to_nothing(
    spark: SparkSession, tmp_path: Path, config: dict[str, str] | None
) -> None:
    """There is no file to read, and no key; offsets continue where they were (R22)."""
    root = tmp_path / "root"
    cluster = Cluster.open(str(root), create=True)
    cluster.create_topic(TOPIC, partitions=1, config=config)
    eager = begin(cluster)
    for number in range(12):
        eager = end(cluster, append(cluster, eager, some(number, b"aborted")), is_commit=False)
    ends = bounds(cluster.topic(TOPIC).view)
    summary = run(spark, root)
    assert (summary.failures, summary.given_up) == ([], 0)
    assert (summary.groups, summary.files_replaced) == (1, 12)
    assert summary.passes == (0 if config is None else 1)
    after = Cluster.open(str(root))
    assert bounds(after.topic(TOPIC).view) == ends
    assert by_source(spark, root).num_rows == 0
    assert there_is_nothing_to_do(root)
    commit(after, begin(after, "after"), [Record(b"k", b"after it")])
    assert run(spark, root).failures == []
    assert seen(Cluster.open(str(root))) == [[Seen(ends[0][2], Record(b"k", b"after it"))]]


@pytest.mark.spark
@pytest.mark.parametrize("config", [None, COMPACTED], ids=["merge", "key-compact"])
def test_module_that_executors_lack_is_what_the_failure_says(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str] | None,
) -> None:
    """As txnlog, where it was installed on the driver only: the first line is py4j's own."""
    module = types.ModuleType("only_on_the_driver")
    exec("def run(*arguments): ...", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("jobs.compact.rewrite_at", module.run)
    root = tmp_path / "root"
    fill(root, config, rounds=24)
    failures = run(spark, root).failures
    assert failures
    missing = "ModuleNotFoundError: No module named 'only_on_the_driver'"
    assert {failure.partition(": ")[2] for failure in failures} == {missing}


@pytest.mark.soak
@pytest.mark.spark
def test_large_topic_is_the_same_to_delta_readers(spark: SparkSession, tmp_path: Path) -> None:
    """Many groups, and Spark's Delta reader and delta-rs beside our own (R22, R52)."""
    root = tmp_path / "root"
    cluster = fill(root, rounds=400)
    before = by_source(spark, root)
    summary = run(spark, root, segment_bytes=5_000)
    assert (summary.failures, summary.given_up) == ([], 0)
    assert summary.groups > 50
    assert by_source(spark, root) == before
    assert rows(read_committed(spark, str(root), TOPIC, include_headers=True)) == before
    stable = cluster.topic(TOPIC).view.last_stable_offset(0)
    by_delta_rs = sorted(
        (row["partition"], row["base_offset"] + row["offset_delta"], row["value"])
        for row in DeltaTable(root / TOPIC).to_pyarrow_table().to_pylist()
        if row["txn_status"] in ("none", "committed")
        and (row["partition"] or row["base_offset"] < stable)
    )
    names = "partition", "offset", "value"
    assert by_delta_rs == [tuple(row[name] for name in names) for row in before.to_pylist()]
    assert run(spark, root, segment_bytes=5_000).groups == 0


@pytest.mark.soak
@pytest.mark.spark
def test_key_compaction_leaves_what_one_process_leaves(spark: SparkSession, tmp_path: Path) -> None:
    """Pass after pass, many groups each, tombstones when they are due (R23)."""
    root, copy = tmp_path / "root", tmp_path / "copy"
    cluster = fill(root, COMPACTED, rounds=100)
    for tombstones in (True, False):
        before = seen(cluster)
        shutil.copytree(root, copy)
        summary = run(spark, root, segment_bytes=2_000)
        assert (summary.passes, summary.failures, summary.given_up) == (2, [], 0)
        Compactor(Cluster.open(str(copy))).compact(TOPIC)
        cluster = Cluster.open(str(root))
        assert seen(cluster) == [newest(part, tombstones=tombstones) for part in before]
        assert seen(cluster) == seen(Cluster.open(str(copy)))
        assert run(spark, root, segment_bytes=2_000).passes == 0
        shutil.rmtree(copy)
        row = begin(cluster, "more")
        for partition in (0, 1):
            row = commit(cluster, row, [Record(b"k0", b"more")], partition=partition)
        cluster.coordinator.abort(begin(cluster, "eager"))


@pytest.mark.soak
@pytest.mark.spark
def test_broken_file_is_named_and_delays_its_partition_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One line that names the file, out of the hundred in which Spark tells of it (R37)."""
    root = tmp_path / "root"
    cluster = fill(root, COMPACTED)
    before = seen(cluster)[1]
    victim = cluster.topic(TOPIC).view.partitions[0].batches[0].path
    (root / TOPIC / victim).write_bytes(b"no parquet")
    summary = run(spark, root)
    assert summary.passes == 1
    assert records_of(Cluster.open(str(root)).topic(TOPIC), 1) == newest(before)
    assert summary.failures
    assert all(victim in failure and "\n" not in failure for failure in summary.failures)


def there_is_nothing_to_do(root: Path) -> bool:
    return not list(CompactionRun(Cluster.open(str(root)), [TOPIC]).plan())


def newest(records: Sequence[Seen], *, tombstones: bool = True) -> list[Seen]:
    """What key compaction leaves of committed records."""
    found = {one.record.key: one for one in records if one.record.key is not None}
    kept = sorted(found.values(), key=lambda one: one.offset)
    return [one for one in kept if tombstones or one.record.value is not None]


# --- The command ----------------------------------------------------------------------------------


def test_dry_run_lists_the_plan_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Spark; progress and the plan for people do not mix with the JSON."""
    root = tmp_path / "root"
    fill(root)
    before = sorted(root.rglob("*"))
    assert main(["--root", str(root), "--topic", TOPIC, "--dry-run"]) == 0
    shown = capsys.readouterr()
    plan = json.loads(shown.out)["plan"]
    assert [(row["topic"], row["action"]) for row in plan] == [(TOPIC, "merge")] * len(plan)
    assert all(
        f"merge {TOPIC}-{row['partition']}: {row['inputs']} files" in shown.err for row in plan
    )
    assert sorted(root.rglob("*")) == before


def test_secret_of_a_malformed_setting_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was given may be a secret without its name (R67)."""
    with pytest.raises(SystemExit, match="2"):
        main(["--root", str(tmp_path), "--storage", "s3cret"])
    monkeypatch.setenv("TXNLOG_STORAGE", "s3cret")
    with pytest.raises(SystemExit, match="2"):
        main(["--root", str(tmp_path)])
    assert "s3cret" not in capsys.readouterr().err


def test_missing_cluster_or_topic_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found out before Spark is started."""
    assert main(["--root", str(tmp_path / "nowhere")]) == 1
    Cluster.open(str(tmp_path), create=True).create_topic("orders")
    assert main(["--root", str(tmp_path), "--topic", "order"]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "nowhere" in first
    assert "there are: orders" in second
