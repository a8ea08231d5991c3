"""`txnlog topics`, `offsets` and `groups`: columns, exit codes, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from tests.cli.runner import ENVIRONMENT, Command
from txnlog.admin import hanging
from txnlog.cli.app import app, hoisted, root
from txnlog.cli.session import session_of
from txnlog.consumer import Consumer
from txnlog.errors import TransactionalIdAuthorizationError
from txnlog.producer import Producer

SECRET = "hunter2"


def header(text: str) -> list[str]:
    return text.splitlines()[0].split()


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


# --- The command itself ---------------------------------------------------------------------------


def test_exit_codes_are_0_1_and_2(command: Command) -> None:
    """Scripts must distinguish an error of the cluster from wrong usage."""
    assert command.run("topics", "list").exit_code == 0
    assert command.run("topics", "describe", "--topic", "nothing").exit_code == 1
    for wrong in (
        ["nothing"],
        ["topics", "create"],
        ["topics", "alter", "-t", "t", "--partitions", "x"],
        ["configs", "alter", "-t", "t"],
        ["offsets", "--time", "soon"],
        ["--storage", "no-equals", "topics", "list"],
    ):
        assert command.run(*wrong).exit_code == 2, wrong


def test_without_a_root_the_error_says_how_to_give_one() -> None:
    """Exit code 2: wrong usage."""
    result = CliRunner().invoke(app, ["topics", "list"], env=ENVIRONMENT)
    assert result.exit_code == 2
    assert "TXNLOG_ROOT" in result.stderr


def test_root_from_the_environment_and_global_options_anywhere(command: Command) -> None:
    """Users write `--output json` at the end of a line."""
    command.ok("topics", "create", "-t", "a")
    env = {**ENVIRONMENT, "TXNLOG_ROOT": command.root}
    result = CliRunner().invoke(app, ["topics", "list", "--output", "json"], env=env)
    assert json.loads(result.stdout) == ["a"]
    assert hoisted(["a", "--root=x", "--", "--root", "y"]) == ["--root=x", "a", "--", "--root", "y"]


@pytest.mark.parametrize("option", ["--root", "--storage", "--output"])
def test_global_option_without_its_value_takes_no_other_word_for_it(option: str) -> None:
    """The value of `topics list --root` was "topics", and the error was about `list`."""
    result = CliRunner().invoke(app, ["topics", "list", option], env=ENVIRONMENT)
    assert result.exit_code == 2
    assert f"Option '{option}' requires an argument" in result.stderr


def test_no_cluster_is_one_clear_line(tmp_path: Path) -> None:
    """Not a traceback; in JSON an object with Kafka's code."""
    command = Command(tmp_path)
    assert command.fails("topics", "list").startswith("txnlog: There is no folder")
    command.cluster()
    line = command.fails("topics", "describe", "-t", "nothing", "--output", "json")
    told = json.loads(line)
    assert (told["error"], told["code"]) == ("UnknownTopicOrPartitionError", 3)


@pytest.mark.parametrize("storage", [f"aws_secret_access_key={SECRET}", SECRET])
def test_secrets_of_the_store_are_never_printed(storage: str, tmp_path: Path) -> None:
    """Not in errors about them, nor in other errors (R67)."""
    env = {**ENVIRONMENT, "TXNLOG_STORAGE": storage}
    for args in (
        ["--root", "s3://bucket/x", "topics", "list", "--nonsense"],
        ["--root", "nosuch://x", "topics", "list"],
        ["--root", str(tmp_path / "none"), "--output", "json", "topics", "list"],
        ["--storage", storage, "topics", "list", "--help"],
    ):
        result = CliRunner().invoke(app, args, env=env)
        assert SECRET not in result.stdout + result.stderr, args
        assert SECRET not in repr(result.exception), args


