"""Starts the job as a user would: a command, an environment, a folder; nothing of this process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("job.py")
CONNECT_JOB = Path(__file__).with_name("connect_job.py")
PACKAGES = ("txnlog", "spark_source", "spark_sink", "checkpoint")
WAIT_S = 1_200

SETTINGS: Mapping[str, str] = {
    "spark.driver.memory": "700m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended; `report` is the report of job.py, None if it failed."""

    code: int
    output: str
    report: dict[str, Any] | None

    def succeeded(self) -> dict[str, Any]:
        """The report. Raises AssertionError with all output."""
        assert self.code == 0, self.output
        assert self.report is not None, self.output
        return self.report

    def error(self) -> str:
        """The output of a job that must have failed."""
        assert self.code != 0, f"it works: {self.report}"
        return self.output


def spark_submit(
    home: Path,
    folder: Path,
    *arguments: str,
    master: str,
    environment: Mapping[str, str],
    settings: Mapping[str, str] | None = None,
    job: Sequence[str] = (),
) -> Outcome:
    """`spark-submit --master ... job.py`, in `folder`."""
    options = [f"--conf={name}={value}" for name, value in {**SETTINGS, **(settings or {})}.items()]
    command = [str(home / "bin" / "spark-submit"), "--master", master, *options, *arguments]
    return run([*command, str(JOB), str(folder), *job], folder, home, environment)


def plain_python(
    python: Path,
    home: Path,
    folder: Path,
    *,
    environment: Mapping[str, str],
    script: Path = JOB,
    job: Sequence[str] = (),
) -> Outcome:
    """`python job.py`, in `folder`; the session is built by the job, and is local."""
    options = [f"--conf {name}={value}" for name, value in SETTINGS.items()]
    # Spark Connect lets the job name the master.
    master = ["--master local[2]"] if script == JOB else []
    arguments = " ".join([*master, *options, "pyspark-shell"])
    environment = {**environment, "PYSPARK_SUBMIT_ARGS": arguments}
    return run([str(python), str(script), str(folder), *job], folder, home, environment)


def run(
    command: Sequence[str], folder: Path, home: Path, environment: Mapping[str, str]
) -> Outcome:
    """Run to the end, and end all its child processes."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON", "VIRTUAL_ENV"))
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**inherited, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=WAIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    report = folder / "report.json"
    return Outcome(
        code=process.returncode,
        output=output,
        report=json.loads(report.read_text()) if report.exists() else None,
    )


def unpack(archive: Path, folder: Path) -> None:
    """`mkdir <folder> && tar xzf <archive> -C <folder>`."""
    folder.mkdir()
    subprocess.run(["tar", "xzf", str(archive), "-C", str(folder)], check=True)


def zip_of_sources(archive: Path) -> Path:
    """The contents of the wheel without its metadata, in one zip."""
    with zipfile.ZipFile(archive, "w") as made:
        made.write(PROJECT / "pyspark_txnlog.py", "pyspark_txnlog.py")
        for package in PACKAGES:
            for path in sorted((PROJECT / package).rglob("*.py")):
                made.write(path, path.relative_to(PROJECT).as_posix())
    return archive
