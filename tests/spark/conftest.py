"""Fail points for the workers of the shared session, and drivers in separate processes."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flights_driver import driver_environment, session_members
from spark_session import PROJECT

from tests.spark import pipeline
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.testing.counts import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Spark's workers inherit the environment of the JVM, so it is set before any test starts one; each
# test decides whether the file exists, and its content.
FAILPOINT_FILE = Path(tempfile.gettempdir()) / f"txnlog-failpoint-{os.getpid()}"
os.environ["TXNLOG_FAILPOINT"] = f"file:{FAILPOINT_FILE}"

REACH_S_MAX = 300
REPLY_S_MAX = 600


def hit_in_second_batch(name: str) -> int:
    """Which hit of a step is the first of a run's second batch; of a takeover, its only one.

    A marker is written for each of the two topics.
    """
    return {"marker.after": 3, "take_over.after": 1}.get(name, 2)


class Failpoint:
    """Sets the fail point of the shared session's workers, see txnlog/process/failpoint.py."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hits_file = file.with_name(f"{file.name}.hits")

    def set(self, spec: str) -> None:
        """Kill, or with ":pause" pause, the process at `<name>[@<n>]`, counted from now on."""
        self.clear()
        self._file.write_text(spec)

    def clear(self) -> None:
        """Switch it off; paused processes continue."""
        self._file.unlink(missing_ok=True)
        self._hits_file.unlink(missing_ok=True)

    @property
    def hits(self) -> int:
        """How often the place was reached."""
        return self._hits_file.stat().st_size if self._hits_file.exists() else 0

    def await_hits(self, hits: int = 1, *, unless: Callable[[], str] = lambda: "") -> None:
        """Wait until the fail point has been reached so often; `unless`: why it never will be."""
        deadline_s = time.monotonic() + REACH_S_MAX
        while self.hits < hits:
            spec = self._file.read_text()
            assert time.monotonic() < deadline_s, f"{spec} was not reached"
            ended = unless()
            # It may have been reached just before the end.
            assert not ended or self.hits >= hits, f"{spec} was not reached: {ended}"
            time.sleep(0.02)


@pytest.fixture
def failpoint() -> Iterator[Failpoint]:
    """The fail point of the shared session, off before and after."""
    point = Failpoint(FAILPOINT_FILE)
    point.clear()
    yield point
    point.clear()


@dataclass(slots=True)
class Lab:
    """A root and a checkpoint of a test, and the shared session to run the pipeline in."""

    spark: SparkSession
    root: Path
    checkpoint: Path

    def feed(self, first: int, end: int) -> None:
        """Append the numbers first <= i < end to the source."""
        pipeline.feed(self.root, range(first, end))

    def start(self, **options: object) -> StreamingQuery:
        """Start the pipeline, see pipeline.start."""
        checkpoint = options.pop("checkpoint", self.checkpoint)
        return pipeline.start(self.spark, self.root, str(checkpoint), **options)  # type: ignore[arg-type]

    def run(self, **options: object) -> StreamingQuery:
        """Run the pipeline to its end. Raises StreamingQueryException."""
        return pipeline.run(self.start(**options))

    def check(self, count: int, **how: object) -> None:
        """All numbers below `count` are published exactly once, see pipeline.check."""
        pipeline.check(self.root, count, **how)  # type: ignore[arg-type]

    def sweep(self) -> None:
        """Finish decided transactions of dead processes, as any long-lived process does in time."""
        Sweeper(Cluster.open(str(self.root)), interval_ms=0).sweep()

    def values(self) -> list[int]:
        """The numbers in both output topics, in order."""
        found = [r.value for topic in pipeline.OUTPUTS for r in pipeline.records(self.root, topic)]
        return sorted(found)

    def forget_batch(self, log: str, batch_id: int) -> None:
        """Delete `offsets/<batch_id>` or `commits/<batch_id>` of the checkpoint."""
        (self.checkpoint / log / str(batch_id)).unlink()
        (self.checkpoint / log / f".{batch_id}.crc").unlink(missing_ok=True)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path, failpoint: Failpoint) -> Iterator[Lab]:
    """A fresh root; queries a test leaves behind are stopped."""
    yield Lab(spark, tmp_path / "root", tmp_path / "checkpoint")
    failpoint.clear()
    for query in spark.streams.active:
        query.stop()


class Driver:
    """A driver.py process: its fail point, and commands one at a time."""

    def __init__(self, folder: Path, master: str, *, submit_args: str = "") -> None:
        """Start it; `folder` must have a short path, since it contains Spark's sockets.

        `submit_args`: options of spark-submit for its session.
        """
        folder.mkdir()
        point = folder / "failpoint"
        self.failpoint = Failpoint(point)
        self.log = folder / "log"
        more = {"TXNLOG_FAILPOINT": f"file:{point}", "PYTHONPATH": str(PROJECT)}
        if submit_args:
            more["PYSPARK_SUBMIT_ARGS"] = f"{submit_args} pyspark-shell"
        environment = driver_environment(folder, more)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", master],
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self._is_ready = False

    def run(self, command: str, root: Path, **arguments: object) -> str | None:
        """Run a command to its end; give the query's error, None when there was none."""
        self.begin(command, root, **arguments)
        return json.loads(self._reply())  # type: ignore[no-any-return]

    def begin(self, command: str, root: Path, **arguments: object) -> None:
        """Start a command; `end` waits for it."""
        if not self._is_ready:
            assert self._reply() == "ready"
            self._is_ready = True
        arguments = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in arguments.items()
        }
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"command": command, "root": str(root), **arguments}) + "\n"
        )

    def end(self) -> str | None:
        """Wait for the command that was begun; give the query's error, None for none."""
        return json.loads(self._reply())  # type: ignore[no-any-return]

    def run_to_death(self, command: str, root: Path, **arguments: object) -> None:
        """Run a command in which the fail point kills the driver; returns when all of it has ended.

        What is left of it (the Python that started the JVM) is killed as well.
        """
        self.begin(command, root, **arguments)
        self.failpoint.await_hits(unless=self._has_replied)
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + REPLY_S_MAX
        while _is_jvm_alive(self._process.pid):
            assert time.monotonic() < deadline_s, f"the driver did not die; see {self.log}"
            time.sleep(0.02)
        count("kills", "Spark driver, at a step of its commit")
        self.close(kill=True)

    def close(self, *, kill: bool = False) -> None:
        """End it; by SIGKILL of all its processes if it does not end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not kill:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=30)
        while members := session_members(self._process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.02)
        self._process.wait()
        self._process.stdout.close()
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _has_replied(self) -> str:
        """The reply, if there is one."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return self._reply() if selector.select(0) else ""

    def _reply(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(REPLY_S_MAX), f"the driver does not answer; see {self.log}"
        line = self._process.stdout.readline().strip()
        assert line, f"the driver is gone:\n{self.log.read_text()[-4000:]}"
        return line


def _is_jvm_alive(session_id: int) -> bool:
    for pid in session_members(session_id):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                return True
    return False


@pytest.fixture(scope="session")
def start_driver(scratch: Path) -> Iterator[Callable[..., Driver]]:
    """Start a separate driver: `start_driver(master="local[2]")`."""
    drivers: list[Driver] = []
    numbers = itertools.count()

    def start(master: str = "local[2]") -> Driver:
        driver = Driver(scratch / f"driver-{next(numbers)}", master)
        drivers.append(driver)
        return driver

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture(scope="session")
def second_driver(start_driver: Callable[..., Driver]) -> Driver:
    """A driver that repeats failed tasks; the shared session's local[2] does not."""
    return start_driver("local[2,4]")
