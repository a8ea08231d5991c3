"""A micro-batch that Spark replays: with the same or other data, decided or not.

Those of `make soak-spark` are in `make test` without Spark: tests/spark_sink/test_query_rows.py,
tests/spark_sink/test_source_offsets.py, tests/protocol/test_micro_batches.py; the sink's abort is
one call that does nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import pipeline
from tests.spark.conftest import Failpoint, Lab
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.protocol.states import TransactionState

pytestmark = pytest.mark.spark

BATCH = 20
SHIFT = 1000


def versions(lab: Lab) -> list[int]:
    cluster = Cluster.open(str(lab.root))
    return [cluster.topic(topic).log.version for topic in pipeline.OUTPUTS]


def killed(
    lab: Lab, failpoint: Failpoint, place: str, **options: object
) -> StreamingQueryException:
    """Run the pipeline until the fail point kills the worker that commits; its query's error."""
    failpoint.set(place)
    with pytest.raises(StreamingQueryException) as failure:
        lab.run(**options)
    assert failpoint.hits
    failpoint.clear()
    return failure.value


def test_restart_after_spark_lost_its_last_commit_file_changes_nothing(lab: Lab) -> None:
    """Spark runs the last batch again, data and all (R54, SPARK-24156)."""
    lab.feed(0, 3 * BATCH)
    query = lab.run(batch_records=BATCH)
    before, offsets = versions(lab), lab.checkpoint / "offsets" / "2"
    digest = offsets.read_bytes()
    lab.forget_batch("commits", 2)
    again = lab.run(batch_records=BATCH)
    assert again.id == query.id
    assert again.runId != query.runId
    assert [p.batchId for p in again.recentProgress if p.numInputRows] == [2]
    assert versions(lab) == before
    assert offsets.read_bytes() == digest
    lab.check(3 * BATCH)
    lab.feed(3 * BATCH, 4 * BATCH)
    lab.run()
    lab.check(4 * BATCH)


def test_decided_batch_replayed_with_other_rows_is_skipped(lab: Lab, failpoint: Failpoint) -> None:
    """A query that is not deterministic gives other rows at the replay (R55, SPARK-28650)."""
    lab.feed(0, 3 * BATCH)
    killed(lab, failpoint, "prepare_commit.after@2", batch_records=BATCH)
    lab.run(batch_records=BATCH, shift=SHIFT)
    decided, after = range(2 * BATCH), range(2 * BATCH + SHIFT, 3 * BATCH + SHIFT)
    assert lab.values() == [*decided, *after]


def test_undecided_batch_replayed_with_other_rows_is_replaced(
    lab: Lab, failpoint: Failpoint
) -> None:
    """Files of the first attempt are in the topic's folder; none may be published (R55, R56)."""
    lab.feed(0, 3 * BATCH)
    killed(lab, failpoint, "prepare_commit.before@2", batch_records=BATCH)
    staged = {topic: pipeline.files_on_disk(lab.root, topic) for topic in pipeline.OUTPUTS}
    lab.run(batch_records=BATCH, shift=SHIFT)
    assert lab.values() == [*range(BATCH), *range(BATCH + SHIFT, 3 * BATCH + SHIFT)]
    for topic in pipeline.OUTPUTS:
        live, there = pipeline.live_files(lab.root, topic), pipeline.files_on_disk(lab.root, topic)
        assert staged[topic] - live, "the first attempt's files are not live"
        assert staged[topic] <= there, "and they are not deleted"


@pytest.mark.soak
def test_undecided_batch_planned_again_with_another_end_is_replaced(
    lab: Lab, failpoint: Failpoint
) -> None:
    """The offsets file was lost as well, so that the batch gets another end (R55)."""
    lab.feed(0, 2 * BATCH)
    killed(lab, failpoint, "prepare_commit.before@2", batch_records=BATCH)
    lab.forget_batch("offsets", 1)
    lab.feed(2 * BATCH, 4 * BATCH)
    query = lab.run()
    assert [p.batchId for p in query.recentProgress if p.numInputRows] == [1]
    lab.check(4 * BATCH)


