"""Which transactional.ids a streaming query writes under, and which batch it committed last.

The state row of an id remembers the newest batch of each query that committed under it. A query may
be restarted under another id, so a run looks through all rows before its first commit:

    look        without owning anything: a batch that any row has is skipped (D24)
    own         the run becomes the owner of its id
    stop        every other row of the query: its owner is fenced, a decided transaction finished
    look        again: is the batch committed by now?

Own comes before stop, and every run does both. Of two runs of a query under two ids, whichever
stops last has seen the other own its row: so the other one is fenced, or its batch was decided
before and is found. A run that was fenced decides nothing more, and one that starts later does the
same to this one: so no run need look again. (Two runs may fence each other; the next start goes
on.)

What an older row remembers goes at the next start, when a newer batch is durable elsewhere; the row
can then expire. The newest batch of a query stays in a row, and such rows never expire.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from txnlog.cluster import Cluster
from txnlog.errors import ConcurrentTransactionsError
from txnlog.process.clock import ATTEMPTS_MAX, backoff_ms
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
    """The row that has the newest batch of a query, when all that is decided is published."""
    rows = _rows(cluster, query_id)
    for row in rows:
        cluster.coordinator.finish(row)
    return newest_row(rows, query_id)


def stop_others(
    cluster: Cluster, query_id: str, *, transactional_id: str, owner: Owner
) -> TransactionMetadata | None:
    """Fence the query's other ids; the row that has its newest batch then, of all ids.

    `owner` owns `transactional_id` already. Raises what finishing a decided transaction raises.
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
    found = []
    for number in range(cluster.shards):
        shard = cluster.shard(number)
        shard.refresh()
        found += [row for row in shard.view.rows.values() if is_of_query(row, query_id)]
    return found


def _change(cluster: Cluster, transactional_id: str, decide: Decide) -> None:
    """Persist a decision on the newest row, having finished what is decided there."""
    coordinator = cluster.coordinator
    shard = cluster.shard_for(transactional_id)
    for attempt in range(ATTEMPTS_MAX):
        row = coordinator.describe(transactional_id)
        if row is not None and row.state.is_prepared:
            coordinator.finish(row)
            continue
        try:
            changed = shard.transition(transactional_id, decide)
        except ConcurrentTransactionsError:
            cluster.store.clock.sleep_ms(backoff_ms(attempt))
            continue
        if changed is not None:
            coordinator.finish(changed)
        return
    raise ConcurrentTransactionsError(
        f"{transactional_id!r}, another transactional.id of this query, keeps deciding "
        "transactions; stop the query that runs under it.",
        transactional_id=transactional_id,
    )
