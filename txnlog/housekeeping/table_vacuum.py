"""What vacuum deletes of the files that transactions have staged for Delta tables of others, and of
the staging tables that Spark has written them into.

Below `<table>/_txnlog/<cluster id>` only txnlog deletes. Such a file becomes live by a decided
transaction only, so the barriers are in the shards: the reads are in the order of
txnlog.protocol.vacuum.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

from txnlog.cluster import Cluster
from txnlog.coordinator.pins import kept_snapshots
from txnlog.coordinator.tables import file_of
from txnlog.coordinator.versions import table_at
from txnlog.errors import SnapshotNotFoundError, UnknownTableError
from txnlog.process.failures import Failures
from txnlog.protocol.enlisted.actions import Definition, file_name, file_names
from txnlog.protocol.enlisted.features import FILE_RETENTION, retention_ms
from txnlog.protocol.enlisted.parts import staging_folder
from txnlog.protocol.enlisted.registry import EnlistedTable
from txnlog.protocol.metadata import StagedTable
from txnlog.protocol.snapshots import Snapshot
from txnlog.protocol.vacuum import Deletable, StoredFile, find_deletable
from txnlog.storage.store.objects import ObjectStore

logger = logging.getLogger("txnlog")

DAY_MS = 86_400_000

_DATA_FILE = re.compile(r"part-[0-9a-f]{32}\.parquet\Z")
_PART_FILE = re.compile(r"[0-9a-f]{32}\.json\Z")
_IN_STAGING_TABLE = re.compile(r"[0-9a-f]{32}/")


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Old files that were staged for one table; paths are below its URL."""

    table: EnlistedTable
    store: ObjectStore
    old: list[StoredFile]


def old_staged_files(
    cluster: Cluster, failures: Failures, *, now_ms: int, age_ms: int
) -> list[StagedFiles]:
    """Those of each enlisted table that has any; part files are kept for a day longer."""
    found: list[StagedFiles] = []
    tables: dict[str, EnlistedTable] = {}
    with failures.of("names of tables"):
        tables = cluster.enlisted()
    for name, table in tables.items():
        with failures.of(f"table {name!r}"):
            store = cluster.open_table(table.url).store
            folder = staging_folder(cluster.cluster_id)
            old = [
                StoredFile(item.path, item.size_bytes, item.last_modified_ms)
                for item in store.list(folder)
                if now_ms - item.last_modified_ms
                >= age_ms + _longer_ms(item.path[len(folder) + 1 :])
            ]
            if old:
                found.append(StagedFiles(table, store, old))
    return found


def _longer_ms(path: str) -> float:
    """How much longer than the vacuum age a file stays; what is not ours stays for ever."""
    if _IN_STAGING_TABLE.match(path) or _DATA_FILE.match(file_name(path)):
        return 0
    return DAY_MS if _PART_FILE.match(path) else float("inf")


def deletable_staged_files(
    cluster: Cluster,
    staged: StagedFiles,
    pending: Iterable[StagedTable],
    snapshots: dict[str, Snapshot],
    *,
    now_ms: int,
) -> list[Deletable]:
    """Old files that no transaction of `pending` names, no named snapshot shows, and the table does
    not know.

    `pending` are the parts of all rows, `snapshots` as in `kept_snapshots`. What was removed stays
    as long as the table's log has the tombstone. Raises what reading the table and the parts
    raises: then all is kept.
    """
    log = cluster.open_table(staged.table.url)
    named = set()
    for part in pending:
        if part.url == staged.table.url:
            named.add(file_name(part.part))
            named.update(log.read_part(file_of(part)).file_names)
    log.refresh_files()
    if log.state.definition.metadata.id != staged.table.table_id:
        return []
    live = file_names(*(log.state.files or {}).values()) | (log.state.removed or set())
    kept_ms = _kept_ms(log.state.definition)
    left = [
        file
        for file in staged.old
        if file_name(file.path) not in live | named
        # The change data feed is in commits only, and kept as Delta's VACUUM does.
        and ("/_change_data/" not in file.path or now_ms - file.modified_ms >= kept_ms)
    ]
    shown = _shown(cluster, staged.table, snapshots) if left else set()
    left = [file for file in left if shown is not None and file_name(file.path) not in shown]
    return find_deletable(
        left,
        table=staged.table.url,
        live=(),
        named=(),
        removed_ms={},
        now_ms=now_ms,
        age_ms=0,
    )


def _kept_ms(definition: Definition) -> float:
    try:
        return retention_ms(definition, FILE_RETENTION) or 0
    except ValueError:
        return float("inf")


def _shown(
    cluster: Cluster, table: EnlistedTable, snapshots: dict[str, Snapshot]
) -> set[str] | None:
    """Names of the files that named snapshots show, read last, as of topics; None: not known.

    A version whose log was cleaned up shows none any more.
    """
    found: set[str] = set()
    for name, snapshot in kept_snapshots(cluster, snapshots).items():
        for one in snapshot.tables.values():
            if one.url != table.url:
                continue
            try:
                found |= file_names(*(table_at(cluster, one).state.files or {}).values())
            except SnapshotNotFoundError as error:
                if isinstance(error.__cause__, UnknownTableError):
                    continue
                logger.warning(
                    "Vacuum deletes nothing below the table until the snapshot %r is dropped: %s",
                    name,
                    error,
                )
                return None
    return found
