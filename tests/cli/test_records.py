"""`txnlog produce` and `consume`: lines in, lines out, and commits when a pipe breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.runner import Command
from tests.consumer.records import staged
from txnlog.cli.record_lines import from_json, to_json
from txnlog.coordinator.one_off import commit_one_off
from txnlog.messages import Message
from txnlog.protocol.metadata import Owner

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def topic(command: Command) -> Command:
    """Topic `t` with one partition."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    return command


def read(command: Command, *args: str) -> str:
    return command.ok("consume", "-t", "t", "--from-beginning", "--timeout-ms", "300", *args)


# --- Lines ----------------------------------------------------------------------------------------


def test_lines_with_keys_and_headers_round_trip(topic: Command) -> None:
    """As in kafka-console-producer and -consumer."""
    topic.ok("produce", "-t", "t", "-K", ":", "-H", "from=test", input=b"a:1\nb:x:2\n:\n")
    assert read(topic) == "1\nx:2\n\n"
    assert read(topic, "-K", "\\t") == "a\t1\nb\tx:2\n\t\n"
    told = read(topic, "--print-headers", "--print-partition", "--print-offset", "-n", "1")
    assert told == "Partition:0\tOffset:0\tfrom:test\t1\n"
    assert read(topic, "--print-timestamp", "-n", "1").startswith("20")
    topic.ok("produce", "-t", "t", input=b"without a key")
    assert read(topic, "--offset", "3", "-K", "=") == "null=without a key\n"
    topic.ok("produce", "-t", "t", "-H", "h=1", "-H", "h=2", input=b"both")
    assert read(topic, "--offset", "4", "--print-headers") == "h:1,h:2\tboth\n"


def test_json_lines_round_trip(topic: Command) -> None:
    """`produce` reads what `consume` writes: binary data, nulls, headers, time, partition."""
    lines = [
        {
            "topic": "t",
            "key": "k",
            "value": "ü",
            "headers": [["h", None], ["h", "1"]],
            "timestamp": 5,
        },
        {"topic": "t", "key": None, "value": {"base64": "/w=="}},
        {"topic": "t", "partition": 0, "value": None},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    topic.ok("produce", "--json", input=text.encode())
    found = [json.loads(line) for line in read(topic, "--output", "json").splitlines()]
    assert [(r["key"], r["value"], r["headers"]) for r in found] == [
        ("k", "ü", [["h", None], ["h", "1"]]),
        (None, {"base64": "/w=="}, []),
        (None, None, []),
    ]
    assert found[0]["timestamp"] == 5
    topic.ok("topics", "create", "-t", "copy", "--partitions", "1")
    again = read(topic, "--output", "json").replace('"topic": "t"', '"topic": "copy"')
    topic.ok("produce", "--json", input=again.encode())
    copied = topic.ok(
        "consume", "-t", "copy", "--from-beginning", "-n", "3", "--output", "json"
    ).splitlines()
    assert [{**json.loads(line), "topic": "t"} for line in copied] == found


def test_json_lines_go_where_the_options_say(topic: Command) -> None:
    """`consume -t t | produce -t copy` wrote every record into t again: each line names it."""
    topic.ok("topics", "create", "-t", "copy", "--partitions", "1")
    topic.ok("topics", "create", "-t", "wide", "--partitions", "4")
    keys = b"".join(b"k%d:v\n" % number for number in range(20))
    topic.ok("produce", "-t", "wide", "-K", ":", input=keys)
    lines = topic.ok(
        "consume", "-t", "wide", "--from-beginning", "-n", "20", "--output", "json"
    ).encode()
    to_copy = ("produce", "-t", "copy", "--json")
    assert "partition" in topic.fails(*to_copy, "--transactional-id", "x", input=lines)
    topic.ok(*to_copy, "-p", "-1", "-H", "from=wide", input=lines)
    copied = topic.ok(
        "consume", "-t", "copy", "--from-beginning", "-n", "20", "--output", "json"
    ).splitlines()
    found = [json.loads(line) for line in copied]
    assert {record["key"] for record in found} == {f"k{number}" for number in range(20)}
    assert all(record["headers"] == [["from", "wide"]] for record in found)
    assert sum(row["OFFSET"] for row in topic.json("offsets", "-t", "wide")) == 20


@given(
    key=st.none() | st.binary(),
    value=st.none() | st.binary(),
    headers=st.lists(st.tuples(TEXTS, st.none() | st.binary())),
)
def test_json_lines_lose_no_byte(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    """Strings for UTF-8, base64 for other bytes, and exactly the same bytes back."""
    line = to_json(Message("t", 1, 2, key, value, 3, headers))
    assert b"\n" not in line
    record = from_json(line, 1)
    assert (record["key"], record["value"], record.get("headers", [])) == (key, value, headers)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "Line 2"),
        (b'{"valeu": "x"}', "valeu"),
        (b'{"value": 5}', "neither"),
        (b'{"value": {"base64": "?"}}', "Line 2"),
        (b"[]", "no JSON object"),
        (b"[[]]", "no JSON object"),
        (b'{"value": "x", "partition": 9}', "partition"),
    ],
)
def test_error_names_an_invalid_json_line_and_earlier_lines_are_written(
    topic: Command, line: bytes, said: str
) -> None:
    """A piping job must know which line failed."""
    assert said in topic.fails("produce", "-t", "t", "--json", input=b'{"value": "ok"}\n' + line)
    assert read(topic) == "ok\n"


