"""`make cluster-demo` in short: one month of flights through the same kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from flights_driver import DriverError
from standalone_cluster import find_versitygw

PROJECT = Path(__file__).resolve().parents[2]
WAIT_S = 1_800
_AS_TEXT: Any = {"capture_output": True, "text": True, "check": True}


@pytest.mark.spark
@pytest.mark.ways
def test_cluster_demo_of_one_month_is_exactly_once_and_leaves_nothing(tmp_path: Path) -> None:
    """An executor's kill, a driver's kill and a restart from s3a lose or double a flight (R56)."""
    try:
        find_versitygw()
    except DriverError as error:
        pytest.skip(str(error))
    command = [sys.executable, str(PROJECT / "jobs" / "flights_cluster.py"), "--months", "1"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "run"), "--max-offsets-per-trigger", "4000"],
        env={**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": str(_short())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            # It ends its cluster itself.
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)
    logs = {log.name: log.read_text(errors="replace") for log in tmp_path.rglob("*.log")}
    assert process.returncode == 0, output
    assert "two readers agree" in output
    assert "SIGKILL of executor" in output
    assert "SIGKILL of driver" in output
    assert "Lost executor" in logs["driver-1.log"], "the executor's end was noticed"
    everything = subprocess.run(["ps", "-A", "-ww", "-o", "command="], **_AS_TEXT).stdout
    assert str(_short()) not in everything, "a process of the cluster is left"
    assert not any(_short().iterdir()), "its temporary files are left"
    shutil.rmtree(_short())


def _short() -> Path:
    """A folder with a short path: Spark's Unix domain sockets are in it."""
    short = Path(tempfile.gettempdir()) / f"cluster-{os.getpid()}"
    short.mkdir(exist_ok=True)
    return short
