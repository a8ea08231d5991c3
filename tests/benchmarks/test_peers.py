"""The benchmark of the peers: every group runs, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
GROUPS = ("sink", "source", "latency", "clients")
PROCESSES = Path("/proc")
WAIT_S = 600

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not Path(sys.prefix, ".peers", "stamp").exists(), reason="`make bench-peers` sets it up"
    ),
    pytest.mark.skipif(not PROCESSES.exists(), reason="processes are listed in /proc"),
]


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a run that writes only below the folder."""
    scratch = folder / "scratch"
    scratch.mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers", "--quick", *arguments],
            cwd=PROJECT,
            env={**os.environ, "TMPDIR": str(scratch)},
            stdout=log,
            stderr=log,
        )


def commands(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for process in PROCESSES.glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def await_that(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.spark
@pytest.mark.parametrize("group", GROUPS)
def test_group_runs_and_its_broker_is_stopped(tmp_path: Path, group: str) -> None:
    """Figures, report and plot are written; no process and no file of a peer remains."""
    process = start(tmp_path, "--only", group, "--output", str(tmp_path / "peers.json"))
    try:
        assert process.wait() == 0, (tmp_path / "log").read_text()
    finally:
        process.terminate()
    entries = json.loads((tmp_path / "peers.json").read_text())
    assert {entry["group"] for entry in entries} == {group}
    # A phase of a micro-batch may round to 0 ms.
    assert all(entry["value"] > 0 or entry["name"].startswith("phase") for entry in entries)
    assert "txnlog against" in (tmp_path / "RESULTS.md").read_text()
    assert (tmp_path / "peers.png").stat().st_size > 1_000
    assert list((tmp_path / "scratch").iterdir()) == []
    assert commands(tmp_path) == []


@pytest.mark.parametrize(
    ("group", "program"), [("clients", "kafka.Kafka"), ("latency", "deploy.SparkSubmit")]
)
def test_run_that_is_stopped_stops_its_processes(tmp_path: Path, group: str, program: str) -> None:
    """SIGTERM, as from a machine that shuts down, as soon as the JVM is there."""
    process = start(tmp_path, "--only", group)
    try:
        await_that(lambda: any(program in command for command in commands(tmp_path)))
    finally:
        process.terminate()
    assert process.wait(WAIT_S) == 128 + 15, (tmp_path / "log").read_text()
    await_that(lambda: commands(tmp_path) == [])
    assert list((tmp_path / "scratch").iterdir()) == []
