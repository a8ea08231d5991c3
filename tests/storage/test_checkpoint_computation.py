"""What goes into a checkpoint, in which form, and when none is written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.storage.number_log import OFF, TABLE, created, opened, plant
from txnlog.errors import StorageError, UnsupportedProtocolError
from txnlog.protocol.app_transactions import RETENTION_PROPERTY as TXN_RETENTION_PROPERTY
from txnlog.protocol.txn_memory import EXPIRED_TRANSACTIONS
from txnlog.protocol.vacuum import RETENTION_PROPERTY
from txnlog.storage.delta import checkpoint_computation, checkpoint_file, checkpoint_writer
from txnlog.storage.delta.actions import Action, Add, Commit, CommitInfo, Protocol, Remove, Txn
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.checkpoint_reader import count_actions
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_files import commit_path, list_whole_log
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.row_log import TransactionLog
from txnlog.storage.tables.schemas import metadata_action

NOW_MS = 1_700_000_000_000
HEADER = {"p": "integer", "word": "string"}
CREATED: tuple[Action, ...] = (PROTOCOL, metadata_action("id", {"value": "long"}, HEADER, {}, 0))
TRUST_MS = OFF.trust_ms


def computed(before: bytes | None, *actions: Action) -> bytes:
    commits = [Commit(0, CommitInfo(), actions)]
    return compute_checkpoint(before, commits, lambda: NOW_MS, name="c", note=b"")[0]


def added(number: int) -> Add:
    return Add(f"part-{number}.parquet", {"p": f"{number}", "word": "w"}, 10, 1, True, "{}")


def actions(parquet: bytes, kind: str) -> list[dict[str, Any]]:
    found = checkpoint_file.read_actions(checkpoint_file.open_checkpoint(parquet), kind)
    return list(found.to_pylist())


def groups(parquet: bytes) -> list[int]:
    metadata = checkpoint_file.open_checkpoint(parquet).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def test_values_that_no_column_could_hold_are_kept_as_they_are() -> None:
    """A row that cannot be read costs its id (D57), not the checkpoints of its table."""
    values: list[dict[str, str | None]] = [
        {"p": "seven", "word": "w"},
        {"p": "99999999999", "word": "w"},
        {"p": None, "word": ""},
        {"p": "", "word": "w"},
        {"word": "w"},
        {"p": "1", "word": "w", "unknown": "x"},
    ]
    adds = [Add(f"{number}", each, 1, 1, True) for number, each in enumerate(values)]
    first = computed(None, *CREATED, *adds)
    for parquet in (first, computed(first, Txn("a", 1))):
        assert [dict(add["partitionValues"]) for add in actions(parquet, "add")] == values


def test_shard_with_an_unreadable_number_is_checkpointed() -> None:
    """Else its log grows until an operator deletes the row (D57)."""
    store = ObjectStore.from_url("memory://")
    log = TransactionLog(store, 0, settings=OFF)
    log.create("c-0")
    row = {"transactional_id": "x", "timeout_ms": "soon"}
    plant(log.log, [Add("row-x.parquet", row, 1, 1, True)])
    log.refresh()
    assert list(log.view.rows.unreadable) == ["x"]
    version = create_checkpoint(store, log.path, trust_ms=TRUST_MS)
    store.delete([commit_path(log.path, number) for number in range(version)])
    cold = TransactionLog(store, 0)
    cold.refresh()
    assert list(cold.view.rows.unreadable) == ["x"]
    assert cold.view.rows.unreadable["x"].values == log.view.rows.unreadable["x"].values


def test_row_groups_are_filled_again_as_files_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each checkpoint would add a small one, and a reader opens each (R11)."""
    for module in (checkpoint_computation, checkpoint_writer):
        monkeypatch.setattr(module, "ROWS_PER_GROUP", 10)
    live = set(range(25))
    parquet = computed(None, *CREATED, *(added(number) for number in live))
    for turn in range(12):
        gone = set(sorted(live)[turn % 3 :: 9])
        news = set(range(100 * turn + 100, 100 * turn + 103))
        live = live - gone | news
        removes = [Remove(f"part-{number}.parquet", NOW_MS - turn, True) for number in gone]
        parquet = computed(parquet, *removes, *map(added, news), Txn(f"{turn}", turn))
        found = {int(add["partitionValues"][0][1]) for add in actions(parquet, "add")}
        assert found == live
        assert {txn["version"] for txn in actions(parquet, "txn")} == set(range(turn + 1))
        assert max(groups(parquet)) <= 10
        rows = count_actions(parquet)
        assert len(groups(parquet)) <= sum(rows.values()) // 5 + 2
        metadata = checkpoint_file.open_checkpoint(parquet).metadata
        assert sum(groups(parquet)[at] for at in checkpoint_file.live_groups(metadata)) == sum(
            count for kind, count in rows.items() if kind != "remove"
        )


