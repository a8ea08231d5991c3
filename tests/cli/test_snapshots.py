"""`txnlog snapshots`: create, list, describe and drop."""

from __future__ import annotations

import shutil
from pathlib import Path

from deltalake import write_deltalake

from tests.cli.runner import Command
from tests.tables import rows


def test_named_snapshots_are_created_listed_and_dropped(command: Command) -> None:
    """As an operator types it; each error says what to do."""
    command.ok("topics", "create", "-t", "t")
    made = command.ok("snapshots", "create", "nightly", "--ttl", "30d")
    assert made.startswith(
        "Snapshot nightly has 1 topics, 0 tables and 0 groups, and is kept until 20"
    )
    [shown] = command.json("snapshots", "list")
    assert set(shown) == {"NAME", "TAKEN", "EXPIRES"}
    assert shown["NAME"] == "nightly"
    assert "Drop it first" in command.fails("snapshots", "create", "nightly")
    assert command.run("snapshots", "create", "n", "--ttl", "soon").exit_code == 2
    assert command.run("snapshots", "create", "n", "--ttl", "0s").exit_code == 1
    assert command.ok("snapshots", "drop", "nightly") == "Dropped snapshot nightly.\n"
    assert "there are: none" in command.fails("snapshots", "drop", "nightly")
    assert command.json("snapshots", "list") == []


def test_tables_of_a_snapshot_are_described_and_missing_ones_named(
    command: Command, tmp_path: Path
) -> None:
    """A script learns by the exit code that the snapshot is not whole."""
    command.ok("topics", "create", "-t", "t")
    for name in ("silver", "gold"):
        write_deltalake(tmp_path / name, rows(0))
        command.ok("tables", "enlist", name, str(tmp_path / name))
    shutil.rmtree(tmp_path / "gold")
    assert command.run("snapshots", "create", "nightly").exit_code == 1
    found = command.run("snapshots", "describe", "nightly", "--output", "json")
    assert found.exit_code == 1
    assert "gold" in found.stderr
    command.ok("tables", "delist", "gold")
    command.ok("snapshots", "create", "whole")
    topic, table = command.json("snapshots", "describe", "whole")
    assert (topic["KIND"], topic["NAME"], topic["VERSION"]) == ("topic", "t", 0)
    assert (table["KIND"], table["NAME"], table["VERSION"]) == ("table", "silver", 0)
    assert table["URL"] == f"file://{tmp_path / 'silver'}"
