"""A lost checkpoint: a new query starts from the group's committed offsets (R59).

The old driver is dead, or alive and in the middle of a batch. What it does then is held at a fail
point; the new query runs meanwhile, in the same session but under another query id and run id.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import pipeline
from tests.spark.conftest import Failpoint, Lab, hit_in_second_batch
from txnlog.process.failpoint import TRANSACTION

pytestmark = pytest.mark.spark

BATCH = 20
# A new query finds the last batch half published, or complete; undecided, or decided and not
# published, in test_new_query_without_input_waits_for_nothing_and_repeats_nothing. The states
# between these: `make soak-spark`, and the searches of tests/model/test_spark_owner.py.
TELLING = {"marker.after", "sink_commit.after"}


def new_checkpoint(lab: Lab) -> Path:
    return lab.checkpoint.with_name("new")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in TELLING else pytest.mark.soak) for n in TRANSACTION],
)
def test_lost_checkpoint_of_a_dead_query_is_exactly_once(
    lab: Lab, failpoint: Failpoint, name: str
) -> None:
    """Input is read again after its output was published, or never (R59)."""
    lab.feed(0, 3 * BATCH)
    failpoint.set(f"{name}@{hit_in_second_batch(name)}")
    with pytest.raises(StreamingQueryException):
        lab.run(batch_records=BATCH)
    assert failpoint.hits
    failpoint.clear()
    shutil.rmtree(lab.checkpoint)
    lab.run(checkpoint=new_checkpoint(lab), batch_records=BATCH)
    assert lab.values() == list(range(3 * BATCH))
    # If only COMPLETE was missing, the new query does not read the killed one's row (R73).
    lab.sweep()
    lab.check(3 * BATCH)


# Where the old query is stopped, and the error by which it is fenced.
ALIVE = {
    "stage.after": "IllegalGenerationError",
    "take_over.after": "IllegalGenerationError",
    "tickets.after": "IllegalGenerationError",
    "prepare_commit.after": "IllegalGenerationError",
    "marker.after": "IllegalGenerationError",
    "sink_commit.after": "IllegalGenerationError",
}
TELLING_ALIVE = {"tickets.after", "marker.after"}
"""Before its transaction is decided, and after."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in TELLING_ALIVE else pytest.mark.soak) for n in ALIVE],
)
def test_lost_checkpoint_of_a_query_that_is_alive_is_exactly_once(
    lab: Lab, failpoint: Failpoint, name: str
) -> None:
    """Two queries of one group both commit the same input (R48, R59)."""
    lab.feed(0, 3 * BATCH)
    hit = hit_in_second_batch(name)
    failpoint.set(f"{name}@{hit}:pause")
    old = lab.start(batch_records=BATCH)
    failpoint.await_hits(hit)
    new = lab.run(checkpoint=new_checkpoint(lab), batch_records=BATCH)
    assert new.id != old.id
    assert lab.values() == list(range(3 * BATCH))
    failpoint.clear()
    with pytest.raises(StreamingQueryException, match=ALIVE[name]):
        pipeline.run(old)
    lab.check(3 * BATCH)


def test_old_query_restarted_after_a_new_one_took_its_group_is_refused(lab: Lab) -> None:
    """The old job is restarted, whose checkpoint was not lost after all (R48, R59)."""
    lab.feed(0, BATCH)
    lab.run()
    lab.run(checkpoint=new_checkpoint(lab))
    lab.feed(BATCH, 2 * BATCH)
    with pytest.raises(StreamingQueryException, match="IllegalGenerationError") as failure:
        lab.run()
    assert "startingOffsets=committed" in str(failure.value)
    assert lab.values() == list(range(BATCH))
    lab.run(checkpoint=new_checkpoint(lab))
    lab.check(2 * BATCH)


def test_new_query_without_input_waits_for_nothing_and_repeats_nothing(
    lab: Lab, failpoint: Failpoint
) -> None:
    """All input was in the batch the old query died in, which was decided or not."""
    for first, place in ((0, "tickets.after"), (BATCH, "prepare_commit.after")):
        lab.feed(first, first + BATCH)
        failpoint.set(place)
        with pytest.raises(StreamingQueryException):
            lab.run(checkpoint=lab.checkpoint / str(first))
        failpoint.clear()
        query = lab.run(checkpoint=new_checkpoint(lab) / str(first))
        read_again = sum(progress.numInputRows for progress in query.recentProgress)
        assert read_again == (BATCH if place == "tickets.after" else 0)
    lab.check(2 * BATCH)
