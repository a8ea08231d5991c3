"""Executors in separate processes: spark-submit to a standalone cluster on this machine.

`local-cluster[workers,cores,MiB]` starts master and workers in the driver, and each executor in a
its own JVM and folder, without what only the driver has. All tests use client mode.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.ways_in import job, launch

pytestmark = [pytest.mark.spark, pytest.mark.ways]

ONE_WORKER = "local-cluster[1,1,512]"


def test_two_workers_one_of_which_is_killed_are_exactly_once(
    home: Path, installed: Path, tmp_path: Path
) -> None:
    """The attempts of a task that died with its executor, or their staged files, count (R56)."""
    report = launch.spark_submit(
        home,
        tmp_path,
        master="local-cluster[2,1,1024]",
        environment={"PYSPARK_PYTHON": str(installed)},
        settings={"spark.executor.memory": "1024m"},
        job=["--kill-executor"],
    ).succeeded()
    assert (tmp_path / "killed").exists()
    assert report["numbers"] == list(range(job.COUNT))
    assert len(report["workers"]) == 2
    for worker in report["workers"]:
        assert worker["cwd"].startswith(str(home / "work"))
        assert worker["sockets"] == "True"


def test_archive_with_a_relative_python_needs_its_folder_at_the_driver(
    home: Path, archive: Path, tmp_path: Path
) -> None:
    """Executors unpack `--archives`; in client mode the driver does not, and has no ./env."""
    outcome = submit_archive(home, archive, tmp_path)
    assert 'Cannot run program "./env/bin/python"' in outcome.error()
    launch.unpack(archive, tmp_path / "env")
    report = submit_archive(home, archive, tmp_path).succeeded()
    assert report["numbers"] == list(range(job.COUNT))
    (worker,) = report["workers"]
    assert worker["module"].startswith(f"{worker['cwd']}/env/"), worker
    assert worker["cwd"].startswith(str(home / "work"))


def test_zip_on_the_python_path_is_found_by_driver_and_executors(
    home: Path, bare: Path, sources: Path, tmp_path: Path
) -> None:
    """A relative PYTHONPATH is another folder in each process; `--files` puts the zip there."""
    shutil.copy(sources, tmp_path)
    report = launch.spark_submit(
        home,
        tmp_path,
        "--files",
        sources.name,
        master=ONE_WORKER,
        environment={"PYSPARK_PYTHON": str(bare), "PYTHONPATH": sources.name},
        settings={"spark.executorEnv.PYTHONPATH": sources.name},
    ).succeeded()
    assert report["numbers"] == list(range(job.COUNT))
    (worker,) = report["workers"]
    assert worker["module"] == f"{worker['cwd']}/{sources.name}/pyspark_txnlog.py"


def test_zip_in_py_files_alone_is_not_found(
    home: Path, bare: Path, sources: Path, tmp_path: Path
) -> None:
    """The look-up runs in a worker that has the JVM's PYTHONPATH, and no --py-files."""
    outcome = launch.spark_submit(
        home,
        tmp_path,
        "--py-files",
        str(sources),
        master="local[1]",
        environment={"PYSPARK_PYTHON": str(bare)},
    )
    assert "DATA_SOURCE_NOT_FOUND" in outcome.error()


def test_zip_in_py_files_with_register_works_for_batches_but_no_stream(
    home: Path, bare: Path, sources: Path, tmp_path: Path
) -> None:
    """The worker that plans a streaming source has no --py-files either."""
    outcome = launch.spark_submit(
        home,
        tmp_path,
        "--py-files",
        str(sources),
        master="local[1]",
        environment={"PYSPARK_PYTHON": str(bare)},
        job=["--register"],
    )
    assert "No module named 'pyspark_txnlog'" in outcome.error()
    assert (tmp_path / "root" / "numbers").is_dir(), "the batch write before it works"


def submit_archive(home: Path, archive: Path, folder: Path) -> launch.Outcome:
    """The command of the docs."""
    return launch.spark_submit(
        home,
        folder,
        "--archives",
        f"{archive}#env",
        master=ONE_WORKER,
        environment={"PYSPARK_PYTHON": "./env/bin/python"},
    )