def test_settings_of_the_store_from_the_variable_and_the_command_line() -> None:
    """Several pairs, with and without the prefix `storage.`."""
    sessions = []

    def look(context: typer.Context) -> None:
        sessions.append(session_of(context))

    probe = typer.Typer()
    probe.callback()(root)
    probe.command("look")(look)
    env = {**ENVIRONMENT, "TXNLOG_ROOT": "/x", "TXNLOG_STORAGE": "a=1 storage.b=x=y"}
    assert CliRunner().invoke(probe, ["look"], env=env).exit_code == 0
    assert CliRunner().invoke(probe, ["--storage", "c=3", "look"], env=env).exit_code == 0
    assert sessions[0].storage == {"a": "1", "b": "x=y"}
    assert sessions[0].config()["storage.b"] == "x=y"
    assert sessions[1].storage == {"c": "3"}
    assert "x=y" not in repr(sessions[0])


def test_help_and_completion_exist() -> None:
    """Every command has a help text; typer adds shell completion."""
    result = CliRunner().invoke(app, ["--help"], env=ENVIRONMENT)
    for name in ("topics", "produce", "consume", "groups", "offsets", "transactions", "configs",
                 "dump", "housekeeping", "--install-completion"):  # fmt: skip
        assert name in result.stdout
    shown = CliRunner().invoke(app, ["transactions", "abort", "--help"], env=ENVIRONMENT)
    assert "--transactional-id" in shown.stdout


# --- Topics ---------------------------------------------------------------------------------------


def test_first_topic_of_a_cluster_says_that_it_is_new(tmp_path: Path) -> None:
    """A mistake in the root would show nothing else."""
    command = Command(tmp_path)
    create = ["topics", "create", "--partitions", "1", "--topic"]
    assert command.ok(*create, "a") == "Created topic a in a new cluster.\n"
    assert command.ok(*create, "b") == "Created topic b.\n"


def test_topics_created_grown_described_and_deleted(command: Command) -> None:
    """As subcommands, and as flags as in kafka-topics.sh."""
    create = ["topics", "create", "--topic", "t", "--partitions", "2"]
    assert command.ok(*create, "--config", "retention.ms=5") == "Created topic t.\n"
    assert "exists already" in command.fails(*create)
    assert command.ok(*create, "--if-not-exists") == ""
    assert command.ok("topics", "--list") == "t\n"
    command.ok("topics", "alter", "-t", "t", "--partitions", "3")
    assert "can only be added" in command.fails("topics", "alter", "-t", "t", "--partitions", "1")
    shown = command.ok("topics", "--describe", "--topic", "t")
    assert header(shown) == [
        "Topic", "Partition", "LogStartOffset", "LastStableOffset", "HighWatermark", "Records",
        "Files", "Size", "LastTimestamp", "TopicId", "Configs",
    ]  # fmt: skip
    assert [row[:2] + row[5:10] + row[11:] for row in cells(shown)] == [
        ["t", str(number), "0", "0", "0", "B", "-", "retention.ms=5"] for number in range(3)
    ]
    assert command.json("topics", "describe")[0]["Configs"] == {"retention.ms": "5"}
    assert command.ok("topics", "delete", "-t", "t") == "Deleted topic t.\n"
    assert command.ok("topics", "delete", "-t", "t", "--if-exists") == ""
    assert "no topic" in command.fails("topics", "delete", "-t", "t")
    assert command.json("topics", "list") == []


