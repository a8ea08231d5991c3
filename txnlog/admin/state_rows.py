"""The state rows of transactional.ids, also those that cannot be read, and giving such up."""

from __future__ import annotations

from collections.abc import Iterator

from txnlog.cluster import Cluster
from txnlog.errors import InvalidTxnStateError, TransactionalIdNotFoundError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.storage.tables.row_log import UnreadableRow


def rows(cluster: Cluster) -> Iterator[tuple[int, TransactionMetadata]]:
    """(shard, row) of every transactional.id, as of now."""
    for number in range(cluster.shards):
        shard = cluster.shard(number)
        shard.refresh()
        for row in list(shard.view.rows.values()):
            yield number, row


def unreadable_rows(cluster: Cluster) -> list[tuple[int, UnreadableRow]]:
    """(shard, row) of those that cannot be read, as of the newest look at their shards."""
    found = []
    for number in range(cluster.shards):
        unreadable = cluster.shard(number).view.rows.unreadable
        found += [(number, row) for row in list(unreadable.values())]
    return found


def delete_transaction(cluster: Cluster, transactional_id: str) -> None:
    """Give up a state row that cannot be read; the id, or the row's file, can be used again.

    What it had decided and not published is not published any more. What it left undecided in
    topics shows in `find_hanging` and is aborted by `abort_hanging`. A streaming query of the id
    has forgotten which batches it wrote: start it with a new checkpoint.
    Raises TransactionalIdNotFoundError, InvalidTxnStateError for a row that can be read.
    """
    for number in range(cluster.shards):
        shard = cluster.shard(number)
        shard.refresh()
        if shard.remove_unreadable(transactional_id, "DELETE TRANSACTIONAL ID"):
            return
    row = require_row(cluster, transactional_id)
    raise InvalidTxnStateError(
        f"The state row of {transactional_id!r} can be read, and is not deleted. Abort its "
        "transaction or fence its owner; housekeeping forgets ids that are not used.",
        transactional_id=transactional_id,
        state=row.state.name,
    )


def require_row(cluster: Cluster, transactional_id: str) -> TransactionMetadata:
    """The row of an id. Raises TransactionalIdNotFoundError."""
    row = cluster.coordinator.describe(transactional_id)
    if row is None:
        raise TransactionalIdNotFoundError(
            f"There is no transactional.id {transactional_id!r}: it has committed nothing yet, or "
            "has expired.",
            transactional_id=transactional_id,
        )
    return row
