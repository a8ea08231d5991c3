"""Markers of several decided transactions in one commit to a topic (D149).

A topic takes one commit after the other, so of many producers each would wait for all others. But
any process may publish what is decided. One that has lost the race for a topic's log reads the rows
of those that publish there, and puts the markers of all that are decided, and are not there yet,
into its own commit; the others find theirs. A row that was read is enough: the topic refuses a
marker that it has, as to any helper.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from txnlog.protocol.appends import Settled, prepare_marker
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.topics import TopicCommit, TopicState

ACTIONS_MAX = 1_000
"""Headers and markers of others in one commit, which all readers of the topic read."""
HELPERS = 2.0
"""How many of those who wait shall read the rows of the others at the same time."""
WAITS_MAX = 1
WAIT_PUTS = 2.0
"""A helper needs twice to four times a put to read the rows and to publish."""


def helps(*, waits: int, waiting: float, jitter: float) -> bool:
    """Whether to publish for all now, after so many `waits` for another to do it.

    `waiting` is how many transactions waited lately, `jitter` is between 0 and 1.
    """
    return waits >= WAITS_MAX or jitter * waiting < HELPERS


def wait_for_helper_ms(*, latency_ms: float, jitter: float) -> float:
    """How long to wait for another's commit; `latency_ms` is that of a put."""
    return WAIT_PUTS * (1.0 + jitter) * latency_ms


def unmarked(
    state: TopicState, topic: str, rows: Iterable[TransactionMetadata]
) -> list[TransactionMetadata]:
    """The decided rows whose marker the topic lacks, in the order of producer ids.

    Without those of which only their owner, or the sweeper, knows whether their files are there:
    what a client has prepared may be old. And without batch writes of an application, whose
    txnVersions have an order.
    """
    found = [
        row
        for row in rows
        if row.state.is_prepared
        and (topic, state.topic_id) in row.topic_ids
        and not state.deleted
        and not row.pending.prepared_by_client
        and row.pending.app is None
        and state.markers.get(row.producer_id, -1) < row.txn_epoch
        and all(
            batch.partition < len(state.partitions)
            for batch in row.pending.batches
            if batch.topic == topic
        )
    ]
    return sorted(found, key=lambda row: row.transaction)


def with_markers(
    state: TopicState, commit: TopicCommit, topic: str, rows: Iterable[TransactionMetadata]
) -> TopicCommit:
    """The marker commit of a transaction, with those of others' decided rows: offsets follow one
    another, in the order of the rows.
    """
    adds, txns = list(commit.adds), dict(commit.txns)
    left, ends = ACTIONS_MAX, dict[int, int]()
    for add in adds:
        ends[add.partition] = max(ends.get(add.partition, 0), add.last_offset + 1)
    for row in unmarked(state, topic, rows):
        made = prepare_marker(
            state,
            topic_id=state.topic_id,
            transaction=row.transaction,
            result=TransactionResult.of(row.state),
            batches=[batch for batch in row.pending.batches if batch.topic == topic],
            ends=ends,
        )
        # Two rows never have one producer id, but in a root that was restored in part.
        if isinstance(made, Settled) or not txns.keys().isdisjoint(made.txns):
            continue
        size = len(made.adds) + len(made.txns)
        if size > left:
            continue
        left -= size
        adds += made.adds
        txns.update(made.txns)
        for add in made.adds:
            ends[add.partition] = max(ends.get(add.partition, 0), add.last_offset + 1)
    return replace(commit, adds=tuple(adds), txns=txns)
