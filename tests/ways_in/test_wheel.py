"""The wheel in a new venv, and plain Python: what `pip install txnlog` installs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ways_in import job, launch

pytestmark = [pytest.mark.spark, pytest.mark.ways]


def test_wheel_in_a_fresh_venv_streams_and_reads(
    home: Path, installed: Path, tmp_path: Path
) -> None:
    """Files that only an editable install or the checkout provides would be missing for users."""
    environment = {"PYSPARK_PYTHON": str(installed)}
    outcome = launch.plain_python(installed, home, tmp_path, environment=environment)
    report = outcome.succeeded()
    assert report["numbers"] == list(range(job.COUNT))
    assert report["sql"] == job.COUNT // 2
    (worker,) = report["workers"]
    assert worker["module"].startswith(str(installed.parents[1])), worker
    assert worker["sockets"] == "True"
