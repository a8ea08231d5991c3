"""Each storage call of a producer in turn fails, loses its reply, or kills the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import Trial, calls_of, cuts, meetings
from tests.producer.worlds import (
    TOPICS,
    Reports,
    cluster_of,
    group,
    input_at,
    producer,
    values,
    world,
)
from tests.world import (
    CRASHES,
    ERRORS,
    outcome_of,
    position,
    process,
    recover,
)
from txnlog.errors import OperationTimedOutError, TxnLogError
from txnlog.producer import Producer
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import Witness, check_cluster


def fill(made: Producer, name: str, reports: Reports | None = None) -> None:
    """Two records for each topic, one for each partition."""
    for topic in TOPICS:
        for partition in (0, 1):
            made.produce(topic, f"{name}-{partition}", partition=partition, on_delivery=reports)


@dataclass
class Act:
    """A producer that has committed one transaction, and what it then does under faults."""

    name: str
    publish: str
    act: Callable[[Producer], None]
    commits: bool = True
    offsets: bool = False

    def begin(self, shared: SharedMemory) -> Producer:
        made = producer(shared, "tx", self.publish)
        made.init_transactions()
        with made.transaction():
            fill(made, "before")
            made.send_offsets_to_transaction(input_at(10), group())
        return made


def commit(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.commit_transaction()


def commit_offsets(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.send_offsets_to_transaction(input_at(20), group())
    made.commit_transaction()


def commit_flushed(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.flush()
    made.commit_transaction()


def abort(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.send_offsets_to_transaction(input_at(20), group())
    made.flush()
    made.abort_transaction()


def two_phases(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.send_offsets_to_transaction(input_at(20), group())
    made.complete_transaction(made.prepare_transaction())


def two_phases_aborted(made: Producer) -> None:
    made.begin_transaction()
    fill(made, "mine")
    made.send_offsets_to_transaction(input_at(20), group())
    made.prepare_transaction()
    made.complete_transaction(None)


ACTS = [
    Act("commit", "deferred", commit),
    Act("commit", "eager", commit),
    Act("offsets", "deferred", commit_offsets, offsets=True),
    Act("offsets", "eager", commit_offsets, offsets=True),
    Act("flushed", "eager", commit_flushed),
    Act("abort", "deferred", abort, commits=False),
    Act("abort", "eager", abort, commits=False),
    Act("phases", "deferred", two_phases, offsets=True),
    Act("phases", "eager", two_phases, offsets=True),
    Act("phases-aborted", "deferred", two_phases_aborted, commits=False),
    Act("phases-aborted", "eager", two_phases_aborted, commits=False),
]
# The others do what these do.
WHOLE = (
    ("offsets", "deferred"), ("offsets", "eager"), ("flushed", "eager"), ("abort", "eager"),
    ("phases", "deferred"), ("phases-aborted", "eager"),
)  # fmt: skip
EACH = pytest.mark.parametrize(
    "act",
    [
        pytest.param(act, marks=[] if (act.name, act.publish) in WHOLE else [pytest.mark.soak])
        for act in ACTS
    ],
    ids=lambda act: f"{act.name}-{act.publish}",
)
# An outage is hundreds of calls: those of all acts are for the soak.
LONG_OUTAGES = [act for act in ACTS if act.name not in ("offsets", "phases")]
EACH_OUTAGE = pytest.mark.parametrize(
    "act",
    [pytest.param(act, marks=[pytest.mark.soak] if act in LONG_OUTAGES else []) for act in ACTS],
    ids=lambda act: f"{act.name}-{act.publish}",
)


def begun(act: Act) -> Trial:
    """With the producer, and a witness of what can be seen."""
    shared = world()
    made = act.begin(shared)
    witness = Witness()
    witness.observe(process(shared))
    return Trial(shared, cluster_of(made), partial(act.act, made), more=(made, witness))


def seen(shared: SharedMemory, name: str) -> bool:
    """Whether a transaction's records are visible: all, in every topic, once each, or none."""
    return shown(shared, name)[0]


