"""`txnlog top`: its screen from moments that are made up, and the command on a real root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.runner import Command
from txnlog.cli.session import Session
from txnlog.cli.strips import curve, strip
from txnlog.cli.times import format_age
from txnlog.cli.top import screen, shares, values
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moments import (
    Bar,
    GroupMoment,
    Lane,
    Moment,
    PartitionMoment,
    Phase,
    Point,
    PositionMoment,
    Tick,
    TickKind,
    TopicMoment,
)
from txnlog.protocol.problems import Problem, ProblemKind

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "a\x1b[31m\nb\u202e<b>[red]"


def topic(name: str, rate: float = 0.0) -> TopicMoment:
    """With one partition."""
    partition = PartitionMoment(0, 0, 90, 100, 3, 100, 5_000, 0)
    return TopicMoment(name, "id", [partition], rate, [Point(0, rate)], 2, [], {}, {})


def lane(name: str, *bars: Bar, ticks: Sequence[Tick] = ()) -> Lane:
    return Lane(name, "", "p on h", bars, ticks)


def bar(phase: Phase, since_ms: int, until_ms: int | None, epoch: int = 1) -> Bar:
    return Bar(ProducerIdAndEpoch(7, epoch), phase, since_ms, until_ms)


MOMENT = Moment(
    root="/lake",
    cluster_id="c",
    at_ms=2_400,
    since_ms=0,
    earliest_ms=0,
    problems=[
        Problem(
            kind=ProblemKind.OPEN,
            subject="slow",
            why="its transaction is open",
            ends="its client",
            command="txnlog transactions forceTerminateTransaction --transactional-id=slow",
        )
    ],
    lanes=[
        lane("idle", bar(Phase.ONGOING, 0, 100), bar(Phase.COMPLETE_COMMIT, 100, None)),
        lane("slow", bar(Phase.ONGOING, 1_200, None), ticks=[Tick(50, TickKind.FENCED, "x")]),
    ],
    topics={"calm": topic("calm"), "busy": topic("busy", 5.25)},
    groups={
        "near": GroupMoment("near", "Stable", 1, [], [], [], []),
        "far": GroupMoment(
            "far",
            "Empty",
            1,
            [PositionMoment("busy", 0, 10, 90, 80, 61_000)],
            [],
            [Point(0, 10), Point(1_200, 80)],
            [],
        ),
    },
)


def drawn(moment: Moment, *, width: int = 140, height: int = 40, wrong: str = "") -> list[str]:
    """The lines of a screen."""
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as printed:
        console.print(screen(Session(root="/lake"), moment, width, height, wrong))
    return printed.get().splitlines()


def test_what_needs_attention_comes_first() -> None:
    """An operator looks for two seconds."""
    lines = drawn(MOMENT)
    assert lines[0].startswith("1 problem ")
    assert lines[1] == "! open transaction: slow: its transaction is open"
    command = "forceTerminateTransaction --transactional-id=slow"
    assert lines[2] == f"    txnlog --root=/lake transactions {command}"
    text = "\n".join(lines)
    for first, second in (("far", "near"), ("busy", "calm"), ("slow", "idle")):
        assert text.index(f"\n{first} ") < text.index(f"\n{second} ")


def test_rows_have_their_figures() -> None:
    far, busy, slow = (
        next(line.split() for line in drawn(MOMENT) if line.startswith(f"{name} "))
        for name in ("far", "busy", "slow")
    )
    assert far[:5] == ["far", "80", "61", "s", "-"]
    assert far[-2:] == ["Empty", "0"]
    assert busy[:2] == ["busy", "5.2"]
    assert busy[3:] == ["100", "10", "0.0", "3", "2", "1"]
    assert slow[:5] == ["slow", "Ongoing", "1.2", "s", "1"]


@pytest.mark.parametrize("height", [1, 10, 24, 60])
def test_screen_fits_the_terminal_and_says_what_is_left_out(height: int) -> None:
    """Of 1,000 topics a terminal has room for some."""
    many = {str(number): topic(str(number)) for number in range(1_000)}
    lines = drawn(replace(MOMENT, topics=many), width=80, height=height)
    assert any(line.startswith("topics: 1000, the first ") for line in lines)
    assert max(map(len, lines)) <= 80
    if height > 20:
        assert len(lines) <= height


def test_a_narrow_terminal_has_whole_figures() -> None:
    """Columns on the right go; a figure that is cut is another figure."""
    busy = next(line.split() for line in drawn(MOMENT, width=64) if line.startswith("busy "))
    assert busy[:2] == ["busy", "5.2"]
    assert busy[3:] == ["100", "10", "0.0"]


def test_names_are_shown_as_text() -> None:
    """A name that clears the screen, or turns it red, would be obeyed by a terminal."""
    hostile = replace(
        MOMENT,
        root=HOSTILE,
        lanes=[lane(HOSTILE)],
        topics={HOSTILE: topic(HOSTILE)},
        groups={HOSTILE: GroupMoment(HOSTILE, "Stable", 1, [], [], [], MOMENT.problems)},
        problems=[replace(MOMENT.problems[0], subject=HOSTILE, why=HOSTILE)],
    )
    text = "\n".join(drawn(hostile, width=400, wrong=HOSTILE))
    assert "\x1b" not in text
    assert text.count("a\\x1b[31m\\x0ab\\u202e<b>[red]") == 7


def test_an_error_is_shown_beside_the_last_moment() -> None:
    lines = drawn(MOMENT, wrong="the store is away")
    assert lines[1] == "No newer state: the store is away"
    assert any(line.startswith("busy ") for line in lines)


def test_json_has_the_rows_without_the_curves() -> None:
    found = json.loads(json.dumps(values(MOMENT)))
    assert found["verdict"] == "1 problem"
    assert found["groups"][0] == {
        "GROUP": "far",
        "STATE": "Empty",
        "MEMBERS": 0,
        "LAG": 80,
        "BEHIND": 61_000,
        "BLOCKED-BY": "-",
    }


def test_curve_is_the_highest_value_of_each_cell() -> None:
    """A peak between two cells must not be lost."""
    points = [Point(-5, 4), Point(10, 8), Point(12, 0), Point(30, 1)]
    assert curve(points, 0, 40, 4) == "▄█ ▁"
    assert curve([], 0, 40, 4) == "    "
    assert curve([Point(0, 0.001)], 0, 0, 2) == "██"


def test_strip_says_the_phases_without_colour() -> None:
    """Who cannot tell red from green, or has no colours, reads the same."""
    one = lane(
        "x",
        bar(Phase.ONGOING, 0, 19),
        bar(Phase.PREPARE_ABORT, 20, 21),
        bar(Phase.COMPLETE_ABORT, 30, None),
        bar(Phase.PREPARE_COMMIT, 50, None, 2),
        ticks=[Tick(45, TickKind.TIMED_OUT, "late")],
    )
    assert strip(one, 0, 80, 8).plain == "░░▒x!▒▒▒"


def test_shares_leave_nothing_unused() -> None:
    assert shares([2, 100, 100], 30) == [2, 14, 14]
    assert shares([1, 1, 1], 30) == [1, 1, 1]
    assert shares([5, 5, 5], 0) == [1, 1, 1]


def test_ages_are_short() -> None:
    ages = [format_age(ms) for ms in (-1, 999, 4_200, 61_000, 180_000, 7_200_000, 864_000_000)]
    assert ages == ["0 ms", "999 ms", "4.2 s", "61 s", "3.0 min", "2.0 h", "10 d"]


def test_command_shows_a_real_root(command: Command) -> None:
    """Into a pipe it prints one screen, or one document."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    command.ok("produce", "-t", "t", input=b"0\n1\n2\n")
    command.ok("consume", "-t", "t", "-g", "g", "--from-beginning", "-n", "1")
    found = json.loads(command.ok("top", "--output", "json"))
    assert found["verdict"] == "no problems"
    assert [(one["GROUP"], one["LAG"]) for one in found["groups"]] == [("g", 2)]
    assert [(one["TOPIC"], one["RECORDS"]) for one in found["topics"]] == [("t", 3)]
    assert command.ok("top").startswith("No problems")


