"""SIGKILL of a whole Spark driver (worker, daemon and JVM) at each step of the commit.

Each kill costs the start of a Spark, so `make test` has the four most telling ones and `make soak`
all. The shared session plays the driver that is started afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.spark.conftest import Driver, Lab
from txnlog.failpoint import NAMES

pytestmark = pytest.mark.spark

BATCH = 20
# Nothing decided; decided and nothing out; between two topics; Spark does not know of the commit.
TELLING = {
    "pending_offsets.after",
    "prepare_commit.after",
    "marker.after",
    "sink_commit.after",
}
CASES = [
    pytest.param(name, is_lost, marks=() if name in TELLING and not is_lost else pytest.mark.soak)
    for name in NAMES
    for is_lost in (False, True)
]


@pytest.mark.parametrize(("name", "is_lost"), CASES)
def test_driver_killed_and_started_again_is_exactly_once(
    lab: Lab, start_driver: Callable[..., Driver], name: str, is_lost: bool
) -> None:
    """Both topics right after a crash of everything at once (R36, R54, R59, R73)."""
    lab.feed(0, 3 * BATCH)
    driver = start_driver()
    driver.failpoint.set(f"{name}@{3 if name == 'marker.after' else 2}:driver")
    driver.run_to_death("stream", lab.root, checkpoint=lab.checkpoint, batch_records=BATCH)
    if is_lost:
        shutil.rmtree(lab.checkpoint)
    lab.run(batch_records=BATCH)
    lab.check(3 * BATCH)
