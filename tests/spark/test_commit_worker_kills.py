"""SIGKILL of the worker that commits, at each step of the commit, and then a restart."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.conftest import Failpoint, Lab
from txnlog.failpoint import NAMES

pytestmark = pytest.mark.spark

BATCH = 40
# In the second of three batches; a marker is written for each of the two topics, so the third one
# is the first of the second batch, and the fourth the last.
PLACES = [*(f"{name}@2" for name in NAMES if name != "marker.after"), "marker.after@3"]


@pytest.mark.parametrize("place", PLACES)
def test_commit_worker_killed_and_query_restarted_is_exactly_once(
    lab: Lab, failpoint: Failpoint, place: str
) -> None:
    """A batch half published, or published twice, after a crash at any step (R36, R54, R57)."""
    lab.feed(0, 3 * BATCH)
    failpoint.set(place)
    with pytest.raises(StreamingQueryException):
        lab.run(batch_records=BATCH)
    failpoint.clear()
    lab.run(batch_records=BATCH)
    lab.check(3 * BATCH)
