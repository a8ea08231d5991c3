"""The cluster of `make cluster-demo` without Spark: what it finds, kills and reports."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from flights_driver import DriverError, DriverProcess, session_members
from standalone_cluster import (
    EXECUTOR_CLASS,
    SECRET_KEY,
    StandaloneCluster,
    find_versitygw,
    hadoop_settings,
    storage_environment,
)

WAIT_S = 120
# A worker with two children: one runs the executor's class, one does not.
WORKER = (
    "import os, subprocess, sys, time;"
    "[subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', name])"
    " for name in (os.environ['NAME'], 'other')];"
    "time.sleep(600)"
)


def test_missing_server_is_an_error_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FileNotFoundError from deep inside says nothing about Go."""
    monkeypatch.setenv("TXNLOG_STORES", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DriverError, match=r"go install github\.com/versity/versitygw"):
        find_versitygw()


def test_credentials_are_in_the_environment_and_in_no_setting_of_spark() -> None:
    """A setting is in the event log, the UI and every query plan."""
    assert SECRET_KEY in storage_environment(1).values()
    assert SECRET_KEY not in hadoop_settings(1).values()


def test_executors_are_found_among_the_workers_children_only(tmp_path: Path) -> None:
    """A kill by name would hit another user's executors."""
    stranger = start(tmp_path, "stranger")
    worker = start(tmp_path, "worker")
    cluster = StandaloneCluster(tmp_path, tmp_path, tmp_path)
    cluster._workers.append(worker)
    cluster._daemons.append(worker)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while len(session_members(worker.pid)) < 3 or not cluster.executors():
            assert time.monotonic() < deadline_s, worker.log_tail()
            time.sleep(0.1)
        (executor,) = cluster.executors()
        assert executor in session_members(worker.pid)
        assert executor not in session_members(stranger.pid)
        cluster.close()
        assert not session_members(worker.pid), "workers end with their executors"
        assert stranger.exit_code() is None
    finally:
        cluster.close()
        stranger.kill()


def test_daemon_that_ends_is_reported_with_its_log(tmp_path: Path) -> None:
    """A Master without a port would be waited for until the time-out."""
    cluster = StandaloneCluster(tmp_path, tmp_path, tmp_path)
    (tmp_path / "bin").mkdir()
    spark_class = tmp_path / "bin" / "spark-class"
    spark_class.write_text("#!/bin/sh\necho no port is free\nexit 1\n")
    spark_class.chmod(0o755)
    with pytest.raises(DriverError, match=r"the Master does not start(.|\n)*no port is free"):
        cluster.start_spark(workers=1, cores=1, memory="1g")


def start(folder: Path, name: str) -> DriverProcess:
    """A process that looks like a Worker."""
    command, environment = [sys.executable, "-c", WORKER], {"NAME": EXECUTOR_CLASS}
    return DriverProcess(command, environment, folder / f"{name}.log", folder)
