"""Invalid command-line values: a one-line error or the usage, never a traceback."""

from __future__ import annotations

import json

import pytest

from tests.cli.runner import Command
from txnlog.producer import Producer

HUGE = str(2**63)
CALLS = (
    ["topics", "create", "-t", "new", "--partitions", HUGE],
    ["topics", "create", "-t", "new", "--partitions", "0"],
    ["topics", "create", "-t", "x" * 300],
    ["topics", "create", "-t", "new", "--config", f"retention.ms={HUGE}"],
    ["topics", "create", "-t", "new", "--config", "min.cleanable.dirty.ratio=nan"],
    ["topics", "alter", "-t", "orders", "--partitions", HUGE],
    ["topics", "delete-records", "-t", "orders", "-p", HUGE, "--offset", "1"],
    ["topics", "delete-records", "-t", "orders", "-p", "0", "--offset", HUGE],
    ["topics", "delete-records", "-t", "orders", "-p", "0", "--offset", "1.5"],
    ["groups", "reset-offsets", "-g", "", "-t", "orders", "--to-earliest", "--execute"],
    ["groups", "reset-offsets", "-g", "x" * 40_000, "-t", "orders", "--to-earliest", "--execute"],
    ["groups", "reset-offsets", "-g", "g", "-t", f"orders:{HUGE}", "--to-earliest", "--execute"],
    ["groups", "reset-offsets", "-g", "g", "-t", "orders", "--to-datetime", "²"],
    ["groups", "reset-offsets", "-g", "g", "-t", "orders", "--to-datetime", "9" * 5_000],
    ["groups", "delete-offsets", "-g", "g", "-t", "orders:1.0"],
    ["offsets", "-t", "orders", "--partitions", HUGE],
    ["offsets", "-t", "orders", "--time", HUGE],
    ["consume", "-t", "orders", "-p", HUGE, "--timeout-ms", "0"],
    ["consume", "-t", "orders", "--offset", HUGE, "--timeout-ms", "0"],
    ["consume", "-t", "orders", "-g", " ", "--timeout-ms", "0"],
    ["produce", "-t", "orders", "-p", HUGE],
    ["produce", "-t", "orders", "--transactional-id", "x" * 40_000],
    ["transactions", "describe", "--transactional-id", "x" * 40_000],
    *(["top", "--delay", value] for value in ("inf", "nan", "-1", "0.4", "soon", "1e300")),
    *(["topics", "list", "--watch", value] for value in ("inf", "nan", "0")),
    ["transactions", "describe-producers", "-t", "orders", "-p", HUGE],
)


@pytest.mark.parametrize("args", CALLS, ids=[" ".join(call)[:60] for call in CALLS])
def test_invalid_value_is_a_one_line_error(command: Command, args: list[str]) -> None:
    """The error says what to give instead, and nothing is written."""
    command.cluster().create_topic("orders", partitions=2)
    found = command.run(*args, input=b"a\n")
    assert found.exit_code in (1, 2)
    assert len(found.stderr) < 1_000
    assert found.exit_code == 2 or len(found.stderr.splitlines()) == 1
    cluster = command.cluster()
    assert cluster.list_topics() == ["orders"]
    assert cluster.topic("orders").view.high_watermark(0) == 0
    assert command.json("groups", "list") == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["topics", "create", "-t", "t", "--replication-factor", "3"], "Leave it out"),
        (["topics", "--list", "--bootstrap-server=localhost:9092"], "by --root or TXNLOG_ROOT"),
        (["consume", "-t", "t", "--property", "print.key=true"], "take -K for keys"),
        (["configs", "--describe", "--entity-name", "t"], "given by -t"),
        (["consume", "-t", "t", "--since", "1700000000"], "that is 1700000000000 ms"),
        (["offsets", "-t", "t", "--time", "1700000000"], "that is 1700000000000 ms"),
    ],
)
def test_options_of_kafka_and_seconds_get_an_advice(
    command: Command, args: list[str], said: str
) -> None:
    """Habits from Kafka's scripts: the usage error says what to give instead."""
    command.cluster().create_topic("orders", partitions=1)
    found = command.run(*args)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": "a", "partition": 1.0}',
        b'{"value": "a", "partition": true}',
        b'{"value": "a", "partition": 9223372036854775808}',
        b'{"value": "a", "timestamp": "now"}',
        b'{"value": "a", "timestamp": 1e300}',
        b'{"value": "\\ud800"}',
        b'{"value": "a", "topic": 5}',
        b'{"value": "a", "headers": [["h"]]}',
        b'{"value": "a", "headers": [[5, "v"]]}',
        b'{"value": "a", "headers": [[null, "v"]]}',
        b'{"value": "a", "headers": {"hv": "v"}}',
        b'{"value": "a", "headers": ["hv"]}',
        b'{"value": "a", "headers": 5}',
        b"[" * 100_000,
        b"5",
    ],
)
def test_invalid_record_line_is_a_one_line_error(command: Command, line: bytes) -> None:
    """Earlier lines are written; a traceback would not name the line."""
    command.cluster().create_topic("orders", partitions=2)
    told = command.fails("produce", "--json", "-t", "orders", input=b'{"value":"a"}\n' + line)
    assert "2" in told or "partition" in told
    view = command.cluster().topic("orders").view
    assert view.high_watermark(0) + view.high_watermark(1) == 1


def test_time_beyond_the_calendar_is_printed_in_ms(command: Command) -> None:
    """A record may have any 64-bit timestamp; printing it ended the consumer (R64)."""
    command.cluster().create_topic("orders", partitions=1)
    with Producer({"txnlog.root": command.root}) as producer:
        producer.produce("orders", "a", timestamp=2**53)
    args = ("consume", "-t", "orders", "--from-beginning", "-n", "1")
    assert command.ok(*args, "--print-timestamp") == f"{2**53}ms\ta\n"
    assert json.loads(command.ok(*args, "--output", "json"))["timestamp"] == 2**53
