"""Runs an example as its readers would, and returns its last line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WAIT_S = 1_800
RUNS = 8
"""Of 250 kills each, at up to nine places in turn: more than 200 at each in all."""


def run_example(name: str, folder: Path, *arguments: str, exit_code: int = 0) -> str:
    """The last line that the example prints, without the commas of its numbers."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / name), f"--folder={folder}", *arguments],
        env={"PYTHONPATH": str(EXAMPLES.parent), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == exit_code, ran.stdout + ran.stderr
    return ran.stdout.strip().splitlines()[-1]


def number_of(what: str, line: str) -> int:
    """The number before these words."""
    found = re.search(rf"(\d+) {re.escape(what)}", line)
    assert found, line
    return int(found[1])