def test_ids_and_paths_that_follow_each_other_take_more_than_a_byte() -> None:
    """A reader refuses a checkpoint with fewer bytes than rows: it takes what it claims (D68)."""
    many = range(120_000)
    for some in (
        [Txn(f"txnlog/{number}", 0, NOW_MS) for number in many],
        [Remove(f"part-0-{number:08}.parquet", NOW_MS, True) for number in many],
        [Add(f"{number:06}", {}, 1, 1, True) for number in many],
    ):
        parquet = computed(None, *CREATED, *some)
        assert len(parquet) > 1.2 * len(many)
        assert sum(count_actions(parquet).values()) == len(many) + 2


def test_version_that_a_horizon_took_does_not_come_back_as_an_older_one() -> None:
    """The checkpoint before has one without a time, which never expires by itself (R11)."""
    before = computed(None, *CREATED, Txn("txnlog/7", 3))
    after = computed(before, Txn("txnlog/7", 4, 10), Txn(EXPIRED_TRANSACTIONS, 20, 20))
    assert [txn["appId"] for txn in actions(after, "txn")] == [EXPIRED_TRANSACTIONS]


@pytest.mark.parametrize(
    "protocol", [Protocol(2, 5), Protocol(1, 7, None, ["domainMetadata"]), Protocol(1, 4)]
)
@pytest.mark.parametrize("is_before", [False, True])
def test_table_with_features_is_not_checkpointed(protocol: Protocol, is_before: bool) -> None:
    """What these columns do not hold, deletion vectors for one, would be lost."""
    if is_before:
        row = dict.fromkeys(("minReaderVersion", "minWriterVersion"), 1)
        row |= {"minWriterVersion": protocol.min_writer_version}
        row |= {"minReaderVersion": protocol.min_reader_version}
        table = pq.read_table(pa.BufferReader(computed(None, *CREATED)))
        rows = [{**each, "protocol": each["protocol"] and row} for each in table.to_pylist()]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema=checkpoint_file.SCHEMA), sink)
        before, commit = bytes(sink.getvalue()), [Txn("a", 1)]
    else:
        before, commit = computed(None, *CREATED), [protocol]
    with pytest.raises(UnsupportedProtocolError, match="txnlog knows"):
        computed(before, *commit)


@pytest.mark.parametrize("name", [TXN_RETENTION_PROPERTY, RETENTION_PROPERTY])
@pytest.mark.parametrize("weeks", ["20000000000", "99999999999999999999"])
def test_table_that_keeps_everything_longer_than_times_reach_is_checkpointed(
    name: str, weeks: str
) -> None:
    """One such property ended all checkpoints of its table (R11)."""
    kept = replace(CREATED[1], configuration={name: f"interval {weeks} weeks"})
    of_batch, tombstone = Txn("app", 3, 5), Remove("x", 5, True)
    found = computed(None, CREATED[0], kept, of_batch, tombstone)
    assert [txn["lastUpdated"] for txn in actions(found, "txn")] == [5]
    is_kept = name == RETENTION_PROPERTY
    assert [row["path"] for row in actions(found, "remove")] == (["x"] if is_kept else [])
    again = computed(found, Txn("app2", 1, 5))
    assert len(actions(again, "txn")) == 2


