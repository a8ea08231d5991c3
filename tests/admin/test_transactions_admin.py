"""Listing and describing transactions, and finding hanging ones (R21)."""

from __future__ import annotations

import pytest

from tests.admin.worlds import admin, partition_of, query
from tests.staged_files import append_idempotent, append_ongoing
from tests.world import (
    GROUP,
    MINUTE_MS,
    both,
    consumed,
    eager,
    owned,
    process,
    staged,
    visible,
    world,
)
from txnlog.admin import AbortTransactionSpec, HangingTransaction
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConfigError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    TransactionalIdNotFoundError,
    TxnLogError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.actions import Remove
from txnlog.storage.delta.readings import Reading
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster

HOUR_MS = 60 * MINUTE_MS


# --- Listing --------------------------------------------------------------------------------------


def test_list_transactions_filters_by_state_producer_duration_and_pattern() -> None:
    """All filters must match (KIP-664, KIP-994, KIP-1152)."""
    shared = world()
    cluster = process(shared)
    idle = owned(cluster, "a", tid="idle-1")
    done = cluster.coordinator.commit(owned(cluster, "b", tid="done-1"), both(cluster, "x"))
    eager(cluster, owned(cluster, "c", tid="open-1"), "y")
    shared.clock.advance_ms(MINUTE_MS)
    eager(cluster, owned(cluster, "d", tid="open-2"), "z")
    client = admin(cluster)

    def ids(**filters: object) -> list[str]:
        return [t.transactional_id for t in client.list_transactions(**filters).result()]

    assert ids() == ["done-1", "idle-1", "open-1", "open-2"]
    assert ids(states=[TransactionState.ONGOING]) == ["open-1", "open-2"]
    assert ids(producer_ids=[idle.producer_id, done.producer_id]) == ["done-1", "idle-1"]
    assert ids(duration_ms=1000) == ["open-1"]
    assert ids(transactional_id_pattern="open.*", states=[TransactionState.EMPTY]) == []
    assert ids(transactional_id_pattern=".*-1") == ["done-1", "idle-1", "open-1"]
    found = client.list_transactions(transactional_id_pattern="idle-1").result()[0]
    assert found.coordinator == cluster.shard_of("idle-1")
    assert (found.producer_id, found.state) == (idle.producer_id, TransactionState.EMPTY)
    with pytest.raises(ConfigError, match="regular expression"):
        client.list_transactions(transactional_id_pattern="(").result()


def test_describe_transactions_returns_the_owner_and_the_last_fencing() -> None:
    """Users must be able to find out who fenced a producer (R42)."""
    shared = world()
    cluster = process(shared)
    first_ms = shared.clock.now_ms()
    row = eager(cluster, query(cluster, "run-1"), "x", offsets=[consumed(0, 10)])
    client = admin(cluster)
    found = client.describe_transactions(["tx", "nothing"])
    with pytest.raises(TransactionalIdNotFoundError):
        found["nothing"].result()
    told = found["tx"].result()
    assert told.state is TransactionState.ONGOING
    assert told.owner == "query q1, run run-1 on driver, process 7"
    assert told.owner_since_ms == first_ms
    assert (told.query_id, told.is_owner_fenced, told.fenced) == ("q1", False, None)
    assert (told.producer_id, told.producer_epoch) == (row.producer_id, row.producer_epoch)
    assert (told.timeout_ms, told.start_time_ms) == (MINUTE_MS, row.started_ms)
    assert [(p.topic, p.partition) for p in told.topic_partitions] == [("orders", 0), ("stock", 0)]
    assert told.groups == (GROUP,)
    shared.clock.advance_ms(5_000)
    query(cluster, "run-2")
    told = client.describe_transactions(["tx"])["tx"].result()
    assert told.state is TransactionState.COMPLETE_ABORT
    assert (told.start_time_ms, told.topic_partitions) == (None, [])
    assert told.owner.startswith("query q1, run run-2")
    assert told.owner_since_ms == first_ms + 5_000
    assert told.fenced is not None
    assert told.fenced.reason == "taken over by a newer start"
    client.fence_producers(["tx"], reason="maintenance")["tx"].result()
    told = client.describe_transactions(["tx"])["tx"].result()
    assert told.is_owner_fenced
    assert told.fenced is not None
    assert told.fenced.reason == "maintenance"
    assert told.fenced.by.startswith("ops, an admin client in process")


