"""What a part becomes that is staged again: its row, and its columns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.enlisted_tables import column, definition
from txnlog.errors import InvalidTxnStateError
from txnlog.protocol.enlisted.parts import Part
from txnlog.protocol.enlisted.restaging import columns_now, partitions_now
from txnlog.protocol.metadata import (
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    StagedTable,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import Done, Transition, prepare_end, prepare_restage

OLD = StagedTable(
    name="silver",
    url="s3://lake/silver",
    table_id="t-1",
    part="_txnlog/c/old.json",
    size_bytes=1,
    digest="d",
    num_files=1,
    num_records=1,
    staged_ms=0,
)
NEW = replace(OLD, part="_txnlog/c/new.json")
ROW = TransactionMetadata(
    transactional_id="t",
    producer_id=1,
    producer_epoch=3,
    txn_epoch=3,
    state=TransactionState.PREPARE_COMMIT,
    timeout_ms=1,
    pending=Manifest(tables=(OLD,)),
    owner=Owner(run_id="run"),
)
MAPPED = {"features": ("columnMapping",), "delta_columnMapping_mode": "name"}


def restaged(row: TransactionMetadata, old: StagedTable, new: StagedTable) -> TransactionMetadata:
    made = prepare_restage(row, transaction=row.transaction, old=old, new=new)
    assert isinstance(made, Transition)
    return made.next


def test_restaged_row_is_the_same_transaction_with_other_files() -> None:
    """Its name, time and state stay; the first part file is remembered (R76)."""
    last = replace(NEW, part="_txnlog/c/last.json")
    row = restaged(restaged(ROW, OLD, NEW), replace(NEW, first=OLD.part), last)
    assert row.tables == (replace(last, first=OLD.part),)
    assert replace(row, pending=ROW.pending) == ROW


@pytest.mark.parametrize(
    ("row", "transaction", "old"),
    [
        (None, ROW.transaction, OLD),
        (replace(ROW, state=TransactionState.COMPLETE_COMMIT), ROW.transaction, OLD),
        (replace(ROW, state=TransactionState.PREPARE_ABORT), ROW.transaction, OLD),
        (ROW, ProducerIdAndEpoch(1, 2), OLD),
        (ROW, ROW.transaction, replace(OLD, first="another")),
    ],
    ids=["removed", "completed", "aborted", "later", "restaged"],
)
def test_row_that_went_on_is_not_restaged(
    row: TransactionMetadata | None, transaction: ProducerIdAndEpoch, old: StagedTable
) -> None:
    """Compare-and-swap: only the part that was read is replaced (R76)."""
    assert prepare_restage(row, transaction=transaction, old=old, new=NEW) == Done(row)


def test_commit_that_is_repeated_after_restaging_is_done() -> None:
    """Its client knows the first part file only; other parts are refused (R36, R76)."""
    row = restaged(ROW, OLD, NEW)

    def repeated(part: StagedTable) -> object:
        return prepare_end(
            row,
            holder=ROW.holder,
            result=TransactionResult.COMMIT,
            manifest=Manifest(tables=(part,)),
            now_ms=1,
        )

    assert repeated(OLD) == Done(row)
    with pytest.raises(InvalidTxnStateError, match="other parts of tables"):
        repeated(NEW)


def test_columns_are_found_by_physical_name_then_by_name() -> None:
    """A rename keeps the rows' column; one that was made again under the name is another (R76)."""
    was = definition(
        column("a", physical="p-a"), column("b", physical="p-b"), column("c", physical="p-c"),
        **MAPPED,
    )  # fmt: skip
    now = definition(
        column("z", physical="p-a"), column("a", physical="p-9"), column("b", physical="p-8"),
        **MAPPED,
    )  # fmt: skip
    assert columns_now(was, now) == {"a": "z", "b": "b"}
    assert columns_now(definition(column("a")), definition(column("a", "string"))) == {"a": "a"}


def test_partitions_of_an_overwrite_are_those_of_the_table_now() -> None:
    """One that does not partition the table any more is refused by name (R76)."""
    was = definition(column("id"), column("day", physical="p-d"), partitions=("day",), **MAPPED)
    now = definition(column("id"), column("date", physical="p-d"), partitions=("date",), **MAPPED)
    part = Part(
        mode="overwrite", partitions=({"p-d": "1"},), read_version=1, definition=was, adds=()
    )
    assert partitions_now(part, now) == [{"date": "1"}]
    with pytest.raises(ValueError, match="not partitioned by 'day'"):
        partitions_now(part, definition(column("id"), column("day")))
    assert partitions_now(replace(part, partitions=None), now) is None
