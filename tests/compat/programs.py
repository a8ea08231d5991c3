"""Runs confluent-kafka-python's own programs, unmodified but for their import.

Where they come from is in tests.compat.download. The root and the topics are their arguments.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300
"""Longer than a program needs on a busy machine."""


@cache
def _downloaded() -> tuple[bool, str]:
    """Whether they can be had, and the folder, or why not."""
    command = [sys.executable, "-m", "tests.compat.download"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    assert not run.stderr.count("Traceback"), run.stderr
    return run.returncode == 0, run.stdout.strip().splitlines()[-1]


def downloaded() -> Path:
    """The folder of the examples; the test is skipped without it."""
    is_there, found = _downloaded()
    if not is_there:
        pytest.skip(found)
    return Path(found)


def moved(text: str) -> str:
    """A program whose imports of confluent_kafka are txnlog's."""
    package = "txnlog.compat.confluent_kafka"
    text = re.sub(r"(?m)^import confluent_kafka$", f"import {package} as confluent_kafka", text)
    return re.sub(r"(?m)^( *)from confluent_kafka\b", rf"\1from {package}", text)


class Program:
    """A running program; its output is read while it runs."""

    def __init__(self, path: Path, folder: Path, *arguments: str, stdin: str | None = None) -> None:
        copied = folder / path.name
        copied.write_text(moved(path.read_text()))
        self._output = folder / f"{path.stem}.out"
        with open(self._output, "w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(copied), *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._process.stdin is not None
        if stdin is not None:
            self._process.stdin.write(stdin)
            self._process.stdin.flush()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *raised: object) -> None:
        """A program of a test that failed does not run on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, *texts: str, count: int = 1) -> str:
        """The output, once it has each text so often."""
        end = time.monotonic() + WAIT_S
        while any(self.output.count(text) < count for text in texts):
            assert self._process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)
        return self.output

    def end(self, *, signal_number: int | None = signal.SIGINT, status: int = 0) -> str:
        """Interrupt the program as Ctrl-C does, or close its stdin; its output."""
        if signal_number is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        else:
            self._process.send_signal(signal_number)
        found = self._process.wait(WAIT_S)
        assert found == status, self.output
        return self.output


def run(path: Path, folder: Path, *arguments: str, stdin: str = "") -> str:
    """Run a program to its end; its output."""
    with Program(path, folder, *arguments, stdin=stdin) as program:
        return program.end(signal_number=None)


def lines(values: Sequence[str]) -> str:
    return "".join(f"{value}\n" for value in values)
