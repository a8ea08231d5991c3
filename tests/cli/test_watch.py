"""`--watch`: the same output again and again, errors of later rounds included, until Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.runner import Command

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def watching(command: Command, *args: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own."""
    argv = [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, *args]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "TERM": "dumb"}
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT
    )
    # A loop over its output ends, and its test fails, if what it waits for does not come.
    limit = threading.Timer(60, process.kill)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def test_watch_shows_what_changed_until_ctrl_c(command: Command) -> None:
    """An operator follows the lag of a group; Ctrl-C is no error."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    command.ok("produce", "-t", "t", input=b"0\n1\n")
    command.ok("consume", "-t", "t", "-g", "g", "--from-beginning", "-n", "1")
    shown = ("groups", "describe", "-g", "g", "--watch", "0.05", "--output", "json")
    with watching(command, *shown) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())[0]["LAG"] == 1
        command.ok("produce", "-t", "t", input=b"2\n")
        lags = (json.loads(line)[0]["LAG"] for line in process.stdout)
        assert next(lag for lag in lags if lag != 1) == 2
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")


def test_watch_goes_on_after_an_error_but_not_after_a_wrong_name(command: Command) -> None:
    """A topic that is deleted meanwhile is reported, and found when it is created again."""
    assert "no topic 'x'" in command.fails("topics", "describe", "-t", "x", "--watch", "0.05")
    command.ok("topics", "create", "-t", "x", "--partitions", "1")
    with watching(command, "topics", "describe", "-t", "x", "--watch", "0.05") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("Every 0.05 s: 20")
        command.ok("topics", "delete", "-t", "x")
        assert "no topic 'x'" in process.stderr.readline()
        command.ok("topics", "create", "-t", "x", "--partitions", "7")
        assert any(line.split()[:2] == ["x", "6"] for line in process.stdout)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ("topics", "list"),
        ("topics", "describe"),
        ("groups", "list"),
        ("groups", "describe", "--all-groups"),
        ("offsets",),
        ("transactions", "list"),
        ("transactions", "find-hanging"),
    ],
)
def test_every_listing_can_be_watched(
    command: Command, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round is what the command prints without it; a stop ends it between rounds."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    once = command.ok(*args)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with monkeypatch.context() as patched:
        # Ctrl-C after a while, by the handler that the command installs for it.
        patched.setattr(signal, "SIGINT", signal.SIGALRM)
        watched = command.ok(*args, "--watch", "60")
    header, _, rest = watched.partition("\n\n")
    assert header.startswith("Every 60 s: ")
    assert rest == once


def test_a_watched_root_that_is_gone_is_an_error_each_round(command: Command) -> None:
    """Not a traceback, and no new cluster in its place."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    with watching(command, "topics", "list", "--watch", "0.05", "--output", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline()) == ["t"]
        shutil.rmtree(command.root)
        assert not Path(command.root).exists()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert process.returncode == 0
    assert not Path(command.root).exists()


STOPPED_WITH_THE_LOCK = """
import os, signal
from txnlog.cli.session import stopped_by_signals
with stopped_by_signals() as stop:
    with stop._cond:
        os.kill(os.getpid(), signal.SIGTERM)
    print(stop.wait(60))
"""


def test_signal_stops_a_loop_that_is_just_looking_at_its_event() -> None:
    """The handler runs in the thread that holds the event's lock: it must not wait for it."""
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED_WITH_THE_LOCK],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout == "True\n", ran.stderr
