"""Spark from topic to topic on servers of stores: a killed driver, a restart, a lost checkpoint.

Drivers and their workers get the store's options from the environment. With S3 the checkpoint is in
the same bucket in a second test, through s3a://, and Spark's own Delta reader counts the records.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from spark_session import CONF_DIR

from tests.spark import pipeline
from tests.spark.conftest import Driver
from tests.stores.conftest import Servers
from tests.stores.plans import RandomFaults, no_trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import BUCKET, HOST, Place, Server
from tests.stores.verified import verify_place

pytestmark = [pytest.mark.stores, pytest.mark.spark]

BATCH = 20
S3A = {
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.endpoint.region": "us-east-1",
}

Start = Callable[..., Driver]


@pytest.fixture
def start(scratch: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a driver in the environment of this moment: `start(submit_args="--conf ...")`."""
    drivers: list[Driver] = []

    def start_driver(submit_args: str = "") -> Driver:
        folder = scratch / f"{request.node.nodeid.__hash__():x}-{len(drivers)}"
        driver = Driver(folder, "local[2,4]", submit_args=submit_args)
        drivers.append(driver)
        return driver

    yield start_driver
    for driver in drivers:
        driver.close()


def use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its drivers open the place without settings."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)


def check_pipeline(
    place: Place,
    start: Start,
    checkpoints: list[str],
    *,
    forget: Callable[[], None],
    command: str = "stream",
    dies_at: str = "marker.after@3:driver",
) -> Driver:
    """Kill a driver in its second batch, restart it, then lose its checkpoint."""
    root = place.url
    pipeline.feed(root, range(3 * BATCH))
    dying = start()
    needs = {"transactional": ["tables"], "merging": ["tables", "counts"]}
    for needed in needs.get(command, []):
        assert dying.run(f"make {needed}", root) is None
    dying.failpoint.set(dies_at)
    dying.run_to_death(command, root, checkpoint=checkpoints[0], batch_records=BATCH)
    driver = start()
    assert driver.run(command, root, checkpoint=checkpoints[0], batch_records=BATCH) is None
    pipeline.check(root, 3 * BATCH)
    pipeline.feed(root, range(3 * BATCH, 4 * BATCH))
    assert driver.run(command, root, checkpoint=checkpoints[0], batch_records=BATCH) is None
    forget()
    pipeline.feed(root, range(4 * BATCH, 5 * BATCH))
    assert driver.run(command, root, checkpoint=checkpoints[1], batch_records=BATCH) is None
    pipeline.check(root, 5 * BATCH)
    verify_place(place)
    return driver


def test_topic_to_topic_survives_a_kill_and_a_lost_checkpoint(
    server: Server, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number is published once, in order (R49, R57, R59)."""
    place = server.place()
    use(place, monkeypatch)
    old, new = tmp_path / "old", tmp_path / "new"
    check_pipeline(place, start, [str(old), str(new)], forget=lambda: shutil.rmtree(old))


@pytest.fixture
def on_s3a(
    servers: Servers, start: Start, monkeypatch: pytest.MonkeyPatch
) -> tuple[Place, Start, list[str], Callable[[], None]]:
    """A place, drivers with conf/spark-s3a.conf, two checkpoints there, and loss of the first."""
    place = servers.get("versitygw").place()
    use(place, monkeypatch)
    endpoint = f"http://{HOST}:{servers.get('versitygw').port}"
    hadoop = {**S3A, "fs.s3a.endpoint": endpoint}
    settings = " ".join(f"--conf spark.hadoop.{name}={value}" for name, value in hadoop.items())
    files = f"--load-spark-defaults --properties-file {CONF_DIR / 'spark-s3a.conf'}"
    name = place.url.rpartition("/")[2]
    checkpoints = [f"s3a://{BUCKET}/checkpoints-{name}/{n}" for n in ("old", "new")]
    old = Place(f"s3://{BUCKET}/checkpoints-{name}/old", place.options).open()

    def forget() -> None:
        paths = [meta.path for meta in old.list("")]
        assert any(path.startswith("commits/") for path in paths)
        old.delete(paths)

    return place, partial(start, submit_args=f"{files} {settings}"), checkpoints, forget


OnS3A = tuple[Place, Start, list[str], Callable[[], None]]


def test_topic_to_topic_with_checkpoints_and_sql_on_s3a(on_s3a: OnS3A) -> None:
    """The same with Spark's own files in the bucket (R49, R57, R59)."""
    place, start, checkpoints, forget = on_s3a
    driver = check_pipeline(place, start, checkpoints, forget=forget)
    sql = place.url.replace("s3://", "s3a://")
    for topic in pipeline.OUTPUTS:
        assert driver.run("count", sql, topic=topic, expected=5 * BATCH // 2) is None


def test_topics_and_delta_tables_on_s3a(on_s3a: OnS3A) -> None:
    """All of it in the bucket: topics, tables, offsets, checkpoints (R49, R59, R74).

    Spark names it s3a, and only it writes the staging tables, so that its LogStore for S3 will do.
    """
    place, start, checkpoints, forget = on_s3a
    driver = check_pipeline(
        place, start, checkpoints, forget=forget, command="transactional", dies_at="table.after@3"
    )
    assert driver.run("check tables", place.url, count=5 * BATCH) is None


def test_merges_on_s3a(on_s3a: OnS3A) -> None:
    """Files of a table are named as Hadoop has them in its clone, and by their paths in its log."""
    place, start, checkpoints, forget = on_s3a
    driver = check_pipeline(
        place, start, checkpoints, forget=forget, command="merging", dies_at="change.after@2"
    )
    assert driver.run("check counts", place.url, count=5 * BATCH) is None


def test_topic_to_topic_amid_faults_publishes_once(
    server: Server,
    proxy: FaultProxy,
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """A query that an error of the store has stopped is started again with its checkpoint."""
    place = server.place()
    through = server.place(place.url.rpartition("/")[2], port=proxy.port)
    use(place, monkeypatch)
    pipeline.feed(place.url, range(6 * BATCH))
    use(through, monkeypatch)
    driver = start()
    proxy.plan = RandomFaults(seed, rate=0.02, write_rate=0.06, late_s_max=3.0)
    for _ in range(10):
        checkpoint = str(tmp_path / "checkpoint")
        if driver.run("stream", place.url, checkpoint=checkpoint, batch_records=BATCH) is None:
            break
    else:
        proxy.plan = no_trouble
        assert driver.run("stream", place.url, checkpoint=checkpoint, batch_records=BATCH) is None
    proxy.plan = no_trouble
    proxy.land_late()
    use(place, monkeypatch)
    pipeline.check(place.url, 6 * BATCH)
    verify_place(place)
