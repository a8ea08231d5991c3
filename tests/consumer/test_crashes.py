"""A crash at every storage call of join, heartbeat, commit and leave, and its consequences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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
from tests.world import process
from txnlog.consumer import Consumer
from txnlog.errors import TxnLogError
from txnlog.testing.faults import (
    Fault,
    FaultsAt,
    FaultyStore,
    SharedMemory,
    SimulatedCrash,
    no_faults,
)
from txnlog.testing.invariants import check_cluster

CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
COOPERATIVE = "cooperative-sticky"
ERRORS = (Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.LAND_LATE)


def store_of(one: Consumer) -> FaultyStore:
    store = one._consumption().cluster.store
    assert isinstance(store, FaultyStore)
    return store


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


def calls_of(act: Callable[[Consumer], None]) -> int:
    one = newcomer(full_world())
    plan = FaultsAt({})
    store_of(one).plan = plan
    act(one)
    return plan.calls


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
    for number in some(range(calls_of(act))):
        shared = full_world()
        one = newcomer(shared)
        store = store_of(one)
        store.plan = FaultsAt({number: fault})
        is_dead = False
        try:
            act(one)
        except SimulatedCrash:
            is_dead = True
        except TxnLogError:
            pass
        store.plan = no_faults
        shared.land_late()
        check_cluster(process(shared))
        judge(shared, one, is_dead, f"{act.__name__} with {fault} at {number}")


def judge(
    shared: SharedMemory, one: Consumer, is_dead: bool, where: str, strategy: str = "range"
) -> None:
    """The live members soon read all uncommitted records, each partition by one member."""
    before = process(shared).groups.fetch("g") if group_exists(shared) else {}
    other = newcomer(shared, strategy)
    living = [other] if is_dead or one._is_closed else [one, other]
    for _ in range((SESSION_MS + 10_000) // BEAT_MS):
        turn(shared, *living, rounds=1)
    held = sorted(p.partition for reader in living for p in reader.assignment())
    assert held == [0, 1], where
    row = group_row(shared)
    assert set(row.members) == {reader.memberid() for reader in living}, where
    committed = before.get("t", {})
    for reader in living:
        for p in reader.position(reader.assignment()):
            at_least = committed.get(p.partition, 0)
            assert p.offset >= at_least, where
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
    for number in some(range(calls_of(act))):
        shared = full_world()
        one = newcomer(shared)
        successors: list[Consumer] = []

        def take_over(
            shared: SharedMemory = shared, successors: list[Consumer] = successors
        ) -> None:
            successor = member(shared, enable_auto_commit=False)
            successors.append(successor)
            for _ in range(SESSION_MS // BEAT_MS + 3):
                turn(shared, successor, rounds=1)
            read(successor)
            successor.commit(asynchronous=False)

        store = store_of(one)
        store.plan = FaultsAt({}, interlude=take_over, interlude_at=number)
        with suppress(TxnLogError):
            act(one)
        store.plan = no_faults
        assert group_row(shared).positions() == {"t": {0: 1, 1: 1}}, f"{act.__name__} at {number}"
        living = successors if one._is_closed else [one, *successors]
        turn(shared, *living, rounds=6)
        held = sorted(p.partition for reader in living for p in reader.assignment())
        assert held == [0, 1], f"{act.__name__} at {number}"
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

    def judge(self, dead: Consumer | None, where: str) -> None:
        """Each partition is read by one member, from where the former owner has committed."""
        living = [one for one in (self.first, self.second) if one is not dead]
        for _ in range((SESSION_MS + 10_000) // BEAT_MS):
            with suppress(TxnLogError):
                turn(self.shared, *living, rounds=1)
        turn(self.shared, *living, rounds=4)
        held = sorted(p.partition for reader in living for p in reader.assignment())
        assert held == [0, 1], where
        row = group_row(self.shared)
        assert set(row.members) == {reader.memberid() for reader in living}, where
        assert not any(one.revoking for one in row.members.values()), where
        assert [value for reader in living for value in read(reader)] == [], where
        check_cluster(process(self.shared))


def hand_over_calls(which: str) -> int:
    world_ = HandOver()
    plan = FaultsAt({})
    store_of(getattr(world_, which)).plan = plan
    world_.run()
    return plan.calls


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
    for number in some(range(hand_over_calls(which))):
        made = HandOver()
        one = getattr(made, which)
        store = store_of(one)
        store.plan = FaultsAt({number: fault})
        dead = None
        try:
            made.run()
        except SimulatedCrash:
            dead = one
        except TxnLogError:
            pass
        store.plan = no_faults
        made.shared.land_late()
        made.judge(dead, f"{which}, {fault} at {number}")


@pytest.mark.parametrize("act", [live, commit])
def test_cooperative_member_that_crashes_at_any_call_leaves_a_working_group(
    act: Callable[[Consumer], None], some: Some[Any]
) -> None:
    for number in some(range(calls_of(act))):
        shared = full_world()
        one = newcomer(shared, COOPERATIVE)
        store_of(one).plan = FaultsAt({number: Fault.CRASH_AFTER})
        is_dead = False
        try:
            act(one)
        except SimulatedCrash:
            is_dead = True
        store_of(one).plan = no_faults
        judge(shared, one, is_dead, f"{act.__name__} at {number}", COOPERATIVE)
