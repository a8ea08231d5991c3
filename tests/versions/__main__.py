"""Runs tests/versions on each Spark, one environment at a time: `make versions`.

An environment has the newest patch of its Spark that the registry has; it is kept, and brought up
to date by the next run. What has passed is not run again before a file changes, so that an
interrupted run goes on where it was. Exit status 1: a test failed, or an environment could not be
made. Uses only the standard library.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

from conf.setup_env import SetupError, pip_of, python_version
from tests.versions.records import ROOT, read_records, write_record

SPARKS = ("4.0", "4.1", "4.2", "4.3")
KILLS = 50
TESTS = ("tests/versions", "tests/spark/test_readme.py")
READ = (
    *((folder, "**/*.py") for folder in ("txnlog", "spark_source", "spark_sink", "checkpoint")),
    *((folder, "*.py") for folder in (".", "jobs", "tests", "tests/spark", "tests/versions")),
    ("conf", "*.conf"),
    (".", "pyproject.toml"),
)
PACKAGES = ("pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.130", "chispa>=0.11")
ENVIRONMENT_GB, RUN_MINUTES = 1.1, 25


def main() -> int:
    """Run what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run tests/versions on each Spark.")
    parser.add_argument("--sparks", default=",".join(SPARKS), help="e.g. 4.0,4.3")
    parser.add_argument("--pythons", default="", help="more Pythons, e.g. python3.12,python3.13")
    parser.add_argument("--kills", type=int, default=KILLS, help="SIGKILLs of a driver on each")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / ".versions")
    parser.add_argument("--again", action="store_true", help="also what has passed")
    arguments = parser.parse_args()
    pythons = [sys.executable, *filter(None, arguments.pythons.replace(" ", ",").split(","))]
    runs = [
        Run(arguments.folder.absolute(), spark, python)
        for spark in arguments.sparks.split(",")
        for python in pythons
    ]
    due = [run for run in runs if arguments.again or not run.has_passed()]
    _announce(runs, due)
    failed = [run.name for run in due if not run.passes(arguments.kills)]
    if failed:
        print(f"\nFailed: {', '.join(failed)}. The same command goes on where it was.")
    return 1 if failed else 0


class Run:
    """One Spark with one Python, in an environment of its own."""

    def __init__(self, folder: Path, spark: str, python: str) -> None:
        self._spark, self._python = spark, python
        version = ".".join(map(str, python_version(python)))
        self.name = f"spark{spark}-python{version}"
        self.folder = folder / self.name
        self._own_python = self.folder / "bin" / "python"
        self._passed = self.folder / "passed"

    def has_passed(self) -> bool:
        """Whether it has passed with the files as they are."""
        return self._passed.is_file() and self._passed.read_text() == digest()

    def passes(self, kills: int) -> bool:
        """Bring the environment up to date, run the tests and record what they found."""
        before = digest()
        print(f"\n== {self.name}: the environment", flush=True)
        try:
            self._install()
        except (SetupError, subprocess.CalledProcessError) as error:
            print(f"{self.name} could not be installed: {error}")
            return False
        described = json.loads(self._call("-m", "tests.versions.installed"))
        print(f"== {self.name}: pyspark {described['pyspark']}, the tests", flush=True)
        report, began_s = self.folder / "report.xml", time.monotonic()
        report.unlink(missing_ok=True)
        options = ["-q", "--disable-warnings", "-m", "versions or spark", f"--junitxml={report}"]
        code = subprocess.call(
            [str(self._own_python), "-m", "pytest", *options, *TESTS],
            cwd=ROOT,
            env={**self._environment(), "TXNLOG_KILLS": str(kills)},
        )
        if code != 0:
            return False
        minutes = round((time.monotonic() - began_s) / 60)
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        write_record({**described, **found_in(report), "minutes": minutes, "date": date})
        self._passed.write_text(before)
        return True

    def _install(self) -> None:
        if not self._own_python.exists():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run([self._python, "-m", "venv", "--clear", str(self.folder)], check=True)
        wanted = [f"pyspark=={self._spark}.*", *PACKAGES, "--editable", f"{ROOT}[spark,cli]"]
        install = pip_of(str(self._own_python))
        subprocess.run([*install, "--quiet", "--upgrade", *wanted], check=True, cwd=ROOT)
        self._call("-m", "txnlog.process.worker_files")

    def _call(self, *arguments: str) -> str:
        command = [str(self._own_python), *arguments]
        return subprocess.check_output(command, cwd=ROOT, env=self._environment(), text=True)

    def _environment(self) -> dict[str, str]:
        python = str(self._own_python)
        own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(ROOT)}
        others = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
        return {**others, **own, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


def found_in(report: Path) -> dict[str, int]:
    """The sums of a report of pytest, and what its tests said about kills."""
    tree = ET.parse(report)
    suite = tree.getroot().find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "skipped", "errors", "failures")}
    sums = {"kills": 0, "interrupted": 0}
    for one in tree.iter("property"):
        sums[one.get("name", "")] += int(one.get("value", "0"))
    return {
        "passed": counts["tests"] - counts["skipped"] - counts["errors"] - counts["failures"],
        "skipped": counts["skipped"],
        **sums,
    }


def _announce(runs: list[Run], due: list[Run]) -> None:
    """What will be done, and what it takes; before anything is done."""
    minutes = [record["minutes"] for record in read_records()] or [RUN_MINUTES]
    new = [run for run in due if not run.folder.exists()]
    print(f"Environments in {runs[0].folder.parent}, kept: {', '.join(run.name for run in runs)}")
    print(f"To be made now: {len(new)}, {len(new) * ENVIRONMENT_GB:.1f} GB and 3 minutes each.")
    print(f"To be run now: {len(due)}, about {len(due) * max(minutes)} minutes in all.", flush=True)


def digest() -> str:
    """Of all files that the tests run or read."""
    found = hashlib.sha256()
    for folder, pattern in READ:
        for file in sorted((ROOT / folder).glob(pattern)):
            found.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
