"""A crash at every storage call of join, heartbeat, commit and leave, and its consequences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.cases import Some
from tests.consumer.records import (
    BEAT_MS,
    SESSION_MS,
    beat,
    group_row,
    member,
    put,
    read,
    turn,
    world,
)
from tests.faults import Trial, cuts, meetings
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.testing.faults import (
    Fault,
    SharedMemory,
)
from txnlog.testing.invariants import check_cluster

CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
COOPERATIVE = "cooperative-sticky"
ERRORS = (Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.LAND_LATE)


def join(one: Consumer) -> None:
    one.poll(0)


def live(one: Consumer) -> None:
    one.poll(0)
    one._consumption().clock.sleep_ms(BEAT_MS)
    beat(one)
    one.poll(0)


def commit(one: Consumer) -> None:
    read(one)
    one.commit(asynchronous=False)


def leave(one: Consumer) -> None:
    one.poll(0)
    one.close()


ACTS: tuple[Callable[[Consumer], None], ...] = (join, live, commit, leave)


def begun(act: Callable[[Consumer], None], strategy: str = "range") -> Trial:
    shared = full_world()
    one = newcomer(shared, strategy)
    return Trial(shared, one._consumption().cluster, partial(act, one), more=one)


def full_world() -> SharedMemory:
    shared = world(2)
    for number in range(2):
        put(process(shared), b"%d" % number, partition=number)
        # Ids of writes are random: with all shards, each run makes the same calls.
        process(shared).shard(number)
    return shared


def newcomer(shared: SharedMemory, strategy: str = "range") -> Consumer:
    """A consumer that has only opened the cluster."""
    one = member(shared, enable_auto_commit=False, partition_assignment_strategy=strategy)
    one._consumption()
    return one


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        # `live` does what the others do.
        pytest.param(
            act,
            fault,
            marks=[pytest.mark.soak]
            if fault in ERRORS and (act != live or fault is not Fault.LOSE_REPLY)
            else [],
        )
        for act in ACTS
        for fault in [*CRASHES, *ERRORS]
    ],
)
def test_member_that_crashes_at_any_call_leaves_a_working_group(
    act: Callable[[Consumer], None], fault: Fault, some: Some[Any]
) -> None:
    """A member that crashed within join or leave must not block its partitions (R48, R63)."""
    for trial in cuts(partial(begun, act), some, (fault,)):
        judge(trial.shared, trial.more, trial.outcome == "crashed")


def judge(shared: SharedMemory, one: Consumer, is_dead: bool, strategy: str = "range") -> None:
    """The live members soon read all uncommitted records, each partition by one member."""
    before = process(shared).groups.fetch("g") if group_exists(shared) else {}
    other = newcomer(shared, strategy)
    living = [other] if is_dead or one._is_closed else [one, other]
    for _ in range((SESSION_MS + 10_000) // BEAT_MS):
        turn(shared, *living, rounds=1)
    held = sorted(p.partition for reader in living for p in reader.assignment())
    assert held == [0, 1]
    row = group_row(shared)
    assert set(row.members) == {reader.memberid() for reader in living}
    committed = before.get("t", {})
    for reader in living:
        for p in reader.position(reader.assignment()):
            assert p.offset >= committed.get(p.partition, 0)
    check_cluster(process(shared))


def group_exists(shared: SharedMemory) -> bool:
    return process(shared).groups.describe("g") is not None


@pytest.mark.parametrize(
    "act",
    [pytest.param(act, marks=[] if act in (live, commit) else [pytest.mark.soak]) for act in ACTS],
)
def test_member_suspended_at_any_call_does_no_harm(
    act: Callable[[Consumer], None], some: Some[Any]
) -> None:
    """It resumes after the others have taken over its partitions and committed (R48)."""
    successors: list[Consumer] = []

    def take_over(trial: Trial) -> None:
        successors[:] = [member(trial.shared, enable_auto_commit=False)]
        for _ in range(SESSION_MS // BEAT_MS + 3):
            turn(trial.shared, *successors, rounds=1)
        read(successors[0])
        successors[0].commit(asynchronous=False)

    for trial in meetings(partial(begun, act), take_over, some):
        shared, one = trial.shared, trial.more
        assert group_row(shared).positions() == {"t": {0: 1, 1: 1}}
        living = successors if one._is_closed else [one, *successors]
        turn(shared, *living, rounds=6)
        held = sorted(p.partition for reader in living for p in reader.assignment())
        assert held == [0, 1]
        assert [value for reader in living for value in read(reader)] == []
        check_cluster(process(shared))


# --- Cooperative members --------------------------------------------------------------------------


class HandOver:
    """Two cooperative members, one of which hands a partition over to a third."""

    def __init__(self) -> None:
        self.shared = full_world()
        self.first = newcomer(self.shared, COOPERATIVE)
        turn(self.shared, self.first)
        read(self.first)
        self.first.commit(asynchronous=False)
        self.second = newcomer(self.shared, COOPERATIVE)

    def run(self) -> None:
        """Both rejoin, the first revokes and rejoins, the second gets its part."""
        turn(self.shared, self.second, self.first, rounds=3)

    def judge(self, dead: Consumer | None) -> None:
        """Each partition is read by one member, from where the former owner has committed."""
        living = [one for one in (self.first, self.second) if one is not dead]
        for _ in range((SESSION_MS + 10_000) // BEAT_MS):
            with suppress(TxnLogError):
                turn(self.shared, *living, rounds=1)
        turn(self.shared, *living, rounds=4)
        held = sorted(p.partition for reader in living for p in reader.assignment())
        assert held == [0, 1]
        row = group_row(self.shared)
        assert set(row.members) == {reader.memberid() for reader in living}
        assert not any(one.revoking for one in row.members.values())
        assert [value for reader in living for value in read(reader)] == []
        check_cluster(process(self.shared))


def handing_over(which: str) -> Trial:
    made = HandOver()
    cluster = getattr(made, which)._consumption().cluster
    return Trial(made.shared, cluster, made.run, more=made)


@pytest.mark.parametrize("which", ["first", "second"])
@pytest.mark.parametrize(
    "fault",
    [
        *CRASHES,
        Fault.LOSE_REPLY,
        pytest.param(Fault.FAIL_BEFORE, marks=pytest.mark.soak),
        pytest.param(Fault.LAND_LATE, marks=pytest.mark.soak),
    ],
)
def test_hand_over_survives_a_fault_at_any_call(which: str, fault: Fault, some: Some[Any]) -> None:
    """Whoever dies, and whenever: no partition stays with two members, or with none (R48, R63)."""
    for trial in cuts(partial(handing_over, which), some, (fault,)):
        made = trial.more
        made.judge(getattr(made, which) if trial.outcome == "crashed" else None)


@pytest.mark.parametrize("act", [live, commit])
def test_cooperative_member_that_crashes_at_any_call_leaves_a_working_group(
    act: Callable[[Consumer], None], some: Some[Any]
) -> None:
    for trial in cuts(partial(begun, act, COOPERATIVE), some, (Fault.CRASH_AFTER,)):
        judge(trial.shared, trial.more, trial.outcome == "crashed", COOPERATIVE)
