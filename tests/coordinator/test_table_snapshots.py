"""Snapshots with enlisted tables, while transactions and other writers commit to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.coordinator.test_snapshots import counted, shown
from tests.tables import (
    NAME,
    URL,
    ForeignTable,
    appended,
    definition,
    overwritten,
    with_table,
)
from tests.world import GROUP, TOPICS, both, consumed, decide, faults, owned, process, world
from txnlog.cluster import Cluster
from txnlog.coordinator.staged_files import Staging
from txnlog.errors import CorruptLogError, TableFeatureError, TxnLogError
from txnlog.protocol.snapshots import Snapshot
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory

DAYS, DAYS_URL, DAYS_ID = "gold.days", "memory://gold", "gold"


class Writers:
    """Two producers that write the numbers 1, 2, ... into both topics and a table, and the last one
    into another; the first one commits offsets.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self.shared = shared
        self.cluster = process(shared)
        with_table(shared, self.cluster)
        with_table(shared, self.cluster, name=DAYS, url=DAYS_URL, table_id=DAYS_ID)
        self.rows = {tid: owned(self.cluster, tid, tid=tid) for tid in ("tx", "other")}
        self.number = self.moved = 0
        self.own: set[int] = set()

    def staged(self) -> Staging:
        self.number += 1
        number = self.number
        changes = (
            *appended(self.cluster, number),
            *overwritten(self.cluster, number, name=DAYS),
        )
        batches = both(self.cluster, str(number))
        return Staging(frozenset(TOPICS), lambda: batches, changes)

    def commit(self, tid: str = "tx") -> None:
        staged = self.staged()
        offsets = []
        if tid == "tx":
            offsets.append(consumed(self.moved, self.number))
            self.moved = self.number
            self.own.add(self.number)
        self.rows[tid] = self.cluster.coordinator.commit(self.rows[tid], staged, offsets=offsets)

    def decide(self) -> None:
        """And die: whoever comes next publishes it."""
        decide(self.cluster, self.rows["other"], self.staged())

    def cross(self) -> None:
        """What is decided first is published last."""
        self.decide()
        self.commit()

    def foreign_commit(self) -> None:
        for url in (URL, DAYS_URL):
            ForeignTable(self.shared, url).commit()

    def forget(self) -> None:
        """A reader that opens the log now does not know the version of the last publication."""
        self.commit("other")
        self.foreign_commit()
        ForeignTable(self.shared).checkpoint()


ACTS: dict[str, Callable[[Writers], None]] = {
    "commit": Writers.commit,
    "decide": Writers.decide,
    "cross": Writers.cross,
    "foreign commit": Writers.foreign_commit,
    "checkpoint": Writers.forget,
}


def check(cluster: Cluster, snapshot: Snapshot) -> set[int]:
    """The same numbers everywhere, the last of them in the other table, and the offsets."""
    orders, stock = ({int(name) for name in names} for names in shown(cluster, snapshot).values())
    assert not snapshot.missing
    silver = cluster.read(NAME, snapshot=snapshot)["id"].to_pylist()
    days = cluster.read(DAYS, snapshot=snapshot)["id"].to_pylist()
    assert orders == stock == set(silver)
    assert len(silver) == len(orders)
    assert len(days) == 1
    assert days[0] in orders
    return orders


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("name", ACTS)
def test_snapshot_shows_whole_transactions_of_tables_whatever_happens_between_two_calls(
    name: str, is_warm: bool
) -> None:
    """A half of one, or a loss: at each call another process acts."""
    met = set()
    for at in range(1_000):
        writers = Writers(world())
        writers.commit()
        writers.commit()
        before = ForeignTable(writers.shared).head()
        reader = process(writers.shared)
        if is_warm:
            reader.snapshot()
        plan = FaultsAt({}, interlude=lambda w=writers: ACTS[name](w), interlude_at=at)  # type: ignore[misc]
        faults(reader).plan = plan
        snapshot = reader.snapshot()
        faults(reader).plan = FaultsAt({})
        found = check(reader, snapshot)
        assert found >= {1, 2}
        assert snapshot.tables[NAME].version >= before
        assert snapshot.offsets[GROUP]["input"][0] == max(found & writers.own)
        met.add((frozenset(found), snapshot.tables[NAME].version - before))
        if plan.calls <= at:
            break
    assert len(met) > 1


