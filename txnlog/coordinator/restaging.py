"""Parts that their table does not take any more: staged again under its schema of now.

The new part file replaces the old one in the row by compare-and-swap, under the same transaction
(D145). So a process that holds the former row may still publish the old files, if the table takes
them again: whichever is published first, the `txn` refuses the other.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from msgspec.structs import replace

from txnlog.coordinator.finishing import finish
from txnlog.coordinator.root import Root
from txnlog.coordinator.staged_files import check_ages
from txnlog.coordinator.tables import check_files, decided_of, file_of
from txnlog.errors import ConfigError, TableChangedError, TableDataError
from txnlog.process.failpoint import reach
from txnlog.protocol.enlisted.actions import AddFile
from txnlog.protocol.enlisted.compatibility import unpublishable
from txnlog.protocol.enlisted.parts import Part, new_part, staging_folder
from txnlog.protocol.enlisted.restaging import columns_now, partitions_now
from txnlog.protocol.enlisted.schemas import schema_of
from txnlog.protocol.metadata import StagedTable, TransactionMetadata
from txnlog.protocol.transitions import Done, Transition, prepare_restage
from txnlog.storage.tables.enlisted_files import stage
from txnlog.storage.tables.enlisted_log import EnlistedLog, is_published
from txnlog.storage.tables.enlisted_rows import read_staged


def restage(
    root: Root, row: TransactionMetadata, table: StagedTable, drop_columns: Collection[str]
) -> bool:
    """Stage a decided part again under its table's schema of now, and finish the transaction.

    False: nothing was in its way. `drop_columns` may be lost with their values. Raises
    TableDataError for rows that do not fit, TableChangedError, TableFeatureError for a table that
    takes no such part: then nothing has changed; else what `finish` raises.
    """
    log = root.open_table(table.url)
    log.refresh()
    definition = log.state.definition
    is_replaced = definition.metadata.id != table.table_id
    if not is_replaced and not is_published(log.state, decided_of(root, row, table)):
        part = log.read_part(file_of(table))
        if unpublishable(part, definition) is not None:
            check_files(log, part, row.transactional_id)
            _restage(root, row, table, log, part, drop_columns)
            return True
    finish(root, row)
    return False


def _restage(
    root: Root,
    row: TransactionMetadata,
    table: StagedTable,
    log: EnlistedLog,
    part: Part,
    drop_columns: Collection[str],
) -> None:
    began_ms = root.store.now_ms()
    enlisted = root.enlisted().get(table.name)
    cluster_id = root.cluster_id
    folder = enlisted.staging_folder(cluster_id) if enlisted else staging_folder(cluster_id)
    staged = _staged(log, part, drop_columns, folder=folder, now_ms=began_ms)
    if why := unpublishable(staged, log.state.definition):
        raise TableChangedError(f"{table.url}: {why}.", url=table.url, abortable=False)
    reach("restage.staged")
    file = log.put_part(staged, cluster_id=cluster_id)
    reach("restage.part")
    new = replace(
        table,
        part=file.path,
        size_bytes=file.size_bytes,
        digest=file.digest,
        num_files=len(staged.adds),
        staging="visible" if staged.is_visible else "hidden",
    )

    def decide(now: TransactionMetadata | None) -> Transition | Done:
        # A barrier of vacuum, which conflicts, may come between staging and this commit (R72).
        check_ages(root, (), [replace(new, staged_ms=began_ms)])
        return prepare_restage(now, transaction=row.transaction, old=table, new=new)

    after = root.shard_for(row.transactional_id).transition(row.transactional_id, decide)
    reach("restage.decided")
    if after is not None and after.transaction == row.transaction:
        finish(root, after)


def _staged(
    log: EnlistedLog, part: Part, drop_columns: Collection[str], *, folder: str, now_ms: int
) -> Part:
    """The part under the table's state as of the last refresh; its files are written."""
    url, state = log.store.url, log.state.as_staged_under()
    definition = state.definition
    names = columns_now(part.definition, definition)
    if kept := sorted({field.name for field in schema_of(definition).fields} & set(drop_columns)):
        raise ConfigError(f"{url} has the column {kept[0]!r}: it is not to be dropped.", url=url)
    try:
        partitions = partitions_now(part, definition)
    except ValueError as error:
        raise TableChangedError(f"{url}: {error}.", url=url, abortable=False) from error
    adds: list[AddFile] = []
    for add in part.adds:
        # A file at a time: all rows of a part may not be in memory together.
        groups = list(read_staged(log.store, part.definition, [add]))
        if groups:
            rows = _renamed(url, pa.concat_tables(groups), names, drop_columns)
            adds += stage(log.store, rows, definition, folder=folder, now_ms=now_ms)
    return new_part(
        state, adds, mode=part.mode, partitions=partitions, former=tuple(sorted(part.file_names))
    )


def _renamed(
    url: str, rows: pa.Table, names: dict[str, str], drop_columns: Collection[str]
) -> pa.Table:
    for name in rows.column_names:
        if name in names or name in drop_columns:
            continue
        if rows.column(name).null_count < rows.num_rows:
            raise TableDataError(
                f"{url} has no column {name!r} any more, and the rows have values in it. Add it to "
                f"the table, or lose these values: `--drop-columns {name}`.",
                url=url,
                abortable=False,
            )
    kept = [name for name in rows.column_names if name in names]
    return rows.select(kept).rename_columns([names[name] for name in kept])
