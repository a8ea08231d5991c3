"""A transaction that has all of its markers is not stuck, however long its COMPLETE is left."""

from __future__ import annotations

import pytest

from tests.coordinator.processes import both, consumed, owned, process, staged, state_of, world
from txnlog.admin.topics import delete_records
from txnlog.coordinator.finishing import Decided
from txnlog.protocol.states import TransactionState
from txnlog.protocol.verification.findings import FindingKind
from txnlog.testing.faults import SharedMemory
from txnlog.verifying.verifier import verify

HOURS_MS = 2 * 3_600_000


def kinds(shared: SharedMemory) -> set[FindingKind]:
    shared.clock.advance_ms(HOURS_MS)
    return {finding.kind for finding in verify(shared.open()).findings.kept}


def decided(shared: SharedMemory) -> Decided:
    cluster = process(shared)
    cluster.create_topic("input")
    row = owned(cluster, "one")
    made = cluster.coordinator.decide(row, both(cluster, "x"), offsets=[consumed(0, 0)])
    assert isinstance(made, Decided)
    return made


def test_decided_transaction_is_stuck_until_it_is_published() -> None:
    shared = world()
    made = decided(shared)
    assert FindingKind.TRANSACTION_STUCK in kinds(shared)
    process(shared).coordinator.publish(made)
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    assert FindingKind.TRANSACTION_STUCK not in kinds(shared)


@pytest.mark.parametrize("again", [False, True])
def test_topic_deleted_before_its_marker_gets_none(again: bool) -> None:
    """Nor does one that was created again under the name (D12)."""
    shared = world()
    made = decided(shared)
    other = process(shared)
    other.delete_topic("orders")
    if again:
        other.create_topic("orders", partitions=2)
    process(shared).coordinator.publish(made)
    assert FindingKind.TRANSACTION_STUCK not in kinds(shared)


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        (4, set()),
        (9, {FindingKind.OFFSET_BEYOND_END}),
        (3, {FindingKind.OFFSET_BELOW_START}),
    ],
)
def test_offsets_that_a_producer_has_left_count(left: int, expected: set[FindingKind]) -> None:
    """What they supersede may be below the log start by now, and what is left may be wrong."""
    shared = world()
    cluster = process(shared)
    cluster.create_topic("input", partitions=2)
    row = cluster.coordinator.commit(
        owned(cluster, "one"),
        [staged(cluster, "input", name) for name in "bdf"],
        offsets=[consumed(0, 0)],
    )
    made = cluster.coordinator.decide(row, offsets=[consumed(0, left)])
    cluster.coordinator.publish(made, leave_offsets=True)
    delete_records(cluster, "input", {0: 4})
    offsets = {FindingKind.OFFSET_BEYOND_END, FindingKind.OFFSET_BELOW_START}
    assert kinds(shared) & offsets == expected