def shown(shared: SharedMemory, *names: str) -> list[bool]:
    """The same for several transactions, in one read."""
    cluster = process(shared)
    found = [sorted(values(cluster, topic)) for topic in TOPICS]
    answers = []
    for name in names:
        own = [[value for value in one if value.startswith(name)] for one in found]
        assert own in ([[], []], [[f"{name}-0", f"{name}-1"]] * 2), f"torn: {own}"
        answers.append(bool(own[0]))
    return answers


def judge(act: Act, shared: SharedMemory, outcome: str) -> bool:
    after = recover(shared)
    before, mine = shown(shared, "before", "mine")
    assert before
    assert position(after) == (20 if mine and act.offsets else 10)
    if outcome == "done":
        assert mine == act.commits
    if not act.commits:
        assert not mine
    return mine


def settle_prepared(shared: SharedMemory) -> None:
    """Abort what a client that died between the two phases has left, as an operator would."""
    successor = producer(shared, "tx")
    successor.init_transactions(keep_prepared=True)
    if successor.prepared_state is not None:
        successor.complete_transaction(None)


@EACH
def test_producer_killed_at_any_call_leaves_all_or_nothing(act: Act, some: Some[Any]) -> None:
    """The next process that sweeps settles the transaction as decided (R36, R45, R73)."""
    results = set()
    for trial in cuts(partial(begun, act), some, CRASHES):
        assert trial.outcome in ("crashed", "done")
        _, witness = trial.more
        witness.observe(process(trial.shared))
        settle_prepared(trial.shared)
        results.add(judge(act, trial.shared, "crashed"))
        witness.observe(process(trial.shared))
    assert results == ({True, False} if act.commits else {False})


@EACH
def test_producer_with_any_reply_lost_succeeds(act: Act, some: Some[Any]) -> None:
    """The call that meets a fault repairs it within its time-out (R28, R36, R41)."""
    for trial in cuts(partial(begun, act), some, ERRORS):
        assert trial.outcome == "done"
        judge(act, trial.shared, "done")
        # The producer is fully usable.
        made, _ = trial.more
        with made.transaction():
            fill(made, "next")
        assert seen(trial.shared, "next")


@EACH_OUTAGE
@pytest.mark.parametrize(
    ("fault", "lands_last"),
    [
        (Fault.LOSE_REPLY, False),
        (Fault.FAIL_BEFORE, False),
        (Fault.LAND_LATE, False),
        (Fault.LAND_LATE, True),
    ],
)
def test_producer_in_an_outage_from_any_call_times_out_and_continues(
    act: Act, fault: Fault, lands_last: bool, some: Some[Any]
) -> None:
    """The outage lasts longer than every call; afterwards the same call continues (R41).

    Puts of the outage land before that call, or after it: then they must not undo its writes.
    """
    for number in some(calls_of(partial(begun, act))):
        shared = world()
        made = act.begin(shared)
        store = cluster_of(made).store
        counted = 0

        def outage(verb: str, path: str, number: int = number) -> Fault:
            nonlocal counted
            counted += 1
            return fault if counted > number else Fault.NONE

        store.plan = outage  # type: ignore[attr-defined]
        outcome = outcome_of(lambda m=made: act.act(m))
        assert outcome in ("OperationTimedOutError", "TransactionAbortableError", "done"), outcome
        store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
        if not lands_last:
            shared.land_late()
        committed = recovered(made, act)
        shared.land_late()
        check_cluster(process(shared))
        if lands_last and made._lifecycle.state.name != "FATAL_ERROR":
            with made.transaction():
                fill(made, "next")
            assert seen(shared, "next")
        mine = judge(act, shared, "recovered")
        assert committed is None or mine == committed, f"{outcome} at call {number}"


def recovered(made: Producer, act: Act) -> bool | None:
    """End the transaction as its state allows; whether it committed."""
    state = made._lifecycle.state.name
    if state == "COMMITTING":
        made.commit_transaction()
        return True
    if state == "PREPARED" and act.commits:
        made.commit_transaction()
        return True
    if state in ("IN_TRANSACTION", "ABORTABLE_ERROR", "ABORTING", "PREPARING", "PREPARED"):
        made.abort_transaction()
        return False
    return None


