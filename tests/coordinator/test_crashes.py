"""Crash, fail or lose the reply at every storage call of every operation, one after another.

The calls are numbered by a dry run. After each fault another process recovers with nothing but a
sweep, and the result must be all or nothing, stay so, and contain all that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts, meetings
from tests.world import (
    CRASHES,
    ERRORS,
    GROUP,
    PLAIN,
    SETTINGS,
    both,
    consumed,
    eager,
    faults,
    outcome_of,
    owned,
    persist,
    planned,
    position,
    process,
    recover,
    row_of,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import UnstableOffsetCommitError
from txnlog.protocol.metadata import Owner, StagedBatch, TransactionMetadata
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory
from txnlog.testing.invariants import Witness, check_cluster


@dataclass
class Actor:
    """A process in the middle of an operation."""

    shared: SharedMemory
    cluster: Cluster
    row: TransactionMetadata
    batches: list[StagedBatch]

    def act(self) -> None:
        raise NotImplementedError


class Deferred(Actor):
    """Commit staged batches of two topics with the offsets read."""

    commits = True
    seed: int | None = None

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> Actor:
        cluster = process(shared, settings=settings, seed=cls.seed)
        row = owned(cluster, "first")
        row = cluster.coordinator.commit(row, both(cluster, "before"), offsets=[consumed(0, 10)])
        return cls(shared, cluster, row, both(cluster, "mine"))

    def act(self) -> None:
        self.cluster.coordinator.commit(self.row, self.batches, offsets=[consumed(10, 20)])


class FirstOfRun(Deferred):
    """A run's first commit with offsets: it registers, and refuses the ticket of the run before."""

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> Actor:
        actor = super().begin(shared, settings)
        actor.row = owned(actor.cluster, "again")
        return actor


class OtherOrder(Deferred):
    """Calls that are made together reach the store in another order."""

    seed = 1


class ThirdOrder(Deferred):
    """And in another one."""

    seed = 2


class Eager(Deferred):
    """Commit batches that are in the topics already."""

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> Actor:
        actor = super().begin(shared, settings)
        actor.row = eager(actor.cluster, actor.row, "mine", offsets=[consumed(10, 20)])
        actor.batches = []
        return actor


class Appending(Eager):
    """Open the transaction, append and commit."""

    @classmethod
    def begin(cls, shared: SharedMemory, settings: LogSettings) -> Actor:
        return Deferred.begin.__func__(cls, shared, settings)  # type: ignore[attr-defined]

    def act(self) -> None:
        row = eager(self.cluster, self.row, "mine", offsets=[consumed(10, 20)])
        self.cluster.coordinator.commit(row, offsets=[consumed(10, 20)])


class Persistent(Appending):
    """A client that repeats each of its calls while they fail with a retriable error."""

    def act(self) -> None:
        row = persist(lambda: eager(self.cluster, self.row, "mine", offsets=[consumed(10, 20)]))
        persist(lambda: self.cluster.coordinator.commit(row, offsets=[consumed(10, 20)]))


class OneOff(Deferred):
    """A batch write, whose row is removed; without offsets."""

    def act(self) -> None:
        commit_one_off(self.cluster, self.batches, Owner(run_id="once"))


class Aborting(Eager):
    """Abort batches that are in the topics already."""

    commits = False

    def act(self) -> None:
        self.cluster.coordinator.abort(self.row)


class TakingOver(Aborting):
    """Another run takes over while the transaction is open (R27, R44)."""

    def act(self) -> None:
        owned(self.cluster, "second")


class TimingOut(Aborting):
    """The sweeper times a transaction out (R32)."""

    def act(self) -> None:
        row = row_of(self.cluster)
        time_out(self.cluster, row, by="a test")


COMMITS: list[type[Deferred]] = [Deferred, OtherOrder, ThirdOrder, Eager, Appending, OneOff]
ABORTS: list[type[Deferred]] = [Aborting, TakingOver, TimingOut]


def begun(kind: type[Deferred], settings: LogSettings = PLAIN) -> Trial:
    """With a witness of what can be seen."""
    shared = world(settings=settings)
    actor = kind.begin(shared, settings)
    witness = Witness()
    witness.observe(process(shared))
    return Trial(shared, actor.cluster, actor.act, more=witness)


