"""State and group rows as faulty or newer processes write them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.housekeeping.steps import FOREVER, written_both
from tests.world import (
    GROUP,
    consumed,
    owned,
    process,
    world,
)
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.storage.delta.delta_log import Committed
from txnlog.storage.tables.row_log import OffsetsLog, TransactionLog
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import SharedMemory

Changes = Mapping[str, str | None]

# What older, newer or mistaken writers leave in a column; None: there is no such column. Delta's
# own code makes no checkpoint of a table with a number that is none.
NO_NUMBER = ({"producer_epoch": "3.0"}, {"timeout_ms": "many"})
NULL = "(null)"
ROW_DAMAGES: list[Changes] = [
    {"state": "PREPARE_MAYBE"},
    {"producer_epoch": "3.0"},
    {"pending": '{"batches": 5}'},
    {"owner": "[" * 100_000},
    {"updated_ms": None},
    {"timeout_ms": "many"},
    {"state": NULL},
]
GROUP_DAMAGES: list[Changes] = [
    {"offsets": '{"orders": {"0": {"offset": 3.5}}}'},
    {"generation": "x"},
    {"members": None},
    {"tickets": "null"},
]


def log_of(cluster: Cluster, name: str) -> TransactionLog | OffsetsLog:
    """The row table of a transactional.id, or of the groups."""
    return cluster.offsets_log(name) if name == GROUP else cluster.shard(cluster.shard_of(name))


def spoil(shared: SharedMemory, name: str, changes: Changes) -> str:
    """Rewrite a row with other values, as a faulty process would; returns its file."""
    cluster = process(shared)
    log = log_of(cluster, name)
    log.refresh()
    row = log.view.rows[name]
    values = {k: v for k, v in {**row.to_values(), **changes}.items() if v is not None}
    add = row_add(row.path, values, size_bytes=1, now_ms=cluster.store.now_ms())
    for column, value in values.items():
        if value == NULL:
            add.partition_values[column] = None
    assert isinstance(log.log.commit([add], operation="MISTAKE"), Committed)
    return row.path


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({}, cluster=cluster)


def two(*, prepared: bool = False) -> SharedMemory:
    """Ids `tx` and `other`, and the group with an offset."""
    shared = world(config=FOREVER)
    first = process(shared)
    for name in ("tx", "other"):
        owned(first, f"{name}-run", tid=name)
    first.coordinator.commit(owned(first, "other-run", tid="other"), offsets=[consumed(0, 5)])
    if prepared:
        row = owned(first, "tx-run")
        first.coordinator.prepare(row, written_both(first, "held"))
    return shared