def test_command_follows_the_root_on_a_terminal(command: Command) -> None:
    """Ctrl-C is no error, and leaves the terminal as it was."""
    command.ok("topics", "create", "-t", "before", "--partitions", "1")
    argv = [sys.executable, "-m", "txnlog.cli.main", "--root", command.root, "top", "-d", "0.5"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    terminal, other_end = os.openpty()
    with subprocess.Popen(
        argv, stdin=other_end, stdout=other_end, stderr=other_end, env=env, cwd=ROOT
    ) as process:
        limit = threading.Timer(300, process.kill)
        limit.start()
        os.close(other_end)
        assert b"before" in read_until(terminal, b"before")
        command.ok("topics", "create", "-t", "later", "--partitions", "1")
        assert b"later" in read_until(terminal, b"later")
        process.send_signal(signal.SIGINT)
        rest = read_until(terminal, None)
        limit.cancel()
    os.close(terminal)
    assert process.returncode == 0
    assert rest.endswith(b"\x1b[?25h\x1b[?1049l"), rest[-200:]


def read_until(terminal: int, wanted: bytes | None) -> bytes:
    """What a terminal shows until these bytes come, or until its other end is closed."""
    found = b""
    while wanted is None or wanted not in found:
        try:
            some = os.read(terminal, 65_536)
        except OSError:  # Linux, of a terminal whose other end is closed
            return found
        if not some:
            return found
        found += some
    return found