def test_topics_described_with_records_sizes_and_newest_timestamp(command: Command) -> None:
    """What an operator asks first: is anything written, when last, and how much is it."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    for time_ms in (1_700_000_000_000, 1_600_000_000_000):
        line = json.dumps({"value": "x" * 2000, "timestamp": time_ms})
        command.ok("produce", "-t", "t", "--json", input=line.encode())
    [row] = command.json("topics", "describe", "-t", "t")
    sizes = [file.stat().st_size for file in (Path(command.root) / "t").glob("part-*.parquet")]
    assert (row["Records"], row["Files"], row["Size"]) == (2, 2, sum(sizes))
    assert row["LastTimestamp"] == 1_700_000_000_000
    shown = command.ok("topics", "describe", "-t", "t")
    assert f" {sum(sizes) / 1024:.1f} KiB " in shown
    assert " 2023-11-14T22:13:20.000Z " in shown
    # Records below the log start, or of an aborted transaction, are no longer counted.
    command.ok("topics", "delete-records", "-t", "t", "-p", "0", "--offset", "1")
    eager = {"transactional.id": "x", "transaction.publish": "eager"}
    with Producer({"txnlog.root": command.root, **eager}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", "aborted")
        producer.flush()
        producer.abort_transaction()
    [row] = command.json("topics", "describe", "-t", "t")
    assert (row["Records"], row["Files"], row["HighWatermark"]) == (1, 3, 3)
    assert row["LastTimestamp"] == 1_600_000_000_000


def test_topic_that_a_live_group_reads_is_deleted_after_a_question(command: Command) -> None:
    """A slip of the name ends a service that is running."""
    for topic in ("read", "unread"):
        command.ok("topics", "create", "-t", topic, "--partitions", "1")
    config = {"txnlog.root": command.root, "group.id": "g[1]", "client.id": "c"}
    with Consumer(config) as consumer:
        consumer.subscribe(["read"])
        while not consumer.assignment():
            consumer.poll(0.1)
        command.ok("topics", "delete", "-t", "unread")
        told = command.fails("topics", "delete", "-t", "read")
        assert told == (
            "txnlog: Topic read is read by group g[1] (members: 1). Nothing was deleted. Stop them "
            "first, or give --yes."
        )
        status, shown = command.on_terminal("topics", "delete", "-t", "read", typed=b"n\n")
        assert (status, "group g[1] (members: 1). Delete it? [y/N]" in shown) == (1, True)
        assert command.ok("topics", "list") == "read\n"
        status, shown = command.on_terminal("topics", "delete", "-t", "read", typed=b"y\n")
        assert (status, "Deleted topic read." in shown) == (0, True)
        command.ok("topics", "create", "-t", "read", "--partitions", "1")
        command.ok("topics", "delete", "-t", "read", "--yes")
    command.ok("topics", "create", "-t", "read", "--partitions", "1")
    command.ok("topics", "delete", "-t", "read")


def test_offsets_and_deleted_records(command: Command) -> None:
    """Earliest, latest, and by timestamp."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    command.ok("produce", "-t", "t", input=b"a\nb\nc\n")
    shown = command.ok("offsets")
    assert header(shown) == ["TOPIC", "PARTITION", "OFFSET"]
    assert cells(shown) == [["t", "0", "3"]]
    asked = ["topics", "delete-records", "-t", "t", "-p", "0", "--offset"]
    assert cells(command.ok(*asked, "2")) == [["t", "0", "2"]]
    assert "up to offset 3" in command.fails(*asked, "9")
    for time, offset in [("earliest", 2), ("-1", 3), ("2020-01-01T00:00:00Z", 2), ("9" * 13, -1)]:
        [row] = command.json("offsets", "-t", "t", "--partitions", "0", "--time", time)
        assert row["OFFSET"] == offset, time
    assert "no partition 7" in command.fails("offsets", "-t", "t", "--partitions", "7")


# --- Groups ---------------------------------------------------------------------------------------


@pytest.fixture
def read(command: Command) -> Command:
    """Topic `t` of two partitions with five records in partition 0, of which group `g` read two."""
    command.ok("topics", "create", "-t", "t", "--partitions", "2")
    command.ok("produce", "-t", "t", "-p", "0", input=b"0\n1\n2\n3\n4\n")
    assert command.ok("consume", "-t", "t", "-g", "g", "--from-beginning", "-n", "2") == "0\n1\n"
    return command


def test_groups_described_with_kafkas_columns(read: Command) -> None:
    """Committed offsets, and the exact lag."""
    shown = read.ok("groups", "--describe", "--group", "g")
    assert header(shown) == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "BLOCKED-BY",
        "CONSUMER-ID", "HOST", "CLIENT-ID",
    ]  # fmt: skip
    assert cells(shown)[0] == ["g", "t", "0", "2", "5", "3", "-", "-", "-", "-"]
    assert read.json("groups", "list") == [{"GROUP": "g", "STATE": "Empty"}]
    [state] = read.json("groups", "describe", "-g", "g", "--state")
    assert (state["STATE"], state["#MEMBERS"]) == ("Empty", 0)
    assert "no group 'x'" in read.fails("groups", "describe", "-g", "x")


