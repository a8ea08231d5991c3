"""Publications that another writer has overwritten in its table: found, and published again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from txnlog import AdminClient, Producer
from txnlog.admin import FindingKind, Verification
from txnlog.errors import CorruptLogError, TableChangedError
from txnlog.storage.store.objects import ObjectStore
from txnlog.verifying import publications


class Lake:
    """A root, a Delta table `silver` of others beside it, and a producer of both."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "silver")
        write_deltalake(self.url, rows(0))
        root = {"txnlog.root": str(folder / "lake")}
        self.producer = Producer({**root, "transactional.id": "p"})
        self.producer.init_transactions()
        self.admin = AdminClient(root)
        self.admin.enlist_tables({"silver": self.url})["silver"].result()

    def append(self, number: int) -> None:
        with self.producer.transaction():
            self.producer.append("silver", rows(number))

    def overwrite_commit(self, version: int) -> None:
        """As a writer does that renames its commit without a look."""
        log = Path(self.url) / "_delta_log"
        write_deltalake(self.url, rows(1000 + version), mode="append")
        newest = max(log.glob("*.json"))
        newest.rename(log / f"{version:020}.json")

    def verify(self) -> Verification:
        return self.admin.verify().result()

    def ids(self) -> list[int]:
        table = QueryBuilder().register("t", DeltaTable(self.url)).execute("SELECT id FROM t")
        return sorted(table.read_all()["id"].to_pylist())


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number]})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def lost(found: Verification) -> list[str]:
    assert found.is_complete, found.errors
    kinds = {finding.kind for finding in found.findings}
    assert kinds <= {FindingKind.PUBLICATION_LOST}
    return [finding.what for finding in found.findings]


def test_overwritten_publication_is_found_and_published_again(lake: Lake) -> None:
    """Of three transactions the second is lost; the third's txn hides nothing."""
    for number in (1, 2, 3):
        lake.append(number)
    assert lost(lake.verify()) == []
    lake.overwrite_commit(2)
    assert lake.ids() == [0, 1, 3, 1002]
    [what] = lost(lake.verify())
    assert what.startswith("1 records of epoch ")
    assert lake.admin.republish_tables(["silver"])["silver"].result() == 1
    assert lake.ids() == [0, 1, 2, 3, 1002]
    assert lost(lake.verify()) == []
    assert lake.admin.republish_tables(["silver"])["silver"].result() == 0
    lake.append(4)
    assert lake.ids() == [0, 1, 2, 3, 4, 1002]


def test_lost_append_whose_file_is_gone_stops_no_others(lake: Lake) -> None:
    lake.append(1)
    [gone] = Path(lake.url).rglob("_txnlog/**/*.parquet")
    lake.append(2)
    lake.append(3)
    for version in (1, 2):
        lake.overwrite_commit(version)
    gone.unlink()
    with pytest.raises(CorruptLogError, match="is missing"):
        lake.admin.republish_tables(["silver"])["silver"].result()
    assert lake.ids() == [0, 2, 3, 1001, 1002]


def test_lost_overwrite_is_not_published_again(lake: Lake) -> None:
    """It would replace what others have written since; appends are."""
    with lake.producer.transaction():
        lake.producer.overwrite("silver", rows(1))
    lake.append(2)
    lake.append(3)
    lake.overwrite_commit(1)
    lake.overwrite_commit(2)
    assert len(lost(lake.verify())) == 2
    with pytest.raises(TableChangedError, match="of 'p' is no append, but overwrite"):
        lake.admin.republish_tables(["silver"])["silver"].result()
    assert lake.ids() == [0, 2, 3, 1001, 1002]


def test_table_that_was_made_again_or_is_gone_has_lost_nothing(lake: Lake) -> None:
    lake.append(1)
    table = Path(lake.url)
    table.rename(table.with_name("moved"))
    assert lost(lake.verify()) == []
    write_deltalake(lake.url, rows(5))
    assert lost(lake.verify()) == []


def test_damaged_cluster_table_makes_no_publication_lost(lake: Lake) -> None:
    """The advice would be to publish all of them again."""
    lake.append(1)
    lake.append(2)
    newest = max((Path(lake.url).with_name("lake") / "__cluster/_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    kinds = {finding.kind for finding in lake.verify().findings}
    assert FindingKind.COMMIT_DAMAGED in kinds
    assert FindingKind.PUBLICATION_LOST not in kinds


def test_part_that_is_older_than_the_log_is_not_judged(lake: Lake) -> None:
    lake.append(1)
    lake.append(2)
    DeltaTable(lake.url).create_checkpoint()
    for version in (0, 1):
        (Path(lake.url) / f"_delta_log/{version:020}.json").unlink()
    assert lost(lake.verify()) == []


def test_log_that_is_cleaned_up_while_it_is_read_is_read_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else verify would say that it cannot read the table."""
    lake.append(1)
    lake.append(2)
    DeltaTable(lake.url).create_checkpoint()
    read = publications._txns

    def late(store: ObjectStore, versions: Sequence[int]) -> set[tuple[str, int]]:
        for version in (0, 1):
            (Path(lake.url) / f"_delta_log/{version:020}.json").unlink(missing_ok=True)
        return read(store, versions)

    monkeypatch.setattr(publications, "_txns", late)
    assert lost(lake.verify()) == []
