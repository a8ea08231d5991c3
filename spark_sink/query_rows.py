"""The transactional.ids a streaming query has written under, and its last committed batch.

The state row of an id stores the newest batch of each query that committed under it. A query may be
restarted under another id, so a run reads all rows before its first commit:

    read        without owning a row: a batch that any row has is skipped (D24)
    own         the run becomes the owner of its id
    stop        in every other row of the query: fence its owner, finish a decided transaction
    read        again: has the batch been committed meanwhile?

Own comes before stop, and every run does both. Of two runs of a query under two ids, the one that
stops last has seen the other own its row: so the other is fenced, or its batch was decided before
and is found. A fenced run decides nothing more, and a run that starts later does the same to this
one: so no run has to read again. (Two runs may fence each other; the next start continues.)

An older row's batch is removed at the next start, when a newer batch is durable in another row; the
older row can then expire. The newest batch of a query remains in a row, and such rows never expire.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import transition
from txnlog.errors import ConcurrentTransactionsError
from txnlog.process.clock import OPERATION_ATTEMPTS_MAX
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.protocol.micro_batches import (
    is_of_query,
    newest_row,
    prepare_forget_query,
    prepare_stop_query,
)
from txnlog.protocol.transitions import Done, Transition

Decide = Callable[[TransactionMetadata | None], Transition | Done]


def find_newest(cluster: Cluster, query_id: str) -> TransactionMetadata | None:
    """The row with the newest batch of a query; first finishes its decided transactions."""
    rows = _rows(cluster, query_id)
    for row in rows:
        cluster.coordinator.finish(row)
    return newest_row(rows, query_id)


def stop_others(
    cluster: Cluster, query_id: str, *, transactional_id: str, owner: Owner
) -> TransactionMetadata | None:
    """Fence the query's other ids; returns the row with its newest batch, of all ids.

    `owner` already owns `transactional_id`. Raises what finishing a decided transaction raises.
    """
    stop = partial(
        prepare_stop_query,
        query_id=query_id,
        by=owner.describe(),
        reason=f"the query was started under transactional.id {transactional_id!r}",
        now_ms=cluster.store.clock.now_ms(),
    )
    for row in _rows(cluster, query_id):
        if row.transactional_id != transactional_id:
            _change(cluster, row.transactional_id, stop)
    rows = _rows(cluster, query_id)
    newest = newest_row(rows, query_id)
    if newest is None:
        return None
    forget = partial(
        prepare_forget_query,
        query_id=query_id,
        below=newest.owner.batches[query_id].batch_id,
        now_ms=cluster.store.clock.now_ms(),
    )
    for row in rows:
        if row.transactional_id not in (transactional_id, newest.transactional_id):
            _change(cluster, row.transactional_id, forget)
    return newest


def _rows(cluster: Cluster, query_id: str) -> list[TransactionMetadata]:
    """The rows of all shards that the query owns, or has committed under."""
    rows = []
    shards = cluster.existing_shards()
    for shard in shards:
        rows += [row for row in shard.view.rows.values() if is_of_query(row, query_id)]
    return rows


def _change(cluster: Cluster, transactional_id: str, decide: Decide) -> None:
    """Persist a decision on the newest row, and finish the row's decided transaction."""
    coordinator = cluster.coordinator
    for attempt in range(OPERATION_ATTEMPTS_MAX):
        try:
            changed = transition(cluster, transactional_id, decide)
        except ConcurrentTransactionsError:
            decided = coordinator.describe(transactional_id)
            if decided is not None:
                coordinator.finish(decided)
            cluster.store.back_off(attempt)
            continue
        if changed is not None:
            coordinator.finish(changed)
        return
    raise ConcurrentTransactionsError(
        f"{transactional_id!r}, another transactional.id of this query, keeps committing "
        "transactions; stop the query that runs under it.",
        transactional_id=transactional_id,
    )
