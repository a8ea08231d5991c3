"""`txnlog consume --tail, --since, --key-filter, --value-filter`: which records are written."""

from __future__ import annotations

import json
import time

import pytest
import typer

from tests.cli.runner import Command
from txnlog.cli.times import parse_duration_ms, parse_since_ms
from txnlog.producer import Producer

DAY_MS = 86_400_000


@pytest.fixture
def filled(command: Command) -> Command:
    """Topic `t`, two partitions, with records of the last ten days: 0 is the oldest."""
    command.ok("topics", "create", "-t", "t", "--partitions", "2")
    now_ms = time.time_ns() // 1_000_000
    lines = [
        json.dumps(
            {
                "key": f"k{number % 3}",
                "value": str(number),
                "partition": number % 2,
                "timestamp": now_ms - (10 - number) * DAY_MS + DAY_MS // 2,
            }
        )
        for number in range(10)
    ]
    command.ok("produce", "-t", "t", "--json", input="\n".join(lines).encode())
    return command


def read(command: Command, *args: str) -> list[str]:
    return command.ok("consume", "-t", "t", "--timeout-ms", "100", *args).split()


def test_tail_is_the_last_records_by_time_over_all_partitions(filled: Command) -> None:
    """As `tail`: also more than there are, and of one partition only."""
    assert read(filled, "--tail", "3") == ["7", "8", "9"]
    assert read(filled, "--tail", "99") == [str(number) for number in range(10)]
    assert read(filled, "--tail", "2", "-p", "0") == ["6", "8"]
    assert read(filled, "--tail", "5", "-n", "2") == ["5", "6"]


def test_tail_continues_with_new_records(filled: Command) -> None:
    """Each once: the tail ends where reading continues."""
    filled.ok("topics", "create", "-t", "empty", "--partitions", "1")
    told = filled.ok(
        "consume", "-t", "t", "-t", "empty", "--tail", "2", "-n", "2", "--print-offset"
    )
    assert told == "Offset:4\t8\nOffset:4\t9\n"
    assert filled.ok("consume", "-t", "empty", "--tail", "2", "--timeout-ms", "50") == ""


def test_tail_reads_further_back_past_filters_and_aborted_data(filled: Command) -> None:
    """The last offsets may hold nothing to show: an aborted transaction, or what a filter omits."""
    eager = {"transactional.id": "x", "transaction.publish": "eager"}
    with Producer({"txnlog.root": filled.root, **eager}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(30):
            producer.produce("t", str(number), partition=0)
        producer.flush()
        producer.abort_transaction()
    assert read(filled, "--tail", "2", "-p", "0") == ["6", "8"]
    assert read(filled, "--tail", "2", "--value-filter", "^[01]$") == ["0", "1"]
    assert read(filled, "--tail", "2", "--value-filter", "never") == []


def test_since_is_a_time_or_a_duration(filled: Command) -> None:
    """From the first record at or after it, in each partition."""
    assert sorted(read(filled, "--since", "3d")) == ["7", "8", "9"]
    assert sorted(read(filled, "--since", "P2DT1H")) == ["8", "9"]
    assert read(filled, "--since", "1h") == []
    assert len(read(filled, "--since", "2020-01-01T00:00:00Z")) == 10


def test_filters_find_regular_expressions_in_keys_and_values(filled: Command) -> None:
    """-n counts what is written; a null matches nothing; bytes that are no UTF-8 do no harm."""
    filled.ok("produce", "-t", "t", input=b"\xff9\n")
    beginning = ("--from-beginning", "-K", "=")
    assert sorted(read(filled, *beginning, "--key-filter", "[12]", "--value-filter", "[4-8]")) == [
        "k1=4", "k1=7", "k2=5", "k2=8",
    ]  # fmt: skip
    assert len(read(filled, *beginning, "--key-filter", "", "-n", "4")) == 4
    told = filled.run(
        "consume", "-t", "t", "--from-beginning", "--value-filter", "9", "--timeout-ms", "100"
    )
    assert sorted(told.stdout_bytes.split(b"\n")) == [b"", b"9", b"\xff9"]


def test_filtered_records_of_a_group_are_committed_up_to_the_last_one_shown(
    filled: Command,
) -> None:
    """Else the group would read them again for ever, or lose what comes after."""
    group = ("-g", "g", "-n", "1", "--from-beginning", "--value-filter", "4", "-p", "0")
    assert filled.run("consume", "-t", "t", *group).exit_code == 2
    assert filled.ok("consume", "-t", "t", *group[:-2]) == "4\n"
    offsets = {
        row["PARTITION"]: row["CURRENT-OFFSET"]
        for row in filled.json("groups", "describe", "-g", "g")
    }
    assert offsets[0] == 3


@pytest.mark.parametrize(
    "args",
    [
        ("--tail", "0"),
        ("--tail", "1", "--since", "1h"),
        ("--tail", "1", "--from-beginning"),
        ("--since", "1h", "--offset", "1"),
        ("--since", "1h", "-g", "g"),
        ("--tail", "1", "-g", "g"),
        ("--since", "soon"),
        ("--key-filter", "["),
    ],
)
def test_what_cannot_be_combined_or_read_is_wrong_usage(
    filled: Command, args: tuple[str, ...]
) -> None:
    """Exit code 2, before anything is read."""
    assert filled.run("consume", "-t", "t", "--timeout-ms", "1", *args).exit_code == 2


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P7D", 7 * DAY_MS),
        ("P1DT0.5S", DAY_MS + 500),
        ("1h30m", 5_400_000),
        ("1.5s", 1500),
        ("1m20ms", 60_020),
    ],
)
def test_durations_of_iso_8601_and_short_ones(text: str, duration_ms: int) -> None:
    """Kafka's tool takes the former, people write the latter."""
    assert parse_duration_ms("--by-duration", text) == duration_ms
    now_ms = time.time_ns() // 1_000_000
    assert 0 <= parse_since_ms("--since", text) - (now_ms - duration_ms) < 60_000


def test_error_of_since_names_both_forms() -> None:
    """It named a time only."""
    with pytest.raises(typer.BadParameter, match="takes a duration before now as in 15m, a time"):
        parse_since_ms("--since", "yesterday")


@pytest.mark.parametrize("text", ["", "P", "PT", "P1M", "P1DT", "1", "h", "-1h", "9" * 20 + "d"])
def test_other_texts_are_no_duration(text: str) -> None:
    """A month has no length; a number alone is a time in ms."""
    with pytest.raises(Exception, match="takes a duration as in"):
        parse_duration_ms("--by-duration", text)
