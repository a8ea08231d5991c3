"""`txnlog why` about a group, an id and a record: what a person and a program are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.cli.runner import PROJECT, Command
from tests.verify.roots import halve
from tests.why.test_incidents import decided, opened, staged
from tests.why.worlds import MINUTE_MS, Disk, produce
from txnlog.admin import ProblemKind
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import TransactionalIdNotFoundError, UnknownTopicOrPartitionError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.expiry import prepare_expire_unchanged
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import AppTransaction, LastBatch, Owner
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore


class Told(Command):
    """The command for the root of a Disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk.folder.parent)
        self.root = str(disk.folder)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "lake")


def trace(disk: Disk, topic: str, offset: int) -> Any:
    return disk.admin.trace_record(TopicPartition(topic, 0, offset)).result()


# --- Groups ---------------------------------------------------------------------------------------


def read_all(disk: Disk, group: str = "readers") -> None:
    """A group that has committed what it can read."""
    with disk.consumer(group, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        messages = consumer.consume(100, timeout=0.1)
        consumer.commit(message=messages[-1], asynchronous=False)


def test_group_is_told_which_open_transaction_it_waits_for(disk: Disk) -> None:
    """At once: its reader waits now, however young the transaction is."""
    produce(disk)
    read_all(disk)
    opened(disk, "slow")
    found = disk.admin.explain_group("readers").result()
    assert [(one.kind, one.subject) for one in found.problems] == [(ProblemKind.OPEN, "slow")]
    assert disk.problems() == []
    told = Told(disk)
    shown = told.ok("why", "-g", "readers").splitlines()
    assert shown[0] == "1 problem."
    assert shown[2].startswith("open transaction: slow: Ongoing, since 20")
    lines = {line.strip().partition(": ")[0]: line.partition(": ")[2] for line in shown[3:8]}
    assert lines["Blocks"] == "read_committed readers of orders-0 at offset 1"
    assert lines["End it now"].endswith("transactions abort --transactional-id=slow")
    found = told.json("why", "-g", "readers")
    assert found["partitions"][0]["LAG"] == 1
    [problem] = found["problems"]
    assert (problem["kind"], problem["untilMs"]) == ("OPEN", problem["sinceMs"] + MINUTE_MS)
    assert None not in (problem["owner"]["host"], problem["owner"]["pid"])


@pytest.mark.parametrize(
    ("records", "says"), [(0, "it has read everything"), (2, "2 records are left to read, and nob")]
)
def test_group_without_a_problem_is_told_how_far_it_is(disk: Disk, records: int, says: str) -> None:
    """Lag without a reader is no mystery, but it must be said."""
    produce(disk)
    read_all(disk)
    if records:
        produce(disk, "more", records=records)
    found = disk.admin.explain_group("readers").result()
    assert (list(found.problems), found.verdict.startswith("no problems")) == ([], True)
    assert says in found.verdict


def test_problem_of_others_is_not_the_groups(disk: Disk) -> None:
    """It has not read up to the open transaction of `stock`, or does not read it at all."""
    produce(disk)
    read_all(disk)
    made = disk.producer("slow", transaction_publish="eager", linger_ms=0)
    made.begin_transaction()
    made.produce("stock", "open")
    made.flush()
    disk.later(MINUTE_MS)
    assert [one.subject for one in disk.problems()] == ["slow"]
    assert disk.admin.explain_group("readers").result().problems == []


def test_group_is_told_of_the_damaged_file_that_it_reads_next(disk: Disk) -> None:
    """Its consumers fail there, again and again."""
    produce(disk)
    read_all(disk)
    produce(disk, "more")
    header = disk.operator.topic("orders").view.partitions[0].batches[-1]
    halve(disk.folder / "orders" / header.path)
    [problem] = disk.admin.explain_group("readers").result().problems
    assert (problem.kind, problem.subject) == (ProblemKind.FILE_DAMAGED, "orders")
    assert f"orders/{header.path} has " in problem.why


# --- Ids ------------------------------------------------------------------------------------------


def explained(disk: Disk, name: str = "tx") -> Any:
    return disk.admin.explain_transactional_id(name).result()


def test_id_that_a_newer_start_took_over_is_told_by_whom(disk: Disk) -> None:
    """The usual question of a query that was fenced."""
    cluster = disk.process()
    for run, host in (("run-1", "driver-1"), ("run-2", "driver-2")):
        owner = Owner(run_id=run, query_id="tx", query_name="hourly", host=host, pid=7)
        cluster.coordinator.init_producer_id("tx", owner)
    found = explained(disk)
    assert (
        "fenced by query tx, run run-2 on driver-2, process 7: a newer start took it over"
        in found.verdict
    )
    assert "a checkpoint of its own" in found.advice
    told = Told(disk).json("why", "--transactional-id", "tx")
    assert told["fenced"]["by"] == "query tx, run run-2 on driver-2, process 7"
    assert told["fenced"]["atMs"] > 0
    assert told["owner"]["queryName"] == "hourly"
    assert "What to do: Nothing after a restart." in Told(disk).ok("why", "--transactional-id=tx")


def test_id_whose_transaction_timed_out_is_told_so(disk: Disk) -> None:
    """The producer gets an error that it must understand."""
    opened(disk)
    sweeper = Sweeper(disk.process(), interval_ms=MINUTE_MS)
    for _ in range(3):
        sweeper.sweep()
        disk.later(MINUTE_MS)
    found = explained(disk)
    assert "was aborted by the sweeper of process" in found.verdict
    assert "timed out (transaction.timeout.ms=60000)" in found.verdict
    assert "raise transaction.timeout.ms=60000" in found.advice
    assert found.problems == []


def test_id_that_an_operator_fenced_is_told_the_reason(disk: Disk) -> None:
    """Nobody owns it: only a new start goes on."""
    produce(disk)
    disk.admin.fence_producers(["tx"], reason="moving house")["tx"].result()
    found = explained(disk)
    assert "fenced by ops, an admin client" in found.verdict
    assert "moving house" in found.verdict
    assert "start its program again" in found.advice


def test_expired_id_is_told_from_the_log(disk: Disk) -> None:
    """Its row is gone; its producer is refused with a word about it."""
    produce(disk)
    cluster = disk.process()
    row = cluster.coordinator.describe("tx")
    assert row is not None
    disk.process().coordinator.init_producer_id("tx", Owner(run_id="again"))
    row = cluster.coordinator.describe("tx")
    assert row is not None
    cluster.shard_for("tx").transition(
        "tx", lambda now: prepare_expire_unchanged(now, row, now_ms=disk.clock.now_ms())
    )
    found = explained(disk)
    assert found.row is None
    assert found.verdict.startswith("It expired, since nothing was written under it")
    with pytest.raises(TransactionalIdNotFoundError):
        explained(disk, "nothing")


def test_story_is_sentences_in_order(disk: Disk) -> None:
    """Who owned it, what it opened and decided, who fenced it and why."""
    made = produce(disk)
    for _ in range(9):
        made.begin_transaction()
        made.produce("orders", "x")
        made.commit_transaction()
    opened(disk)
    disk.later(1_000)
    disk.admin.abort_transaction("tx", reason="it hung").result()
    found = explained(disk).story
    assert [one.at_ms for one in found] == sorted(one.at_ms for one in found)
    texts = [one.text for one in found]
    assert texts[0].startswith("Its first owner is txnlog-")
    assert texts[1].startswith("It went on with its transactions: ")
    assert any("fenced by" in text and "taken over by a newer start" in text for text in texts)
    assert "It opened the transaction of epoch 11, in orders." in texts
    assert any("it hung; its open transaction of epoch 11 is aborted." in text for text in texts)
    assert texts[-1] == "The transaction of epoch 11 is complete: aborted."
    shown = Told(disk).ok("why", "--story", "tx").splitlines()
    assert [line.partition("  ")[2] for line in shown] == texts
    assert all(line.startswith("20") for line in shown)
    assert [one["text"] for one in Told(disk).json("why", "--story", "tx")["story"]] == texts


def test_story_tells_a_prepared_transaction_and_a_raised_floor(disk: Disk) -> None:
    """Phase one of two, and the end of a reader's rights."""
    made = opened(disk)
    made.prepare_transaction()
    assert "Its client prepared the transaction of epoch 0." in [
        one.text for one in explained(disk).story
    ]


# --- Records --------------------------------------------------------------------------------------


def query_batch(disk: Disk) -> None:
    """Batch 5 of a Spark query, in both topics, with offsets of its group."""
    cluster = disk.process()
    generation = cluster.groups.start("q-group")
    owner = Owner(run_id="run", query_id="q1", query_name="hourly", host="driver", pid=7)
    row = cluster.coordinator.init_producer_id("q1", owner)
    offsets = GroupOffsets(
        group_id="q-group", generation=generation, start={"orders": {0: 0}}, end={"orders": {0: 1}}
    )
    cluster.coordinator.commit(
        row,
        [staged(cluster, "orders"), staged(cluster, "stock")],
        offsets=[offsets],
        last_batch=LastBatch(batch_id=5, topics=("orders", "stock")),
    )


def test_record_names_its_transaction_siblings_offsets_and_readers(disk: Disk) -> None:
    """The question that no console answers."""
    produce(disk)
    query_batch(disk)
    read_all(disk)
    found = trace(disk, "orders", 1)
    assert (found.status, found.transactional_id, found.batch_id) == ("committed", "q1", 5)
    assert (found.owner.query_name, found.owner.host, found.owner.pid) == ("hourly", "driver", 7)
    assert [piece[:4] for piece in found.pieces] == [("orders", 0, 1, 1), ("stock", 0, 1, 1)]
    assert all(len(piece.files) == 1 for piece in found.pieces)
    [ticket] = found.offsets
    assert (ticket.group_id, ticket.offsets) == ("q-group", {"orders": {0: 1}})
    assert found.read_by == ["readers"]
    assert trace(disk, "orders", 0).read_by == ["q-group", "readers"]
    told = Told(disk)
    shown = told.ok("why", "orders:0:1")
    for line in (
        "The record of orders-0 at offset 1: committed, in a transaction of q1.",
        "  Owner: query q1, run run on driver, process 7",
        "  Query: hourly",
        "  Batch: 5",
        "  Offsets of group q-group: orders-0 to 1",
        "  Read by: readers",
    ):
        assert f"{line}\n" in shown, shown
    values = told.json("why", "orders:0:1")
    assert (values["batchId"], values["owner"]["queryId"]) == (5, "q1")
    assert values["offsets"] == {"q-group": {"orders": {"0": 1}}}
    assert [piece["firstOffset"] for piece in values["pieces"]] == [1, 1]


def test_record_of_an_older_transaction_is_not_taken_for_the_ids_newest(disk: Disk) -> None:
    """The row shows the newest only; the log has the others."""
    made = produce(disk)
    for number in range(3):
        made.begin_transaction()
        made.produce("orders", f"{number}")
        made.commit_transaction()
    found = trace(disk, "orders", 1)
    assert (found.producer_epoch, found.transactional_id) == (1, "tx")
    assert [piece[:4] for piece in found.pieces] == [("orders", 0, 1, 1)]
    assert trace(disk, "stock", 0).producer_epoch == 0


def test_record_of_a_batch_write_is_found_though_its_id_is_gone(disk: Disk) -> None:
    """Its row is removed with its end."""
    cluster = disk.process()
    owner = Owner(run_id="run", host="driver", pid=7)
    app = AppTransaction(app_id="a", version=1)
    assert commit_one_off(cluster, [staged(cluster)], owner, app=app)
    found = trace(disk, "orders", 0)
    assert (found.status, found.owner.host) == ("committed", "driver")


@pytest.mark.parametrize("status", ["ongoing", "aborted", "none", "not written", "removed"])
def test_record_that_is_not_committed_is_told_so(disk: Disk, status: str) -> None:
    """Open and aborted ones have an owner, too."""
    if status == "none":
        with Producer(disk.root, cluster=disk.process(), background=False) as made:
            made.produce("orders", "x")
    elif status == "removed":
        produce(disk)
        disk.admin.delete_records([TopicPartition("orders", 0, 1)])
    elif status != "not written":
        made = opened(disk)
        if status == "aborted":
            made.abort_transaction()
    found = trace(disk, "orders", 0)
    assert found.status == status
    assert (found.transactional_id == "tx") is (status in ("ongoing", "aborted"))
    Told(disk).ok("why", "orders:0:0")


def compact(disk: Disk, records: int = 12) -> None:
    made = produce(disk)
    for _ in range(records):
        made.begin_transaction()
        made.produce("orders", "x")
        made.produce("stock", "x")
        made.commit_transaction()
    assert Compactor(disk.process()).compact("orders") > 0


def test_compacted_record_is_known_for_the_log_retention(disk: Disk) -> None:
    """Compaction may merge a batch seconds after its commit."""
    compact(disk)
    found = trace(disk, "orders", 3)
    assert (found.transactional_id, found.producer_epoch) == ("tx", 3)
    assert [piece[:4] for piece in found.pieces] == [("orders", 0, 3, 3), ("stock", 0, 3, 3)]


def test_compacted_record_is_unknown_after_the_log_retention(disk: Disk) -> None:
    """It must not be guessed."""
    compact(disk)
    log = disk.operator.topic("orders")
    create_checkpoint(disk.operator.store, "orders", trust_ms=10**9)
    for version in range(log.log.version):
        (disk.folder / commit_path("orders", version)).unlink()
    found = trace(disk, "orders", 3)
    assert (found.status, found.transactional_id) == ("compacted, unknown", "")
    assert "compacted, unknown" in Told(disk).ok("why", "orders:0:3")
    # Uncompacted siblings are known without the log.
    assert trace(disk, "stock", 3).transactional_id == "tx"


def test_key_finds_its_newest_record(disk: Disk) -> None:
    """Not an aborted one, nor one of another key."""
    produce(disk, records=3)
    produce(disk, "again", records=2)
    found = Told(disk).json("why", "-t", "orders", "--key", "key-1")
    assert (found["offset"], found["transactionalId"]) == (4, "again")
    assert disk.admin.trace_key("orders", b"key-2").result().offset == 2
    with pytest.raises(UnknownTopicOrPartitionError):
        disk.admin.trace_key("orders", b"nothing").result()


def test_every_kind_of_problem_is_in_the_docs() -> None:
    """An operator looks it up by its name."""
    page = (PROJECT / "docs" / "cli.md").read_text()
    assert [kind for kind in ProblemKind if f"\n| {kind.value} | " not in page] == []


# --- The root, arguments --------------------------------------------------------------------------


def test_root_begins_with_a_verdict_and_a_command_can_be_pasted(disk: Disk) -> None:
    """`why` alone is what an operator types first."""
    told = Told(disk)
    assert told.ok("why") == "No problems.\n"
    assert told.json("why") == {"verdict": "no problems", "problems": []}
    decided(disk)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "txnlog.protocol.diagnosis.find_problems.__kwdefaults__", {"patience_ms": 0}
        )
        shown = told.ok("why").splitlines()
        [found] = told.json("why")["problems"]
    assert shown[0] == "1 problem."
    assert shown[2].startswith("decided, not published: tx: PrepareCommit; its marker is not in or")
    assert (found["kind"], found["batchId"]) == ("DECIDED", None)
    command = found["command"].split()[1:]
    told.ok(*command)
    assert told.ok("why") == "No problems.\n"