def test_groups_describe_names_the_transactions_that_a_group_waits_for(
    read: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lag that does not shrink looks like a slow consumer."""
    config = {
        "txnlog.root": read.root, "transactional.id": "tx", "transaction.publish": "eager",
        "linger.ms": 0,
    }  # fmt: skip
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("t", b"open", partition=0)
        producer.flush()
        read.ok("consume", "-t", "t", "-g", "all", "--from-beginning", "-n", "5")

        def blocked() -> dict[str, object]:
            rows = read.json("groups", "describe", "-g", "g", "-g", "all")
            return {
                row["GROUP"]: (row["LAG"], row["BLOCKED-BY"])
                for row in rows
                if row["PARTITION"] == 0
            }

        found = blocked()
        # It has still something to read before that.
        assert found["g"] == (4, None)
        lag, [by] = found["all"]
        assert lag == 1
        assert by.startswith("tx(until=20")
        with monkeypatch.context() as patched:
            denied = TransactionalIdAuthorizationError("no")
            patched.setattr(hanging, "find_hanging", Mock(side_effect=denied))
            assert blocked()["all"] == (1, ["?"])
        producer.commit_transaction()
        assert blocked() == {"g": (4, None), "all": (1, None)}


def test_all_groups_described_together(read: Command) -> None:
    """Kafka's --all-groups, and --group more than once; each view has all of them."""
    read.ok("consume", "-t", "t", "-g", "h", "--from-beginning", "-n", "5")
    rows = read.json("groups", "describe", "--all-groups")
    assert [(r["GROUP"], r["PARTITION"], r["LAG"]) for r in rows] == [
        ("g", 0, 3), ("g", 1, 0), ("h", 0, 0), ("h", 1, 0),
    ]  # fmt: skip
    assert read.json("groups", "describe", "-g", "g", "-g", "h") == rows
    states = read.json("groups", "describe", "--all-groups", "--state")
    assert [row["GROUP"] for row in states] == ["g", "h"]
    assert read.json("groups", "describe", "--all-groups", "--members") == []
    assert read.run("groups", "describe").exit_code == 2
    assert read.run("groups", "describe", "-g", "g", "--all-groups").exit_code == 2


def test_groups_describe_shows_members(read: Command) -> None:
    """The owner of each partition, also of one without a committed offset."""
    config = {"txnlog.root": read.root, "group.id": "live", "client.id": "me"}
    with Consumer(config) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(0)
        rows = read.json("groups", "describe", "-g", "live")
        assert [(row["PARTITION"], row["CLIENT-ID"]) for row in rows] == [(0, "me"), (1, "me")]
        [member] = read.json("groups", "describe", "-g", "live", "--members")
        assert (member["CONSUMER-ID"], member["#PARTITIONS"]) == (consumer.memberid(), 2)
        assert 0 <= member["HEARTBEAT-AGE-MS"] < 600_000
        assert "has members" in read.fails("groups", "delete", "-g", "live")


@pytest.mark.parametrize(
    ("rule", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 5),
        (["--to-offset", "4"], 4),
        (["--shift-by", "-1"], 1),
        (["--to-datetime", "2020-01-01T00:00:00.000"], 0),
        (["--to-datetime", "2999-01-01T00:00:00Z"], 5),
        (["--to-current"], 2),
        (["--by-duration", "PT1H"], 0),
        (["--by-duration", "0s"], 5),
    ],
)
def test_groups_reset_is_a_dry_run_without_execute(
    read: Command, rule: list[str], offset: int
) -> None:
    """As in Kafka's tool."""
    asked = ["groups", "--reset-offsets", "--group", "g", "--topic", "t:0", *rule]
    for dry in ([], ["--dry-run"]):
        result = read.run(*asked, *dry)
        assert result.exit_code == 0
        assert header(result.stdout) == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
        assert cells(result.stdout) == [["g", "t", "0", str(offset)]]
        assert "--execute" in result.stderr
        assert read.json("groups", "describe", "-g", "g")[0]["CURRENT-OFFSET"] == 2
    assert read.json(*asked, "--execute")[0]["NEW-OFFSET"] == offset
    assert read.json("groups", "describe", "-g", "g")[0]["CURRENT-OFFSET"] == offset


