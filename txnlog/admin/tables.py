"""Delta tables of others for operators: enlist, list, describe, republish and delist them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from txnlog.admin.state_rows import rows
from txnlog.cluster import Cluster
from txnlog.coordinator import restaging, tables
from txnlog.coordinator.tables import check_same, waits_for
from txnlog.errors import TxnLogError
from txnlog.process.failures import Failures
from txnlog.protocol.enlisted.features import check_enlistable
from txnlog.protocol.enlisted.parts import Decided, app_id_of, republished_app_id
from txnlog.protocol.enlisted.registry import EnlistedTable, check_table_name, find_enlisted
from txnlog.protocol.metadata import StagedTable, Staging, TransactionMetadata
from txnlog.settings.roots import checked_root
from txnlog.verifying.publications import completed_parts, lost_parts


@dataclass(frozen=True, slots=True)
class WaitingPart:
    """A part of a decided transaction that is not in its table yet.

    `why` says what prevents it; "" if nothing does, and any client will publish it. Its publication
    has a txn of `app_id` and the version `producer_epoch`: whoever commits that gives the rows up.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    decided_ms: int
    num_records: int
    why: str
    app_id: str


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


def enlist(cluster: Cluster, name: str, url: str, staging: Staging = "hidden") -> None:
    """Let transactions write to the Delta table at a URL, under a name. Repeated, it changes
    `staging` only.

    Raises ConfigError for a name or table that is taken, UnknownTableError without a table there,
    TableFeatureError for one that cannot take part.
    """
    check_table_name(name)
    log = cluster.table_log(cluster.store.at(checked_root(url)).url)
    log.refresh()
    check_enlistable(log.state)
    metadata = log.state.definition.metadata
    now_ms = cluster.store.clock.now_ms()
    table = EnlistedTable(url=log.store.url, table_id=metadata.id, since_ms=now_ms, staging=staging)
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


def republish(cluster: Cluster, name: str) -> int:
    """Publish again what `txnlog verify` finds lost in a table; the number of transactions.

    Raises UnknownTableError, TableChangedError; CorruptLogError, ObjectNotFoundError if files are
    gone, by vacuum perhaps.
    """
    table = find_enlisted(cluster.enlisted(), name)
    log = cluster.open_table(table.url)
    log.refresh()
    check_same(log, table)
    shards = [shard.number for shard in cluster.existing_shards()]
    parts = completed_parts(cluster.store, shards)
    ours = [part for part in parts if part.table.url == table.url]
    lost = lost_parts(log, cluster.cluster_id, ours)
    failures = Failures(f"Republishing in {name!r}")
    for part in lost:
        app_id = republished_app_id(app_id_of(cluster.cluster_id, part.producer_id), part.epoch)
        decided = Decided(app_id=app_id, epoch=0, decided_ms=cluster.store.now_ms())
        with failures.of(f"{part.transactional_id!r}, epoch {part.epoch}"):
            tables.republish(cluster, part.transactional_id, decided, part.table)
    failures.check()
    return len(lost)


def restage(cluster: Cluster, name: str, drop_columns: Collection[str] = ()) -> int:
    """Stage what a table does not take any more again, under its schema of now, and publish it; the
    number of transactions, the oldest first.

    Raises UnknownTableError for a name that no decided transaction and no table has, and as
    `restaging.restage`.
    """
    known = cluster.enlisted().get(name)
    url = None if known is None else known.url
    # It may have had another name when they were decided.
    waiting = [each for each in _waiting(cluster) if name == each[1].name or url == each[1].url]
    if not waiting:
        find_enlisted(cluster.enlisted(), name)
    count, failures = 0, Failures(f"Restaging in {name!r}")
    for row, table in sorted(waiting, key=lambda each: each[0].updated_ms):
        with failures.of(repr(row.transactional_id)):
            count += restaging.restage(cluster, row, table, drop_columns)
    failures.check()
    return count


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
        check_same(log, table)
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
                app_id=app_id_of(cluster.cluster_id, row.producer_id),
            )