def test_decided_batch_planned_again_with_another_end_is_refused(
    lab: Lab, failpoint: Failpoint
) -> None:
    """To skip it would lose what the new end adds; to commit it would repeat the rest (R55)."""
    lab.feed(0, 2 * BATCH)
    killed(lab, failpoint, "prepare_commit.after@2", batch_records=BATCH)
    lab.forget_batch("offsets", 1)
    lab.feed(2 * BATCH, 4 * BATCH)
    with pytest.raises(StreamingQueryException, match="CheckpointError") as failure:
        lab.run()
    assert str(lab.checkpoint) in str(failure.value)
    assert lab.values() == list(range(2 * BATCH))
    # The remedy of the message.
    lab.run(checkpoint=lab.checkpoint.with_name("new"))
    lab.check(4 * BATCH)


@pytest.mark.soak
def test_batch_below_the_last_committed_one_is_refused(lab: Lab) -> None:
    """An old copy of the checkpoint makes Spark plan batches again that are committed (R55)."""
    lab.feed(0, BATCH)
    lab.run()
    old_copy = shutil.copytree(lab.checkpoint, lab.checkpoint.with_name("copy"))
    for batch in (1, 2):
        lab.feed(batch * BATCH, (batch + 1) * BATCH)
        newest = lab.run()
    with pytest.raises(StreamingQueryException, match="CheckpointError") as failure:
        lab.run(checkpoint=old_copy)
    assert str(old_copy) in str(failure.value)
    assert "old copy" in str(failure.value)
    lab.check(3 * BATCH)
    row = Cluster.open(str(lab.root)).coordinator.describe(newest.id)
    assert row is not None
    assert row.owner.run_id == newest.runId, "a refused run takes nothing over"


@pytest.mark.soak
def test_prepared_batch_of_another_run_is_finished_and_the_query_continues(
    lab: Lab, failpoint: Failpoint
) -> None:
    """A decided batch must be published before later ones, whichever run finishes it (R36, R55)."""
    lab.feed(0, 3 * BATCH)
    killed(lab, failpoint, "prepare_commit.after@2", batch_records=BATCH)
    # Nothing of the decided batch is published yet.
    assert lab.values() == list(range(BATCH))
    # Spark has no record of the batch, and reads nothing more of it.
    (lab.checkpoint / "commits" / "1").write_text("v1\n{}")
    lab.run(batch_records=BATCH)
    lab.check(3 * BATCH)


@pytest.mark.soak
def test_group_added_at_a_restart_that_replays_a_batch_continues(
    lab: Lab, failpoint: Failpoint
) -> None:
    """The batch was planned without the group: the query was blocked permanently (R54)."""
    lab.feed(0, BATCH)
    without = {"group.id": None, "startingOffsets": "earliest", "auto.offset.reset": None}
    killed(lab, failpoint, "prepare_commit.before", source=without, group_id=None)
    lab.feed(BATCH, 2 * BATCH)
    lab.run()
    lab.check(2 * BATCH)


def test_abort_after_a_commit_that_failed_leaves_the_decision(
    lab: Lab, failpoint: Failpoint
) -> None:
    """Spark aborts, with all messages, a batch whose commit worker died after PREPARE (R57)."""
    lab.feed(0, BATCH)
    failure = killed(lab, failpoint, "prepare_commit.after")
    query_id = str(failure).split("Identifier: [id = ")[1].split(",")[0]
    cluster = Cluster.open(str(lab.root))
    row = cluster.coordinator.describe(query_id)
    assert row is not None
    assert row.state is TransactionState.PREPARE_COMMIT
    for batch in row.pending.batches:
        assert (lab.root / batch.topic / batch.path).exists()
    # Any process finishes it, without the query.
    finish(cluster, row)
    lab.check(BATCH)


@pytest.mark.soak
def test_abort_with_missing_messages_leaves_what_is_committed(lab: Lab) -> None:
    """Spark aborts a batch of which some tasks have no message, just None (R57)."""
    lab.feed(0, BATCH)
    lab.run()

    def fail_in_one_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 1:  # type: ignore[union-attr]
            raise RuntimeError("one task of two fails")

    lab.feed(BATCH, 2 * BATCH)
    frame = pipeline.split(pipeline.numbers(lab.spark, lab.root).repartition(2))
    failing = frame.mapInArrow(fail_in_one_task, frame.schema)
    with pytest.raises(StreamingQueryException, match="one task of two fails"):
        pipeline.run(pipeline.writer(failing, lab.root, lab.checkpoint).start())
    lab.check(BATCH)
    lab.run()
    lab.check(2 * BATCH)
