"""Which Python runs the source, and the error if it is the wrong one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ways_in import job, launch

pytestmark = [pytest.mark.spark, pytest.mark.ways]

NOT_FOUND = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: txnlog"


def test_workers_python_without_txnlog_does_not_find_it(
    home: Path, installed: Path, bare: Path, tmp_path: Path
) -> None:
    """The driver can import it, so all seems correct; but a worker does the look-up."""
    environment = {"PYSPARK_PYTHON": str(bare)}
    outcome = launch.plain_python(installed, home, tmp_path, environment=environment)
    assert NOT_FOUND in outcome.error()


def test_driver_variable_wins_over_the_workers(
    home: Path, installed: Path, bare: Path, tmp_path: Path
) -> None:
    """PYSPARK_DRIVER_PYTHON names the source's Python everywhere, on executors as well."""
    environment = {"PYSPARK_PYTHON": str(installed), "PYSPARK_DRIVER_PYTHON": str(bare)}
    outcome = launch.plain_python(installed, home, tmp_path, environment=environment)
    assert NOT_FOUND in outcome.error()
    environment = {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(installed)}
    report = launch.plain_python(installed, home, tmp_path, environment=environment).succeeded()
    assert report["numbers"] == list(range(job.COUNT))
    (worker,) = report["workers"]
    assert worker["module"] == "None", "functions of the job run in the other Python"


def test_setting_in_place_of_the_variable_is_not_enough(
    home: Path, installed: Path, bare: Path, tmp_path: Path
) -> None:
    """spark.pyspark.python chooses the driver's Python and that of functions, not the source's."""
    outcome = launch.spark_submit(
        home,
        tmp_path,
        master="local[1]",
        environment={"PATH": f"{bare.parent}:{os.environ['PATH']}"},
        settings={"spark.pyspark.python": str(installed)},
    )
    assert NOT_FOUND in outcome.error()


def test_driver_variable_of_a_notebook_is_no_python(
    home: Path, installed: Path, tmp_path: Path
) -> None:
    """PYSPARK_DRIVER_PYTHON=jupyter is in many tutorials, and jupyter cannot do the look-up."""
    jupyter = tmp_path / "jupyter"
    jupyter.write_text("#!/bin/sh\nexit 1\n")
    jupyter.chmod(0o755)
    environment = {"PYSPARK_PYTHON": str(installed), "PYSPARK_DRIVER_PYTHON": str(jupyter)}
    outcome = launch.plain_python(installed, home, tmp_path, environment=environment)
    assert NOT_FOUND in outcome.error()
    assert "Skipping the lookup of Python Data Sources" in outcome.output


def test_registered_source_needs_no_look_up(home: Path, installed: Path, tmp_path: Path) -> None:
    """spark.dataSource.register takes PYSPARK_PYTHON, whatever the look-up's Python was."""
    jupyter = tmp_path / "jupyter"
    jupyter.write_text("#!/bin/sh\nexit 1\n")
    jupyter.chmod(0o755)
    environment = {"PYSPARK_PYTHON": str(installed), "PYSPARK_DRIVER_PYTHON": str(jupyter)}
    outcome = launch.plain_python(
        installed, home, tmp_path, environment=environment, job=["--register"]
    )
    assert outcome.succeeded()["numbers"] == list(range(job.COUNT))
