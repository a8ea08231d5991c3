"""`txnlog upgrade` of roots that are incomplete, damaged, or left half upgraded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.coordinator.processes import outcome_of
from tests.upgrade.roots import (
    COMMITTED,
    FORMATS,
    archived,
    expected,
    old_world,
    opened,
    positions,
    settled,
    upgrade,
    upgraded,
)
from txnlog.errors import (
    ConfigError,
    CorruptLogError,
    LogGapError,
    UnsupportedProtocolError,
)
from txnlog.protocol.shards import shard_number
from txnlog.protocol.upgrade import OldGroup
from txnlog.storage.delta.actions import Add, Metadata, Txn, decode_commit
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.delta.table_protocol import PROTOCOL
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.offsets_upgrade import OldOffsets, OldShard
from txnlog.storage.tables.row_log import TransactionLog
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_cluster

BOTH = pytest.mark.parametrize("root_format", FORMATS)


def test_interrupted_upgrade_keeps_its_number_of_shards() -> None:
    """Half of the groups would be looked for elsewhere."""
    shared = old_world("1")
    store = shared.open()
    converted: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith("__consumer_offsets-") and "json" in path:
            converted.append(path)
        return Fault.CRASH_BEFORE if len(converted) == 3 else Fault.NONE

    store.plan = plan
    assert outcome_of(lambda: upgrade(store, shards=4).run()) == "crashed"
    with pytest.raises(UnsupportedProtocolError, match="`txnlog upgrade`"):
        opened(shared)
    report = upgrade(shared.open(), shards=9).run()
    assert "convert 2 of 4 shards of the consumer offsets" in report.steps
    assert len(opened(shared).offsets_shards()) == 4
    assert positions(settled(shared)) == expected(COMMITTED)


def test_upgrade_that_an_earlier_version_left_is_continued() -> None:
    """It copied shards of format 1 with their entries, and died before the format was set."""
    shared = old_world("1")
    # What that version had made of the same root, with its seal.
    store = shared.open()
    old = OldOffsets(store)
    old.refresh()
    cluster_id = _metadata_of(store, "__cluster").id
    old.seal(cluster_id=cluster_id, shards=4)
    _copy_with_entries(store, old, cluster_id)
    upgraded(shared)
    assert len(opened(shared).offsets_shards()) == 4
    assert positions(settled(shared)) == expected(COMMITTED)


def _metadata_of(store: ObjectStore, table: str) -> Metadata:
    path = commit_path(table, 0)
    [found] = [
        action
        for action in decode_commit(store.get(path), version=0, source=path).actions
        if isinstance(action, Metadata)
    ]
    return found


def _copy_with_entries(store: ObjectStore, old: OldOffsets, cluster_id: str) -> None:
    """Version 0 of shard 1, of protocol (1, 2), with the column `pending`."""
    before = _metadata_of(store, old.path)
    path = "__consumer_offsets-1"
    shard = OldShard(store, 1)
    shard.refresh()
    adds = []
    for group in old.view.rows.values():
        assert isinstance(group, OldGroup)
        if _number(group.group_id) != 1:
            continue
        data = store.get(f"{old.path}/{group.path}")
        store.put_new(f"{path}/{group.path}", data)
        values = _values_of(store, old.path, group.path)
        adds.append(Add(group.path, values, len(data), 0, data_change=True, stats=None))
    made = replace(before, id=f"{cluster_id}-offsets-1")
    shard.log.commit([PROTOCOL, made, *adds], operation="UPGRADE")


def _number(group_id: str) -> int:
    return shard_number(group_id, 4)


def _values_of(store: ObjectStore, table: str, path: str) -> dict[str, str | None]:
    """The newest partition values of a file."""
    found: dict[str, str | None] = {}
    for meta in sorted(store.list(f"{table}/_delta_log"), key=lambda one: one.path):
        if meta.path.endswith(".json"):
            commit = decode_commit(store.get(meta.path), version=0, source=meta.path)
            for action in commit.actions:
                if isinstance(action, Add) and action.path == path:
                    found = action.partition_values
    return found


@BOTH
def test_root_without_groups_and_no_root_at_all(root_format: str) -> None:
    """Tables may be missing: their process died when it created the cluster."""
    shared = SharedMemory()
    with pytest.raises(ConfigError, match="no txnlog cluster"):
        upgraded(shared)
    assert shared.open().list("") == []
    store = shared.open()
    name = commit_path("__cluster", 0)
    store.put_if_absent(name, archived(root_format)[name])
    report = upgraded(shared)
    assert (report.groups, report.format) == (0, "3")
    after = opened(shared)
    assert after.groups.start("first") == 1
    check_cluster(after, settled=True)


def test_shard_that_was_announced_is_created_closed() -> None:
    """Its creator has not yet written version 0, and would write one of the old format."""
    shared = old_world("2")
    store = shared.open()
    objects = {m.path: store.get(m.path) for m in store.list("__consumer_offsets-2")}
    store.delete(list(objects))
    with pytest.raises(LogGapError, match="Restore all tables"):
        upgraded(shared)
    shared = old_world("2")
    store = shared.open()
    store.delete(list(objects))
    cluster = DeltaLog(store, "__cluster", _Nothing())
    cluster.refresh()
    announced = Txn("txnlog/created/__consumer_offsets-2", 1, 0)
    cluster.commit([announced], operation="CREATE SHARD")
    upgraded(shared)
    first = commit_path("__consumer_offsets-2", 0)
    assert not store.put_if_absent(first, objects[first])


@BOTH
def test_row_that_cannot_be_read_and_decides_stops_the_upgrade(root_format: str) -> None:
    """Whether its transaction was decided is unknown: its entries must not be dropped."""
    shared = old_world(root_format)
    store = shared.open()
    log = next(
        log
        for log in (TransactionLog(store, n) for n in range(4))
        if not log.refresh() and "decided" in log.view.rows
    )
    path = log.view.rows["decided"].path
    values = _values_of(store, log.path, path)
    values["state"] = "NEWER"
    raw = DeltaLog(store, log.path, _Nothing())
    raw.refresh()
    raw.commit([Add(path, values, 1, 0, data_change=True)], operation="DAMAGE")
    before = {m.path for m in store.list("")}
    with pytest.raises(CorruptLogError, match="transactions delete --transactional-id=decided"):
        upgraded(shared)
    assert {m.path for m in store.list("")} == before


@BOTH
def test_group_that_cannot_be_read_stays_for_groups_delete(root_format: str) -> None:
    """Its neighbours are converted; it is not taken for an empty group (R38)."""
    shared = old_world(root_format)
    store = shared.open()
    log: OldShard | OldOffsets = OldOffsets(store)
    if root_format == "2":
        log = OldShard(store, _number("plain 3"))
    log.refresh()
    path = log.view.rows["plain 3"].path
    for column, text in (("pending", "[{}]"), ("members", "?")):
        values = _values_of(store, log.path, path)
        values[column] = text
        raw = DeltaLog(store, log.path, _Nothing())
        raw.refresh()
        raw.commit([Add(path, values, 1, 0, data_change=True)], operation="DAMAGE")
    upgraded(shared)
    after = opened(shared)
    with pytest.raises(CorruptLogError, match="groups delete --group='plain 3'"):
        after.groups.describe("plain 3")
    found = positions(after)
    assert set(expected(COMMITTED)) - set(found) == {"plain 3"}


class _Nothing:
    def reset(self) -> None: ...

    def parse(self, commit: object) -> None: ...

    def apply(self, parsed: object) -> None: ...
