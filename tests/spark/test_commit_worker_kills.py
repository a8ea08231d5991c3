"""SIGKILL of the worker that commits, at each step of the commit, and then a restart."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import Failpoint, Lab, hit_in_second_batch
from txnlog.process.failpoint import TRANSACTION
from txnlog.testing.counts import count

pytestmark = pytest.mark.spark

BATCH = 20
PLACES = [f"{name}@{hit_in_second_batch(name)}" for name in TRANSACTION]


def run_to_kill(lab: Lab, failpoint: Failpoint, place: str) -> None:
    failpoint.set(place)
    with pytest.raises(StreamingQueryException):
        lab.run(batch_records=BATCH)
    assert failpoint.hits >= int(place[-1]), place
    count("kills", "Spark worker, at a step of its commit")
    failpoint.clear()


def test_commit_worker_killed_at_each_step_of_one_query_is_exactly_once(
    lab: Lab, failpoint: Failpoint
) -> None:
    """A batch half published, or published twice, after a crash at any step (R36, R54, R57).

    Each run finishes the batch in which the previous one was killed, and is killed in the next.
    """
    fed = 0
    for place in PLACES:
        lab.feed(fed, fed + 2 * BATCH)
        fed += 2 * BATCH
        run_to_kill(lab, failpoint, place)
        out = lab.values()
        assert out == sorted(set(out)), f"{place}: something is out twice"
    lab.run(batch_records=BATCH)
    lab.check(fed)


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
def test_commit_worker_killed_and_query_restarted_is_exactly_once(
    lab: Lab, failpoint: Failpoint, place: str
) -> None:
    """The same, one step at a time, to show which step fails (R36, R54, R57)."""
    lab.feed(0, 3 * BATCH)
    run_to_kill(lab, failpoint, place)
    lab.run(batch_records=BATCH)
    lab.check(3 * BATCH)
