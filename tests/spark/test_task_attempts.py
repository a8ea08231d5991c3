"""Task attempts that fail after they have written, and redundant attempts (R56)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_sink.commit import commit_batch_write, commit_micro_batch
from spark_sink.messages import StagedTask
from spark_sink.staging import Stager
from tests.spark import pipeline
from tests.spark.conftest import Driver
from txnlog.cluster import Cluster
from txnlog.settings.config import parse_config
from txnlog.testing.counts import count


def unused_files(root: Path, topics: Sequence[str]) -> set[str]:
    """Data files that no log refers to."""
    return {
        name
        for topic in topics
        for name in pipeline.files_on_disk(root, topic) - pipeline.live_files(root, topic)
    }


@pytest.mark.soak
@pytest.mark.spark
def test_stream_task_killed_after_staging_and_repeated_gives_no_duplicates(
    second_driver: Driver, tmp_path: Path
) -> None:
    """The first attempt's files are complete, and in the same folder as the second's (R56)."""
    root = tmp_path / "root"
    pipeline.feed(root, range(60))
    second_driver.failpoint.set("stage.after@2")
    checkpoint = tmp_path / "checkpoint"
    error = second_driver.run("stream", root, checkpoint=checkpoint, batch_records=20, large=True)
    assert error is None
    assert second_driver.failpoint.hits >= 4, "three batches, and one attempt that was killed"
    count("kills", "Spark task, after it has staged")
    second_driver.failpoint.clear()
    pipeline.check(root, 60)
    assert unused_files(root, pipeline.OUTPUTS), "the files of the killed attempt are not deleted"


@pytest.mark.soak
@pytest.mark.spark
def test_stream_task_that_fails_at_the_end_of_its_input_gives_no_duplicates(
    second_driver: Driver, tmp_path: Path
) -> None:
    """The sink had all rows when the attempt failed, twice (R56)."""
    root = tmp_path / "root"
    pipeline.feed(root, range(60))
    assert second_driver.run("flaky stream", root, checkpoint=tmp_path / "checkpoint") is None
    pipeline.check(root, 60)


@pytest.mark.soak
@pytest.mark.spark
def test_batch_write_tasks_killed_after_staging_and_repeated_give_no_duplicates(
    second_driver: Driver, tmp_path: Path
) -> None:
    """One task of three is repeated; the other two are not (R56)."""
    root = tmp_path / "root"
    second_driver.failpoint.set("stage.after@2")
    assert second_driver.run("write", root, topic="evens", count=60, tasks=3, large=True) is None
    assert second_driver.failpoint.hits == 4
    count("kills", "Spark task, after it has staged")
    second_driver.failpoint.clear()
    values = [record.value for record in pipeline.records(root, "evens")]
    assert sorted(values) == list(range(60))
    assert unused_files(root, ["evens"])


def stage(root: Path, values: range, *, task: int = 0, **stream: object) -> StagedTask:
    """A task attempt: its files, and the message that Spark may or may not pass to the commit."""
    batch = pa.RecordBatch.from_pydict(
        {"key": ["k"] * len(values), "value": list(map(str, values))}
    )
    stager = Stager(
        Cluster.cached(str(root), create=True),
        topic="evens",
        include_headers=False,
        target_size_bytes=1 << 20,
    )
    return StagedTask(task, tuple(stager.write([batch])), **stream)  # type: ignore[arg-type]


def test_commit_takes_only_the_files_that_its_messages_name(tmp_path: Path) -> None:
    """A speculative attempt wrote the same rows, and finished second (R56)."""
    first, speculative = stage(tmp_path, range(5)), stage(tmp_path, range(5))
    other = stage(tmp_path, range(5, 9), task=1)
    options = parse_config({"txnlog.root": str(tmp_path), "topic": "evens"}, "write")
    commit_batch_write(options, [first, other])
    assert [record.value for record in pipeline.records(tmp_path, "evens")] == list(range(9))
    late = {batch.path for batch in speculative.batches}
    assert late <= pipeline.files_on_disk(tmp_path, "evens") - pipeline.live_files(
        tmp_path, "evens"
    )


def test_commit_of_a_batch_that_is_committed_takes_no_file_of_its_repetition(
    tmp_path: Path,
) -> None:
    """A commit that is called twice, with other attempts' files (R55, R56)."""
    options = parse_config({"txnlog.root": str(tmp_path), "topic": "evens"}, "writeStream")
    run = {"query_id": "query", "run_id": "run", "batch_id": 3}
    commit_micro_batch(options, [stage(tmp_path, range(5), **run)], 3)
    commit_micro_batch(options, [stage(tmp_path, range(5), **run)], 3)
    restarted = {**run, "run_id": "a later run"}
    commit_micro_batch(options, [stage(tmp_path, range(7), **restarted)], 3)
    assert [record.value for record in pipeline.records(tmp_path, "evens")] == list(range(5))
