"""`txnlog transactions`, `dump` and `housekeeping`: Kafka's columns, owners and fencing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.runner import Command
from tests.cli.test_records import ended, process
from tests.staged_files import append_ongoing, named_file_of
from txnlog.cluster import Cluster
from txnlog.errors import ProducerFencedError
from txnlog.producer import Producer
from txnlog.protocol.metadata import Owner, TopicPartitions, TransactionMetadata
from txnlog.storage.delta.actions import Remove
from txnlog.testing.counts import count

LIST = ["TransactionalId", "Coordinator", "ProducerId", "TransactionState", "QueryName"]
DESCRIBE = [
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState",
    "TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs",
    "TopicPartitions",
]  # fmt: skip
PRODUCERS = [
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
]  # fmt: skip
HANGING = [
    "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset",
    "LastTimestamp", "Duration(min)",
]  # fmt: skip


@pytest.fixture
def topic(command: Command) -> Command:
    """Topic `t` with one partition."""
    command.ok("topics", "create", "-t", "t", "--partitions", "1")
    return command


def opened(command: Command) -> Producer:
    """An eager transaction with one record in the topic."""
    config = {
        "txnlog.root": command.root, "transactional.id": "tx", "transaction.publish": "eager",
        "linger.ms": 0,
    }  # fmt: skip
    producer = Producer(config)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("t", value="open")
    producer.flush()
    return producer


def columns(text: str) -> list[str]:
    return text.splitlines()[0].split()


def test_names_of_spark_queries_are_shown(command: Command) -> None:
    """The id of a query is a UUID, which tells people nothing."""
    owner = Owner(run_id="r", query_id="0b5c", query_name="hourly orders")
    command.cluster().coordinator.init_producer_id("0b5c", owner)
    assert command.json("transactions", "list")[0]["QueryName"] == "hourly orders"
    [told] = command.json("transactions", "describe", "--transactional-id", "0b5c")
    assert (told["QueryName"], told["QueryId"]) == ("hourly orders", "0b5c")
    shown = command.ok("transactions", "describe", "--transactional-id", "0b5c")
    assert "  Query: hourly orders\n" in shown


def test_list_and_describe_have_kafkas_columns_and_the_owner(topic: Command) -> None:
    """The owner, since when, and after a fencing by whom and why (R42)."""
    producer = opened(topic)
    listed = topic.ok(
        "transactions", "list", "--state", "Ongoing", "--transactional-id-pattern", "t.*"
    )
    assert columns(listed) == LIST
    assert len(listed.splitlines()) == 2
    assert topic.json("transactions", "list", "--duration-filter", "3600000") == []
    named = ("--transactional-id", "tx")
    described = topic.ok("transactions", "describe", *named)
    assert columns(described) == DESCRIBE
    assert described.splitlines()[1].split()[4] == "Ongoing"
    assert described.splitlines()[1].split()[-1] == "t-0"
    assert "Owner: " in described
    assert "since 20" in described
    fenced = topic.ok("transactions", "fence", *named, "--reason", "moving house")
    assert fenced.startswith("Fenced the owner of tx")
    story = topic.ok("transactions", "describe", *named)
    assert "It is fenced" in story
    assert "txnlog-cli, an admin client in process" in story
    assert "Reason: moving house" in story
    [told] = topic.json("transactions", "describe", *named)
    assert (told["OwnerFenced"], told["LastFenced"]["Reason"]) == (True, "moving house")
    assert told["TransactionState"] == "CompleteAbort"
    with pytest.raises(ProducerFencedError, match="moving house"):
        producer.commit_transaction()
    producer.close()
    assert "no transactional.id" in topic.fails(
        "transactions", "describe", "--transactional-id", "x"
    )
    assert topic.run("transactions", "list", "--state", "Busy").exit_code == 2


def test_abort_by_id_unblocks_readers(topic: Command) -> None:
    """The LSO advances, and the record of the transaction is not read (R43)."""
    producer = opened(topic)
    topic.ok("produce", "-t", "t", input=b"after\n")
    reading = ("consume", "-t", "t", "--from-beginning", "--timeout-ms", "200")
    assert topic.ok(*reading) == ""
    assert topic.ok(*reading, "--isolation-level", "read_uncommitted") == "open\nafter\n"
    shown = topic.ok("transactions", "describe-producers", "-t", "t", "-p", "0")
    assert columns(shown) == PRODUCERS
    assert sorted(line.split()[-1] for line in shown.splitlines()[1:]) == ["0", "None"]
    said = topic.ok("transactions", "abort", "--transactional-id", "tx")
    assert said == "Fenced the owner of tx; what it had open is aborted.\n"
    assert topic.ok(*reading) == "after\n"
    with pytest.raises(ProducerFencedError, match="admin client"):
        producer.commit_transaction()
    with suppress(ProducerFencedError):
        producer.close()
    for wrong in ([], ["--transactional-id", "tx", "-t", "t"], ["-t", "t", "-p", "0"]):
        assert topic.run("transactions", "abort", *wrong).exit_code == 2


def lost(cluster: Cluster) -> TransactionMetadata:
    """An open transaction without a state row."""
    log = cluster.topic("t")
    row = cluster.coordinator.init_producer_id("lost", Owner(run_id="r"))
    row = cluster.coordinator.add_partitions(
        row, [TopicPartitions(topic="t", topic_id=log.topic_id, partitions=(0,))]
    )
    path = f"part-0-{uuid.uuid4()}.parquet"
    cluster.store.put(f"t/{path}", b"x")
    batch = named_file_of(log, path, staged_ms=cluster.store.now_ms())
    append_ongoing(cluster, row, [batch], {0: 0})
    return row


def test_find_hanging_and_abort_by_producer(topic: Command) -> None:
    """The listing has all arguments that abort needs (R21)."""
    row = lost(topic.cluster())
    shard = topic.cluster().shard_for(row.transactional_id)
    there = shard.row(row.transactional_id)
    assert there is not None
    shard.log.commit([Remove(there.path, 0, data_change=True)], operation="TEST")
    assert topic.json("transactions", "find-hanging", "--max-transaction-timeout", "15") == []
    shown = topic.ok("transactions", "find-hanging", "-t", "t")
    assert columns(shown) == HANGING
    assert "without a state row, since 20" in shown
    [found] = topic.json("transactions", "find-hanging")
    assert found["Command"].removeprefix("txnlog ") in shown
    topic.ok(
        "transactions", "abort", "-t", found["Topic"], "-p", str(found["Partition"]),
        "--producer-id", str(found["ProducerId"]), "--producer-epoch", str(found["ProducerEpoch"]),
    )  # fmt: skip
    assert topic.json("transactions", "find-hanging") == []
    assert topic.run("transactions", "find-hanging", "-p", "0").exit_code == 2


def test_find_hanging_shows_an_open_transaction_and_the_command_that_ends_it(
    topic: Command,
) -> None:
    """An operator whose readers wait has neither 15 minutes nor a manual (R21)."""
    producer = opened(topic)
    shown = topic.ok("transactions", "find-hanging").splitlines()
    assert shown[1].split()[:2] == ["t", "0"]
    assert shown[2] == ""
    assert shown[3].startswith("tx: Ongoing, since 20")
    told = {line.strip().partition(": ")[0]: line.partition(": ")[2] for line in shown[4:]}
    assert f"process {os.getpid()}" in told["Owner"]
    assert told["Until"].startswith("20")
    assert told["Blocks"] == "read_committed readers of t-0 at offset 0"
    [found] = topic.json("transactions", "find-hanging")
    assert list(found)[: len(HANGING)] == HANGING
    assert (found["TransactionalId"], found["StartOffset"]) == ("tx", 0)
    assert found["UntilMs"] == found["SinceMs"] + 60_000
    program, *command = shlex.split(told["End it now"])
    assert (program, topic.ok(*command)[:6]) == ("txnlog", "Fenced")
    assert topic.json("transactions", "find-hanging") == []
    with suppress(ProducerFencedError):
        producer.close()


def test_dump_prints_headers_markers_and_states(topic: Command) -> None:
    """Commit by commit, from the log alone."""
    topic.ok("produce", "-t", "t", "--transactional-id", "tx", input=b"a\nb\n")
    topic.ok("topics", "delete-records", "-t", "t", "-p", "0", "--offset", "1")
    entries = [
        json.loads(line) for line in topic.ok("dump", "-t", "t", "--output", "json").splitlines()
    ]
    kinds = [entry["kind"] for entry in entries]
    assert kinds == ["topic", "marker", "batch", "start"]
    batch = entries[2]
    assert (batch["baseOffset"], batch["lastOffset"], batch["count"]) == (0, 1, 2)
    assert (batch["txnStatus"], batch["operation"]) == ("committed", "WRITE TXN MARKERS")
    text = topic.ok("dump", "-t", "t", "-p", "0", "--from-version", "1")
    assert "baseOffset: 0 lastOffset: 1 count: 2 txnStatus: committed" in text
    assert "kind: topic" not in text
    history = topic.ok("dump", "--transactional-id", "tx", "--output", "json").splitlines()
    assert [json.loads(line)["state"] for line in history] == [
        "EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT",
    ]  # fmt: skip
    assert json.loads(history[1])["topics"] == ["t"]
    assert "no commit of" in topic.fails("dump", "--transactional-id", "nothing")
    assert topic.run("dump").exit_code == 2


def test_housekeeping_once_reports_what_it_did(topic: Command) -> None:
    """One round, by cron; a concurrent second one does nothing."""
    rows = topic.json("housekeeping", "--once")
    assert {row["COUNT"] for row in rows} == {0}
    assert {"transactions and offsets settled", "files compacted"} <= {row["DUTY"] for row in rows}


def assert_ended_quietly(process: subprocess.Popen[bytes]) -> None:
    """It ends on its own, without errors."""
    status, told = ended(process)
    assert status == 0, told
    assert not any(word in told for word in (b"WARNING", b"ERROR", b"Traceback")), told


def test_housekeeping_runs_until_sigterm_and_releases_its_lease(topic: Command) -> None:
    """Of several processes, the next one starts working at once."""
    with process(topic, "housekeeping") as working:
        assert working.stderr is not None
        assert b"is done by this process" in working.stderr.readline()
        with process(topic, "housekeeping") as waiting:
            assert waiting.stderr is not None
            assert b"is done by process" in waiting.stderr.readline()
            assert topic.ok("housekeeping", "--once").startswith("Another process")
            waiting.send_signal(signal.SIGTERM)
            assert_ended_quietly(waiting)
        working.send_signal(signal.SIGINT)
        assert_ended_quietly(working)
    assert topic.ok("housekeeping", "--once").startswith("DUTY")


def test_housekeeping_killed_is_taken_over_after_its_lease(topic: Command) -> None:
    """SIGKILL does not release it; clients continue meanwhile (R73)."""
    with process(topic, "housekeeping", "--lease-ms", "5000") as working:
        assert working.stderr is not None
        assert b"is done by this process" in working.stderr.readline()
        with process(topic, "housekeeping", "--lease-ms", "5000") as waiting:
            assert waiting.stderr is not None
            assert b"is done by process" in waiting.stderr.readline()
            working.kill()
            count("kills", "housekeeper")
            topic.ok("produce", "-t", "t", "--transactional-id", "tx", input=b"x\n")
            assert b"is done by this process" in waiting.stderr.readline()
            waiting.send_signal(signal.SIGTERM)
            assert_ended_quietly(waiting)


def test_without_the_extra_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    """`pip install txnlog` alone has no typer."""
    (tmp_path / "typer").mkdir()
    (tmp_path / "typer" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')"
    )
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from txnlog.cli.main import run; run()"
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert "pip install 'txnlog[cli]'" in found.stderr
