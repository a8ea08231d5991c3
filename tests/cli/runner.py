"""Runs the command in this process, on a cluster in a folder."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from io import RawIOBase
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from txnlog.cli.app import app
from txnlog.cluster import Cluster
from txnlog.storage.delta.delta_log import LogSettings

PROJECT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"TXNLOG_ROOT": "", "TXNLOG_STORAGE": "", "NO_COLOR": "1", "TERM": "dumb"}


class Command:
    """`txnlog` for one root; the results of `json` are parsed."""

    def __init__(self, folder: Path) -> None:
        self.root = str(folder / "lake")

    def run(self, *args: str, input: bytes | None = None) -> Any:
        """Exit code, stdout and stderr; raises no exception."""
        result = CliRunner().invoke(app, ["--root", self.root, *args], input, ENVIRONMENT)
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    def ok(self, *args: str, input: bytes | None = None) -> str:
        """Stdout of a successful run without output on stderr."""
        result = self.run(*args, input=input)
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        return str(result.stdout)

    def json(self, *args: str) -> Any:
        """What `--output json` prints."""
        return json.loads(self.ok(*args, "--output", "json"))

    def fails(self, *args: str, input: bytes | None = None) -> str:
        """The one line of an error, without stdout."""
        result = self.run(*args, input=input)
        assert (result.exit_code, result.stdout) == (1, "")
        [line] = result.stderr.splitlines()
        return str(line)

    def on_terminal(self, *args: str, typed: bytes = b"") -> tuple[int, str]:
        """Exit code, and what a terminal gets, in a process whose user types an answer."""
        argv = [sys.executable, "-m", "txnlog.cli.main", "--root", self.root, *args]
        env = {**os.environ, "PYTHONPATH": str(PROJECT), "TERM": "dumb", "COLUMNS": "400"}
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "r+b", buffering=0) as terminal:
            streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
            process = subprocess.Popen(argv, **streams, env=env, cwd=PROJECT)
            os.close(theirs)
            terminal.write(typed)
            shown = b"".join(iter(lambda: _read(terminal), b""))
            return process.wait(), shown.decode().replace("\r\n", "\n")

    def cluster(self) -> Cluster:
        """Another process's view of the same cluster."""
        settings = LogSettings(checkpoint_mode="off")
        return Cluster.open(self.root, create=True, shards=2, offsets_shards=1, settings=settings)


def _read(terminal: RawIOBase) -> bytes:
    """What was written; nothing when the process has ended, which Linux reports as EIO."""
    try:
        return terminal.read(1 << 16) or b""
    except OSError:
        return b""