def judge(kind: type[Deferred], shared: SharedMemory, outcome: str) -> bool:
    """After recovery: all or nothing, all that was acknowledged, and the right group position."""
    after = recover(shared)
    assert visible(after, "before") == (True, True)
    seen = visible(after, "mine")
    assert seen in ((True, True), (False, False)), f"torn: {seen}"
    if not kind.commits:
        assert seen == (False, False)
    elif outcome == "done":
        assert seen == (True, True)
    expected = 20 if seen[0] and kind is not OneOff else 10
    assert position(after) == expected
    assert visible(process(shared), "mine") == seen
    return seen[0]


ALIKE = [OtherOrder, ThirdOrder, TakingOver]
"""The steps of others in another order, or with fewer files: for the soak."""

CUTS = [
    *(
        pytest.param(
            kind, PLAIN, id=kind.__name__, marks=[pytest.mark.soak] if kind in ALIKE else []
        )
        for kind in [FirstOfRun, *COMMITS, *ABORTS]
    ),
    *(
        pytest.param(kind, SETTINGS, id=f"{kind.__name__}-checkpoints")
        for kind in [Deferred, TakingOver]
    ),
]


@pytest.mark.parametrize(("kind", "settings"), CUTS)
def test_transaction_cut_at_any_call_is_all_or_nothing(
    kind: type[Deferred], settings: LogSettings, some: Some[Any]
) -> None:
    """Before PREPARE it aborts, after PREPARE any process finishes it (R36, R73)."""
    results = set()
    for trial in cuts(partial(begun, kind, settings), some):
        trial.more.observe(process(trial.shared))
        results.add(judge(kind, trial.shared, trial.outcome))
        trial.more.observe(process(trial.shared))
    assert results == ({True, False} if kind.commits else {False})


@pytest.mark.parametrize("kind", [Deferred, FirstOfRun, Eager, Persistent, OneOff, *ABORTS])
def test_transaction_repeated_after_an_error_succeeds_once(
    kind: type[Deferred], some: Some[Any]
) -> None:
    """After a retriable error the same call may be repeated, whatever landed (R28, R36, R41)."""
    for trial in cuts(partial(begun, kind), some, ERRORS):
        assert trial.outcome in ("done", *RETRIABLE)
        if kind is not OneOff:
            assert kind is not Persistent or trial.outcome == "done"
            assert trial.again() == "done"
        judge(kind, trial.shared, trial.outcome if kind is OneOff else "done")


@pytest.mark.parametrize("kind", [Deferred, Eager, OneOff, TakingOver])
def test_recovery_cut_at_any_call_is_recovered_again(kind: type[Deferred], some: Some[Any]) -> None:
    """Helpers crash, too: any subset of the markers may be written for the next one (R36)."""
    for trial in cuts(partial(begun, kind), some, (Fault.CRASH_AFTER,)):
        shared, decided = trial.shared, None
        for second in range(60):
            helper = process(shared)
            sweeper = Sweeper(helper, interval_ms=120_000)
            sweeper.sweep()
            shared.clock.advance_ms(120_000)
            with planned(helper, {second: Fault.CRASH_AFTER}):
                if outcome_of(sweeper.sweep) == "done":
                    break
            check_cluster(process(shared))
            seen = any(visible(process(shared), "mine"))
            assert decided is None or not decided or seen, "a decision was taken back"
            decided = seen
        judge(kind, shared, "crashed")


# --- Others act while one process is paused -------------------------------------------------------


def take_over(other: Cluster) -> None:
    owned(other, "second")


def sweep(other: Cluster) -> None:
    sweeper = Sweeper(other, interval_ms=120_000)
    sweeper.sweep()
    faults(other).clock.sleep_ms(120_000)
    sweeper.sweep()


def read_group(other: Cluster) -> None:
    with suppress(UnstableOffsetCommitError):
        other.groups.fetch(GROUP)


def restart_group(other: Cluster) -> None:
    generation = other.groups.start(GROUP)
    other.groups.fetch(GROUP, generation)


def take_over_and_commit(other: Cluster) -> None:
    row = owned(other, "second")
    start = position(other)
    other.coordinator.commit(row, both(other, "theirs"), offsets=[consumed(start, start + 5)])


LONG_MEETINGS = [OtherOrder, ThirdOrder, Appending]
"""The same steps as in other kinds, in another order, or some more: for the soak."""


