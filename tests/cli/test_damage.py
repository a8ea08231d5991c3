"""Commands beside damage: all undamaged results, one line per error, and exit code 1."""

from __future__ import annotations

import json

from tests.cli.runner import Command
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.delta_log import Committed
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.tables.schemas import row_add


def damaged(command: Command, *topics: str) -> Cluster:
    """Unreadable topics beside `good`."""
    cluster = Cluster.open(command.root)
    for topic in ("good", *topics):
        cluster.create_topic(topic, partitions=1)
    for topic in topics:
        cluster.store.put(commit_path(topic, 0), b"{")
    return cluster


def spoiled(command: Command, spoiled_id: str = "tx") -> None:
    """An unreadable transactional.id and group."""
    cluster = Cluster.open(command.root)
    for name in (spoiled_id, "fine"):
        cluster.coordinator.init_producer_id(name, Owner(run_id=name))
        cluster.groups.start(name)
        cluster.groups.reset(name, {"good": {0: 0}})
    shard, offsets = cluster.shard(cluster.shard_of(spoiled_id)), cluster.offsets_log(spoiled_id)
    for log, values in (
        (shard, {**shard.view.rows[spoiled_id].to_values(), "state": "?"}),
        (offsets, {**offsets.view.rows[spoiled_id].to_values(), "offsets": "?"}),
    ):
        log.refresh()
        add = row_add(log.view.rows[spoiled_id].path, values, size_bytes=1, now_ms=0)
        assert isinstance(log.log.commit([add], operation="MISTAKE"), Committed)


def test_topics_are_listed_and_described_beside_a_damaged_one(command: Command) -> None:
    """The command printed only the error of the first damaged topic."""
    damaged(command, "bad")
    for args in (("list",), ("describe",), ("list", "--output", "json")):
        result = command.run("topics", *args)
        assert (result.exit_code, "good" in result.stdout) == (1, True)
        assert result.stderr.startswith("txnlog: bad: ")
        assert len(result.stderr.splitlines()) == 1
    assert command.run("offsets").exit_code == 1
    assert "good" in command.run("offsets").stdout
    alone = command.run("topics", "describe", "--topic", "bad")
    assert (alone.exit_code, alone.stdout) == (1, "")


def test_damaged_topic_is_deleted_by_force(command: Command) -> None:
    """Without --force the error says what to do."""
    damaged(command, "bad")
    refused = command.run("topics", "delete", "--topic", "bad")
    assert (refused.exit_code, "--force" in refused.stderr) == (1, True)
    command.ok("topics", "delete", "--topic", "bad", "--force")
    assert command.ok("topics", "list") == "good\n"


def test_unreadable_rows_are_listed_and_deleted(command: Command) -> None:
    """Unreadable rows are what an operator looks for."""
    damaged(command)
    spoiled(command)
    found = command.run("transactions", "list")
    assert found.exit_code == 1
    assert [line.split()[0] for line in found.stdout.splitlines()[1:]] == ["fine", "tx"]
    assert "Unreadable" in found.stdout
    assert "transactions delete --transactional-id=tx" in found.stderr
    groups = command.run("groups", "list")
    assert (groups.exit_code, groups.stdout.splitlines()[1:]) == (
        1,
        ["fine   Empty", "tx     Unreadable"],
    )
    assert command.run("transactions", "describe", "--transactional-id", "tx").exit_code == 1
    command.ok("transactions", "describe", "--transactional-id", "fine")
    command.ok("transactions", "delete", "--transactional-id", "tx")
    command.ok("groups", "delete", "--group", "tx")
    command.ok("transactions", "list")
    command.ok("groups", "list")


def test_command_that_deletes_an_unreadable_row_is_quoted(command: Command) -> None:
    """An operator pastes it; ids are chosen by clients."""
    damaged(command)
    spoiled(command, "$(touch x)\x1b[2J")
    for kind, option in (("transactions", "--transactional-id"), ("groups", "--group")):
        said = command.run(kind, "list").stderr
        assert rf"`txnlog {kind} delete {option}=$'$(touch x)\x1b[2J'`" in said
        assert "\x1b" not in said


def test_housekeeping_reports_all_failures(command: Command) -> None:
    """With two damaged topics, the second was reported only after the first was repaired (R37)."""
    damaged(command, "bad", "worse")
    result = command.run("housekeeping", "--once")
    assert result.exit_code == 1
    for topic in ("bad", "worse"):
        assert f"topic '{topic}'" in result.stderr
    assert all(line.startswith("txnlog: ") for line in result.stderr.splitlines())
    as_json = command.run("housekeeping", "--once", "--output", "json")
    told = json.loads(as_json.stderr.splitlines()[-1])
    assert {error["error"] for error in told["errors"]} == {"CorruptLogError"}
    assert len(told["errors"]) >= 2
