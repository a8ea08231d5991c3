"""A process that has read a commit in part, has no memory to look for its own, or was overtaken."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.world import (
    both,
    decide,
    owned,
    process,
    recover,
    state_of,
    visible,
    world,
)
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.root import Root
from txnlog.errors import CommitStateUnknownError, OutOfMemoryError
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import PartitionState
from txnlog.storage.store.objects import ObjectStore


def test_refresh_interrupted_within_a_commit_reads_it_again_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Applied twice, the first half hid from the second what was left to remove."""
    shared = world()
    writer, reader = process(shared), process(shared)
    writer.coordinator.commit(owned(writer, "a"), both(writer, "mine"))
    log = reader.topic("orders")
    writer.delete_topic("orders")
    remove = PartitionState.remove

    def interrupted(*given: object, **named: object) -> None:
        monkeypatch.setattr(PartitionState, "remove", remove)
        raise KeyboardInterrupt

    monkeypatch.setattr(PartitionState, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.refresh()
    log.refresh()
    assert log.view.deleted
    assert not any(partition.batches for partition in log.view.partitions)


def test_lack_of_memory_after_prepare_is_doubt_and_not_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PREPARE was in the log, and the caller told that nothing was (R44)."""
    shared = world()
    cluster = process(shared)
    row, batches = owned(cluster, "a"), both(cluster, "mine")
    # Another's commit: now the shard's head is not our own.
    for number in range(8):
        owned(process(shared), "b", tid=f"other-{number}")
    store: ObjectStore = cluster.store
    put = store.put_if_absent
    decided: list[str] = []

    def put_and_note(path: str, data: bytes) -> bool:
        landed = put(path, data)
        if path.startswith("__transaction_state") and not decided:
            decided.append(path)
            raise OutOfMemoryError("no memory", file=path)
        return landed

    with monkeypatch.context() as patch:
        patch.setattr(store, "put_if_absent", put_and_note)
        with suppress(CommitStateUnknownError):
            cluster.coordinator.commit(row, batches)
    assert decided
    cluster.coordinator.commit(row, batches)
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    assert visible(process(shared), "mine") == (True, True)


def test_commit_that_another_has_finished_leaves_nothing_of_a_successor_to_be_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row that it returns may be a decision of the successor, whose markers are not written:
    COMPLETE of that one would lose its records (R27, R36)."""
    shared = world()
    cluster = process(shared)
    row, batches = owned(cluster, "a"), both(cluster, "mine")

    def overtaken(root: Root, row: TransactionMetadata, **_: object) -> bool:
        monkeypatch.undo()
        other = process(shared)
        finish(other, row)
        decide(other, owned(other, "b"), both(other, "theirs"))
        return False

    monkeypatch.setattr("txnlog.coordinator.transactions.publish_own", overtaken)
    ended = cluster.coordinator.commit(row, batches)
    assert ended.owner.run_id == "b"
    assert not ended.state.is_prepared
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    assert visible(recover(shared), "theirs") == (True, True)
