"""Appending staged batches of one topic, in an eager transaction or by an idempotent producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from txnlog.coordinator.root import Root
from txnlog.coordinator.staged_files import check_ages
from txnlog.coordinator.state_rows import check_owner
from txnlog.errors import TxnLogError
from txnlog.process.failures import caught
from txnlog.protocol.appends import Appended, check_added, prepare_append
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch, TransactionMetadata
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.topic_log import TopicLog


class Append(NamedTuple):
    """Staged batches of one topic, in a commit of their own.

    `base_sequences` maps partition -> sequence of its first record here; `may_be_there` is that of
    `prepare_append`.
    """

    batches: Sequence[StagedBatch]
    base_sequences: Mapping[int, int]
    producer_id: int = -1
    """Of an idempotent producer; a transaction's is in its row."""
    may_be_there: bool = True


Outcome = tuple[int, ...] | TxnLogError
"""The first offsets of an append's batches, or the error of the append."""


def append_in_transaction(
    root: Root,
    row: TransactionMetadata,
    appends: Sequence[Append],
    *,
    reading: Reading | None,
) -> list[Outcome]:
    """Append to several topics, each once, together, inside an Ongoing transaction.

    `reading` began before the row was read or written; without it the row is read again, as is one
    read too long ago: the marker that fences a zombie's batches may have expired (D3).
    Raises InvalidTxnStateError for a partition that was not added, and what `check_owner` raises.
    """
    for append in appends:
        check_added(row.partitions, append.batches)
    producer = ProducerIdAndEpoch(row.producer_id, row.producer_epoch)
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(appends):
        if reading is None:
            reading = Reading.begin(root.store.clock)
            check_owner(root, row)
        left = [number for number in range(len(appends)) if number not in outcomes]
        made = _together(root, [appends[n] for n in left], [producer] * len(left), reading)
        outcomes |= {n: found for n, found in zip(left, made, strict=True) if found is not None}
        reading = None
    return [outcomes[number] for number in range(len(appends))]


def append_idempotent(root: Root, appends: Sequence[Append]) -> list[Outcome]:
    """Append to several topics, each once, together, outside of transactions (R9)."""
    producers = [ProducerIdAndEpoch(append.producer_id, 0) for append in appends]
    made = _together(root, appends, producers, None)
    return [found for found in made if found is not None]


def _together(
    root: Root,
    appends: Sequence[Append],
    producers: Sequence[ProducerIdAndEpoch],
    reading: Reading | None,
) -> list[Outcome | None]:
    logs = [root.topic_log(append.batches[0].topic) for append in appends]
    return root.store.together(
        [
            # A bug, too, costs only this topic (D65).
            partial(
                caught,
                partial(_append, root, log, append, producer, reading),
                f"Writing records to topic {log.name!r}",
            )
            for log, append, producer in zip(logs, appends, producers, strict=True)
        ]
    )


def _append(
    root: Root,
    log: TopicLog,
    append: Append,
    producer: ProducerIdAndEpoch,
    reading: Reading | None,
) -> tuple[int, ...] | None:
    """Append all batches in one commit; returns their first offsets, also if already in the log.

    `reading` is that of the state row, None outside of transactions. None: not written, because the
    row was read too long ago. Raises what `prepare_append` raises, StagedFileTooOldError,
    CommitStateUnknownError (repeat the same call).
    """

    def decide(state: TopicState) -> TopicCommit | Appended | None:
        if reading is not None and not reading.counts_for(log.log):
            return None
        decision = prepare_append(
            state,
            append.batches,
            producer=producer,
            base_sequences=append.base_sequences,
            transactional=append.producer_id < 0,
            may_be_there=append.may_be_there,
        )
        if isinstance(decision, TopicCommit):
            # Inside `decide`, so that it is repeated after vacuum's barrier commit (R72).
            check_ages(root, append.batches)
        return decision

    written = log.transact(decide)
    if isinstance(written, TopicCommit):
        return tuple(add.base_offset for add in written.adds)
    return None if written is None else written.base_offsets
