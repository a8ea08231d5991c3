"""Operators beside a producer whose last commit is visible, and whose COMPLETE is left (D103)."""

from __future__ import annotations

import pytest

from tests.admin.worlds import admin
from tests.producer.following import commit
from tests.producer.worlds import group, input_at, started, values, world
from tests.world import check_settled, faults, process, row_of, staged, state_of
from txnlog.admin import AbortTransactionSpec
from txnlog.errors import ProducerFencedError, TxnLogError
from txnlog.messages import TopicPartition
from txnlog.protocol.appends import prepare_append
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import BrokenInvariantError, check_cluster

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


def shown(shared: SharedMemory, denied: str = "nothing") -> tuple[TransactionState | None, ...]:
    """The state that list and describe show to an operator who may not read some tables."""
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: Fault.DENY if path.startswith(denied) else Fault.NONE
    client = admin(cluster)
    [listed] = client.list_transactions().result()
    return listed.state, client.describe_transactions(["tx"])["tx"].result().state


def test_operator_who_may_not_read_a_topic_sees_the_row_as_it_is() -> None:
    """Transactions are listed by who may read neither groups nor topics."""
    shared = world()
    commit(started(shared), "0", input_offset=10)
    assert shown(shared) == (COMPLETE_COMMIT, COMPLETE_COMMIT)
    assert shown(shared, "orders") == (PREPARE_COMMIT, PREPARE_COMMIT)
    assert shown(shared, "__consumer_offsets") == (COMPLETE_COMMIT, COMPLETE_COMMIT)


def test_transaction_of_offsets_alone_is_shown_as_committed_when_they_have_moved() -> None:
    """No topic says that it is published (D103)."""
    shared = world()
    made = started(shared)
    for offset in (10, 20):
        made.begin_transaction()
        made.send_offsets_to_transaction(input_at(offset), group())
        made.commit_transaction()
        assert shown(shared) == (COMPLETE_COMMIT, COMPLETE_COMMIT)
    faults(made._outlet.cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("__consumer_offsets") else Fault.NONE
    )
    made.begin_transaction()
    made.send_offsets_to_transaction(input_at(30), group())
    with pytest.raises(TxnLogError, match="injected refusal"):
        made.commit_transaction()
    assert shown(shared) == (PREPARE_COMMIT, PREPARE_COMMIT)


def test_decided_transaction_is_not_shown_as_committed_before_its_marker() -> None:
    """Of records alone, too: no reader sees them yet."""
    shared = world()
    made = started(shared)
    faults(made._outlet.cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError, match="injected refusal"):
        commit(made, "0")
    assert shown(shared) == (PREPARE_COMMIT, PREPARE_COMMIT)


def test_topic_that_cannot_be_read_any_more_is_not_taken_for_a_deleted_one() -> None:
    """This process knows the topic that was deleted; the transaction wrote to its successor."""
    shared = world()
    made = started(shared)
    operator = process(shared)
    operator.topic("orders").refresh()
    other = process(shared)
    other.delete_topic("orders")
    other.create_topic("orders", partitions=2)
    faults(made._outlet.cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError, match="injected refusal"):
        commit(made, "0")
    faults(operator).plan = lambda verb, path: (
        Fault.DENY if path.startswith("orders") else Fault.NONE
    )
    [listed] = admin(operator).list_transactions().result()
    assert listed.state is PREPARE_COMMIT


def test_abort_beside_a_published_transaction_fences_the_owner_of_an_open_one() -> None:
    """It is shown as committed: what the operator aborts is what is open (R43)."""
    shared = world()
    made = started(shared)
    commit(made, "first", input_offset=10)
    made.begin_transaction()
    made.produce("orders", "open")
    admin(process(shared)).abort_transaction("tx", reason="it hung").result()
    assert state_of(process(shared)) is COMPLETE_COMMIT
    with pytest.raises(ProducerFencedError, match="it hung"):
        made.commit_transaction()
    assert values(process(shared), "orders") == ["first"]
    check_settled(shared)


@pytest.mark.parametrize("epoch", [1, 50])
def test_abort_of_hanging_data_beside_a_busy_producer_loses_nothing_of_it(epoch: int) -> None:
    """The marker has the epoch of the data: one of a later epoch would stand for transactions that
    are still to come, whose records nobody would see (R4, R21).
    """
    shared = world()
    made = started(shared)
    commit(made, "first")
    cluster = process(shared)
    row = row_of(cluster)
    hanging = staged(cluster, "stock", "x")
    # As after the loss of a row: the data has an epoch that the producer has still to use.
    cluster.topic("stock").transact(
        lambda state: prepare_append(
            state,
            [hanging],
            producer=ProducerIdAndEpoch(row.producer_id, 1),
            base_sequences={},
            transactional=True,
        )
    )
    spec = AbortTransactionSpec(
        topic_partition=TopicPartition("stock", hanging.partition),
        producer_id=row.producer_id,
        producer_epoch=epoch,
    )
    admin(process(shared)).abort_transaction(spec).result()
    with pytest.raises(ProducerFencedError):
        commit(made, "zombie")
    successor = started(shared)
    for number in range(3):
        successor.begin_transaction()
        successor.produce("stock", f"{number}", partition=hanging.partition)
        successor.commit_transaction()
        assert values(process(shared), "stock")[-1] == f"{number}"
    check_settled(shared)


def test_cluster_with_a_published_transaction_is_settled() -> None:
    """A pipeline's own test need not close its producers; one that is not visible is no such."""
    shared = world()
    made = started(shared)
    commit(made, "0", input_offset=10)
    check_cluster(process(shared), settled=True)
    assert state_of(process(shared)) is PREPARE_COMMIT
    faults(made._outlet.cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    with pytest.raises(TxnLogError, match="injected refusal"):
        commit(made, "1")
    with pytest.raises(BrokenInvariantError, match="still PREPARE_COMMIT"):
        check_cluster(process(shared), settled=True)