def test_describe_producers_returns_sequences_and_open_transactions() -> None:
    """Epoch, last sequence and first undecided offset of a producer in a partition."""
    cluster = process(world())
    done = cluster.coordinator.commit(owned(cluster, "a", tid="done"), both(cluster, "x"))
    opened = eager(cluster, owned(cluster, "b", tid="open"), "xx")
    partition = partition_of(cluster)
    pid = cluster.next_producer_id()
    append_idempotent(cluster, pid, [staged(cluster, "orders", "xxxx")], {0: 0})
    states = admin(cluster).describe_producers([partition])[partition].result()
    assert [
        (s.producer_id, s.producer_epoch, s.last_sequence, s.coordinator_epoch,
         s.current_transaction_start_offset) for s in states
    ] == [
        (done.producer_id, 0, 1, 0, None),
        (opened.producer_id, 0, 1, -1, 2),
        (pid, 0, 1, -1, None),
    ]  # fmt: skip
    assert [s.last_timestamp_ms for s in states] == [0, 0, 0]
    other = TopicPartition("orders", 1)
    assert admin(cluster).describe_producers([other])[other].result() == []
    missing = TopicPartition("orders", 5)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin(cluster).describe_producers([missing])[missing].result()


# --- Hanging --------------------------------------------------------------------------------------


def hang(shared: SharedMemory, *, tid: str = "lost", name: str = "x") -> TransactionMetadata:
    """Undecided data without a state row, as after a transaction log was restored."""
    cluster = process(shared)
    row = eager(cluster, owned(cluster, "lost", tid=tid), name)
    for topic in ("orders", "stock"):
        # There is no real staged file: an object provides its age.
        cluster.store.put(f"{topic}/{staged(cluster, topic, name).path}", b"x")
    return row


def forget(cluster: Cluster, row: TransactionMetadata) -> None:
    """Remove the state row of an open transaction, which txnlog itself never does."""
    shard = cluster.shard(cluster.shard_of(row.transactional_id))
    shard.log.refresh()
    there = shard.row(row.transactional_id)
    assert there is not None
    shard.log.commit([Remove(there.path, 0, data_change=True)], operation="TEST")


def found_hanging(cluster: Cluster, **limits: int) -> list[HangingTransaction]:
    return admin(cluster).find_hanging(**limits).result()


def test_find_hanging_lists_undecided_data_without_a_row_and_abort_ends_it() -> None:
    """The LSO does not advance until an operator finds and ends it (R21)."""
    shared = world()
    row = hang(shared)
    cluster = process(shared)
    forget(cluster, row)
    assert len(found_hanging(cluster)) == 2
    shared.clock.advance_ms(HOUR_MS)
    found = found_hanging(cluster)
    assert [(h.topic, h.partition, h.producer_id, h.producer_epoch) for h in found] == [
        ("orders", 0, row.producer_id, 0),
        ("stock", 0, row.producer_id, 0),
    ]
    assert found[0].start_offset == 0
    assert found[0].duration_ms >= HOUR_MS
    assert found[0].coordinator_epoch == -1
    client = admin(cluster)
    for hanging in found:
        spec = AbortTransactionSpec(
            topic_partition=TopicPartition(hanging.topic, hanging.partition),
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
        )
        client.abort_transaction(spec).result()
        with pytest.raises(InvalidTxnStateError, match="no open transaction"):
            client.abort_transaction(spec).result()
    assert found_hanging(cluster) == []
    after = process(shared)
    assert after.topic("orders").view.last_stable_offset(0) == 2
    assert visible(after, "x") == (False, False)
    check_cluster(after, settled=True)
    # The marker refuses the zombie's late append (R4).
    zombie = process(shared)
    late, reading = [staged(zombie, "orders", "xx")], Reading.begin(zombie.store.clock)
    with pytest.raises(InvalidProducerEpochError):
        append_ongoing(zombie, row, late, {0: 2}, reading=reading)


@pytest.mark.parametrize("known", [True, False])
def test_abort_by_spec_ends_the_row_first_if_there_is_one(known: bool) -> None:
    """A marker in one topic alone would split a transaction that can still commit (R36)."""
    shared = world()
    row = hang(shared)
    cluster = process(shared)
    if not known:
        forget(cluster, row)
    spec = AbortTransactionSpec(
        topic_partition=partition_of(cluster), producer_id=row.producer_id, producer_epoch=0
    )
    admin(cluster).abort_transaction(spec).result()
    assert visible(cluster, "x") == (False, False)
    views = [cluster.topic(name).view for name in ("orders", "stock")]
    statuses = [view.batches(0, 0, 9, False)[0].status for view in views]
    assert statuses == (["aborted", "aborted"] if known else ["aborted", "ongoing"])
    with pytest.raises(TxnLogError) as raised:
        process(shared).coordinator.commit(row)
    assert getattr(raised.value, "code", None) in (48, 49, 90)
