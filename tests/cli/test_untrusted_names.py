"""Ids, keys and values of any client, in what every command prints (D137).

A line break forges a row of a table; ESC commands the terminal: OSC 52 writes its clipboard. Rich
reads [red] as markup. Output for programs stays exact.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runner import Command
from txnlog import Consumer, Producer, TopicPartition
from txnlog.cli.app import COMMANDS, Commands
from txnlog.text import printable, shell_option

EVIL = "a[red]b\x1b]52;c;eA==\x07\nbilling  Stable\r\x9b8m\x7f\u2028\u202e"
SHOWN = r"a[red]b\x1b]52;c;eA==\x07\x0abilling  Stable\x0d\x9b8m\x7f\u2028\u202e"
UNKNOWN = f"unknown{EVIL}"

# Every command, with a name in each place that takes one; those that delete come last.
CALLS = (
    ["topics", "list"],
    ["topics", "describe", "-t", EVIL],
    ["topics", "create", "-t", EVIL],
    ["topics", "create", "-t", "new", "--config", f"{EVIL}={EVIL}"],
    ["topics", "create", "-t", "new", "--config", EVIL],
    ["topics", "alter", "-t", EVIL, "--partitions", "9"],
    ["topics", "delete-records", "-t", EVIL, "-p", "0", "--offset", "1"],
    ["configs", "describe", "-t", "t"],
    ["configs", "alter", "-t", "t", "--add-config", f"retention.ms={EVIL}"],
    ["configs", "alter", "-t", "t", "--delete-config", EVIL],
    ["produce", "-t", "t", "--header", EVIL],
    ["produce", "-t", "t", "--header", f"{EVIL}=1", "--transactional-id", f"new{EVIL}"],
    ["produce", "-t", "t", "-K", EVIL],
    ["produce", "--json"],
    ["consume", "-t", EVIL, "-g", EVIL, "--timeout-ms", "0"],
    ["consume", "-t", "t", "--key-filter", f"({EVIL}"],
    ["consume", "-t", "t", "-p", EVIL],
    ["repair", "--watch-seconds", "0"],
    ["show", "--html", f"{EVIL}/root.html", "--from", "1s"],
    ["groups", "list"],
    ["groups", "describe", "-g", EVIL],
    ["groups", "describe", "--all-groups", "--members"],
    ["groups", "describe", "-g", EVIL, "--state"],
    ["groups", "describe", "-g", UNKNOWN],
    ["groups", "reset-offsets", "-g", EVIL, "--all-topics", "--to-earliest"],
    ["groups", "reset-offsets", "-g", EVIL, "-t", "t", "--to-offset", "99", "--export"],
    ["groups", "reset-offsets", "-g", UNKNOWN, "-t", f"t:{EVIL}", "--to-earliest"],
    ["groups", "reset-offsets", "-g", EVIL, "-t", "t", "--shift-by", "1"],
    ["groups", "reset-offsets", "-g", EVIL, "--from-file", EVIL],
    ["offsets", "-t", EVIL],
    ["offsets", "--time", EVIL],
    ["transactions", "list"],
    ["transactions", "list", "--state", EVIL],
    ["transactions", "list", "--transactional-id-pattern", f"({EVIL}"],
    ["transactions", "describe", "--transactional-id", EVIL],
    ["transactions", "describe", "--transactional-id", UNKNOWN],
    ["transactions", "describe-producers", "-t", EVIL, "-p", "0"],
    ["transactions", "find-hanging", "-t", EVIL],
    ["transactions", "fence", "--transactional-id", EVIL, "--reason", EVIL],
    ["transactions", "abort", "--transactional-id", EVIL, "--reason", EVIL],
    ["transactions", "describe", "--transactional-id", EVIL],
    ["transactions", "delete", "--transactional-id", EVIL],
    ["tables", "enlist", EVIL, "/nowhere"],
    ["tables", "enlist", "silver", f"/{EVIL}"],
    ["tables", "list"],
    ["tables", "describe", EVIL],
    ["tables", "republish", EVIL],
    ["tables", "restage", EVIL],
    ["tables", "delist", EVIL],
    ["snapshots", "create", EVIL],
    ["snapshots", "list"],
    ["snapshots", "describe", EVIL],
    ["snapshots", "drop", EVIL],
    ["backup", EVIL, f"/{EVIL}"],
    ["clone", EVIL, EVIL],
    ["dump", "-t", "t"],
    ["dump", "--transactional-id", EVIL],
    ["dump", "--transactional-id", UNKNOWN],
    ["why"],
    ["why", EVIL],
    ["why", f"t:{EVIL}:0"],
    ["why", "t:0:0"],
    ["why", "-t", "t", "--key", EVIL],
    ["why", "-t", "t", "--key", UNKNOWN],
    ["why", "-g", EVIL],
    ["why", "-g", UNKNOWN],
    ["why", "--transactional-id", EVIL],
    ["why", "--transactional-id", UNKNOWN],
    ["why", "--story", EVIL],
    ["verify", "-t", EVIL],
    ["verify", "--since", EVIL],
    ["verify"],
    ["spark-conf", "--storage", EVIL],
    ["unpack-pyspark", EVIL],
    ["housekeeping", "--dry-run"],
    ["housekeeping", "--once"],
    ["housekeeping", "--status"],
    ["metrics"],
    ["top"],
    ["groups", "delete-offsets", "-g", EVIL, "-t", "gone"],
    ["groups", "delete-offsets", "-g", EVIL, "-t", EVIL],
    ["groups", "delete", "-g", UNKNOWN],
    ["groups", "delete", "-g", EVIL],
    ["topics", "delete", "-t", EVIL],
    ["topics", "delete", "-t", "t"],
    [EVIL],
    ["groups", EVIL],
    ["groups", "list", f"--{EVIL}"],
    ["groups", "list", "--watch", EVIL],
)


@pytest.fixture
def hostile(command: Command) -> Iterator[Command]:
    """A root in which everything that a client may name has a hostile name."""
    config = {"txnlog.root": command.root, "client.id": EVIL}
    with Producer({**config, "transactional.id": EVIL, "num.partitions": 1}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.produce("t", EVIL, EVIL, headers=[(EVIL, EVIL.encode())])
            producer.produce("gone", EVIL)
    ids = {"group.id": EVIL, "group.instance.id": EVIL}
    with Consumer({**config, **ids, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["t", "gone"])
        assert len(consumer.consume(2, timeout=60)) == 2
        offsets = [TopicPartition(topic, 0, 1, EVIL) for topic in ("t", "gone")]
        consumer.commit(offsets=offsets, asynchronous=False)
        command.ok("topics", "delete", "-t", "gone", "--yes")
        stray = Path(command.root, f"stray{EVIL}", "_delta_log")
        stray.mkdir(parents=True)
        (stray / f"{0:020}.json").write_bytes(b"{}")
        yield command


@pytest.mark.parametrize("mode", ["text", "json"])
def test_no_command_prints_a_control_character(hostile: Command, mode: str) -> None:
    """A row or a line that is not ours, in the output or in an error, on stdout or stderr."""
    printed = 0
    for call in CALLS:
        result = hostile.run("--output", mode, *call, input=b"no separator\n")
        for line in (result.stdout + result.stderr).split("\n"):
            assert printable(line) == line, call
            assert not line.startswith("billing"), call
            # Usage errors are wrapped to the terminal's width.
            printed += "[red]" in line
    assert printed > 30


def test_every_command_is_called_with_a_hostile_name() -> None:
    """A new command prints names, too: add it to CALLS."""
    commands = Commands()
    names = {
        (name, *rest)
        for name in COMMANDS
        for rest in [[sub] for sub in getattr(commands[name], "commands", ())] or [[]]
    }
    assert names <= {tuple(call[:length]) for call in CALLS for length in (1, 2)}


def test_a_row_of_a_table_is_one_line_with_the_whole_name(hostile: Command) -> None:
    """An operator must see that the name is odd, and which it is."""
    assert [line.split("  ") for line in hostile.ok("groups", "list").splitlines()[1:]] == [
        [*SHOWN.split("  "), "Stable"]
    ]
    assert [row["GROUP"] for row in hostile.json("groups", "list")] == [EVIL]
    assert f"Deleted the offsets of group {SHOWN} in t." in hostile.ok(
        "groups", "delete-offsets", "-g", EVIL, "-t", "t"
    )


def test_command_to_paste_is_quoted(hostile: Command) -> None:
    """`$(touch x)` in an id would run when the operator pastes the line of an error."""
    said = hostile.run("groups", "reset-offsets", "-g", EVIL, "--all-topics", "--to-latest").stderr
    assert f"`txnlog groups delete-offsets {shell_option('--group', EVIL)} --topic=gone`" in said


@pytest.mark.parametrize("group", ["--root", "--output", "--storage=fsync=false", "--", "-t"])
def test_command_to_paste_is_about_an_id_that_is_an_option(command: Command, group: str) -> None:
    """As a word of its own it was taken for a global option, which names another root."""
    with Producer({"txnlog.root": command.root}) as producer:
        producer.produce("gone", "1")
    with Consumer({"txnlog.root": command.root, "group.id": group}) as consumer:
        consumer.commit(offsets=[TopicPartition("gone", 0, 1)], asynchronous=False)
    command.ok("topics", "delete", "-t", "gone")
    reset = ["groups", "reset-offsets", f"--group={group}", "--all-topics", "--to-latest"]
    pasted = command.run(*reset).stderr.split("`")[1]
    said = command.ok(*shlex.split(pasted)[1:])
    assert said == f"Deleted the offsets of group {group} in gone.\n"


def test_consume_writes_records_as_they_are_to_a_pipe(hostile: Command) -> None:
    """As Kafka's tool and kcat: a copy of binary data is exact."""
    line = hostile.ok(
        "consume", "-t", "t", "--from-beginning", "-n", "1", "-K", "=", "--print-headers"
    )
    assert line == f"{EVIL}:{EVIL}\t{EVIL}={EVIL}\n"
    read = hostile.ok("--output", "json", "consume", "-t", "t", "--from-beginning", "-n", "1")
    assert printable(read[:-1]) == read[:-1]
    found = json.loads(read)
    assert (found["key"], found["value"], found["headers"]) == (EVIL, EVIL, [[EVIL, EVIL]])


@pytest.mark.parametrize(
    "args",
    [
        ["consume", "-t", "t", "--from-beginning", "-n", "1", "-K", "=", "--print-headers"],
        ["groups", "list"],
    ],
    ids=["consume", "groups"],
)
def test_terminal_gets_no_escape_sequence(hostile: Command, args: list[str]) -> None:
    """A value that a producer chose would set the title, the clipboard or the keys."""
    status, shown = hostile.on_terminal(*args)
    assert status == 0
    # A tab is between the fields of `consume`.
    lines = shown.replace("\t", "  ").rstrip("\n").split("\n")
    assert all(printable(line) == line for line in lines)
    assert any(SHOWN in line for line in lines)
    assert len(lines) == (1 if args[0] == "consume" else 2)
