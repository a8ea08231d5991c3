"""The state rows of transactional.ids, including unreadable ones and their deletion."""

from __future__ import annotations

from collections.abc import Iterator

from txnlog.cluster import Cluster
from txnlog.coordinator.state_rows import as_shown
from txnlog.errors import InvalidTxnStateError, TransactionalIdNotFoundError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.storage.tables.row_log import UnreadableRow


def rows(cluster: Cluster) -> Iterator[tuple[int, TransactionMetadata]]:
    """(shard, row) of every transactional.id, refreshed."""
    shards = cluster.existing_shards()
    for shard in shards:
        for row in list(shard.view.rows.values()):
            yield shard.number, row


def shown_rows(cluster: Cluster) -> list[tuple[int, TransactionMetadata]]:
    """`rows` as operators see them, see as_shown."""
    found = list(rows(cluster))
    shown = as_shown(cluster, [row for _, row in found])
    return [(number, row) for (number, _), row in zip(found, shown, strict=True)]


def unreadable_rows(cluster: Cluster) -> list[tuple[int, UnreadableRow]]:
    """(shard, row) of the unreadable rows, as of the last refresh of each shard."""
    return [
        (shard.number, row)
        for shard in cluster.existing_shards()
        for row in list(shard.view.rows.unreadable.values())
    ]


def delete_transaction(cluster: Cluster, transactional_id: str) -> None:
    """Delete an unreadable state row, by id or by the row's file; the id can be used again.

    A transaction that it had decided but not published is lost. Open transactions in topics are
    listed by `find_hanging` and aborted by `abort_hanging`. The row's record of a streaming query's
    batches is lost: start the query with a new checkpoint.
    Raises TransactionalIdNotFoundError, InvalidTxnStateError for a readable row.
    """
    for shard in cluster.existing_shards():
        if shard.remove_unreadable(transactional_id, "DELETE TRANSACTIONAL ID"):
            return
    row = require_row(cluster, transactional_id)
    raise InvalidTxnStateError(
        f"The state row of {transactional_id!r} is readable and was not deleted. Abort its "
        "transaction or fence its owner; housekeeping expires unused ids.",
        transactional_id=transactional_id,
        state=row.state.name,
    )


def require_row(cluster: Cluster, transactional_id: str) -> TransactionMetadata:
    """The row of an id. Raises TransactionalIdNotFoundError."""
    row = cluster.coordinator.describe(transactional_id)
    if row is None:
        raise TransactionalIdNotFoundError(
            f"There is no transactional.id {transactional_id!r}: it has not committed yet, or has "
            "expired.",
            transactional_id=transactional_id,
        )
    return row
