"""A Delta table of another tool, at a URL in the shared memory of a test, and its other writers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from obstore.store import MemoryStore

from txnlog.cluster import Cluster
from txnlog.coordinator.tables import TableChange
from txnlog.producing.table_writes import TableWrites
from txnlog.protocol.enlisted.parts import Operation
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.testing.faults import SharedMemory

NAME = "silver.orders"
URL = "memory://silver"
TABLE_ID = "0b1c7c6e-0000-4000-8000-000000000001"
COLUMNS = (("id", "long"), ("day", "string"))


def definition(
    columns: Sequence[tuple[str, str]] = COLUMNS, *, table_id: str = TABLE_ID, **properties: str
) -> dict[str, Any]:
    """A metaData action."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns
    ]
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["day"],
            "configuration": properties,
            "createdTime": 0,
        }
    }


class ForeignTable:
    """The table as its other writers know it: they commit by put-if-absent."""

    def __init__(self, shared: SharedMemory, url: str = URL) -> None:
        self.url = url
        self._store = shared.places.setdefault(url, MemoryStore())

    def commit(self, *actions: dict[str, Any]) -> int:
        """Commit at the next version."""
        version = len(self.commits())
        lines = [{"commitInfo": {"operation": "WRITE", "timestamp": 0}}, *actions]
        data = "\n".join(map(json.dumps, lines)).encode()
        path = f"_delta_log/{version:020d}.json"
        obstore.put(self._store, path, data, mode="create")
        return version

    def append(self) -> None:
        """Commit a file of another writer, whose rows nobody reads here."""
        path = f"day=1/{uuid.uuid4()}.parquet"
        add = {"path": path, "partitionValues": {"day": "1"}, "size": 1, "modificationTime": 0}
        self.commit({"add": {**add, "dataChange": True, "stats": '{"numRecords":1}'}})

    def head(self) -> int:
        """The newest version."""
        return len(self.commits()) - 1

    def checkpoint(self) -> None:
        """A checkpoint of the newest version, without tombstones."""
        state: dict[str, dict[str, Any]] = {}
        for action in (action for commit in self.commits() for action in commit):
            [(kind, value)] = action.items()
            if kind == "remove":
                del state[f"add {value['path']}"]
            elif kind != "commitInfo":
                state[f"{kind} {value.get('path', value.get('appId'))}"] = action
        path = f"_delta_log/{self.head():020d}.checkpoint.{uuid.uuid4()}.json"
        data = "\n".join(map(json.dumps, state.values())).encode()
        obstore.put(self._store, path, data, mode="create")

    def commits(self) -> list[list[dict[str, Any]]]:
        """The actions of each version."""
        found = []
        for version in range(1_000):
            try:
                data = bytes(obstore.get(self._store, f"_delta_log/{version:020d}.json").bytes())
            except FileNotFoundError:
                break
            found.append([json.loads(line) for line in data.splitlines()])
        return found

    def ours(self) -> list[int]:
        """Values of `id` in live files that transactions have added; sorted, each as often as it
        is there.
        """
        live: dict[str, dict[str, Any]] = {}
        for actions in self.commits():
            for action in actions:
                if "remove" in action:
                    live.pop(action["remove"]["path"], None)
            for action in actions:
                if "add" in action:
                    live[action["add"]["path"]] = action["add"]
        found: list[int] = []
        for path in live:
            if path.startswith("_txnlog/"):
                data = bytes(obstore.get(self._store, path).bytes())
                found += pq.read_table(pa.BufferReader(data)).column("id").to_pylist()
        return sorted(found)


def with_table(
    shared: SharedMemory,
    cluster: Cluster,
    *,
    name: str = NAME,
    url: str = URL,
    table_id: str = TABLE_ID,
) -> None:
    """Make a table, and enlist it."""
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    ForeignTable(shared, url).commit({"protocol": protocol}, definition(table_id=table_id))
    cluster.enlist(name, EnlistedTable(url=url, table_id=table_id, since_ms=0))


def rows(*ids: int, day: str = "1") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "day": [day] * len(ids)})


def appended(cluster: Cluster, *ids: int, name: str = NAME) -> tuple[TableChange, ...]:
    """The change of a transaction that appends rows; its files are staged."""
    writes = TableWrites(cluster)
    writes.append(name, rows(*ids))
    return writes.changes()


def overwritten(cluster: Cluster, *ids: int, name: str = NAME) -> tuple[TableChange, ...]:
    """The same of one that replaces the rows of day 1."""
    writes = TableWrites(cluster)
    writes.overwrite(name, rows(*ids), [{"day": "1"}])
    return writes.changes()


def changed(cluster: Cluster, *ids: int, name: str = NAME) -> tuple[TableChange, ...]:
    """The change that replaces all files of a table, as of now, by one with these rows."""
    return changed_to(cluster, rows(*ids), name=name)


def changed_to(
    cluster: Cluster, contents: pa.Table, *, name: str = NAME
) -> tuple[TableChange, ...]:
    writes = TableWrites(cluster)
    writes.append(name, contents)
    [added] = writes.changes()
    log = cluster.open_table(added.url)
    log.refresh_files()
    part = replace(
        added.part,
        mode="merge",
        read_version=log.state.version,
        read_digest=log.state.digest,
        removes=tuple((log.state.files or {}).values()),
        change=Operation(operation="MERGE"),
    )
    now_ms = cluster.store.now_ms()
    return (TableChange(name=name, url=added.url, part=part, staged_ms=now_ms),)
