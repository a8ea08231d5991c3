"""A Delta table of another writer, made of plain JSON in any store, and what readers see of it."""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.protocol.enlisted_tables import add
from txnlog.protocol.enlisted.parts import Decided, Mode, Part, app_id_of, new_part
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.enlisted_files import stage
from txnlog.storage.tables.enlisted_log import EnlistedLog, PartFile, Publication, Published

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}],
    }
)
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}

_timestamps = itertools.count(1)
"""Two commits of writers are never the same."""


def metadata(table_id: str = "t-1", **configuration: str) -> Any:
    """Keywords are properties with _ for a dot."""
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": SCHEMA,
            "partitionColumns": [],
            "configuration": {name.replace("_", "."): v for name, v in configuration.items()},
        }
    }


def file(path: str) -> Any:
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": 1,
            "modificationTime": 1,
            "dataChange": True,
            "stats": '{"numRecords":1}',
        }
    }


def slot(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def lines(*actions: Any) -> bytes:
    info = {"commitInfo": {"operation": "WRITE", "timestamp": next(_timestamps)}}
    return "\n".join(json.dumps(action) for action in (info, *actions)).encode()


class ForeignTable:
    """Another writer, which puts its commits if absent."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def create(self, table_id: str = "t-1", **configuration: str) -> None:
        self.put(0, PROTOCOL, metadata(table_id, **configuration))

    def put(self, version: int, *actions: Any) -> None:
        assert self.store.put_if_absent(slot(version), lines(*actions))

    def append(self, *actions: Any) -> int:
        """Commit at the end of the log."""
        version = len(self.commits())
        self.put(version, *(actions or (file(f"foreign-{version}"),)))
        return version

    def commits(self) -> list[list[Any]]:
        """All commits from version 0 on: no hole, no other file."""
        names = sorted(each.path for each in self.store.list("_delta_log"))
        assert names == [slot(version) for version in range(len(names))]
        return [[json.loads(line) for line in self.store.get(n).splitlines()] for n in names]

    def paths(self) -> list[str]:
        """What is live, with each path as often as it was added."""
        live: list[str] = []
        for commit in self.commits():
            gone = {action["remove"]["path"] for action in commit if "remove" in action}
            live = [path for path in live if path not in gone]
            live += [action["add"]["path"] for action in commit if "add" in action]
        return live

    def txns(self) -> list[tuple[str, int]]:
        """The txn of each commit that has one."""
        found = [action["txn"] for commit in self.commits() for action in commit if "txn" in action]
        return [(txn["appId"], txn["version"]) for txn in found]


def opened(store: ObjectStore) -> EnlistedLog:
    """A process's log of the table, as of its head."""
    log = EnlistedLog(store, store.clock.now_ms)
    log.refresh()
    return log


def part_of(log: EnlistedLog, name: str = "part-1", mode: Mode = "append") -> Part:
    """One staged file; it is in no store."""
    return new_part(log.state, [add(f"_txnlog/c/{name}.parquet", nulls={"id": 0})], mode=mode)


def decided(log: EnlistedLog, epoch: int = 0) -> Decided:
    now_ms = log.store.clock.now_ms()
    return Decided(app_id=app_id_of("c", 7), epoch=epoch, decided_ms=now_ms)


class Staged(NamedTuple):
    """A part that a process staged for the table of a store, and what it decided."""

    store: ObjectStore
    file: PartFile
    decided: Decided


def staged_part(
    table: object, rows: pa.Table, *, mode: Mode = "append", epoch: int = 0, partitions: Any = None
) -> Staged:
    """Stage rows, check them, and write the part file, as a transaction does before it decides.

    `table` is a local path, or a store at the table's URL.
    """
    is_open = isinstance(table, ObjectStore)
    store = table if is_open else ObjectStore.from_url(str(table), create=False)
    log = opened(store)
    adds = stage(store, rows, log.state.definition, folder="_txnlog/c", now_ms=store.clock.now_ms())
    part = new_part(log.state, adds, mode=mode, partitions=partitions)
    log.check(part)
    return Staged(store, log.put_part(part, cluster_id="c"), decided(log, epoch))


def publish(staged: Staged) -> Publication | None:
    """Publish a part by another process, which has only the part file; and prove it."""
    log = opened(staged.store)
    part = log.read_part(staged.file)
    found = log.publish(part, staged.decided, is_still_decided=yes)
    if isinstance(found, Published):
        assert log.prove(found, part, staged.decided)
    return found


def yes() -> bool:
    """The row still says that the transaction is decided."""
    return True


_MAP = pa.map_(pa.string(), pa.string())
_CHECKPOINT = pa.schema(
    {
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _MAP}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _MAP,
                "createdTime": pa.int64(),
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64()}),
        "domainMetadata": pa.struct(
            {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
        ),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _MAP,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "deletionVector": pa.struct(
                    {
                        "storageType": pa.string(),
                        "pathOrInlineDv": pa.string(),
                        "offset": pa.int32(),
                        "sizeInBytes": pa.int32(),
                        "cardinality": pa.int64(),
                    }
                ),
            }
        ),
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64()}),
        "sidecar": pa.struct({"path": pa.string(), "sizeInBytes": pa.int64()}),
        "checkpointMetadata": pa.struct({"version": pa.int64()}),
    }
)


def parquet(*actions: Any) -> bytes:
    """A file of a checkpoint, as Spark writes it: a column of each kind of action."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(actions), schema=_CHECKPOINT), sink)
    return sink.getvalue().to_pybytes()


def write_checkpoint(store: ObjectStore, version: int, form: str, actions: list[Any]) -> None:
    """`actions` as classic, of parts, or v2 with sidecars, in JSON or Parquet."""
    name = f"_delta_log/{version:020}.checkpoint"
    if form == "classic":
        store.put(f"{name}.parquet", parquet(*actions))
    elif form == "parts":
        half = len(actions) // 2
        for number, part in enumerate((actions[:half], actions[half:]), 1):
            store.put(f"{name}.{number:010}.0000000002.parquet", parquet(*part))
    else:
        is_file = [bool({"add", "remove"} & action.keys()) for action in actions]
        files = [action for action, its in zip(actions, is_file, strict=True) if its]
        others = [action for action, its in zip(actions, is_file, strict=True) if not its]
        for number, action in enumerate(files):
            store.put(f"_delta_log/_sidecars/s-{number}.parquet", parquet(action))
            others.append({"sidecar": {"path": f"s-{number}.parquet", "sizeInBytes": 1}})
        others.append({"checkpointMetadata": {"version": version}})
        data = parquet(*others)
        if form == "json":
            data = "\n".join(map(json.dumps, others)).encode()
        store.put(f"{name}.12345678-1234-1234-1234-123456789abc.{form}", data)


def actions_up_to(table: ForeignTable, version: int) -> list[Any]:
    """What a checkpoint of a version holds."""
    return [action for commit in table.commits()[: version + 1] for action in commit[1:]]
