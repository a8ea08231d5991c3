"""Spark's checkpoint on s3a: our reader of it, and drivers killed at every step of a commit."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flights_driver import DriverProcess
from spark_session import CONF_DIR, LOCAL_SETTINGS, spark_environment

from checkpoint import Checkpoint
from tests.stores.servers import Place, Server
from tests.stores.verified import verify_place
from txnlog import Consumer, Producer
from txnlog.testing.counts import count

JOB = Path(__file__).with_name("checkpoint_job.py")
SPARKS = Path(__file__).parents[1] / "checkpoint" / "spark_checkpoints"
RECORDS, PER_TRIGGER = 400, 20
WAIT_S = 600
IN_COMMIT = ("prepare_commit.after", "marker.after", "offsets.after", "sink_commit.after")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_checkpoint_on_s3_is_read_by_options_of_its_own(any_server: Server, scheme: str) -> None:
    """Hazard: the sink cannot read the offsets of its batch where Spark has written them (R54)."""
    if not any_server.place().url.startswith("s3://"):
        pytest.skip("an S3 server is needed")
    place = any_server.place()
    store = place.open()
    for file in sorted((SPARKS / "v1").rglob("*")):
        if file.is_file():
            store.put(file.relative_to(SPARKS / "v1").as_posix(), file.read_bytes())
    found = Checkpoint(place.url.replace("s3://", f"{scheme}://"), place.options)
    local = Checkpoint(str(SPARKS / "v1"))
    assert found.query_id() == local.query_id()
    assert found.committed(2)
    assert found.planned(2).digest == local.planned(2).digest
    assert not found.committed(3)


@pytest.mark.stores
@pytest.mark.spark
@pytest.mark.slow
def test_drivers_killed_in_and_between_commits_restart_from_s3a(
    servers: Any, tmp_path: Path, scratch: Path
) -> None:
    """A restart that loses the batch of its checkpoint, or repeats it (R54, R55)."""
    server = servers.get("versitygw")
    place = server.place("checkpoints/root")
    url = "s3a://" + server.place("checkpoints/query").url.removeprefix("s3://")
    checkpoint = Checkpoint(url, place.options)
    write_input(place)
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(job_settings(place, url)))
    for number, failpoint in enumerate(("", *IN_COMMIT)):
        driver = start(settings, scratch, tmp_path / f"driver-{number}.log", failpoint)
        try:
            if failpoint:
                await_end(driver)
                assert driver.exit_code() != 0, f"{failpoint} was not reached: {driver.log_tail()}"
            else:
                await_commit(driver, checkpoint)
                count("kills", "driver with a checkpoint on s3a, between micro-batches")
        finally:
            driver.kill()
        if failpoint:
            batch_id = newest(lambda number: checkpoint.offsets(number) is not None)
            assert not checkpoint.committed(batch_id), "Spark had not logged this batch yet"
            count("kills", f"driver with a checkpoint on s3a, {failpoint}")
    last = start(settings, scratch, tmp_path / "driver-last.log", "")
    try:
        await_end(last)
        assert last.exit_code() == 0, last.log_tail(80)
    finally:
        last.kill()
    assert read_output(place) == list(range(RECORDS))
    assert newest(checkpoint.committed) == newest(lambda n: checkpoint.offsets(n) is not None)
    verify_place(place)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Temporary files of drivers; a short path, for Unix domain sockets."""
    folder = Path(tempfile.mkdtemp(prefix="txnlog-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def job_settings(place: Place, checkpoint: str) -> dict[str, Any]:
    """conf/spark-s3a.conf, and where this server is."""
    lines = (CONF_DIR / "spark-s3a.conf").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    hadoop = {
        "endpoint": place.options["aws_endpoint"],
        "endpoint.region": place.options["aws_region"],
        "access.key": place.options["aws_access_key_id"],
        "secret.key": place.options["aws_secret_access_key"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    spark = {
        **{name: value.strip() for name, value in pairs},
        **LOCAL_SETTINGS,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()},
        "spark.ui.enabled": "false",
    }
    return {
        "root": place.url,
        "checkpoint": checkpoint,
        "options": dict(place.options),
        "per_trigger": PER_TRIGGER,
        "spark": spark,
    }


def write_input(place: Place) -> None:
    cluster = place.open_cluster(create=True)
    for topic in ("input", "output"):
        cluster.create_topic(topic, partitions=2)
    with Producer(place.settings) as producer:
        for number in range(RECORDS):
            producer.produce("input", str(number), key=str(number % 7))
        producer.flush()


def read_output(place: Place) -> list[int]:
    """What a read_committed consumer finds, sorted."""
    settings = {"group.id": "checker", "auto.offset.reset": "earliest"}
    with Consumer({**place.settings, **settings}) as consumer:
        consumer.subscribe(["output"])
        found: list[int] = []
        while messages := consumer.consume(1_000, timeout=20):
            found += [int(message.value() or b"-1") for message in messages]
            if len(found) >= RECORDS:
                # A double would follow at once.
                found += [int(m.value() or b"-1") for m in consumer.consume(1_000, timeout=1)]
                break
    return sorted(found)


def start(settings: Path, scratch: Path, log: Path, failpoint: str) -> DriverProcess:
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_GATEWAY", "PYSPARK_SUBMIT", "SPARK_HOME"))
    }
    environment = {
        **spark_environment(own),
        "SPARK_LOCAL_DIRS": str(scratch),
        "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}",
    }
    if failpoint:
        # The first batch of this driver may be one that a former driver has decided.
        environment["TXNLOG_FAILPOINT"] = f"{failpoint}@2:driver"
        environment["TXNLOG_FAILPOINT_STATE"] = str(log.with_suffix(".hits"))
    return DriverProcess([sys.executable, str(JOB), str(settings)], environment, log)


def newest(has: Callable[[int], bool]) -> int:
    """The newest batch of a log of the checkpoint: none was purged yet."""
    return next(number for number in itertools.count() if not has(number)) - 1


def await_commit(driver: DriverProcess, checkpoint: Checkpoint) -> None:
    """Wait until Spark has logged a batch, which our own reader sees."""
    deadline_s = time.monotonic() + WAIT_S
    while not checkpoint.committed(0):
        assert driver.exit_code() is None, driver.log_tail(80)
        assert time.monotonic() < deadline_s, driver.log_tail(80)
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)


def await_end(driver: DriverProcess) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while driver.exit_code() is None:
        assert time.monotonic() < deadline_s, driver.log_tail(80)
        time.sleep(0.1)
