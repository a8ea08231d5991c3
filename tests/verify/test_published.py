"""A transaction that has all of its markers is not stuck, however long its COMPLETE is left."""

from __future__ import annotations

import pytest

from tests.world import both, consumed, decide, owned, process, state_of, world
from txnlog.coordinator.finishing import publish
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.verification.findings import FindingKind
from txnlog.testing.faults import SharedMemory
from txnlog.verifying.verifier import verify

HOURS_MS = 2 * 3_600_000


def kinds(shared: SharedMemory) -> set[FindingKind]:
    shared.clock.advance_ms(HOURS_MS)
    return {finding.kind for finding in verify(shared.open()).findings.kept}


def decided(shared: SharedMemory) -> TransactionMetadata:
    cluster = process(shared)
    cluster.create_topic("input")
    return decide(cluster, owned(cluster, "one"), both(cluster, "x"), offsets=[consumed(0, 0)])


def test_decided_transaction_is_stuck_until_it_is_published() -> None:
    shared = world()
    made = decided(shared)
    assert FindingKind.TRANSACTION_STUCK in kinds(shared)
    publish(process(shared), made)
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
    publish(process(shared), made)
    assert FindingKind.TRANSACTION_STUCK not in kinds(shared)


def test_file_of_a_decided_transaction_must_be_there_until_its_marker_is() -> None:
    """A topic that was restored with its data: whoever publishes it finds no file (D131)."""
    shared = world()
    made = decided(shared)
    assert FindingKind.FILE_MISSING not in kinds(shared)
    gone = next(batch for batch in made.pending.batches if batch.topic == "orders")
    store = shared.open()
    file = f"orders/{gone.path}"
    store.delete([file])
    found = verify(shared.open()).findings.kept
    assert [(one.kind, one.file) for one in found if one.table == "orders"] == [
        (FindingKind.FILE_MISSING, file)
    ]
