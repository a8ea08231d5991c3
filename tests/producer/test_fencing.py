"""Zombies, time-outs, expired ids: who ended a right to write, and what its holder is told."""

from __future__ import annotations

import pytest

from tests.coordinator.processes import position, process, recover
from tests.producer.worlds import (
    BOTH,
    cluster_of,
    group,
    input_at,
    producer,
    started,
    values,
    world,
)
from txnlog.errors import (
    InvalidTxnTimeoutError,
    OperationTimedOutError,
    OutcomeLostError,
    ProducerFencedError,
    TxnLogError,
)
from txnlog.protocol.transitions import prepare_expire
from txnlog.sweeper import Sweeper
from txnlog.testing.faults import Fault
from txnlog.testing.invariants import check_cluster


@BOTH
def test_fenced_producer_is_told_who_fenced_it_and_when(publish: str) -> None:
    """Fenced is fatal, and nothing of the zombie's transaction is left (R27, R42, R44)."""
    shared = world()
    zombie = started(shared, publish)
    zombie.begin_transaction()
    zombie.produce("orders", "zombie")
    zombie.flush()
    heir = started(shared, publish, client_id="the-heir")
    with heir.transaction():
        heir.produce("orders", "heir")
    with pytest.raises(ProducerFencedError, match="the-heir") as fenced:
        zombie.commit_transaction()
    assert fenced.value.fatal
    assert "last fenced at 20" in fenced.value.message
    for call in (zombie.abort_transaction, zombie.begin_transaction, zombie.commit_transaction):
        with pytest.raises(ProducerFencedError):
            call()
    zombie.close()
    assert values(process(shared), "orders") == ["heir"]
    check_cluster(process(shared), settled=True)


def test_eager_transaction_that_timed_out_says_so_and_can_be_aborted() -> None:
    """Whoever sweeps ends it, under a new epoch; the producer goes on after an abort (R32)."""
    shared = world()
    made = started(shared, "eager", transaction_timeout_ms=60_000)
    made.begin_transaction()
    made.produce("orders", "late")
    made.flush()
    sweeper = Sweeper(process(shared))
    sweeper.sweep()
    shared.clock.advance_ms(61_000)
    sweeper.sweep()
    made.produce("orders", "later")
    made.flush()
    with pytest.raises(TxnLogError, match="timed out") as told:
        made.commit_transaction()
    assert not told.value.fatal
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]
    check_cluster(process(shared), settled=True)


def test_deferred_transaction_never_times_out() -> None:
    """There is no state before PREPARE, so there is nothing to time out (R29)."""
    shared = world()
    made = started(shared, "deferred", transaction_timeout_ms=1_000)
    made.begin_transaction()
    made.produce("orders", "slow")
    recover(shared)
    shared.clock.advance_ms(3_600_000)
    recover(shared)
    made.commit_transaction()
    assert values(process(shared), "orders") == ["slow"]


def test_transaction_timeout_above_the_maximum_is_refused() -> None:
    """Both values are named (R33)."""
    made = producer(world(), "tx", transaction_timeout_ms=900_001)
    with pytest.raises(InvalidTxnTimeoutError, match=r"900001.*900000"):
        made.init_transactions()


@BOTH
def test_idle_producer_whose_id_expired_takes_a_new_one_by_itself(publish: str) -> None:
    """Nothing was lost, so nobody is bothered (R8, R35)."""
    shared = world()
    made = started(shared, publish)
    with made.transaction():
        made.produce("orders", "before", partition=0)
    expire(shared)
    with made.transaction():
        made.produce("orders", "after", partition=0)
        made.send_offsets_to_transaction(input_at(3), group())
    assert values(process(shared), "orders") == ["before", "after"]
    assert position(process(shared)) == 3
    check_cluster(process(shared), settled=True)


@BOTH
def test_producer_whose_expired_id_has_a_new_owner_is_fenced(publish: str) -> None:
    """A sleeper must not take the id back from whoever owns it now (R35, R44)."""
    shared = world()
    sleeper = started(shared, publish)
    expire(shared)
    heir = started(shared, publish)
    sleeper.begin_transaction()
    sleeper.produce("orders", "sleeper")
    with pytest.raises(ProducerFencedError):
        sleeper.commit_transaction()
    with heir.transaction():
        heir.produce("orders", "heir")
    assert values(process(shared), "orders") == ["heir"]


def expire(shared) -> None:
    """What housekeeping does with an id that was idle for transactional.id.expiration.ms."""
    cluster = process(shared)
    cluster.shard(cluster.shard_of("tx")).transition(
        "tx", lambda row: prepare_expire(row, now_ms=shared.clock.now_ms())
    )


def test_producer_overtaken_while_its_commit_is_finished_does_not_go_on_as_the_heir() -> None:
    """The row that a commit gives back may be another owner's by then (R10, R44)."""
    shared = world()
    made = started(shared, "deferred")
    made.begin_transaction()
    made.produce("orders", "mine")
    coordinator = cluster_of(made).coordinator
    commit = coordinator.commit

    def commit_and_lose(*args, **kwargs):
        commit(*args, **kwargs)
        heir = started(shared, "deferred")
        assert heir is not None
        return coordinator.describe("tx")

    coordinator.commit = commit_and_lose
    made.commit_transaction()
    coordinator.commit = commit
    assert values(process(shared), "orders") == ["mine"]
    with pytest.raises(ProducerFencedError):
        made.begin_transaction()


@BOTH
@pytest.mark.parametrize("landed", [False, True])
def test_fenced_after_a_commit_without_reply_does_not_say_that_it_failed(
    publish: str, landed: bool
) -> None:
    """A refusal is no "no" to the try before it: its put may have landed, or may yet (R41, R63)."""
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", "mine")
    made.flush()
    store = cluster_of(made).store
    store.plan = lambda verb, path: Fault.LAND_LATE if "__transaction_state" in path else Fault.NONE
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=40)
    store.plan = lambda verb, path: Fault.NONE
    if landed:
        shared.land_late()
    heir = started(shared, publish)
    shared.land_late()
    with pytest.raises(OutcomeLostError) as lost:
        made.commit_transaction()
    assert lost.value.fatal
    assert not lost.value.retriable
    with heir.transaction():
        heir.produce("orders", "next")
    assert set(values(process(shared), "orders")) == ({"mine", "next"} if landed else {"next"})
    check_cluster(process(shared), settled=True)


@BOTH
def test_fenced_after_its_commit_was_decided_is_told_that_it_committed(publish: str) -> None:
    """The heir finished the transaction before it took the id, and its row does not show that any
    more; the zombie has seen PREPARE land, and lost the store only then (R27, R36, R41).
    """
    shared = world()
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", "mine")
    made.send_offsets_to_transaction(input_at(5), group())
    made.flush()
    store = cluster_of(made).store
    marker = ("put", "orders/_delta_log")
    store.plan = lambda verb, path: (
        Fault.FAIL_BEFORE if (verb, path.rpartition("/")[0]) == marker else Fault.NONE
    )
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=40)
    store.plan = lambda verb, path: Fault.NONE
    heir = started(shared, publish)
    made.commit_transaction()
    with pytest.raises(ProducerFencedError):
        made.begin_transaction()
    with heir.transaction():
        heir.produce("orders", "next")
    after = process(shared)
    assert set(values(after, "orders")) == {"mine", "next"}
    assert position(after) == 5
    check_cluster(after, settled=True)
