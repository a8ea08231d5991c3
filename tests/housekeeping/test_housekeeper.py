"""Housekeeping: duties, intervals, its lease, and that nothing depends on it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import Trial, cuts
from tests.housekeeping.steps import keep
from tests.world import (
    CRASHES,
    MINUTE_MS,
    both,
    check_settled,
    consumed,
    eager,
    faults,
    owned,
    planned,
    position,
    prepared,
    process,
    recover,
    state_of,
    visible,
    world,
)
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import InvalidProducerIdMappingError, StorePermissionError, TxnLogError
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.protocol.metadata import LastBatch, Owner, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.store import clock_watch
from txnlog.testing.faults import Fault, SkewedClock
from txnlog.testing.invariants import check_cluster

DAY_MS = 24 * 60 * MINUTE_MS
EXPIRY_MS = DAY_MS
HOUR_MS = 60 * MINUTE_MS
SELDOM = HousekeepingSettings(
    abort_interval_ms=HOUR_MS,
    cleaner_backoff_ms=HOUR_MS,
    retention_check_interval_ms=HOUR_MS,
    lease_ms=6 * HOUR_MS,
    transactional_id_expiration_ms=EXPIRY_MS,
)
"""Days pass in fewer steps."""
FOREVER = {"retention.ms": "-1"}


def ids(cluster: Cluster) -> list[str]:
    found = AdminClient({}, cluster=cluster).list_transactions().result()
    return [listing.transactional_id for listing in found]


# --- Duties ---------------------------------------------------------------------------------------


def test_housekeeper_times_out_finishes_and_settles_with_no_other_traffic() -> None:
    """Eager transactions, one with offsets, and a decided one of dead processes (R32, R46, R73)."""
    shared = world()
    prepared(shared)
    dying = process(shared)
    eager(dying, owned(dying, "a", tid="open"), "x")
    entry = owned(dying, "b", tid="entry")
    dying.groups.start("other")
    dying.coordinator.add_partitions(entry, offsets=[consumed(0, 5, group="other")])
    keep(shared, Housekeeper(process(shared)), 2 * MINUTE_MS)
    after = process(shared)
    check_cluster(after, settled=True)
    assert visible(after, "mine") == (True, True)
    assert visible(after, "x") == (False, False)
    assert state_of(after, "open") is TransactionState.COMPLETE_ABORT
    described = AdminClient({}, cluster=after).describe_transactions(["open"])["open"].result()
    assert described.fenced is not None
    assert "timed out" in described.fenced.reason


def test_housekeeper_times_out_nothing_that_is_young_to_its_own_eyes() -> None:
    """A housekeeper that has just started, or a wrong clock, aborts no transaction (R34)."""
    shared = world()
    owner = process(shared)
    row = eager(owner, owned(owner, "a"), "x")
    shared.clock.advance_ms(DAY_MS)
    skewed = process(shared, clock=SkewedClock(shared.clock, DAY_MS))
    keeper = Housekeeper(skewed)
    keep(shared, keeper, MINUTE_MS - 1_000)
    assert state_of(process(shared)) is TransactionState.ONGOING
    owner.coordinator.commit(row)
    assert visible(process(shared), "x") == (True, True)


def test_housekeeper_empties_a_group_all_of_whose_members_died() -> None:
    """No member is left to expel them; then the group can be deleted."""
    shared = world()
    dead = Consumer(
        {"group.id": "g", "session.timeout.ms": 45_000}, cluster=process(shared), background=False
    )
    dead.subscribe(["orders"])
    dead.poll(0)
    living = Consumer({"group.id": "alive"}, cluster=process(shared), background=False)
    living.subscribe(["orders"])
    keeper = Housekeeper(process(shared))
    for _ in range(6):
        keep(shared, keeper, 10_000)
        living.poll(0)
        assert living._opened is not None
        assert living._opened._session is not None
        living._opened._session.heartbeat.send()
    groups = process(shared).groups
    emptied, alive = groups.describe("g"), groups.describe("alive")
    assert emptied is not None
    assert (emptied.members, emptied.assignment) == ({}, {})
    assert alive is not None
    assert len(alive.members) == 1
    check_cluster(process(shared))


def test_housekeeper_removes_probes_that_dead_processes_left() -> None:
    """Small objects in `__cluster`; a young one may be in use."""
    shared = world()
    cluster = process(shared)
    cluster.store.put("__cluster/_clock/old", b"x")
    cluster.store.put("__cluster/_probe/old", b"x")
    shared.clock.advance_ms(61 * MINUTE_MS)
    cluster.store.put("__cluster/_clock/young", b"x")
    done = Housekeeper(process(shared)).run_once()
    assert done is not None
    assert done["clock and store probes removed"] == 2
    left = [meta.path for meta in cluster.store.list("__cluster/_clock")]
    assert left == ["__cluster/_clock/young"]
    process(shared)


def test_housekeeper_removes_notes_about_clocks_of_machines_that_are_gone() -> None:
    """After 30 days; one that still runs compares its clocks anew, for an hour."""
    shared = world()
    store = process(shared).store
    mine = [meta.path for meta in store.list(clock_watch.FOLDER)]
    store.put(f"{clock_watch.FOLDER}/former-boot", b"{}")
    shared.clock.advance_ms(30 * DAY_MS - MINUTE_MS)
    keeper = Housekeeper(process(shared))
    keeper.run_once()
    assert len(store.list(clock_watch.FOLDER)) == 2
    assert clock_watch.may_trust_ages(store)
    shared.clock.advance_ms(2 * HOUR_MS)
    listed = {one.path for one in keeper.find()}
    assert f"{clock_watch.FOLDER}/former-boot" in listed
    done = keeper.run_once()
    assert done is not None
    assert done["clock and store probes removed"] == 2
    assert store.list(clock_watch.FOLDER) == []
    assert not clock_watch.may_trust_ages(store)
    assert [meta.path for meta in store.list(clock_watch.FOLDER)] == mine
    shared.clock.advance_ms(2 * HOUR_MS)
    assert clock_watch.may_trust_ages(store)


# --- Expiry ---------------------------------------------------------------------------------------


def test_expiry_removes_idle_ids_and_their_next_init_gets_a_new_producer_id() -> None:
    """From Empty and Complete* only (R35, R8)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    empty = owned(cluster, "a", tid="empty")
    done = cluster.coordinator.commit(owned(cluster, "b", tid="done"), both(cluster, "x"))
    eager(cluster, owned(cluster, "c", tid="two-phase"), "y")
    held = cluster.coordinator.describe("two-phase")
    assert held is not None
    cluster.coordinator.prepare(held)
    keeper = Housekeeper(process(shared), SELDOM)
    keep(shared, keeper, EXPIRY_MS - MINUTE_MS)
    assert ids(process(shared)) == ["done", "empty", "two-phase"]
    keep(shared, keeper, 2 * HOUR_MS)
    after = process(shared)
    assert ids(after) == ["two-phase"]
    check_cluster(after)
    assert visible(after, "x") == (True, True)
    with pytest.raises(InvalidProducerIdMappingError):
        cluster.coordinator.commit(empty, both(cluster, "late"))
    again = owned(after, "d", tid="done")
    assert again.producer_id not in (empty.producer_id, done.producer_id)
    assert again.producer_epoch == 0
    after.coordinator.commit(again, both(after, "z"))
    assert visible(process(shared), "z") == (True, True)


