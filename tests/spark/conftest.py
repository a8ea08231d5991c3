"""Fail points for the workers of the shared session, and drivers in processes of their own."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Spark's workers inherit the environment of the JVM, so it is set before any test starts one; what
# the file says, and whether it is there at all, is up to each test.
FAILPOINT_FILE = Path(tempfile.gettempdir()) / f"txnlog-failpoint-{os.getpid()}"
os.environ["TXNLOG_FAILPOINT"] = f"file:{FAILPOINT_FILE}"

REACH_S_MAX = 60


class Failpoint:
    """Sets the fail point of the shared session's workers, see txnlog/failpoint.py."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._hits_file = file.with_name(f"{file.name}.hits")

    def set(self, spec: str) -> None:
        """Die, or with ":pause" stay, at `<name>[@<n>]`, counted from now on."""
        self.clear()
        self._file.write_text(spec)

    def clear(self) -> None:
        """Switch it off; what was paused goes on."""
        self._file.unlink(missing_ok=True)
        self._hits_file.unlink(missing_ok=True)

    @property
    def hits(self) -> int:
        """How often the place was reached."""
        return self._hits_file.stat().st_size if self._hits_file.exists() else 0

    def await_hits(self, hits: int = 1) -> None:
        """Wait until the place has been reached so often."""
        deadline_s = time.monotonic() + REACH_S_MAX
        while self.hits < hits:
            assert time.monotonic() < deadline_s, f"{self._file.read_text()} was not reached"
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

    def check(self, count: int) -> None:
        """All numbers below `count` are out exactly once, see pipeline.check."""
        pipeline.check(self.root, count)


@pytest.fixture
def lab(spark: SparkSession, tmp_path: Path, failpoint: Failpoint) -> Iterator[Lab]:
    """A fresh root; queries a test leaves behind are stopped."""
    yield Lab(spark, tmp_path / "root", tmp_path / "checkpoint")
    failpoint.clear()
    for query in spark.streams.active:
        query.stop()
