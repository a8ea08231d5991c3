"""Roots of formats 1 and 2, made by the versions that wrote them; see make_old_roots.py."""

from __future__ import annotations

import json
import tarfile
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.coordinator.processes import MINUTE_MS, PLAIN
from txnlog.admin.upgrade import Upgrade, UpgradeReport
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.protocol.states import TransactionResult
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster

FORMATS = ("1", "2")
COMMITTED = ("complete", "decided", "half moved")
UNDECIDED = ("undecided", "aborted", "open", "aborting")
PREPARED = ("prepared", "prepared eagerly", "prepared twice")
TRANSACTIONS = (*COMMITTED, *UNDECIDED, *PREPARED, "overtaken")
START, END = {0: 5, 1: 5}, {0: 30, 1: 5}
"""Offsets of `input` in the groups of a transaction that moves none, and of one that does."""
OVERTAKEN = {0: 40, 1: 30}
"""A consumer committed 40 after the entry."""


@cache
def archived(root_format: str) -> dict[str, bytes]:
    """All objects of a root."""
    with tarfile.open(Path(__file__).with_name(f"format_{root_format}.tar.xz")) as file:
        found = {member.name: file.extractfile(member) for member in file.getmembers()}
        return {name: data.read() for name, data in found.items() if data is not None}


def prepared_states(root_format: str) -> dict[str, str]:
    """transactional.id -> what its client got from prepare_transaction."""
    found: dict[str, str] = json.loads(archived(root_format)["made.json"])
    return found


def old_world(root_format: str) -> SharedMemory:
    """The root, in memory."""
    shared = SharedMemory()
    store = shared.open()
    for name, data in archived(root_format).items():
        if name != "made.json":
            store.put_if_absent(name, data)
    return shared


def old_folder(root_format: str, folder: Path) -> str:
    """The root, on a disk."""
    for name, data in archived(root_format).items():
        if name != "made.json":
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return str(folder)


def opened(shared: SharedMemory) -> Cluster:
    """A process of this version."""
    return Cluster.open(shared.open(), settings=PLAIN)


def expected(moved: tuple[str, ...]) -> dict[str, dict[int, int]]:
    """Group -> offsets of `input`; `moved` are the transactions that were committed."""
    found = {f"plain {number}": {0: number, 1: 7} for number in range(7)}
    for name in TRANSACTIONS[:-1]:
        ends = END if name in moved else START
        found.update({f"{name} {number}": ends for number in range(3)})
    return {**found, "overtaken 0": OVERTAKEN, "members": {0: 20, 1: 0}}


def positions(cluster: Cluster) -> dict[str, dict[int, int]]:
    """The committed offsets of all groups, as they are in the rows."""
    rows = {g: row for log in cluster.offsets_shards() for g, row in log.view.rows.items()}
    return {group: dict(row.positions().get("input", {})) for group, row in rows.items()}


def settled(shared: SharedMemory) -> Cluster:
    """Sweepers of this version finish what is decided, and time out what is open."""
    cluster = opened(shared)
    sweeper = Sweeper(cluster, interval_ms=2 * MINUTE_MS)
    for _ in range(3):
        sweeper.sweep()
        shared.clock.advance_ms(2 * MINUTE_MS)
    check_cluster(cluster)
    check_cluster(opened(shared))
    return cluster


def output(cluster: Cluster, topic: str) -> set[str]:
    """Names of the transactions that are committed there, with one record each.

    Some are above the last stable offset, which a prepared transaction holds back.
    """
    found = []
    for batch in cluster.topic(topic).view.by_path.values():
        if batch.status != TransactionResult.COMMIT.status:
            continue
        data = cluster.store.get(f"{topic}/{batch.path}")
        found += pq.read_table(pa.BufferReader(data)).column("value").to_pylist()
    assert len(set(found)) == len(found)
    return {value.decode() for value in found}


def upgrade(store: ObjectStore, *, watch_ms: int = 0, shards: int = 4) -> Upgrade:
    return Upgrade(store, watch_ms=watch_ms, shards=shards)


def upgraded(shared: SharedMemory) -> UpgradeReport:
    return upgrade(shared.open()).run()