def test_produce_without_separator_or_topic_is_refused(topic: Command) -> None:
    """Without an error keys would become values."""
    assert "Line 1 has no key separator" in topic.fails(
        "produce", "-t", "t", "-K", ":", input=b"x\n"
    )
    assert topic.run("produce", input=b"x\n").exit_code == 2
    assert "has no topic" in topic.fails("produce", "--json", input=b'{"value": "x"}')
    assert "max.message.bytes" in topic.fails("produce", "-t", "t", input=b"x" * 2_000_000)


def test_produce_in_a_transaction_is_all_or_nothing(topic: Command) -> None:
    """An invalid line in the middle of stdin aborts earlier records, too."""
    producing = ["produce", "-t", "t", "--json", "--transactional-id", "import"]
    topic.fails(*producing, input=b'{"value": "lost"}\n{')
    assert read(topic) == ""
    topic.ok(*producing, input=b'{"value": "kept"}\n{"value": "too"}\n')
    assert read(topic) == "kept\ntoo\n"
    [row] = topic.json("transactions", "list")
    assert (row["TransactionalId"], row["TransactionState"]) == ("import", "CompleteCommit")


def test_consume_in_a_group_continues_where_it_stopped(topic: Command) -> None:
    """Exactly the written records are committed."""
    topic.ok("produce", "-t", "t", input=b"0\n1\n2\n3\n")
    reading = ("consume", "-t", "t", "-g", "g", "--from-beginning", "-n")
    assert topic.ok(*reading, "3") == "0\n1\n2\n"
    assert topic.ok(*reading, "1") == "3\n"
    [row] = topic.json("groups", "describe", "-g", "g")
    assert (row["CURRENT-OFFSET"], row["LAG"]) == (4, 0)
    assert topic.run("consume", "-t", "t", "-g", "g", "--partition", "0").exit_code == 2
    assert "no topic 'x'" in topic.fails("consume", "-t", "x", "--timeout-ms", "1")


# --- Processes ------------------------------------------------------------------------------------


