"""Zombies, time-outs, expired ids: how a producer loses its id, and which error it gets."""

from __future__ import annotations

import pytest

from tests.cases import Some
from tests.faults import Trial, cuts
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
from tests.world import (
    check_settled,
    complete_all,
    position,
    process,
    recover,
)
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    InvalidTxnTimeoutError,
    OperationTimedOutError,
    OutcomeLostError,
    ProducerFencedError,
    TxnLogError,
)
from txnlog.producer import Producer
from txnlog.protocol.transitions import prepare_expire
from txnlog.testing.faults import Fault, SharedMemory

WEEK_MS = 7 * 86_400_000


@BOTH
def test_fenced_error_names_the_new_owner_and_the_time(publish: str) -> None:
    """Fenced is fatal, and nothing of the zombie's transaction is left (R27, R42, R44)."""
    shared = world()
    zombie = started(shared, publish)
    zombie.begin_transaction()
    zombie.produce("orders", "zombie")
    zombie.flush()
    successor = started(shared, publish, client_id="the-successor")
    with successor.transaction():
        successor.produce("orders", "successor")
    with pytest.raises(ProducerFencedError, match="the-successor") as fenced:
        zombie.commit_transaction()
    assert fenced.value.fatal
    assert "last fenced at 20" in fenced.value.message
    for call in (zombie.abort_transaction, zombie.begin_transaction, zombie.commit_transaction):
        with pytest.raises(ProducerFencedError):
            call()
    zombie.close()
    assert values(process(shared), "orders") == ["successor"]
    check_settled(shared)


def test_eager_transaction_that_timed_out_says_so_and_can_be_aborted() -> None:
    """Any sweep aborts it under a new epoch; the producer continues after an abort (R32)."""
    shared = world()
    made = started(shared, "eager", transaction_timeout_ms=60_000)
    made.begin_transaction()
    made.produce("orders", "late")
    made.flush()
    sweeper = Sweeper(process(shared), interval_ms=61_000)
    sweeper.sweep()
    shared.clock.advance_ms(61_000)
    sweeper.sweep()
    made.produce("orders", "later")
    made.flush()
    with pytest.raises(TxnLogError, match="timed out") as failed:
        made.commit_transaction()
    assert not failed.value.fatal
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]
    check_settled(shared)


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
    """The error names both values (R33)."""
    made = producer(world(), "tx", transaction_timeout_ms=900_001)
    with pytest.raises(InvalidTxnTimeoutError, match=r"900001.*900000"):
        made.init_transactions()


@BOTH
def test_idle_producer_whose_id_expired_takes_a_new_one_by_itself(publish: str) -> None:
    """Nothing was lost, so no call fails (R8, R35)."""
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
    check_settled(shared)


@BOTH
def test_producer_whose_expired_id_has_a_new_owner_is_fenced(publish: str) -> None:
    """A sleeping producer must not take the id back from its present owner (R35, R44)."""
    shared = world()
    sleeper = started(shared, publish)
    expire(shared)
    successor = started(shared, publish)
    with pytest.raises(ProducerFencedError):
        sleeper.begin_transaction()
    with successor.transaction():
        successor.produce("orders", "successor")
    assert values(process(shared), "orders") == ["successor"]


def expire(shared: SharedMemory) -> None:
    """Expire the id, as housekeeping does after transactional.id.expiration.ms without use."""
    shared.clock.advance_ms(WEEK_MS)
    cluster = process(shared)
    complete_all(cluster)
    shard = cluster.shard(cluster.shard_of("tx"))
    left = shard.transition("tx", lambda row: prepare_expire(row, now_ms=shared.clock.now_ms()))
    assert left is None


def begun(shared: SharedMemory, publish: str, value: str) -> Producer:
    """A producer with a transaction that is not in the log yet."""
    made = started(shared, publish)
    made.begin_transaction()
    made.produce("orders", value, partition=0)
    return made


@BOTH
def test_zombie_whose_id_expired_does_not_commit_what_it_began_before_it_was_fenced(
    publish: str,
) -> None:
    """A missing row does not show its last owner: the successor has done the work again. The zombie
    gets the id only at a new begin, which is followed by reading its positions (R35, R44).
    """
    shared = world()
    zombie = begun(shared, publish, "twice")
    successor = started(shared, publish)
    with successor.transaction():
        successor.produce("orders", "once")
    expire(shared)
    with pytest.raises(TxnLogError, match="expired") as failed:
        zombie.commit_transaction()
    assert (failed.value.abortable, failed.value.fatal) == (True, False)
    zombie.abort_transaction()
    with successor.transaction():
        successor.produce("orders", "next")
    assert sorted(values(process(shared), "orders")) == ["next", "once"]
    with pytest.raises(ProducerFencedError):
        zombie.begin_transaction()
    check_settled(shared)


@BOTH
def test_transaction_that_was_open_while_its_id_expired_is_aborted_and_the_next_one_commits(
    publish: str,
) -> None:
    """A former owner cannot be ruled out: the producer aborts, then continues (R8, R35)."""
    shared = world()
    made = begun(shared, publish, "lost")
    expire(shared)
    made.flush()
    with pytest.raises(TxnLogError, match="expired"):
        made.commit_transaction()
    made.abort_transaction()
    with made.transaction():
        made.produce("orders", "next")
    assert values(process(shared), "orders") == ["next"]
    check_settled(shared)


