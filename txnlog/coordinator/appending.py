"""Appending staged batches of one topic, in an eager transaction or by an idempotent producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txnlog.coordinator.root import Root
from txnlog.coordinator.staged_files import check_ages
from txnlog.coordinator.state_rows import check_owner
from txnlog.protocol.appends import Appended, check_added, prepare_append
from txnlog.protocol.metadata import ProducerIdAndEpoch, StagedBatch, TransactionMetadata
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.storage.delta.readings import Reading


def append_in_transaction(
    root: Root,
    row: TransactionMetadata,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
    *,
    reading: Reading | None,
) -> tuple[int, ...]:
    """See TransactionCoordinator.append.

    A row read too long ago is read again: the marker that fences a zombie's batches may have
    expired (D3).
    """
    check_added(row.partitions, batches)
    while True:
        if reading is None:
            reading = Reading.begin(root.store.clock)
            check_owner(root, row)
        offsets = _append(
            root,
            batches,
            base_sequences,
            producer=ProducerIdAndEpoch(row.producer_id, row.producer_epoch),
            transactional=True,
            reading=reading,
        )
        if offsets is not None:
            return offsets
        reading = None


def append_idempotent(
    root: Root,
    producer_id: int,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
) -> tuple[int, ...]:
    """See TransactionCoordinator.append_idempotent."""
    offsets = _append(
        root,
        batches,
        base_sequences,
        producer=ProducerIdAndEpoch(producer_id, 0),
        transactional=False,
    )
    assert offsets is not None
    return offsets


def _append(
    root: Root,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
    *,
    producer: ProducerIdAndEpoch,
    transactional: bool,
    reading: Reading | None = None,
) -> tuple[int, ...] | None:
    """Append all batches in one commit; returns their first offsets, also if already in the log.

    None: not written, because the state row was read too long ago.
    `base_sequences` maps partition -> sequence of its first record here. Raises what
    `prepare_append` raises, StagedFileTooOldError, CommitStateUnknownError (repeat the same call).
    """
    log = root.topic_log(batches[0].topic)

    def decide(state: TopicState) -> TopicCommit | Appended | None:
        if reading is not None and not reading.counts_for(log.log):
            return None
        decision = prepare_append(
            state,
            batches,
            producer=producer,
            base_sequences=base_sequences,
            transactional=transactional,
        )
        if isinstance(decision, TopicCommit):
            # Inside `decide`, so that it is repeated after vacuum's barrier commit (R72).
            check_ages(root, batches)
        return decision

    written = log.transact(decide)
    if isinstance(written, TopicCommit):
        return tuple(add.base_offset for add in written.adds)
    return None if written is None else written.base_offsets
