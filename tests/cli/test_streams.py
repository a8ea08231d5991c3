"""Streams that are closed or full, and signals that come early or while a write waits."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.runner import PROJECT, Command
from txnlog.cli.session import SECOND_S

INTERRUPTED_IMPORT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "txnlog.cli.app":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from txnlog.cli.main import run
run()
"""
READING = ("consume", "-t", "t", "-g", "g", "--from-beginning")
SLOWNESS_S = 120
PIPE_BYTES = 1 << 16
MANY = 500


@pytest.fixture
def topic(command: Command) -> Command:
    """Topic `t` with one record."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    command.ok("produce", "-t", "t", input=b"first\n")
    return command


def started(command: Command, *args: str, **streams: Any) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, *args]
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(argv, stderr=subprocess.PIPE, env=env, cwd=PROJECT, **streams)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and stderr."""
    _, err = process.communicate(timeout=SLOWNESS_S)
    return process.returncode, err.decode()


def unread_bytes(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("args", [("topics", "list"), ("--version",), ("--help",), READING])
def test_full_disk_is_one_sentence(topic: Command, args: tuple[str, ...]) -> None:
    """What was not written is not committed either."""
    with open("/dev/full", "wb") as full:
        code, err = ended(started(topic, *args, stdout=full))
    assert (code, err) == (1, "txnlog: The output cannot be written: No space left on device.\n")
    if args == READING:
        assert topic.ok(*READING, "-n", "1") == "first\n"


@pytest.mark.parametrize("args", [("top",), ("--help",), ("--version",)])
def test_reader_that_has_exited_is_no_error(topic: Command, args: tuple[str, ...]) -> None:
    """rich and typer have exit codes of their own for it."""
    reader, writer = os.pipe()
    os.close(reader)
    process = started(topic, *args, stdout=writer)
    os.close(writer)
    assert ended(process) == (0, "")


@pytest.mark.parametrize("command_name", ["verify", "repair"])
def test_check_keeps_its_exit_code_without_a_reader(topic: Command, command_name: str) -> None:
    """`txnlog verify | head -n 1` with pipefail said that a damaged root is whole."""
    [data] = Path(topic.root, "t").glob("*.parquet")
    data.unlink()
    reader, writer = os.pipe()
    os.close(reader)
    process = started(topic, command_name, stdout=writer)
    os.close(writer)
    assert ended(process) == (1, "")


@pytest.mark.parametrize(
    ("number", "args"),
    [(1, ("topics", "list")), (1, (*READING, "-n", "1")), (0, ("produce", "-t", "t"))],
)
def test_closed_stream_is_the_null_device(
    topic: Command, number: int, args: tuple[str, ...]
) -> None:
    """`txnlog consume >&-`; else a file of the root would get the number of the stream."""
    assert ended(started(topic, *args, preexec_fn=lambda: os.close(number))) == (0, "")


def test_interrupted_start_prints_no_traceback() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=SLOWNESS_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.fixture
def many(topic: Command) -> Command:
    """More than a pipe takes."""
    topic.ok("produce", "-t", "t", input=b"%s\n" % (b"x" * 1_000) * (MANY - 1))
    return topic


def wait_until_full(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    deadline_s = time.monotonic() + SLOWNESS_S
    while unread_bytes(pipe) < PIPE_BYTES and time.monotonic() < deadline_s:
        time.sleep(0.05)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_signal_while_a_write_waits_commits_only_what_was_written(
    many: Command, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    """The signal ends the write, of which the pipe has a part."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with started(many, *READING, stdout=subprocess.PIPE) as process:
        wait_until_full(process.stdout)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SLOWNESS_S)
    [row] = many.json("groups", "describe", "-g", "g")
    assert (process.returncode, err) == (0, b"")
    assert row["CURRENT-OFFSET"] == out.count(b"\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_second_signal_ends_a_write_that_nobody_reads(
    many: Command, number: signal.Signals, code: int
) -> None:
    """`consume | less`: the first one waits for the write, and only SIGKILL would be left."""
    with started(many, *READING, stdout=subprocess.PIPE) as process:
        wait_until_full(process.stdout)
        deadline_s = time.monotonic() + SLOWNESS_S
        while process.poll() is None and time.monotonic() < deadline_s:
            process.send_signal(number)
            time.sleep(1)
    assert process.returncode == code
    described = many.run("groups", "describe", "-g", "g", "--output", "json").stdout
    assert not any(row["CURRENT-OFFSET"] for row in json.loads(described or "[]"))


@pytest.fixture
def committing(
    topic: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A transaction that is decided, of a process that waits until that file is gone."""
    point = tmp_path / "point"
    point.write_text("prepare_commit.after:pause")
    monkeypatch.setenv("TXNLOG_FAILPOINT", f"file:{point}")
    args = ("produce", "-t", "t", "--transactional-id", "tx")
    process = started(topic, *args, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"second\n")
    process.stdin.close()
    process.stdin = None
    end_s = time.monotonic() + SLOWNESS_S
    while not Path(f"{point}.hits").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    yield process, point
    process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_produce_commits_waits_for_the_commit(
    topic: Command, committing: tuple[subprocess.Popen[bytes], Path], number: signal.Signals
) -> None:
    """It ended with 130, or was killed, and the records appeared later: repeated, they were there
    twice.
    """
    process, point = committing
    process.send_signal(number)
    time.sleep(0.1)
    point.unlink()
    assert ended(process) == (0, "")
    assert topic.ok("consume", "-t", "t", "--from-beginning", "-n", "2") == "first\nsecond\n"


def test_second_signal_while_produce_commits_says_that_it_may_be_committed(
    topic: Command, committing: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, point = committing
    process.send_signal(signal.SIGINT)
    while not select.select([process.stderr], [], [], 2 * SECOND_S)[0]:
        process.send_signal(signal.SIGINT)
    point.unlink()
    code, err = ended(process)
    assert (code, err.count("\n")) == (130, 1)
    assert "may be committed" in err
    _, command = err.split("repeat the command: txnlog ")
    assert "PrepareCommit" in topic.ok(*shlex.split(command))