def test_row_on_which_expiry_fails_keeps_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure ended each round: the ids after it never expired (R37)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    names = [f"id{number}" for number in range(6)]
    for name in names:
        owned(cluster, "a", tid=name)
    keeper = Housekeeper(process(shared), SELDOM)
    expire = keeper._expire_row

    def fail_for_one(row: TransactionMetadata) -> bool:
        if row.transactional_id == names[0]:
            raise ZeroDivisionError
        return expire(row)

    monkeypatch.setattr(keeper, "_expire_row", fail_for_one)
    keep(shared, keeper, EXPIRY_MS + 2 * HOUR_MS)
    assert ids(process(shared)) == names[:1]


def test_shard_that_cannot_be_read_keeps_no_id_of_another_shard() -> None:
    """Expiry ended at the first shard that could not be read (R37)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    names = {cluster.shard_of(name): name for name in ("a", "b", "c", "d")}
    for name in names.values():
        owned(cluster, "r", tid=name)
    keeping = process(shared)
    keeper = Housekeeper(keeping, SELDOM)
    keep(shared, keeper, HOUR_MS)
    faults(keeping).plan = lambda verb, path: (
        Fault.DENY if path.startswith("__transaction_state-0/") else Fault.NONE
    )
    keep(shared, keeper, EXPIRY_MS + HOUR_MS)
    assert ids(process(shared)) == [names[0]]
    faults(keeping).plan = lambda verb, path: Fault.NONE
    keep(shared, keeper, HOUR_MS)
    assert ids(process(shared)) == []


def test_expiry_never_removes_ids_of_streaming_queries() -> None:
    """Its last batch id is what makes a replay recognised, however long the query was off (R35)."""
    shared = world()
    cluster = process(shared)
    owner = Owner(run_id="r", query_id="q", host="h", pid=1)
    row = cluster.coordinator.init_producer_id("tx", owner)
    cluster.coordinator.commit(row, both(cluster, "x"), last_batch=LastBatch(batch_id=0))
    batch_writer = cluster.coordinator.init_producer_id("app", Owner(run_id="w"))
    cluster.coordinator.commit(batch_writer, last_batch=LastBatch(batch_id=3))
    keep(shared, Housekeeper(process(shared), SELDOM), 2 * EXPIRY_MS)
    assert ids(process(shared)) == ["app", "tx"]


@pytest.mark.parametrize("skew_ms", [-364 * DAY_MS, 364 * DAY_MS])
def test_expiry_spares_a_producer_at_work_whose_clock_is_wrong(skew_ms: int) -> None:
    """Its rows say that they are a year old, or of next year (R34)."""
    shared = world(config=FOREVER)
    producer = process(shared, clock=SkewedClock(shared.clock, skew_ms))
    row = owned(producer, "a")
    keeper = Housekeeper(process(shared), SELDOM)
    for number in range(8):
        keep(shared, keeper, 50 * MINUTE_MS)
        row = producer.coordinator.commit(row, both(producer, f"x{number}"))
    assert ids(process(shared)) == ["tx"]
    assert visible(process(shared), "x0") == (True, True)


def test_expiry_races_with_an_init_and_one_of_them_wins() -> None:
    """A row that changed since it was read is in use again (R35)."""
    shared = world()
    cluster = process(shared)
    owned(cluster, "a")
    keeping = process(shared)
    keeper = Housekeeper(keeping, SELDOM)
    keep(shared, keeper, EXPIRY_MS - HOUR_MS)
    heirs = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith("__transaction_state") and not heirs:
            heirs.append(owned(process(shared), "b"))
        return Fault.NONE

    faults(keeping).plan = plan
    keep(shared, keeper, 3 * HOUR_MS)
    assert len(heirs) == 1
    other = process(shared)
    other.coordinator.commit(heirs[0], both(other, "x"))
    assert visible(process(shared), "x") == (True, True)


# --- Many of them, and none -----------------------------------------------------------------------


def test_many_housekeepers_run_and_one_works(caplog: pytest.LogCaptureFixture) -> None:
    """The others read only the lease; when its holder dies, one of them takes over (R73)."""
    shared = world()
    clusters = [process(shared) for _ in range(3)]
    keepers = [Housekeeper(cluster) for cluster in clusters]
    with caplog.at_level(logging.INFO, "txnlog"):
        for keeper in keepers:
            keeper.step()
    messages = [message for message in caplog.messages if "housekeeping of" in message]
    assert [("this process" in message) for message in messages] == [True, False, False]
    for cluster in clusters[1:]:
        faults(cluster).calls.clear()
        faults(cluster).plan = lambda verb, path: (
            Fault.NONE if path.startswith("__cluster") else Fault.DENY
        )
    for keeper in keepers[1:]:
        keep(shared, keeper, 10_000)
        keepers[0].step()
    assert keepers[1].run_once() is None
    dying = process(shared)
    eager(dying, owned(dying, "a"), "x")
    for cluster in clusters[1:]:
        faults(cluster).plan = lambda verb, path: Fault.NONE
    for _ in range(40):
        for keeper in keepers[1:]:
            keep(shared, keeper, 5_000)
    check_settled(shared)


def test_housekeeper_stopped_releases_its_lease() -> None:
    """The next one need not wait (SIGTERM)."""
    shared = world()
    stop = threading.Event()
    stop.set()
    first, second = Housekeeper(process(shared)), Housekeeper(process(shared))
    first.step()
    assert second.run_once() is None
    first.run(stop)
    assert second.run_once() is not None


def test_housekeeper_without_permission_for_the_cluster_raises() -> None:
    """Other errors are logged and the work retried: one table delays no other (R37, R68)."""
    shared = world()
    prepared(shared)
    cluster = process(shared)
    keeper = Housekeeper(cluster)
    faults(cluster).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    with pytest.raises(StorePermissionError):
        keeper.step()
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("orders") else Fault.NONE
    )
    keep(shared, keeper, MINUTE_MS)
    assert visible(process(shared), "mine")[1]
    faults(cluster).plan = lambda verb, path: Fault.NONE
    keep(shared, keeper, MINUTE_MS)
    check_settled(shared)
    assert visible(process(shared), "mine") == (True, True)


def test_housekeeper_that_is_stopped_begins_no_other_duty() -> None:
    """After a start all are due, and each may take minutes: a supervisor would kill it."""
    shared = world()
    cluster, stop = process(shared), threading.Event()

    def plan(verb: str, path: str) -> Fault:
        if path.startswith("orders/"):
            stop.set()
        return Fault.NONE

    faults(cluster).plan = plan
    Housekeeper(cluster).run(stop)
    duties = AdminClient({}, cluster=process(shared)).describe_housekeeping().result().upkeep.duties
    assert list(duties) == [
        "transactions and offsets settled",
        "groups of dead members emptied",
        "transactional ids expired",
        "files past their retention removed",
    ]


@pytest.mark.parametrize("verb", ["get", "put"])
def test_housekeeper_that_the_cluster_refuses_for_a_time_goes_on(verb: str) -> None:
    """Credentials that had expired for a moment ended it for good (R73)."""
    shared = world(config=FOREVER)
    prepared(shared)
    cluster = process(shared)
    keeper = Housekeeper(cluster)
    keeper.step()
    faults(cluster).plan = lambda asked, path: Fault.DENY if asked == verb else Fault.NONE
    keep(shared, keeper, 5 * MINUTE_MS)
    faults(cluster).plan = lambda asked, path: Fault.NONE
    keep(shared, keeper, 2 * MINUTE_MS)
    check_settled(shared)
    assert visible(process(shared), "mine") == (True, True)


def test_housekeeper_killed_at_any_call_changes_nothing_for_others(some: Some[Any]) -> None:
    """SIGKILL between any two writes: others continue, and the next one finishes the rest."""
    settings = HousekeepingSettings(
        abort_interval_ms=HOUR_MS,
        lease_ms=15 * MINUTE_MS,
        transactional_id_expiration_ms=HOUR_MS,
    )

    def begin() -> Trial:
        shared = world(config=FOREVER)
        prepared(shared)
        dying = process(shared)
        owned(dying, "old", tid="old")
        eager(dying, owned(dying, "a", tid="open"), "x")
        cluster = process(shared)
        keeper = Housekeeper(cluster, settings)
        keeper.run_once()
        shared.clock.advance_ms(90 * MINUTE_MS)
        live = owned(process(shared), "live", tid="live")
        return Trial(shared, cluster, keeper.run_once, more=live)

    for trial in cuts(begin, some, CRASHES, verb="put"):
        assert trial.outcome == "crashed"
        other = process(trial.shared)
        other.coordinator.commit(trial.more, both(other, "live"))
        keep(trial.shared, Housekeeper(process(trial.shared), settings), 5 * HOUR_MS)
        after = recover(trial.shared)
        assert visible(after, "mine") == visible(after, "live") == (True, True)
        assert visible(after, "x") == (False, False)
        assert position(after) == 10
        assert "old" not in ids(after)


def test_housekeeper_continues_after_storage_errors() -> None:
    """Every call may fail; the next round does the work."""
    for number in range(0, 40, 3):
        shared = world()
        prepared(shared)
        cluster = process(shared)
        keeper = Housekeeper(cluster)
        with planned(cluster, {number: Fault.FAIL_BEFORE, number + 1: Fault.LOSE_REPLY}):
            keep(shared, keeper, 2 * MINUTE_MS)
        check_settled(shared)
        assert visible(process(shared), "mine") == (True, True)


def test_run_once_raises_errors() -> None:
    """A run by cron must not report success for work that was not done."""
    shared = world()
    cluster = process(shared)
    with (
        planned(cluster, dict.fromkeys(range(500), Fault.FAIL_BEFORE)),
        pytest.raises(TxnLogError),
    ):
        Housekeeper(cluster).run_once()
