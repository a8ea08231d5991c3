"""Removed files: checkpoints keep them for vacuum, at no cost for readers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.storage.number_log import OFF, TABLE, created
from txnlog.protocol.vacuum import FILE_RETENTION_MS_DEFAULT, RETENTION_PROPERTY, format_retention
from txnlog.storage.delta import checkpoint_file
from txnlog.storage.delta.actions import Action, Add, Commit, CommitInfo, Remove, Txn
from txnlog.storage.delta.checkpoint_computation import compute_checkpoint
from txnlog.storage.delta.checkpoint_reader import count_actions
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import Committed, DeltaLog
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.schemas import metadata_action

NOW_MS = 1_700_000_000_000


def checkpoint(store: ObjectStore) -> int:
    return create_checkpoint(store, TABLE, trust_ms=OFF.trust_ms)


def commit(log: DeltaLog, *actions: Action) -> None:
    assert isinstance(log.commit(list(actions), operation="WRITE"), Committed)


def added(path: str) -> Add:
    return Add(path, {}, 10, 1, True)


def removed(path: str, at_ms: int | None) -> Remove:
    return Remove(path, at_ms, False)


def chained(
    before: bytes | None, version: int, actions: list[Action], *, now_ms: int = NOW_MS
) -> bytes:
    """The next checkpoint; its hint is right."""
    commits = [Commit(version, CommitInfo(), tuple(actions))]
    parquet, hint = compute_checkpoint(before, commits, lambda: now_ms, name="c", note=b"")
    found = pq.ParquetFile(pa.BufferReader(parquet))
    assert hint["size"] == found.metadata.num_rows
    assert hint["sizeInBytes"] == len(parquet)
    return parquet


def table(*, retention_ms: int | None = None) -> list[Action]:
    metadata = metadata_action("id", {"value": "long"}, {}, {}, 0)
    if retention_ms is not None:
        properties = {RETENTION_PROPERTY: format_retention(retention_ms)}
        metadata = replace(metadata, configuration=properties)
    return [PROTOCOL, metadata]


def tombstones(parquet: bytes) -> dict[str, int]:
    found = checkpoint_file.read_tombstones(checkpoint_file.open_checkpoint(parquet))
    assert found.schema == checkpoint_file.TOMBSTONES
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def live(parquet: bytes) -> set[str]:
    rows = checkpoint_file.open_checkpoint(parquet).read(["add.path"])
    return {row["path"] for row in rows.column("add").to_pylist() if row is not None}


# --- In checkpoints -------------------------------------------------------------------------------

Change = tuple[str, int, int | None]
changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "checkpoint", "retention"]),
        st.integers(0, 7),
        st.one_of(st.none(), st.integers(0, 100)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(changes)
@example([("remove", 0, 0), ("checkpoint", 0, None), ("add", 0, None)])
def test_checkpoints_one_after_the_other_keep_what_delta_says(steps: list[Change]) -> None:
    """Live files and young tombstones, a file in one of the two (R11, R72)."""
    retention_ms = 50_000
    actions = table(retention_ms=retention_ms)
    before: bytes | None = None
    expected: dict[str, int | None] = {}
    files: set[str] = set()
    now_ms = NOW_MS
    for version, (what, number, seconds) in enumerate([*steps, ("checkpoint", 0, None)]):
        path = f"part-{number}.parquet"
        at_ms = None if seconds is None else now_ms - 1_000 * seconds
        if what == "add":
            actions.append(added(path))
            files.add(path)
            expected.pop(path, None)
        elif what == "remove":
            actions.append(removed(path, at_ms))
            files.discard(path)
            expected[path] = at_ms
        elif what == "retention":
            retention_ms = 1_000 * number
            actions += table(retention_ms=retention_ms)
        else:
            now_ms += 1_000 * (seconds or 0)
            before = chained(before, version, actions, now_ms=now_ms)
            actions = []
            known = {name: now_ms if ms is None else ms for name, ms in expected.items()}
            expected = {n: ms for n, ms in known.items() if now_ms - ms < retention_ms}
            assert tombstones(before) == expected
            assert live(before) == files


def test_tombstones_expire_by_the_stores_clock() -> None:
    """A machine whose clock is ahead would drop files that vacuum must keep (R34)."""
    for years in (-20, 20):
        now_ms = NOW_MS + years * 365 * 86_400_000
        young, old = now_ms - 1_000, now_ms - FILE_RETENTION_MS_DEFAULT
        first = chained(None, 0, [*table(), removed("a", young), removed("b", old)], now_ms=now_ms)
        assert tombstones(first) == {"a": young}
        assert tombstones(chained(first, 1, [removed("c", young)], now_ms=now_ms)) == {
            "a": young,
            "c": young,
        }


def test_many_tombstones_have_row_groups_of_their_own() -> None:
    """Opening a table decodes none of them; removed files do not slow it down."""
    gone = [removed(f"part-{number}.parquet", NOW_MS) for number in range(70_000)]
    first = chained(None, 0, [*table(), added("live"), Txn("app", 7), *gone])
    second = chained(first, 1, [added("more")])
    for parquet in (first, second):
        metadata = checkpoint_file.open_checkpoint(parquet).metadata
        groups = checkpoint_file.live_groups(metadata)
        assert sum(metadata.row_group(group).num_rows for group in groups) < 10
        assert len(tombstones(parquet)) == 70_000
    assert live(second) == {"live", "more"}


def test_checkpoint_of_another_tool_without_statistics_is_read_as_it_is() -> None:
    """The footer does not say which rows are tombstones; all rows are checked (R66, R72)."""
    ours = chained(None, 0, [*table(), added("live"), removed("gone", NOW_MS)])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(ours)), sink, write_statistics=False)
    theirs = bytes(sink.getvalue())
    assert tombstones(theirs) == {"gone": NOW_MS}
    groups = checkpoint_file.live_groups(checkpoint_file.open_checkpoint(theirs).metadata)
    assert groups == [0]
    after = chained(theirs, 1, [added("more")])
    assert (live(after), tombstones(after)) == ({"live", "more"}, {"gone": NOW_MS})


def test_live_files_that_share_a_row_group_with_tombstones_are_read() -> None:
    """delta-rs and Spark write all actions of a checkpoint into the same row groups (R66)."""
    ours = chained(None, 0, [*table(), added("live"), removed("gone", NOW_MS)])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(ours)), sink)
    found = count_actions(bytes(sink.getvalue()))
    assert found == {"protocol": 1, "metaData": 1, "txn": 0, "add": 1, "remove": 1}


def test_store_time_is_requested_only_if_files_were_removed() -> None:
    """It is a write to the store."""

    def now_ms() -> int:
        raise AssertionError("there is no tombstone")

    commits = [Commit(0, CommitInfo(), (*table(), added("live")))]
    parquet, _ = compute_checkpoint(None, commits, now_ms, name="c", note=b"")
    compute_checkpoint(
        parquet, [Commit(1, CommitInfo(), (added("more"),))], now_ms, name="c", note=b""
    )


# --- Other tools ----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


def test_delta_rs_reads_our_tombstones_and_we_read_its(root: str) -> None:
    """delta-rs's vacuum must also keep files that were removed recently."""
    from deltalake import DeltaTable

    store = ObjectStore.from_url(root)
    log = created(store)
    now_ms = store.now_ms()
    for name in ("live", "gone", "back"):
        store.put(f"{TABLE}/{name}", b"data")
        commit(log, added(name))
    commit(log, removed("gone", now_ms), removed("back", now_ms))
    checkpoint(store)
    commit(log, added("back"))
    foreign = DeltaTable(f"{root}/{TABLE}")
    assert sorted(foreign.get_add_actions().column("path").to_pylist()) == ["back", "live"]
    assert foreign.vacuum(retention_hours=168) == []
    foreign.create_checkpoint()
    assert read_tombstones(store, TABLE, version=log.version) == {"gone": now_ms}
    commit(log, removed("back", now_ms + 1))
    version = checkpoint(store)
    store.delete([commit_path(TABLE, number) for number in range(version + 1)])
    found = store.get(checkpoint_path(TABLE, version))
    assert tombstones(found) == {"gone": now_ms, "back": now_ms + 1}
    assert live(found) == {"live"}
    assert DeltaTable(f"{root}/{TABLE}").file_uris() == [f"{root}/{TABLE}/live"]


def test_tombstones_behind_a_checkpoint_have_the_time_of_the_last_removal(root: str) -> None:
    """Vacuum would delete a file that a reader planned recently (R20, R72)."""
    store = ObjectStore.from_url(root)
    log = created(store)
    now_ms = store.now_ms()
    commit(log, added("twice"), added("first"), added("untimed"))
    checkpoint(store)
    commit(log, removed("first", now_ms - 5), removed("twice", now_ms - 50_000))
    commit(log, added("twice"))
    commit(log, removed("twice", now_ms - 10), removed("untimed", None))
    found = read_tombstones(store, TABLE, version=log.version)
    assert found.pop("untimed") >= now_ms
    assert found == {"first": now_ms - 5, "twice": now_ms - 10}