def test_log_without_metadata_is_not_checkpointed() -> None:
    """Such a checkpoint would be damage to every reader."""
    for some in ([PROTOCOL], [CREATED[1]], [Txn("a", 1)]):
        with pytest.raises(ValueError, match="neither the previous checkpoint nor a commit"):
            computed(None, *some)


def test_checkpoint_that_cannot_be_read_back_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clean-up would delete the commits that it stands for (R66)."""
    store = ObjectStore.from_url("memory://")
    created(store, 5)
    counted = count_actions
    wrong: list[Any] = [
        lambda data: counted(data) | {"txn": 4},
        lambda data: counted(data[:-9]),
        lambda data: counted(b"PAR1"),
    ]
    for count in wrong:
        monkeypatch.setattr(checkpoint_writer, "count_actions", count)
        with pytest.raises(StorageError, match="cannot be read back"):
            create_checkpoint(store, TABLE, trust_ms=TRUST_MS)
        assert list_whole_log(store, TABLE).checkpoints == []
        assert not store.exists(f"{TABLE}/_delta_log/_last_checkpoint")
    monkeypatch.undo()
    assert create_checkpoint(store, TABLE, trust_ms=TRUST_MS) == 5
    assert len(opened(store)[1].numbers) == 5


def test_checkpoint_with_columns_of_other_tools_keeps_what_ours_has() -> None:
    """Other types for the same, more columns, fewer, rows in any order (R11)."""
    ours = computed(
        None, *CREATED, added(1), added(2), Txn("a", 3, 5), Txn("b", 4), Remove("x", NOW_MS, True)
    )
    rows = pq.read_table(pa.BufferReader(ours)).to_pylist()[::-1]
    for row in rows:
        if row["add"]:
            row["add"] |= {"tags": [("k", "v")], "stats_parsed": {"numRecords": 1}}
            del row["add"]["stats"]
        if row["metaData"]:
            del row["metaData"]["description"]
        if row["protocol"]:
            row["protocol"] = {"minWriterVersion": 2, "minReaderVersion": 1}
    text = pa.large_string()
    kinds = {
        "sidecar": pa.struct({"path": text}),
        "txn": pa.struct({"version": pa.int32(), "appId": text, "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": text,
                "tags": pa.map_(text, text),
                "stats_parsed": pa.struct({"numRecords": pa.int64()}),
                "partitionValues": pa.map_(text, text),
                "size": pa.int32(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
            }
        ),
        "remove": pa.struct({"deletionTimestamp": pa.int64(), "path": text}),
        "protocol": pa.struct({"minWriterVersion": pa.int32(), "minReaderVersion": pa.int32()}),
        "metaData": pa.struct(list(checkpoint_file.SCHEMA.field("metaData").type)[::-1]),
    }
    theirs = pa.Table.from_pylist(rows, schema=pa.schema(kinds))
    for group_rows in (1, 2, 100):
        sink = pa.BufferOutputStream()
        pq.write_table(theirs, sink, row_group_size=group_rows)
        after = computed(bytes(sink.getvalue()), added(2), Txn("b", 9))
        adds = {add["path"]: add for add in actions(after, "add")}
        assert adds["part-1.parquet"]["stats"] is None
        assert dict(adds["part-1.parquet"]["partitionValues"]) == {"p": "1", "word": "w"}
        assert (adds["part-2.parquet"]["stats"], len(adds)) == ("{}", 2)
        txns = sorted(tuple(txn.values()) for txn in actions(after, "txn"))
        assert txns == [("a", 3, 5), ("b", 9, None)]
        assert [remove["path"] for remove in actions(after, "remove")] == ["x"]
        [metadata] = actions(after, "metaData")
        [first] = actions(ours, "metaData")
        assert metadata == first
        assert actions(after, "protocol") == actions(ours, "protocol")