@pytest.mark.parametrize("late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("other_act", [take_over, sweep, read_group, restart_group])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.soak] if kind in LONG_MEETINGS else [])
        for kind in [*COMMITS, *ABORTS]
    ],
)
def test_transaction_met_by_another_process_at_any_call_is_all_or_nothing(
    kind: type[Deferred], other_act: Callable[[Cluster], None], late: bool, some: Some[Any]
) -> None:
    """A zombie pauses at any call, others continue, and it resumes (R27, R31, R44, R46).

    `late`: its call at that moment is a put that lands only after the others have acted.
    """

    def meanwhile(trial: Trial) -> None:
        other = process(trial.shared)
        other_act(other)
        check_cluster(process(trial.shared))
        trial.more.observe(other)

    for trial in meetings(partial(begun, kind), meanwhile, some, late=late):
        judge(kind, trial.shared, trial.outcome)
        trial.more.observe(process(trial.shared))


def start_new_query_and_commit(other: Cluster) -> None:
    """A new query after a lost checkpoint: another id, the same group (R59)."""
    row = owned(other, "second", tid="other")
    generation = other.groups.start(GROUP)
    start = other.groups.fetch(GROUP, generation).get("input", {}).get(0, 0)
    offsets = [consumed(start, start + 5, generation=generation)]
    other.coordinator.commit(row, both(other, "theirs"), offsets=offsets)


@pytest.mark.parametrize("successor", [take_over_and_commit, start_new_query_and_commit])
@pytest.mark.parametrize("kind", [Deferred, FirstOfRun, Eager, Appending])
def test_zombie_and_successor_reading_the_same_input_write_it_once(
    kind: type[Deferred], successor: Callable[[Cluster], None], some: Some[Any]
) -> None:
    """The successor starts at the group's position; the zombie resumes later (R44, R47, R48)."""
    meanwhile = lambda trial: successor(process(trial.shared))  # noqa: E731
    for trial in meetings(partial(begun, kind), meanwhile, some):
        after = recover(trial.shared)
        mine, theirs = visible(after, "mine"), visible(after, "theirs")
        assert theirs == (True, True)
        assert mine in ((True, True), (False, False))
        assert position(after) == (25 if mine[0] else 15)
        assert (trial.outcome == "done") <= mine[0]


# --- Topics ---------------------------------------------------------------------------------------


def test_create_topic_cut_at_any_call_makes_one_topic_or_none(some: Some[Any]) -> None:
    """A lost reply must not read as "exists already", nor a crash leave half a topic."""

    def begin() -> Trial:
        shared = world()
        cluster = process(shared)
        return Trial(shared, cluster, partial(cluster.create_topic, "new", partitions=3))

    for trial in cuts(begin, some):
        assert trial.outcome in ("done", "crashed", "StorageError")
        assert trial.outcome in ("done", "crashed") or trial.fault in ERRORS
        fresh = process(trial.shared)
        fresh.create_topic("new", partitions=3, exist_ok=True)
        assert fresh.topic("new").partitions == 3
        check_cluster(fresh)


def test_delete_topic_cut_at_any_call_deletes_whole_or_not(some: Some[Any]) -> None:
    """The ends must survive in the same commit that removes the files (R71)."""

    def begin() -> Trial:
        shared = world()
        owner = process(shared)
        owner.coordinator.commit(owned(owner, "first"), both(owner, "mine"))
        ends = [p.end_offset for p in owner.topic("orders").view.partitions]
        assert sum(ends) == 2
        cluster = process(shared)
        return Trial(shared, cluster, partial(cluster.delete_topic, "orders"), more=ends)

    for trial in cuts(begin, some):
        fresh = process(trial.shared)
        gone = "orders" not in fresh.list_topics()
        assert gone >= (trial.outcome == "done")
        fresh.create_topic("orders", partitions=2, exist_ok=True)
        assert [p.end_offset for p in fresh.topic("orders").view.partitions] == trial.more
        assert visible(fresh, "mine") == (not gone, True)
        check_cluster(fresh)


@pytest.mark.parametrize("fault", [*CRASHES, *ERRORS])
def test_cluster_created_with_a_fault_at_any_call_opens_afterwards(
    fault: Fault, some: Some[Any]
) -> None:
    """Half a cluster must open as a whole one, with one id (R69)."""
    for number in some(range(24)):
        shared = SharedMemory()
        store = shared.open(plan=FaultsAt({number: fault}))
        outcome = outcome_of(lambda s=store: Cluster.open(s, create=True, shards=2, settings=PLAIN))
        assert outcome in ("done", "crashed", "StorageError")
        shared.land_late()
        first = process(shared)
        second = process(shared)
        assert first.cluster_id == second.cluster_id
        assert (first.shards, second.shards) == (2, 2)
        owned(first, "a")
        check_cluster(second)
