"""`txnlog tables`, on Delta tables that delta-rs has written."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from tests.cli.runner import Command
from tests.tables import appended, rows
from tests.world import decide, owned
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.staged_files import Staging
from txnlog.errors import TableChangedError
from txnlog.producing.table_writes import TableWrites


@pytest.fixture
def silver(tmp_path: Path) -> Path:
    folder = tmp_path / "silver"
    write_deltalake(folder, rows(0), partition_by=["day"])
    return folder


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    made.ok("topics", "create", "-t", "orders")
    return made


def test_table_is_enlisted_listed_and_delisted(command: Command, silver: Path) -> None:
    """Under one name; the same call again changes nothing."""
    for _ in range(2):
        assert command.ok("tables", "enlist", "silver", str(silver)) == "Enlisted silver.\n"
    [listed] = command.json("tables", "list")
    assert listed["Name"] == "silver"
    assert listed["Url"] == f"file://{silver}"
    assert (listed["Version"], listed["Waiting"]) == (0, 0)
    assert "silver" in command.ok("tables", "describe", "silver")
    assert "Published 0 transactions" in command.ok("tables", "republish", "silver")
    assert "_txnlog" in command.ok("tables", "delist", "silver")
    assert command.json("tables", "list") == []
    assert "No table 'silver'" in command.fails("tables", "delist", "silver")


def test_table_that_cannot_take_part_is_refused_by_name(
    command: Command, silver: Path, tmp_path: Path
) -> None:
    """A name that is taken, a table that has one, no table, a topic, features (R60)."""
    command.ok("tables", "enlist", "silver", str(silver))
    other = tmp_path / "other"
    write_deltalake(other, rows(0), configuration={"delta.logRetentionDuration": "interval 1 hour"})

    def refused(name: str, place: object) -> str:
        return command.fails("tables", "enlist", name, str(place))

    third = tmp_path / "third"
    write_deltalake(third, rows(0))
    assert "is enlisted with another table" in refused("silver", third)
    assert "is enlisted as 'silver'" in refused("again", silver)
    assert "logRetentionDuration" in refused("other", other)
    assert "There is no folder" in refused("other", tmp_path / "missing")
    assert "no Delta table" in refused("other", tmp_path)
    assert "topic or a table of txnlog itself" in refused("other", Path(command.root) / "orders")
    assert "is relative" in refused("other", "silver")
    assert "not valid" in refused("a/b", silver)


def test_blocked_transaction_is_shown_with_its_reason_until_the_table_takes_it(
    command: Command, silver: Path
) -> None:
    """Whoever is called at night sees which table, why, and what to do (R37, R74)."""
    command.ok("tables", "enlist", "silver", str(silver))
    cluster = command.cluster()
    row = owned(cluster, "dead")
    decided = decide(cluster, row, Staging(frozenset(), tuple, appended(cluster, 1, name="silver")))
    before = DeltaTable(silver).version()
    assert command.json("tables", "describe", "silver")[0]["Why"].startswith("nothing prevents it")
    narrow = pa.table({"other": [1], "day": ["1"]})
    write_deltalake(silver, narrow, mode="overwrite", schema_mode="overwrite")
    [part] = command.json("tables", "describe", "silver")
    assert (part["TransactionalId"], part["Records"]) == ("tx", 1)
    assert "id" in part["Why"]
    [listed] = command.json("tables", "list")
    assert listed["Waiting"] == 1
    with pytest.raises(TableChangedError, match="cannot be published"):
        finish(cluster, decided)
    assert command.json("transactions", "list")[0]["TransactionState"] == "PrepareCommit"
    DeltaTable(silver).restore(before)
    finish(command.cluster(), decided)
    assert sorted(DeltaTable(silver).to_pyarrow_table()["id"].to_pylist()) == [0, 1]
    assert command.json("tables", "describe", "silver") == []


def test_waiting_part_is_restaged_in_the_schema_of_now(command: Command, silver: Path) -> None:
    """Values of a column that is gone are lost only if it is named (R76)."""
    command.ok("tables", "enlist", "silver", str(silver))
    cluster = command.cluster()
    row = owned(cluster, "dead")
    decide(cluster, row, Staging(frozenset(), tuple, appended(cluster, 1, name="silver")))
    narrow = pa.table({"other": [1], "day": ["1"]})
    write_deltalake(silver, narrow, mode="overwrite", schema_mode="overwrite")
    assert "--drop-columns id" in command.fails("tables", "restage", "silver")
    drop = ("--drop-columns", "id")
    assert (
        command.ok("tables", "restage", "silver", *drop) == "Restaged 1 transactions in silver.\n"
    )
    table = QueryBuilder().register("t", DeltaTable(silver)).execute("SELECT other FROM t")
    assert sorted(map(str, table.read_all()["other"].to_pylist())) == ["1", "None"]
    assert "Restaged 0 transactions" in command.ok("tables", "restage", "silver")
    assert "No table 'gold'" in command.fails("tables", "restage", "gold")


def test_rows_are_given_up_by_the_ids_that_describe_shows(command: Command, silver: Path) -> None:
    """The transaction ends without them, and nobody publishes them later (R74)."""
    command.ok("tables", "enlist", "silver", str(silver))
    cluster = command.cluster()
    row = owned(cluster, "dead")
    decide(cluster, row, Staging(frozenset(), tuple, appended(cluster, 1, name="silver")))
    narrow = pa.table({"other": [1], "day": ["1"]})
    write_deltalake(silver, narrow, mode="overwrite", schema_mode="overwrite")
    printed = command.ok("tables", "describe", "silver")
    assert f"txnlog --root={command.root} tables restage silver" in printed
    found = re.search(r"appId (\S+) and the version (\d+)", printed)
    assert found is not None
    given_up = Transaction(found[1], int(found[2]))
    write_deltalake(
        silver,
        narrow.slice(0, 0),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[given_up]),
    )
    assert command.json("tables", "describe", "silver") == []
    command.ok("housekeeping", "--once")
    assert command.json("transactions", "list")[0]["TransactionState"] == "CompleteCommit"
    assert command.cluster().read("silver")["other"].to_pylist() == [1]


@pytest.mark.parametrize("staging", ["hidden", "visible"])
def test_vacuum_of_others_erases_what_is_staged_visibly(
    command: Command, tmp_path: Path, staging: str
) -> None:
    """A row is deleted by law: its file is gone, or is txnlog's to delete (R72)."""
    gold = tmp_path / "gold"
    write_deltalake(gold, pa.table({"id": [0]}))
    assert "must be" in command.fails("tables", "enlist", "gold", str(gold), "--staging", "seen")
    command.ok("tables", "enlist", "gold", str(gold), "--staging", staging)
    cluster = command.cluster()
    writes = TableWrites(cluster)
    writes.append("gold", pa.table({"id": [1]}))
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, writes.changes()))
    [path] = list(gold.rglob("part-????????????????????????????????.parquet"))
    assert ("_txnlog" in path.parts) == (staging == "hidden")
    DeltaTable(gold).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert path.exists()
    DeltaTable(gold).delete("id = 1")
    DeltaTable(gold).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert path.exists() == (staging == "hidden")
    assert cluster.read("gold")["id"].to_pylist() == [0]