@contextmanager
def process(command: Command, *args: str, **streams: int) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "TXNLOG_ROOT": command.root, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "txnlog.cli.main", *args]
    with subprocess.Popen(
        argv, env=environ, cwd=ROOT, stderr=subprocess.PIPE, **streams
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def ended(running: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Exit code and stderr."""
    assert running.stderr is not None
    told = running.stderr.read()
    return running.wait(600), told


def test_consume_in_a_group_prints_no_line_for_a_topic_that_is_missing(topic: Command) -> None:
    """The message that says so is no record; it was printed as one, and could not be committed."""
    topic.ok("produce", "-t", "t", input=b"x\n")
    asked = ("-t", "t", "-t", "missing", "-g", "g", "--from-beginning", "--timeout-ms", "300")
    found = topic.run("consume", *asked)
    assert found.exit_code == 0
    assert found.stdout == "x\n"


def test_pipe_from_consume_to_produce_copies(topic: Command) -> None:
    """`consume | produce` between topics, with keys, headers and bytes."""
    topic.ok(
        "produce", "-t", "t", "-K", ":", input=b"".join(b"%d:x%d\n" % (n, n) for n in range(900))
    )
    topic.ok("topics", "create", "-t", "copy", "--partitions", "1")
    reading = ("consume", "-t", "t", "--from-beginning", "-n", "900", "-K", ":")
    with process(topic, *reading, stdout=subprocess.PIPE) as consuming:
        with process(
            topic,
            "produce",
            "-t",
            "copy",
            "-K",
            ":",
            stdin=consuming.stdout,  # type: ignore[arg-type]
        ) as producing:
            assert ended(producing) == (0, b"")
        assert ended(consuming) == (0, b"")
    copied = topic.ok("consume", "-t", "copy", "--from-beginning", "-n", "900")
    assert copied.splitlines() == [f"x{number}" for number in range(900)]


def test_records_written_with_nameless_headers_are_printed_and_copied(topic: Command) -> None:
    """`--print-headers` ended in a traceback, and `consume | produce` at each such record."""
    cluster = topic.cluster()
    batch = staged(cluster, [b"v"], headers=[[{"key": None, "value": b"1"}, None]])
    commit_one_off(cluster, [batch], Owner(run_id="put"))
    assert read(topic, "--print-headers") == ":1,:null\tv\n"
    line = read(topic, "--output", "json")
    topic.ok("produce", "-t", "t", "--json", input=line.encode())
    assert read(topic, "--print-headers") == ":1,:null\tv\n" * 2


def test_broken_pipe_prints_no_error_and_commits_no_unwritten_record(topic: Command) -> None:
    """`consume | head -n 1`: no traceback; unread records are read again (at least once)."""
    lines = b"".join(b"%d %s\n" % (number, b"x" * 500) for number in range(3_000))
    topic.ok("produce", "-t", "t", input=lines)
    reading = ("consume", "-t", "t", "-g", "g", "--from-beginning")
    with process(topic, *reading, stdout=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline().startswith(b"0 ")
        consuming.stdout.close()
        assert ended(consuming) == (0, b"")
    # The group is not there if nothing was committed.
    described = topic.run("groups", "describe", "-g", "g", "--output", "json").stdout
    first = sum(row["CURRENT-OFFSET"] or 0 for row in json.loads(described or "[]"))
    assert first <= 1_000
    rest = topic.ok("consume", "-t", "t", "-g", "g", "--from-beginning", "-n", str(3_000 - first))
    assert [int(line.split()[0]) for line in rest.splitlines()] == list(range(first, 3_000))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_consume_stopped_by_a_signal_exits_with_0_and_leaves_its_group(
    topic: Command, number: signal.Signals
) -> None:
    """Ctrl-C is the normal end; the next member need not wait for a session time-out."""
    topic.ok("produce", "-t", "t", input=b"first\n")
    reading = ("consume", "-t", "t", "-g", "g", "--from-beginning")
    with process(topic, *reading, stdout=subprocess.PIPE) as consuming:
        assert consuming.stdout is not None
        assert consuming.stdout.readline() == b"first\n"
        consuming.send_signal(number)
        assert ended(consuming) == (0, b"")
    [state] = topic.json("groups", "describe", "-g", "g", "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", 0)
    assert topic.json("groups", "describe", "-g", "g")[0]["CURRENT-OFFSET"] == 1


def test_list_into_a_closed_pipe_prints_no_error(topic: Command) -> None:
    """`txnlog topics list | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    with process(topic, "topics", "list", stdout=writer) as listing:
        os.close(writer)
        assert ended(listing) == (0, b"")
