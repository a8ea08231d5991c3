"""Killing a driver with all its child processes, and no others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flights_driver import (
    INHERITED,
    DriverProcess,
    driver_environment,
    session_members,
    spark_submit_command,
)

WAIT_S = 600

# A driver as Spark's: a JVM that starts a daemon with its own process group that forks workers.
FAMILY = """
import os, sys, time
def sleep_forever():
    time.sleep(600)
if os.fork() == 0:
    os.setpgid(0, 0)
    for _ in range(2):
        if os.fork() == 0:
            sleep_forever()
    sleep_forever()
print("up", flush=True)
sleep_forever()
"""


def start(code: str, folder: Path) -> DriverProcess:
    return DriverProcess([sys.executable, "-c", code], dict(os.environ), folder / "driver.log")


def wait_for(condition: object) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {WAIT_S} s"
        time.sleep(0.02)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[DriverProcess]:
    driver = start(FAMILY, tmp_path)
    wait_for(lambda: len(session_members(driver.pid)) == 4)
    yield driver
    driver.kill()


def test_kill_driver_with_daemon_and_workers_leaves_none(family: DriverProcess) -> None:
    """A worker that outlives its JVM could finish a commit while the restarted driver runs."""
    members = session_members(family.pid)
    family.kill()
    assert session_members(family.pid) == []
    assert family.exit_code() == -signal.SIGKILL
    assert not any(is_alive(pid) for pid in members)


def test_kill_of_a_driver_that_ended_by_itself_kills_its_orphans(family: DriverProcess) -> None:
    """A fail point kills JVM, daemon and one worker; the other workers are orphans then."""
    os.kill(family.pid, signal.SIGKILL)
    wait_for(lambda: family.exit_code() is not None)
    assert len(session_members(family.pid)) == 3
    family.kill()
    assert session_members(family.pid) == []


def test_kill_of_a_driver_spares_other_processes(family: DriverProcess, tmp_path: Path) -> None:
    """Another Spark on the machine must not be killed."""
    folder = tmp_path / "neighbour"
    folder.mkdir()
    neighbour = start("import time; time.sleep(600)", folder)
    family.kill()
    assert neighbour.exit_code() is None
    assert is_alive(neighbour.pid)
    neighbour.kill()
    neighbour.kill()  # twice is no error


def test_driver_failure_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """In CI the log file is lost; the error must be on the console."""
    driver = start("print('one'); raise SystemExit('the reason')", tmp_path)
    wait_for(lambda: driver.exit_code() is not None)
    message = str(driver.failure("Driver 1 ended by itself."))
    assert driver.exit_code() == 1
    assert "Driver 1 ended by itself." in message
    assert "the reason" in message
    assert str(driver.log) in message


def test_environment_of_a_driver_below_spark_submit_names_no_other_jvm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the supervisor's gateway a driver would use, and kill, the supervisor's JVM."""
    for name in INHERITED:
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    environment = driver_environment(tmp_path, {"TXNLOG_FAILPOINT": "marker.after@1:driver"})
    assert set(INHERITED) & set(environment) == {"TXNLOG_FAILPOINT"}
    assert environment["SPARK_CONF_DIR"].endswith("conf")
    assert environment["TXNLOG_FAILPOINT"] == "marker.after@1:driver"
    assert str(tmp_path) in environment["JDK_JAVA_OPTIONS"]


def test_spark_submit_is_that_of_this_python() -> None:
    """An older Spark on PATH must not run the job."""
    submit, *rest = spark_submit_command(["feed"])
    assert Path(submit).is_file()
    assert rest[-2:] == ["jobs/flights.py", "feed"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
