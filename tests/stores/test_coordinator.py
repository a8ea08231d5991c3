"""The coordinator's scenarios on servers of stores, through the fault proxy, by seeds.

tests/coordinator/test_crashes.py goes through every storage call of each operation in memory; here
some of them, drawn at random, on the clients and servers of real stores.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from tests.coordinator.test_crashes import (
    ABORTS,
    COMMITS,
    Deferred,
    Persistent,
    begun,
    judge,
    persist,
)
from tests.faults import calls_of
from tests.stores.plans import RandomFaults, no_trouble
from tests.stores.proxy import FaultProxy
from tests.stores.servers import Place, Server
from tests.stores.verified import NAMES_ONLY, verify_place
from tests.stores.worlds import SharedServer, world_on
from tests.world import (
    CRASHES,
    GROUP,
    PLAIN,
    both,
    consumed,
    outcome_of,
    owned,
    planned,
    position,
    process,
    recover,
    visible,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import StorageError, TxnLogError
from txnlog.protocol.groups import GroupOffsets
from txnlog.testing.counts import count
from txnlog.testing.faults import Fault
from txnlog.testing.invariants import Witness, check_cluster

T = TypeVar("T")

ROUNDS = 3
RATE, WRITE_RATE = 0.05, 0.2
LATE_S_MAX = 1.0


class Trial:
    """One root behind the proxy."""

    def __init__(self, server: Server, proxy: FaultProxy, seed: int) -> None:
        self.place: Place = server.place()
        self.proxy = proxy
        self.chosen = random.Random(seed)
        through = server.place(self.place.url.rpartition("/")[2], port=proxy.port)
        self.shared = SharedServer(through, proxy)
        world_on(self.shared)

    def begin_faults(self) -> None:
        self.proxy.plan = RandomFaults(
            self.chosen.randrange(2**32),
            rate=RATE,
            write_rate=WRITE_RATE,
            late_s_max=LATE_S_MAX,
        )

    def end_faults(self) -> None:
        self.proxy.plan = no_trouble
        self.shared.land_late()


@pytest.fixture
def trial(server: Server, proxy: FaultProxy, seed: int) -> Trial:
    return Trial(server, proxy, seed)


@pytest.mark.parametrize("kind", [*COMMITS, *ABORTS, Persistent])
def test_transaction_amid_faults_is_all_or_nothing(
    server: Server, proxy: FaultProxy, seed: int, kind: type[Deferred]
) -> None:
    """Before PREPARE it aborts, after PREPARE any process finishes it (R36, R73).

    In two of three rounds the process also dies just before or after one of its calls.
    """
    chosen = random.Random(seed)
    calls = len(calls_of(partial(begun, kind)))
    for number in range(ROUNDS):
        trial = Trial(server, proxy, chosen.randrange(2**32))
        actor = kind.begin(trial.shared, PLAIN)
        witness = Witness()
        witness.observe(process(trial.shared))
        crash = {chosen.randrange(calls): chosen.choice(CRASHES)} if number else {}
        trial.begin_faults()
        with planned(actor.cluster, crash):
            outcome = outcome_of(actor.act)
        trial.end_faults()
        check_cluster(process(trial.shared))
        witness.observe(process(trial.shared))
        judge(kind, trial.shared, outcome)
        witness.observe(process(trial.shared))
        verify_place(trial.place, expected=NAMES_ONLY)
        count("histories", "coordinator's scenarios amid faults of a store's server")


def test_recovery_amid_faults_is_recovered_again(trial: Trial) -> None:
    """Helpers fail and crash, too; the last one, without faults, finishes (R36)."""
    actor = Deferred.begin(trial.shared, PLAIN)
    with planned(actor.cluster, {len(calls_of(partial(begun, Deferred))) - 3: Fault.CRASH_BEFORE}):
        assert outcome_of(actor.act) == "crashed"
    trial.begin_faults()
    for _ in range(4):
        helper = process_of(trial)
        with planned(helper, {trial.chosen.randrange(40): Fault.CRASH_AFTER}):
            outcome_of(sweep_twice(trial, helper))
    trial.end_faults()
    judge(Deferred, trial.shared, "crashed")
    verify_place(trial.place, expected=NAMES_ONLY)


def sweep_twice(trial: Trial, helper: Cluster) -> Callable[[], None]:
    """A sweep that sees what is unfinished, and one that finishes it."""

    def sweep() -> None:
        sweeper = Sweeper(helper, interval_ms=120_000)
        sweeper.sweep()
        trial.shared.clock.advance_ms(120_000)
        sweeper.sweep()

    return sweep


def process_of(trial: Trial) -> Cluster:
    """A new process; opening its cluster may need several tries."""
    while True:
        try:
            return process(trial.shared)
        except TxnLogError as error:
            if not error.retriable:
                raise


def test_two_owners_amid_faults_publish_each_input_once(trial: Trial) -> None:
    """A zombie and its successor take turns; the group's offsets decide (R44, R47, R48)."""
    trial.begin_faults()
    published: dict[str, tuple[int, int]] = {}
    for number in range(6):
        name = f"batch{number}"
        run = f"run{trial.chosen.randrange(3)}"
        cluster = process_of(trial)
        start = persist_until(lambda c=cluster: position(c))
        outcome_of(partial(publish, cluster, run, name, consumed(start, start + 10)))
        published[name] = (start, start + 10)
    trial.end_faults()
    after = recover(trial.shared)
    shown = {name: visible(after, name) for name in published}
    assert set(shown.values()) <= {(True, True), (False, False)}
    inputs = sorted(published[name] for name, seen in shown.items() if seen[0])
    assert [start for start, _ in inputs] == [10 * n for n in range(len(inputs))]
    assert position(after) == 10 * len(inputs)
    verify_place(trial.place, expected=NAMES_ONLY)


def publish(cluster: Cluster, run: str, name: str, offsets: GroupOffsets) -> None:
    """A transaction of a run, each step repeated while the store fails."""
    row = persist(lambda: owned(cluster, run))
    batches = persist(lambda: both(cluster, name))
    persist(lambda: cluster.coordinator.commit(row, batches, offsets=[offsets]))


def persist_until(act: Callable[[], T]) -> T:
    """Make a call until it succeeds, for up to 100 times."""
    for _ in range(100):
        try:
            return act()
        except StorageError:
            continue
    return act()


def test_group_offsets_amid_faults_go_back_only_by_reset(trial: Trial) -> None:
    """An acknowledged commit of offsets is read by a new process; a zombie's is refused (R46)."""
    trial.begin_faults()
    acknowledged = 0
    for number in range(1, 9):
        cluster = process_of(trial)
        outcome = outcome_of(partial(cluster.groups.commit, GROUP, 1, {"input": {0: number}}))
        assert outcome in ("done", "StorageError", "CommitStateUnknownError")
        if outcome == "done":
            acknowledged = number
        found = persist_until(lambda: position(process_of(trial)))
        assert acknowledged <= found <= number
        acknowledged = found
    trial.end_faults()
    assert position(process(trial.shared)) >= acknowledged
    verify_place(trial.place, expected=NAMES_ONLY)
