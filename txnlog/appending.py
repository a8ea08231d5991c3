"""Appending staged batches of one topic, in an eager transaction or by an idempotent producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from txnlog.protocol.appends import Appended, prepare_append
from txnlog.protocol.metadata import StagedBatch
from txnlog.protocol.topics import TopicCommit, TopicState

if TYPE_CHECKING:
    from txnlog.cluster import Cluster


def append(
    cluster: Cluster,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
    *,
    producer_id: int,
    producer_epoch: int,
    transactional: bool,
) -> tuple[int, ...]:
    """All batches in one commit; their first offsets, also when they were in the log already.

    `base_sequences` maps partition -> sequence of its first record here. Raises what
    `prepare_append` raises, StagedFileTooOldError, CommitStateUnknownError: then the same call
    again settles it.
    """
    first = batches[0]
    log = cluster.topic_log(first.topic)

    def decide(state: TopicState) -> TopicCommit | Appended:
        decision = prepare_append(
            state,
            topic=first.topic,
            topic_id=first.topic_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequences=base_sequences,
            batches=batches,
            transactional=transactional,
        )
        if isinstance(decision, TopicCommit):
            # Here, so that it is asked again after vacuum's barrier commit (R72).
            cluster.coordinator.check_ages(batches)
        return decision

    written = log.transact(decide)
    if isinstance(written, TopicCommit):
        return tuple(add.base_offset for add in written.adds)
    return written.base_offsets
