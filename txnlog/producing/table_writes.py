"""What a transaction writes to Delta tables of others: rows are staged as files when given.

No commit names the files before the transaction is decided, and no VACUUM of other tools looks
where they are, unless the table was enlisted with visible staging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.coordinator.tables import TableChange
from txnlog.errors import InvalidTxnStateError, TableDataError, TableFeatureError
from txnlog.protocol.enlisted.actions import AddFile, TableState
from txnlog.protocol.enlisted.parts import Mode, new_part
from txnlog.storage.tables.enlisted_files import stage

Partitions = Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class _Write:
    """The files for one table, all staged under one state of it. An overwrite replaces what is in
    `partitions`; None: all of the table.
    """

    url: str
    state: TableState
    staged_ms: int
    mode: Mode
    folder: str
    partitions: Partitions | None = None
    adds: tuple[AddFile, ...] = ()


class TableWrites:
    """Those of one transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._writes: dict[str, _Write] = {}
        self._changes: tuple[TableChange, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._writes)

    def append(self, name: str, rows: pa.Table) -> None:
        """Stage rows; after `overwrite` of the same table they come to those of that.

        Raises UnknownTableError, TableDataError, TableFeatureError, StorageError.
        """
        write = self._writes.get(name)
        if write is not None:
            self._writes[name] = self._staged(write, rows)
        elif rows.num_rows:
            self._begin(name, rows, "append", None)

    def overwrite(self, name: str, rows: pa.Table, partitions: Partitions | None) -> None:
        """Stage rows that replace all rows of partitions, or of the table. Raises as `append`."""
        if name in self._writes:
            raise InvalidTxnStateError(
                f"This transaction writes to table {name!r} already: overwrite it first, or in "
                "another transaction.",
                table=name,
            )
        self._begin(name, rows, "overwrite", partitions)

    def changes(self) -> tuple[TableChange, ...]:
        """For the coordinator; the same ones at each call."""
        if self._changes is None:
            self._changes = tuple(
                TableChange(
                    name=name,
                    url=write.url,
                    part=new_part(
                        write.state, write.adds, mode=write.mode, partitions=write.partitions
                    ),
                    staged_ms=write.staged_ms,
                )
                for name, write in sorted(self._writes.items())
            )
        return self._changes

    def _begin(self, name: str, rows: pa.Table, mode: Mode, partitions: Partitions | None) -> None:
        """Stage under the table's state as this process last read it: the commit checks it.

        Rows that do not fit that may fit what the table is now.
        """
        table = self._cluster.find_table(name)
        log = self._cluster.table_log(table.url)
        read_version = log.state.version
        if read_version < 0:
            log.refresh()

        def staged() -> _Write:
            state = log.state.as_staged_under()
            folder = table.staging_folder(self._cluster.cluster_id)
            now_ms = self._cluster.store.now_ms()
            write = _Write(table.url, state, now_ms, mode, folder, partitions)
            return self._staged(write, rows)

        try:
            write = staged()
        except (TableDataError, TableFeatureError):
            log.refresh()
            if log.state.version == read_version:
                raise
            write = staged()
        self._writes[name] = write

    def _staged(self, write: _Write, rows: pa.Table) -> _Write:
        cluster = self._cluster
        adds = stage(
            cluster.table_log(write.url).store,
            rows,
            write.state.definition,
            folder=write.folder,
            now_ms=cluster.store.now_ms(),
        )
        # Rows outside of the partitions are refused here.
        new_part(write.state, adds, mode=write.mode, partitions=write.partitions)
        return replace(write, adds=(*write.adds, *adds))