@BOTH
def test_commit_finished_by_a_sweeper_is_not_published_again_after_its_id_expired(
    publish: str,
) -> None:
    """Decided, finished by a sweeper, expired, and only then repeated: a missing row does not mean
    that the transaction was not committed (R35, R36, R41).
    """
    shared = world()
    made = begun(shared, publish, "once")
    made.send_offsets_to_transaction(input_at(5), group())
    store = cluster_of(made).store
    marker = ("put", "orders/_delta_log")
    store.plan = lambda verb, path: (
        Fault.FAIL_BEFORE if (verb, path.rpartition("/")[0]) == marker else Fault.NONE
    )
    # Puts of an eager transaction's data, which go to the same folder, must succeed.
    if publish == "eager":
        store.plan = lambda verb, path: Fault.NONE
        made.flush()
        store.plan = lambda verb, path: (
            Fault.FAIL_BEFORE if (verb, path.rpartition("/")[0]) == marker else Fault.NONE
        )
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=40)
    store.plan = lambda verb, path: Fault.NONE
    recover(shared)
    assert values(process(shared), "orders") == ["once"]
    expire(shared)
    made.commit_transaction()
    assert values(process(shared), "orders") == ["once"]
    with made.transaction():
        made.produce("orders", "next", partition=0)
    assert values(process(shared), "orders") == ["once", "next"]
    assert position(process(shared)) == 5
    check_settled(shared)


@BOTH
def test_commit_without_reply_whose_id_expired_says_that_its_outcome_is_lost(publish: str) -> None:
    """It may have landed, and been finished, before the row expired (R35, R41, R63)."""
    shared = world()
    made = begun(shared, publish, "once")
    made.flush()
    store = cluster_of(made).store
    store.plan = lambda verb, path: (
        Fault.LOSE_REPLY if "__transaction_state" in path else Fault.NONE
    )
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=40)
    store.plan = lambda verb, path: Fault.NONE
    recover(shared)
    expire(shared)
    with pytest.raises(OutcomeLostError, match="got no reply"):
        made.commit_transaction()
    assert values(process(shared), "orders") == ["once"]
    check_settled(shared)


@BOTH
def test_prepared_transaction_ended_by_a_successor_whose_id_expired_has_a_lost_outcome(
    publish: str,
) -> None:
    """The successor has read the outside database, and committed (R35, R41)."""
    shared = world()
    made = begun(shared, publish, "once")
    state = made.prepare_transaction()
    successor = producer(shared, "tx", publish)
    successor.init_transactions(keep_prepared=True)
    assert successor.complete_transaction(state)
    expire(shared)
    with pytest.raises(OutcomeLostError, match="another process ended it"):
        made.complete_transaction(state)
    assert values(process(shared), "orders") == ["once"]


@BOTH
def test_begin_after_an_expiry_survives_faults_at_every_call(publish: str, some: Some[int]) -> None:
    """No other begin does I/O, so no other one can fail (R28, R41)."""

    def begin() -> Trial:
        shared = world()
        made = started(shared, publish)
        expire(shared)
        return Trial(shared, cluster_of(made), made.begin_transaction, more=made)

    for trial in cuts(begin, some):
        made = trial.more
        assert trial.outcome in ("done", "crashed")
        if trial.outcome == "crashed":
            made = started(trial.shared, publish)
            made.begin_transaction()
        made.produce("orders", "after")
        made.commit_transaction()
        assert values(process(trial.shared), "orders") == ["after"]


def test_producer_overtaken_while_its_commit_is_finished_does_not_continue_as_the_successor() -> (
    None
):
    """The row that a commit returns may have another owner by then (R10, R44)."""
    shared = world()
    made = started(shared, "deferred")
    made.begin_transaction()
    made.produce("orders", "mine")
    coordinator = cluster_of(made).coordinator
    commit = coordinator.commit

    def commit_and_lose(*args, **kwargs):
        commit(*args, **kwargs)
        successor = started(shared, "deferred")
        assert successor is not None
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
    """A refusal says nothing of the attempt before: its put may land (R41, R63). If it had landed
    the successor has finished it, and the row still says so.
    """
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
    successor = started(shared, publish)
    shared.land_late()
    if landed:
        made.commit_transaction()
        with pytest.raises(ProducerFencedError):
            made.begin_transaction()
    else:
        with pytest.raises(OutcomeLostError) as lost:
            made.commit_transaction()
        assert lost.value.fatal
        assert not lost.value.retriable
    with successor.transaction():
        successor.produce("orders", "next")
    assert set(values(process(shared), "orders")) == ({"mine", "next"} if landed else {"next"})
    check_settled(shared)


@BOTH
def test_fenced_after_its_commit_was_decided_reports_the_commit(publish: str) -> None:
    """The successor finished the transaction before it took the id, which the row no longer shows;
    the zombie has seen PREPARE land, and lost the store only then (R27, R36, R41).
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
    successor = started(shared, publish)
    made.commit_transaction()
    with pytest.raises(ProducerFencedError):
        made.begin_transaction()
    with successor.transaction():
        successor.produce("orders", "next")
    after = process(shared)
    assert set(values(after, "orders")) == {"mine", "next"}
    assert position(after) == 5
    check_settled(shared)