def test_groups_reset_of_a_new_group_and_of_all_topics(read: Command) -> None:
    """Outside of the log it uses the nearest offset, with a message."""
    reset = ["groups", "reset-offsets", "-g", "new", "--execute"]
    result = read.run(*reset, "-t", "t", "--to-offset", "4")
    assert "offset 4 of t-1 is out of range; 0 is the nearest" in result.stderr
    assert [row["CURRENT-OFFSET"] for row in read.json("groups", "describe", "-g", "new")] == [4, 0]
    read.ok(*reset, "--all-topics", "--to-latest")
    assert read.json("groups", "describe", "-g", "new")[0]["LAG"] == 0
    assert "no offset of 't' partition 0 to shift" in read.fails(
        "groups", "reset-offsets", "-g", "third", "-t", "t", "--shift-by", "1"
    )
    for wrong in (
        ["-t", "t"],
        ["-t", "t", "--to-latest", "--to-earliest"],
        ["--to-latest"],
        ["-t", "t", "--all-topics", "--to-latest"],
        ["-t", "t", "--to-latest", "--execute", "--dry-run"],
        ["-t", "t:x", "--to-latest"],
        ["-t", "t", "--by-duration", "P1M"],
        ["--from-file", "/no/such/file"],
    ):
        assert read.run("groups", "reset-offsets", "-g", "g", *wrong).exit_code == 2, wrong


def test_groups_reset_from_an_exported_file(read: Command, tmp_path: Path) -> None:
    """Kafka's way to save positions, and to bring them back or to another group."""
    result = read.run("groups", "reset-offsets", "-g", "g", "-t", "t", "--to-current", "--export")
    # A partition without an offset gets its end, as in Kafka.
    assert result.stdout == "t,0,2\nt,1,0\n"
    saved = tmp_path / "saved.csv"
    saved.write_text(result.stdout)
    asked = ["groups", "reset-offsets", "--from-file", str(saved), "--execute", "-g"]
    read.ok(*asked, "other")
    read.ok("groups", "reset-offsets", "-g", "g", "-t", "t", "--to-latest", "--execute")
    saved.write_text("g,t,0,2\n\ng,t,1,9\n")
    result = read.run(*asked, "g")
    assert "offset 9 of t-1 is out of range; 0 is the nearest" in result.stderr
    for group in ("g", "other"):
        rows = read.json("groups", "describe", "-g", group)
        assert [row["CURRENT-OFFSET"] for row in rows] == [2, 0]
    for wrong, said in [
        ("t,0\n", "line 1"),
        ("t,0,1\nt,x,2\n", "line 2"),
        ("h,t,0,1\n", "group 'h'"),
        ("", "no offsets"),
    ]:
        saved.write_text(wrong)
        result = read.run(*asked, "g")
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.replace("│", " ").split())
    assert read.run(*asked, "g", "-t", "t").exit_code == 2
    saved.write_text("gone,0,1\n")
    assert "no topic 'gone'" in read.fails(*asked, "g")


def test_groups_deleted(read: Command) -> None:
    """First its offsets of a topic, then the group."""
    read.ok("groups", "delete-offsets", "-g", "g", "-t", "t:1")
    assert [row["PARTITION"] for row in read.json("groups", "describe", "-g", "g")] == [0]
    read.ok("groups", "delete", "-g", "g")
    assert read.json("groups", "list") == []


def test_offsets_of_a_deleted_topic_can_be_deleted_and_do_not_stop_a_reset(read: Command) -> None:
    """`verify` says to delete them by the topic's name."""
    read.ok("topics", "create", "-t", "u", "--partitions", "1")
    read.ok("groups", "reset-offsets", "-g", "g", "-t", "u", "--to-latest", "--execute")
    read.ok("topics", "delete", "-t", "t")
    result = read.run("groups", "reset-offsets", "-g", "g", "--all-topics", "--to-earliest")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == ["g      u      0          0"]
    assert "topic t is left out: it is deleted" in result.stderr
    assert "delete-offsets --group=g --topic=t" in result.stderr
    read.ok("groups", "delete-offsets", "-g", "g", "-t", "t")
    assert [row["TOPIC"] for row in read.json("groups", "describe", "-g", "g")] == ["u"]
    assert "no topic 't'" in read.fails("groups", "delete-offsets", "-g", "g", "-t", "t")
