"""A session of the Spark that is installed, and a root and checkpoint for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.versions.installed import submit_args

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def conf_of_this_spark() -> Iterator[None]:
    """Before the session starts its JVM."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYSPARK_SUBMIT_ARGS", submit_args())
        yield


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def root(tmp_path: Path, spark: SparkSession) -> Iterator[str]:
    """Queries that a test leaves behind are stopped."""
    yield str(tmp_path / "lake")
    for query in spark.streams.active:
        query.stop()
