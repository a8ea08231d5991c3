"""Two drivers on one checkpoint (R58).

The first is the shared session, held at a fail point; the second a separate process.
"""

from __future__ import annotations

from functools import partial

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import pipeline
from tests.spark.conftest import Driver, Failpoint, Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

BATCH = 20
# tests/spark_sink/test_query_rows.py meets at every call of a commit, without Spark.
soaked = partial(pytest.param, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("place", "refused"),
    [
        # Between these two writes there may be minutes: a long pause of the garbage collector.
        soaked("tickets.after@2", "ProducerFencedError"),
        soaked("prepare_commit.before@2", "ProducerFencedError"),
        # It decided the batch, the other one finished it: Spark itself finds its commit file there.
        ("prepare_commit.after@2", "CONCURRENT_STREAM_LOG_UPDATE"),
        soaked("marker.after@3", "CONCURRENT_STREAM_LOG_UPDATE"),
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


@pytest.mark.parametrize(
    ("batches", "refused"), [soaked(1, "CONCURRENT_STREAM_LOG_UPDATE"), (3, "CheckpointError")]
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
    assert before is not None
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match=refused) as failure:
        pipeline.run(first)
    after = Cluster.open(str(lab.root)).coordinator.describe(first.id)
    assert after is not None
    # It may have written the COMPLETE that the other one left.
    assert (after.owner, after.transaction) == (before.owner, before.transaction)
    if refused == "CheckpointError":
        assert str(lab.checkpoint) in str(failure.value)
    lab.check(batches * BATCH)


@pytest.mark.soak
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