@pytest.mark.parametrize(
    "args",
    [["x"], ["t:0"], ["t:0:x"], ["t:0:1", "-g", "g"], ["--key", "k"], ["-t", "t"], ["t:-1:0"]],
)
def test_wrong_arguments_are_usage_errors(disk: Disk, args: list[str]) -> None:
    """Nothing is guessed."""
    assert Told(disk).run("why", *args).exit_code == 2


def test_reads_no_more_than_one_consumer_and_writes_no_table(disk: Disk) -> None:
    """It may run beside everything, every minute, after a million transactions."""
    made, store = produce(disk), disk.operator.store
    seen = []
    for rounds in (5, 60):
        for _ in range(rounds):
            made.begin_transaction()
            made.produce("orders", "x")
            made.commit_transaction()
        disk.problems()
        before = sorted(map(str, disk.folder.rglob("*")))
        with patch.object(store, "_call", wraps=store._call) as called:
            assert disk.problems() == []
        assert sorted(map(str, disk.folder.rglob("*"))) == before
        assert "put" not in [call.args[0] for call in called.call_args_list]
        seen.append(called.call_count)
    assert seen[0] == seen[1] < 40, seen


def test_values_of_json_are_exact(disk: Disk) -> None:
    """For programs: no line of ours stands for a value."""
    name = "a[red]\x1b]52;c;eA==\x07\nb"
    opened(disk, name)
    disk.later(40_000)
    shown = Told(disk).ok("why", "--transactional-id", name)
    assert r"a[red]\x1b]52;c;eA==\x07\x0ab" in shown
    told = json.loads(Told(disk).ok("why", "--transactional-id", name, "--output", "json"))
    assert told["problems"][0]["transactionalId"] == name


def test_who_has_read_a_record_costs_no_call_for_each_group(disk: Disk) -> None:
    """Their table is looked at once. It has no checkpoint here, so its commits are listed."""
    produce(disk)
    admin, asked, calls = disk.admin, TopicPartition("orders", 0, 0), []
    for groups in (range(2), range(2, 12)):
        for number in groups:
            disk.process().groups.start(f"group{number}")
        admin.trace_record(asked).result()
        with patch.object(
            ObjectStore, "_call", autospec=True, side_effect=ObjectStore._call
        ) as call:
            admin.trace_record(asked).result()
        calls.append(call.call_count)
    assert calls[1] - calls[0] == len(range(2, 12))
