"""Cooperative members: what may still be committed of partitions that moved, and of those kept."""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    BEAT_MS,
    Told,
    at,
    beat,
    committed,
    group_row,
    messages,
    parts,
    process,
    read,
    sent,
    turn,
)
from tests.consumer.test_cooperative import cooperative, filled
from txnlog.errors import (
    IllegalGenerationError,
)
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Owner


def test_partition_that_moved_can_no_longer_be_committed_by_who_had_it() -> None:
    """Its generation is the right one; what it has kept it may commit, and is not lost (R48)."""
    shared = filled()
    told = Told()
    first = cooperative(shared, enable_auto_commit=False, **told.callbacks())
    late = [message for message in messages(first) if message.partition() == 3]
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert parts(second) == [2, 3]
    with pytest.raises(IllegalGenerationError, match="is assigned to member"):
        first.commit(late[-1], asynchronous=False)
    first.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
    turn(shared, first, second)
    assert parts(first) == [0, 1]
    assert ("on_lost", [0, 1]) not in told.calls
    assert committed(second, 3) == -1001


def test_transaction_with_a_partition_that_moved_is_refused() -> None:
    """The new owner reads the position that the former one committed, and fences its ticket."""
    shared = filled()
    first = cooperative(shared, enable_auto_commit=False)
    read(first)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    stale = sent(first)
    row = cluster.coordinator.commit(row, (), offsets=[stale])
    second = cooperative(shared, enable_auto_commit=False)
    turn(shared, first, second)
    assert [at(second, number) for number in (2, 3)] == [3, 3]
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, (), offsets=[stale])
    kept = sent(first)
    assert set(kept.end["t"]) == {0, 1}
    cluster.coordinator.commit(row, (), offsets=[kept])


def test_transaction_of_kept_partitions_goes_on_over_a_rebalance() -> None:
    """It was begun under the generation before, which this member has not seen end."""
    shared = filled()
    first = cooperative(shared, enable_auto_commit=False)
    read(first)
    before = sent(first)
    second = cooperative(shared, enable_auto_commit=False)
    second.poll(0)
    beat(first)
    first._consumption().maintain()
    assert group_row(shared).generation == before.generation + 1
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1"))
    cluster.coordinator.commit(row, (), offsets=[before])
    turn(shared, first, second)
    assert [at(second, number) for number in (2, 3)] == [3, 3]
    assert shared.clock.boot_ms() > BEAT_MS
