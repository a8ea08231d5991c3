"""`txnlog snapshots`: create, list and drop."""

from __future__ import annotations

from tests.cli.runner import Command


def test_named_snapshots_are_created_listed_and_dropped(command: Command) -> None:
    """As an operator types it; each error says what to do."""
    command.ok("topics", "create", "-t", "t")
    made = command.ok("snapshots", "create", "nightly", "--ttl", "30d")
    assert made.startswith("Snapshot nightly has 1 topics and 0 groups, and is kept until 20")
    [shown] = command.json("snapshots", "list")
    assert set(shown) == {"NAME", "TAKEN", "EXPIRES"}
    assert shown["NAME"] == "nightly"
    assert "Drop it first" in command.fails("snapshots", "create", "nightly")
    assert command.run("snapshots", "create", "n", "--ttl", "soon").exit_code == 2
    assert command.run("snapshots", "create", "n", "--ttl", "0s").exit_code == 1
    assert command.ok("snapshots", "drop", "nightly") == "Dropped snapshot nightly.\n"
    assert "there are: none" in command.fails("snapshots", "drop", "nightly")
    assert command.json("snapshots", "list") == []
