"""A batch write as one transaction, under an id used once, which leaves no row behind."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from txnlog.failpoint import reach
from txnlog.finishing import finish
from txnlog.phases import Phases
from txnlog.protocol.metadata import Manifest, Owner, StagedBatch, TransactionMetadata
from txnlog.protocol.transitions import Done, Transition, prepare_one_off_commit
from txnlog.storage.readings import Reading

if TYPE_CHECKING:
    from txnlog.cluster import Cluster


def commit_one_off(
    cluster: Cluster, batches: Sequence[StagedBatch], owner: Owner, *, phases: Phases | None
) -> None:
    """Prepare and finish. See TransactionCoordinator.commit_one_off.

    A missing row means complete to whoever knows that PREPARE landed: so a lost reply is settled
    by the marker in the first topic, and else by preparing again.
    """
    if not batches:
        return
    coordinator, clock = cluster.coordinator, cluster.store.clock
    transactional_id = f"_batch-{uuid.uuid4()}"
    producer_id = cluster.next_producer_id()
    manifest = Manifest(batches=tuple(batches))
    measured = phases or Phases()
    with measured.measure("tail"):
        coordinator.check_batches(batches)
    first = cluster.topic_log(batches[0].topic)

    def decide(row: TransactionMetadata | None) -> Transition | Done:
        if row is None and first.log.exists:
            first.refresh()
            if first.view.markers.get(producer_id, -1) >= 0:
                return Done(None)
        decision = prepare_one_off_commit(
            row,
            transactional_id=transactional_id,
            producer_id=producer_id,
            manifest=manifest,
            owner=owner,
            now_ms=clock.now_ms(),
        )
        if isinstance(decision, Transition):
            coordinator.check_ages(batches)
        return decision

    reach("prepare_commit.before")
    reading = Reading.begin(clock)
    shard = cluster.shard(cluster.shard_of(transactional_id))
    with measured.measure("prepare"):
        row = shard.transition(transactional_id, decide)
    reach("prepare_commit.after")
    if row is not None:
        finish(cluster, row, reading=reading, phases=measured)