@EACH
@pytest.mark.parametrize("late", [False, True])
def test_producer_overtaken_by_its_successor_at_any_call_is_fenced_or_done(
    act: Act, late: bool, some: Some[Any]
) -> None:
    """A zombie pauses at any call, its successor commits, and the zombie resumes (R27, R44)."""
    taken_over: list[SharedMemory] = []

    def take_over(trial: Trial) -> None:
        taken_over.append(trial.shared)
        successor = producer(trial.shared, "tx", act.publish)
        successor.init_transactions()
        with successor.transaction():
            fill(successor, "theirs")

    for trial in meetings(partial(begun, act), take_over, some, late=late):
        made, _ = trial.more
        mine = judge(act, trial.shared, "overtaken")
        # Its last call has no next one.
        assert seen(trial.shared, "theirs") == (trial.shared in taken_over)
        assert late or taken_over
        if act.commits:
            assert (trial.outcome == "done") <= mine
        if trial.outcome not in ("done", "ProducerFencedError"):
            with suppress(TxnLogError):
                made.abort_transaction()
            with pytest.raises(TxnLogError):
                commit(made)
        assert not seen(trial.shared, "mine") or mine


def test_idempotent_producer_with_any_fault_writes_each_record_once(some: Some[Any]) -> None:
    """After a lost reply the same request is sent again (R1, R2, R7, R9)."""

    def begin() -> Trial:
        shared = world()
        made, reports = producer(shared), Reports()

        def act() -> None:
            for name in ("a", "b"):
                fill(made, name, reports)
                assert made.flush() == 0

        return Trial(shared, cluster_of(made), act, more=reports)

    for trial in cuts(begin, some):
        reports = trial.more
        assert trial.outcome == ("crashed" if trial.fault in CRASHES else "done")
        for topic in TOPICS:
            found = sorted(values(process(trial.shared), topic))
            assert len(set(found)) == len(found), f"twice: {found}"
            if trial.outcome == "done":
                assert found == ["a-0", "a-1", "b-0", "b-1"]
        assert not reports.errors
        reported = [(m.topic(), m.partition(), m.offset(), m.value()) for _, m in reports.received]
        assert len(set(reported)) == len(reported)


@pytest.mark.parametrize("fault", ERRORS)
def test_idempotent_producer_retries_through_an_outage(fault: Fault) -> None:
    """It sends the same batches with the same sequences until they are acknowledged (R2, R63)."""
    for number in range(12):
        shared = world()
        made, reports = producer(shared), Reports()
        fill(made, "a", reports)
        made.flush()
        until_ms = shared.clock.boot_ms() + 50_000
        counted = 0

        def outage(
            verb: str, path: str, number: int = number, shared: SharedMemory = shared
        ) -> Fault:
            nonlocal counted
            counted += 1
            is_out = counted > number and shared.clock.boot_ms() < until_ms  # noqa: B023
            return fault if is_out else Fault.NONE

        cluster_of(made).store.plan = outage  # type: ignore[attr-defined]
        fill(made, "b", reports)
        assert made.flush() == 0
        shared.land_late()
        fill(made, "c", reports)
        made.flush()
        check_cluster(process(shared))
        assert not reports.errors
        for topic in TOPICS:
            assert sorted(values(process(shared), topic)) == [
                f"{name}-{at}" for name in "abc" for at in (0, 1)
            ]


def test_idempotent_producer_in_an_outage_fails_its_records_and_continues() -> None:
    """Sequences of records that may have landed are never used again (R2, R9)."""
    shared = world()
    made, reports = producer(shared, delivery_timeout_ms=30_000), Reports()
    fill(made, "a", reports)
    made.flush()
    store = cluster_of(made).store
    store.plan = (  # type: ignore[attr-defined]
        lambda verb, path: Fault.LAND_LATE if "_delta_log" in path else Fault.NONE
    )
    fill(made, "b", reports)
    assert made.flush() == 0
    assert reports.errors == ["OperationTimedOutError"] * 4
    assert isinstance(reports.received[-1][0], OperationTimedOutError)
    store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
    shared.land_late()
    fill(made, "c", reports)
    made.flush()
    check_cluster(process(shared))
    for topic in TOPICS:
        found = sorted(values(process(shared), topic))
        assert set(found) >= {"a-0", "a-1", "c-0", "c-1"}
        assert len(set(found)) == len(found)
