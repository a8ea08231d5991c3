"""Operators beside a producer whose last commit is visible, and whose COMPLETE is left (D103)."""

from __future__ import annotations

import pytest

from tests.admin.worlds import admin
from tests.coordinator.processes import check_settled, faults, process, state_of
from tests.producer.following import commit
from tests.producer.worlds import started, values, world
from txnlog.errors import ProducerFencedError, TxnLogError
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault, SharedMemory

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


def shown(shared: SharedMemory, denied: str = "nothing") -> tuple[TransactionState | None, ...]:
    """The state that list and describe show to an operator who may not read some tables."""
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: Fault.DENY if path.startswith(denied) else Fault.NONE
    client = admin(cluster)
    [listed] = client.list_transactions().result()
    return listed.state, client.describe_transactions(["tx"])["tx"].result().state


def test_operator_who_may_not_read_a_table_sees_the_row_as_it_is() -> None:
    """Transactions are listed by who may read neither groups nor topics."""
    shared = world()
    commit(started(shared), "0", input_offset=10)
    assert shown(shared) == (COMPLETE_COMMIT, COMPLETE_COMMIT)
    for denied in ("__consumer_offsets", "orders"):
        assert shown(shared, denied) == (PREPARE_COMMIT, PREPARE_COMMIT), denied


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
