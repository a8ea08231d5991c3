"""Delta tables of others for operators: enlist, list, describe and delist them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txnlog.admin.state_rows import rows
from txnlog.cluster import Cluster
from txnlog.coordinator.tables import waits_for
from txnlog.errors import TxnLogError, UnknownTableError
from txnlog.protocol.enlisted.features import check_enlistable
from txnlog.protocol.enlisted.registry import EnlistedTable, check_table_name, find_enlisted
from txnlog.protocol.metadata import StagedTable, TransactionMetadata
from txnlog.settings.roots import checked_root
from txnlog.storage.tables.enlisted_log import EnlistedLog


@dataclass(frozen=True, slots=True)
class WaitingPart:
    """A part of a decided transaction that is not in its table yet.

    `why` says what prevents it; "" if nothing does, and any client will publish it.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    decided_ms: int
    num_records: int
    why: str


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table of others that transactions may write to; `error` if it cannot be read."""

    name: str
    url: str
    table_id: str
    since_ms: int
    version: int
    waiting: tuple[WaitingPart, ...] = ()
    error: TxnLogError | None = None


def enlist(cluster: Cluster, name: str, url: str) -> None:
    """Let transactions write to the Delta table at a URL, under a name. Repeated, a no-op.

    Raises ConfigError for a name or table that is taken, UnknownTableError without a table there,
    TableFeatureError for one that cannot take part.
    """
    check_table_name(name)
    log = cluster.table_log(cluster.store.at(checked_root(url)).url)
    log.refresh()
    check_enlistable(log.state)
    metadata = log.state.definition.metadata
    now_ms = cluster.store.clock.now_ms()
    table = EnlistedTable(url=log.store.url, table_id=metadata.id, since_ms=now_ms)
    cluster.enlist(name, table)


def describe_all(cluster: Cluster) -> list[TableDescription]:
    """The enlisted tables, by name; of one that cannot be read the error."""
    waiting = _waiting(cluster)
    return [
        _described(cluster, name, table, waiting)
        for name, table in sorted(cluster.enlisted().items())
    ]


def describe(cluster: Cluster, name: str) -> TableDescription:
    """Raises UnknownTableError for a name that is not enlisted."""
    table = find_enlisted(cluster.enlisted(), name)
    return _described(cluster, name, table, _waiting(cluster))


Waiting = list[tuple[TransactionMetadata, StagedTable]]


def _waiting(cluster: Cluster) -> Waiting:
    """The parts of transactions that are decided and not complete."""
    return [(row, table) for _, row in rows(cluster) for table in row.tables]


def _described(
    cluster: Cluster, name: str, table: EnlistedTable, waiting: Waiting
) -> TableDescription:
    version, error = -1, None
    try:
        log = cluster.table_log(table.url)
        log.refresh()
        version = log.state.version
        _check_same(log, table)
    except TxnLogError as failed:
        error = failed
    return TableDescription(
        name=name,
        url=table.url,
        table_id=table.table_id,
        since_ms=table.since_ms,
        version=version,
        waiting=tuple(_parts(cluster, table.url, waiting)),
        error=error,
    )


def _check_same(log: EnlistedLog, table: EnlistedTable) -> None:
    found = log.state.definition.metadata.id
    if found != table.table_id:
        raise UnknownTableError(
            f"{table.url} was dropped and made again: its id is {found}, and {table.table_id} was "
            "enlisted. Delist it, and enlist it again.",
            url=table.url,
        )


def _parts(cluster: Cluster, url: str, waiting: Waiting) -> Iterator[WaitingPart]:
    """Those that are not in the table."""
    for row, table in waiting:
        why = waits_for(cluster, row, table) if table.url == url else None
        if why is not None:
            yield WaitingPart(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                producer_epoch=row.txn_epoch,
                decided_ms=row.updated_ms,
                num_records=table.num_records,
                why=why,
            )
