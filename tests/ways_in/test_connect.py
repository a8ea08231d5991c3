"""Spark Connect: `SparkSession.builder.remote("local[2]")`, client and server on one machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways_in import job, launch

pytestmark = [pytest.mark.spark, pytest.mark.ways]


def test_connect_streams_and_reads_and_reports_its_limits(
    home: Path, installed: Path, tmp_path: Path
) -> None:
    """The client has no JVM: what works only in a classic session fails late."""
    pytest.importorskip("grpc", reason='Spark Connect needs pip install "pyspark[connect]"')
    report = launch.plain_python(
        installed,
        home,
        tmp_path,
        environment={"PYSPARK_PYTHON": str(installed)},
        script=launch.CONNECT_JOB,
    ).succeeded()
    assert report["session"] == "pyspark.sql.connect.session"
    assert report["numbers"] == list(range(job.COUNT))
    assert report["sql"] == job.COUNT // 2
    assert report["batches"] == list(range(job.COUNT))
    assert report["heard"] == {"rows": 2 * job.COUNT, "ended": 2}
    assert report["registered"] == job.COUNT // 2
    assert "DATA_SOURCE_NOT_FOUND" in report["artifact"]
    assert "subscribed" in report["unknown option"]
    assert "subscribe" in report["unknown option"]
