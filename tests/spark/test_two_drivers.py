"""Two drivers on one checkpoint, two queries with one transactional.id (R58).

The first is the shared session, held at a fail point; the second a separate process.
"""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from tests.spark import pipeline
from tests.spark.conftest import Driver, Failpoint, Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

BATCH = 20


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        # Between these two writes there may be minutes: a long pause of the garbage collector.
        ("tickets.after@2", "ProducerFencedError"),
        ("prepare_commit.before@2", "ProducerFencedError"),
        # It decided the batch, the other one finished it: Spark itself finds its commit file there.
        ("prepare_commit.after@2", "CONCURRENT_STREAM_LOG_UPDATE"),
        ("marker.after@3", "CONCURRENT_STREAM_LOG_UPDATE"),
    ],
)
def test_two_drivers_on_one_checkpoint_one_commits_the_other_fails(
    lab: Lab, failpoint: Failpoint, second_driver: Driver, place: str, refused: str
) -> None:
    """Both have staged batch 1 and will commit it (R58)."""
    lab.feed(0, 3 * BATCH)
    failpoint.set(f"{place}:pause")
    first = lab.start(batch_records=BATCH)
    failpoint.await_hits(int(place[-1]))
    error = second_driver.run("stream", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    assert error is None
    lab.check(3 * BATCH)
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match=refused) as failure:
        pipeline.run(first)
    if refused == "ProducerFencedError":
        assert "Stop this one" in str(failure.value)
    lab.check(3 * BATCH)


def test_second_driver_under_another_id_fences_the_first(
    lab: Lab, failpoint: Failpoint, second_driver: Driver
) -> None:
    """Each id has its own row: both committed the batch that both had staged (R54, R58)."""
    lab.feed(0, 3 * BATCH)
    failpoint.set("prepare_commit.before@2:pause")
    first = lab.start(batch_records=BATCH, transactional_id="before")
    failpoint.await_hits(2)
    error = second_driver.run("stream", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    assert error is None
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match="ProducerFencedError") as failure:
        pipeline.run(first)
    assert "the query was started under transactional.id" in str(failure.value)
    lab.check(3 * BATCH)


@pytest.mark.parametrize(
    ("batches", "refused"), [(1, "CONCURRENT_STREAM_LOG_UPDATE"), (3, "CheckpointError")]
)
def test_driver_that_resumes_late_is_refused_and_takes_nothing_over(
    lab: Lab, failpoint: Failpoint, second_driver: Driver, batches: int, refused: str
) -> None:
    """It never committed, so it was not fenced; it must not fence the one that continues (R58).

    Its batch is the last committed one, which only Spark's log shows, or an earlier one.
    """
    lab.feed(0, batches * BATCH)
    failpoint.set("stage.after:pause")
    first = lab.start(batch_records=BATCH)
    failpoint.await_hits()
    error = second_driver.run("stream", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    assert error is None
    before = Cluster.open(str(lab.root)).coordinator.describe(first.id)
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match=refused) as failure:
        pipeline.run(first)
    assert Cluster.open(str(lab.root)).coordinator.describe(first.id) == before
    if refused == "CheckpointError":
        assert str(lab.checkpoint) in str(failure.value)
    lab.check(batches * BATCH)


def test_two_drivers_racing_on_one_checkpoint_are_exactly_once(
    lab: Lab, second_driver: Driver
) -> None:
    """Without a fixed interleaving: both restart when refused, until all is committed (R58)."""
    lab.feed(0, BATCH)
    lab.run()
    lab.feed(BATCH, 8 * BATCH)
    arguments = {"checkpoint": lab.checkpoint, "batch_records": BATCH}
    second_driver.begin("stream", lab.root, **arguments)
    errors = []
    for _ in range(10):
        try:
            lab.run(**arguments)
            break
        except StreamingQueryException as error:
            errors.append(str(error))
    errors.append(second_driver.end() or "")
    if lab.values() != list(range(8 * BATCH)):
        # Both wrote the same offsets file at the same time: the remedy of the message.
        assert "CheckpointError" in "".join(errors)
        lab.run(checkpoint=lab.checkpoint.with_name("new"))
    lab.check(8 * BATCH)


def start_shared(lab: Lab, source: str) -> StreamingQuery:
    """A query with its own source, group and checkpoint, and the shared transactional.id."""
    chosen = {"subscribe": source, "group.id": source}
    return pipeline.start(
        lab.spark,
        lab.root,
        lab.checkpoint / source,
        batch_records=BATCH,
        source=chosen,
        transactional_id="shared",
        group_id=source,
    )


def run_shared(lab: Lab, source: str) -> StreamingQuery:
    return pipeline.run(start_shared(lab, source))


def feed_two_sources(lab: Lab) -> None:
    pipeline.feed(lab.root, range(3 * BATCH), "first")
    pipeline.feed(lab.root, range(3 * BATCH, 6 * BATCH), "second")


def test_two_queries_with_one_transactional_id_after_each_other_are_exactly_once(
    lab: Lab, failpoint: Failpoint
) -> None:
    """One finishes what the other decided, and keeps the batch ids apart (R58)."""
    feed_two_sources(lab)
    failpoint.set("prepare_commit.after@2")
    with pytest.raises(StreamingQueryException):
        run_shared(lab, "first")
    failpoint.clear()
    run_shared(lab, "second")
    run_shared(lab, "first")
    run_shared(lab, "second")
    lab.check(6 * BATCH, groups=("first", "second"), ordered=False)


def test_two_queries_with_one_transactional_id_at_once_fence_each_other(
    lab: Lab, failpoint: Failpoint
) -> None:
    """The fenced query's error names the other; restarted, it neither skips nor repeats (R58)."""
    feed_two_sources(lab)
    failpoint.set("prepare_commit.before@2:pause")
    first = start_shared(lab, "first")
    failpoint.await_hits(2)
    other = run_shared(lab, "second")
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match="ProducerFencedError") as failure:
        pipeline.run(first)
    assert other.id in str(failure.value)
    run_shared(lab, "first")
    lab.check(6 * BATCH, groups=("first", "second"), ordered=False)