def test_snapshot_ends_where_publications_always_cross() -> None:
    """What was published before something that is shown is shown, too, with its offsets."""
    writers = Writers(world())
    writers.commit()
    reader = process(writers.shared)
    reader.snapshot()
    writers.decide()
    waiting = [writers.number]

    def plan(verb: str, path: str) -> Fault:
        if (verb, path) == ("list", ""):
            if waiting[-1] in ForeignTable(writers.shared).ours():
                writers.rows["other"] = owned(writers.cluster, "other", tid="other")
                writers.decide()
                waiting.append(writers.number)
            else:
                writers.commit()
        return Fault.NONE

    faults(reader).plan = plan
    snapshot = reader.snapshot()
    faults(reader).plan = FaultsAt({})
    found = check(reader, snapshot)
    assert found > {1, *range(waiting[0], waiting[0] + 3)}
    assert snapshot.offsets[GROUP]["input"][0] == max(found & writers.own)


@pytest.mark.parametrize("tables", [1, 4])
def test_tables_take_no_more_rounds(tables: int) -> None:
    """They are read beside the topics."""
    for groups, expected in (((), 3), ((GROUP, "other"), 5)):
        store, cluster = counted(groups=groups, tables=tables)
        store.rounds = 0
        cluster.snapshot()
        assert store.rounds == expected


def test_tables_that_cannot_be_read_here_are_refused_by_name() -> None:
    """Wrong rows are worse: a type, a mapping, a feature, files of another table, a value."""
    shared = world()
    cluster = process(shared)
    with_table(shared, cluster)
    table = ForeignTable(shared)

    def refused(error: type[TxnLogError], why: str) -> None:
        with pytest.raises(error, match=why):
            cluster.read(NAME)

    add = {"size": 1, "modificationTime": 0, "dataChange": True, "stats": '{"numRecords":1}'}
    table.commit(definition((("id", "long"), ("day", "string"), ("v", "variant"))))
    refused(TableFeatureError, "'v' has a type that only engines can read")
    assert cluster.read(NAME, columns=["id"]).num_rows == 0
    table.commit(definition((("id", "long"), ("day", "binary"))))
    refused(TableFeatureError, "'day' has a type that only engines can read")
    table.commit(definition(**{"delta.columnMapping.mode": "id"}))
    refused(TableFeatureError, "its columns are mapped by id. Only an engine can")
    table.commit(definition((("id", "long"), ("day", "date"))))
    table.commit({"add": {**add, "path": "s3://b/x.parquet", "partitionValues": {"day": None}}})
    refused(TableFeatureError, "x.parquet is not below it")
    table.commit({"remove": {"path": "s3://b/x.parquet"}})
    table.commit({"add": {**add, "path": "x.parquet", "partitionValues": {"day": "noon"}}})
    with pytest.raises(CorruptLogError, match="'noon' in the partition column 'day'"):
        cluster.read(NAME, filter=pc.field("day").is_null())
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["warp"]}
    table.commit({"protocol": {**features, "writerFeatures": ["warp"]}})
    refused(TableFeatureError, "it needs 'warp'")


def test_columns_are_found_by_their_physical_names() -> None:
    """Of rows that transactions append, after the column was renamed."""
    shared = world()
    cluster = process(shared)
    with_table(shared, cluster)
    table = ForeignTable(shared)

    def mapped(name: str) -> dict[str, Any]:
        action = definition(**{"delta.columnMapping.mode": "name"})
        schema = json.loads(action["metaData"]["schemaString"])
        for number, field in enumerate(schema["fields"]):
            field["metadata"] = {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            }
        schema["fields"][0]["name"] = name
        action["metaData"]["schemaString"] = json.dumps(schema)
        return action

    features = ["columnMapping"]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol = {**versions, "readerFeatures": features, "writerFeatures": features}
    table.commit({"protocol": protocol}, mapped("id"))
    row = owned(cluster, "run")
    cluster.coordinator.commit(row, Staging(frozenset(), tuple, appended(cluster, 1, 2)))
    table.commit(mapped("number"))
    assert cluster.read(NAME).to_pydict() == {"number": [1, 2], "day": ["1", "1"]}
    found = cluster.read(NAME, columns=["number"], filter=pc.field("day") == "2")
    assert found.num_rows == 0
