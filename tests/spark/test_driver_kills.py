"""SIGKILL of a whole Spark driver (worker, daemon and JVM) at each step of the commit.

Each kill costs the start of a Spark, so `make test` has the most relevant one and `make soak-spark`
all, and two drivers at a time start and die in the background. The shared session plays the
driver that is started afterwards.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.spark import pipeline
from tests.spark.conftest import Driver, Lab, hit_in_second_batch
from txnlog.process.failpoint import TRANSACTION

pytestmark = pytest.mark.spark

BATCH = 20
DRIVERS_AT_ONCE = 2
# Between two topics. Kills of the commit's worker go through all steps.
RELEVANT = {"marker.after"}
PLACES = [pytest.param(n, marks=() if n in RELEVANT else pytest.mark.soak) for n in TRANSACTION]


def run_until_killed(start_driver: Callable[..., Driver], folder: Path, name: str) -> None:
    """Run the pipeline in a new driver until it is killed in the second of three batches."""
    pipeline.feed(folder / "root", range(3 * BATCH))
    driver = start_driver()
    driver.failpoint.set(f"{name}@{hit_in_second_batch(name)}:driver")
    checkpoint = folder / "checkpoint"
    driver.run_to_death("stream", folder / "root", checkpoint=checkpoint, batch_records=BATCH)


@pytest.fixture(scope="module")
def killed(
    request: pytest.FixtureRequest,
    start_driver: Callable[..., Driver],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str, str], Path]]:
    """`killed(test, place)`: the folder of that test's dead driver; those of the next run ahead."""
    order = [
        (item.originalname, item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    folders: dict[tuple[str, str], tuple[Path, Future[None]]] = {}
    with ThreadPoolExecutor(DRIVERS_AT_ONCE) as pool:

        def wait(test: str, name: str) -> Path:
            # Not all at once: other workers of pytest have tests of this file, too.
            at = order.index((test, name))
            for key in order[at : at + DRIVERS_AT_ONCE]:
                if key not in folders:
                    folder = tmp_path_factory.mktemp("driver")
                    folders[key] = (
                        folder,
                        pool.submit(run_until_killed, start_driver, folder, key[1]),
                    )
            folder, run = folders[test, name]
            run.result()
            return folder

        yield wait


@pytest.mark.parametrize("name", PLACES)
def test_driver_killed_and_started_again_is_exactly_once(
    lab: Lab, killed: Callable[[str, str], Path], name: str
) -> None:
    """Both topics are correct after a crash of all processes (R36, R54)."""
    folder = killed("test_driver_killed_and_started_again_is_exactly_once", name)
    lab.root, lab.checkpoint = folder / "root", folder / "checkpoint"
    lab.run(batch_records=BATCH)
    lab.check(3 * BATCH)


@pytest.mark.soak
@pytest.mark.parametrize("name", TRANSACTION)
def test_driver_killed_and_checkpoint_lost_is_exactly_once(
    lab: Lab, killed: Callable[[str, str], Path], name: str
) -> None:
    """Only the root remains, whenever the driver was killed (R36, R59, R73)."""
    folder = killed("test_driver_killed_and_checkpoint_lost_is_exactly_once", name)
    lab.root, lab.checkpoint = folder / "root", folder / "checkpoint"
    shutil.rmtree(lab.checkpoint)
    lab.run(batch_records=BATCH)
    assert lab.values() == list(range(3 * BATCH))
    lab.sweep()
    lab.check(3 * BATCH)
