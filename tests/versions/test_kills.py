"""A driver that is killed by SIGKILL at random points: all the same exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from flights_driver import driver_environment, session_members
from spark_session import PROJECT

from tests.conftest import printed_seed
from tests.spark import pipeline
from tests.versions.installed import submit_args
from txnlog import Consumer, TopicPartition
from txnlog.cluster import Cluster

pytestmark = pytest.mark.versions

KILLS = int(os.environ.get("TXNLOG_KILLS", "50"))
KILLS_EACH = 10
"""Of one test, which a slow machine must end within pytest's limit; then its checkpoint is lost,
too, and the last driver has only the group's offsets."""
ROUNDS = range(-(-KILLS // KILLS_EACH))
LIFE_S_MAX = 2.0
"""Each run is killed so long, at most, after the first trace of its first batch."""
WAIT_S_MAX = 300
FEED_RECORDS, FEED_S = 20, 1.0
LOOK_S = 0.2


class Router:
    """A process of router.py."""

    def __init__(self, folder: Path, root: str, checkpoint: Path) -> None:
        folder.mkdir()
        self.log = folder / "log"
        more = {"PYTHONPATH": str(PROJECT), "PYSPARK_SUBMIT_ARGS": submit_args()}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.versions.router", root, str(checkpoint)],
                cwd=PROJECT,
                env=driver_environment(folder, more),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_that(self, is_true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not is_true():
            said = self.log.read_text()[-6000:]
            assert time.monotonic() < deadline_s, said
            assert self._process.poll() is None, said
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """SIGKILL to all of it: Python, the JVM, the workers."""
        while members := session_members(self._process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()


class Feeder(threading.Thread):
    """Appends numbers to the source topic until it is told to end; `count` are there."""

    def __init__(self, root: str) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._root = root
        self._is_ending = threading.Event()

    def run(self) -> None:
        while not self._is_ending.wait(FEED_S):
            self.feed()

    def feed(self) -> None:
        pipeline.feed(self._root, range(self.count, self.count + FEED_RECORDS))
        self.count += FEED_RECORDS

    def end(self) -> None:
        self._is_ending.set()
        self.join()


@contextmanager
def fed(root: str) -> Iterator[Feeder]:
    feeder = Feeder(root)
    feeder.feed()
    feeder.start()
    try:
        yield feeder
    finally:
        feeder.end()


def committed(root: str) -> int:
    """How many numbers the group has read."""
    groups = Cluster.cached(root, {}).groups
    found = groups.fetch(pipeline.GROUP).values()
    return sum(sum(partitions.values()) for partitions in found)


def run_and_kill(folder: Path, root: str, checkpoint: Path, life_s: float) -> None:
    """A driver that is killed `life_s` after it has planned a batch, or replayed one."""

    def trace() -> tuple[int, int]:
        return newest(checkpoint, "offsets"), committed(root)

    before = trace()
    router = Router(folder, root, checkpoint)
    try:
        router.await_that(lambda: trace() != before)
        time.sleep(life_s)
    finally:
        router.kill()


def newest(checkpoint: Path, log: str) -> int:
    return max((int(file.name) for file in (checkpoint / log).glob("[0-9]*")), default=-1)


def is_interrupted(checkpoint: Path) -> bool:
    """Whether the kill was between the plan of a batch and its end."""
    return newest(checkpoint, "offsets") > newest(checkpoint, "commits")


def values(root: str) -> list[int]:
    """The numbers of both output topics, read by a consumer."""
    consumer = Consumer({"txnlog.root": root, "group.id": "check", "enable.auto.commit": False})
    with consumer:
        places = [
            TopicPartition(topic, partition, 0)
            for topic in pipeline.OUTPUTS
            for partition in range(pipeline.PARTITIONS)
        ]
        left = sum(consumer.get_watermark_offsets(place)[1] for place in places)
        consumer.assign(places)
        found: list[int] = []
        while len(found) < left:
            found += [int(message.value() or b"") for message in consumer.consume(500, 10)]
        return sorted(found)


@pytest.mark.parametrize("number", ROUNDS)
def test_killed_driver_is_exactly_once(
    number: int, tmp_path: Path, scratch: Path, record_property: Callable[[str, object], None]
) -> None:
    """Records would come twice, or never, where Spark and the sink see another state (R54, R59)."""
    chance = random.Random(f"{printed_seed()} {number}")
    root, interrupted, folder = str(tmp_path / "lake"), 0, scratch / f"routers-{number}"
    folder.mkdir()
    checkpoint, kills = tmp_path / "checkpoint", min(KILLS_EACH, KILLS - number * KILLS_EACH)
    with fed(root) as feeder:
        for kill in range(kills):
            run_and_kill(folder / str(kill), root, checkpoint, chance.uniform(0, LIFE_S_MAX))
            interrupted += is_interrupted(checkpoint)
            print(f"kill {kill + 1}: {committed(root)} of {feeder.count} read", flush=True)
    router = Router(folder / "last", root, tmp_path / "checkpoint-after-the-loss")
    try:
        router.await_that(lambda: committed(root) == feeder.count)
    finally:
        router.kill()
    print(f"{kills} kills, {interrupted} of them within a batch; {feeder.count} numbers")
    record_property("kills", kills)
    record_property("interrupted", interrupted)
    assert interrupted or kills < KILLS_EACH, "no kill was within a batch: it shows little"
    assert values(root) == list(range(feeder.count))
