"""`txnlog upgrade`: nothing is lost, an old process is stopped, and any step may be the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.processes import (
    CRASHES,
    ERRORS,
    GROUP,
    PLAIN,
    both,
    consumed,
    outcome_of,
    owned,
    visible,
)
from tests.upgrade.roots import OTHERS, OldCluster, old_root, old_world, positions
from txnlog.admin.upgrade import Upgrade
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    UnsupportedProtocolError,
)
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Manifest
from txnlog.protocol.states import TransactionResult
from txnlog.protocol.transitions import prepare_end
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, FaultyStore, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster

ENDS = ("done", "crashed", "StorageError", "CommitStateUnknownError", "NothingWrittenError")


def upgrade(store: FaultyStore, *, watch_ms: int = 0, shards: int = 4) -> Upgrade:
    return Upgrade(store, watch_ms=watch_ms, shards=shards)


def opened(shared: SharedMemory) -> Cluster:
    """A process of this version."""
    return Cluster.open(shared.open(), settings=PLAIN)


def several(start: int, end: int) -> list[GroupOffsets]:
    """The offsets of several groups in one transaction."""
    return [consumed(start, end, group=group) for group in (GROUP, *OTHERS[:6])]


def test_groups_generations_and_offsets_are_in_their_shards_afterwards() -> None:
    """A group that starts again at 0 has all its input twice (D35, R59)."""
    shared, old = old_world()
    before = {group: old.groups.describe(group) for group in (GROUP, *OTHERS)}
    report = upgrade(shared.open()).run()
    assert (report.groups, report.format, len(report.steps)) == (9, "2", 3)
    after = opened(shared)
    assert len(after.offsets_shards()) == 4
    for name, was in before.items():
        now = after.groups.describe(name)
        assert was is not None
        assert now is not None
        assert (now.positions(), now.generation, now.members) == (
            was.positions(), was.generation, was.members
        )  # fmt: skip
    check_cluster(after, settled=True)
    assert upgrade(shared.open()).run().steps == ()


def test_dry_run_writes_nothing() -> None:
    """An operator looks before stopping the clients."""
    shared, _ = old_world()
    store = shared.open()
    report = upgrade(store).find()
    assert [step.split()[0] for step in report.steps] == ["seal", "copy", "set"]
    assert [verb for verb, _ in store.calls if verb in ("put", "delete")] == []
    assert (report.format, report.groups) == ("1", 9)


def test_this_version_refuses_an_old_root_and_names_the_command() -> None:
    """It would find no group, and start all from the beginning (R38, R60)."""
    shared, _ = old_world()
    with pytest.raises(UnsupportedProtocolError, match="`txnlog upgrade`"):
        opened(shared)


@pytest.mark.parametrize("is_cold", [True, False], ids=["cold", "warm"])
def test_process_that_had_the_old_root_open_commits_no_offsets_any_more(is_cold: bool) -> None:
    """Its commits would be acknowledged, and in no shard (R45, R48)."""
    shared, old = old_world()
    if is_cold:
        old = OldCluster(shared.open())
    upgrade(shared.open()).run()
    for _ in range(2):
        with pytest.raises(UnsupportedProtocolError):
            old.groups.commit(GROUP, 1, {"input": {0: 1_000}})
    with pytest.raises(UnsupportedProtocolError):
        old.groups.fetch(GROUP)
    row = owned(old, "a")
    with pytest.raises(UnsupportedProtocolError):
        old.coordinator.commit(row, both(old, "theirs"), offsets=[consumed(0, 50)])
    after = opened(shared)
    assert after.groups.fetch(GROUP) == {"input": {0: 0, 1: 7}}
    assert visible(after, "theirs") == (False, False)


def test_commit_of_an_old_process_that_was_under_way_is_copied_or_fails() -> None:
    """Its put was sent before the seal; whichever takes the slot is first (R62)."""
    for fault in (Fault.LAND_LATE, Fault.LOSE_REPLY):
        shared, _ = old_world()
        old = OldCluster(shared.open())
        old.groups.fetch(GROUP)
        assert isinstance(old.store, FaultyStore)
        old.store.plan = lambda verb, path, f=fault: (
            f if verb == "put" and path.endswith(".json") else Fault.NONE
        )
        outcome = outcome_of(lambda o=old: o.groups.commit(GROUP, 1, {"input": {0: 5}}))
        assert outcome == ("CommitStateUnknownError" if fault is Fault.LAND_LATE else "done")
        upgrade(shared.open()).run()
        assert shared.land_late() == []
        expected = 0 if fault is Fault.LAND_LATE else 5
        assert opened(shared).groups.fetch(GROUP)["input"][0] == expected


@pytest.mark.parametrize("decided", [True, False])
def test_transaction_of_an_old_process_ends_after_the_upgrade(decided: bool) -> None:
    """Decided: its offsets move with its output. Not decided: neither appears (R36, R45)."""
    shared, _ = old_world()
    dying = OldCluster(shared.open())
    row = owned(dying, "a")
    assert isinstance(dying.store, FaultyStore)
    where = "/_delta_log/" if not decided else "orders/_delta_log/"
    table = "__transaction_state" if not decided else ""

    def plan(verb: str, path: str) -> Fault:
        is_there = path.startswith(table) and where in path
        return Fault.CRASH_BEFORE if verb == "put" and is_there else Fault.NONE

    batches = both(dying, "last")
    dying.store.plan = plan
    with pytest.raises(SimulatedCrash):
        dying.coordinator.commit(row, batches, offsets=several(20, 50))
    report = upgrade(shared.open()).run()
    assert report.pending == 7
    after = opened(shared)
    found = positions(after)
    for number, group in enumerate((GROUP, *OTHERS[:6])):
        assert found[group]["input"] == {0: 50 if decided else number, 1: 7}
    if decided:
        row_after = after.coordinator.describe("tx")
        assert row_after is not None
        after.coordinator.finish(row_after)
    assert visible(after, "last") == (decided, decided)
    check_cluster(after)


def test_offset_committed_after_the_upgrade_is_newer_than_an_entry_from_before() -> None:
    """Versions of the old log are larger than those of a new shard, and older (R47)."""
    shared, _ = old_world()
    dying = OldCluster(shared.open())
    row = owned(dying, "a")
    dying.groups.add_pending(row, [consumed(20, 50)])
    upgrade(shared.open()).run()
    after = opened(shared)
    after.groups.commit(GROUP, 1, {"input": {0: 60}})
    # Decided by the old process, and finished by any: the entry is of before the commit.
    decided = after.shard_for("tx").transition(
        "tx",
        lambda now: prepare_end(
            now,
            holder=row.holder,
            result=TransactionResult.COMMIT,
            manifest=Manifest(groups=(GROUP,)),
            batch=None,
            txn_epoch=row.producer_epoch,
            now_ms=0,
        ),
    )
    assert decided is not None
    after.coordinator.finish(decided)
    assert after.groups.fetch(GROUP)["input"] == {0: 60, 1: 7}


def test_upgrade_refuses_while_a_client_writes() -> None:
    """Its users would see errors; nothing is sealed before they are stopped."""
    shared, old = old_world()
    work = upgrade(shared.open(), watch_ms=1_000)
    version = old.offsets_log("").log.version
    old.groups.start("another")

    def write(text: str, done: int, count: int) -> None:
        if done == 0:
            old.groups.start("another")

    work._on_step = write
    with pytest.raises(ConcurrentTransactionsError, match="__consumer_offsets"):
        work.run()
    assert old.groups.start("another") > 1
    assert old.offsets_log("").log.version > version
    work._on_step = lambda text, done, count: None
    assert work.run().format == "2"


def test_upgrade_that_dies_or_meets_an_error_anywhere_is_continued_by_the_next() -> None:
    """Between any two requests: then old processes are refused, or the root is as it was."""
    for fault in (*CRASHES, *ERRORS):
        number = 0
        while True:
            shared, old = old_world()
            before = positions(old)
            store = shared.open()
            store.plan = plan = FaultsAt({number: fault})
            outcome = outcome_of(lambda st=store: upgrade(st).run())
            assert outcome in ENDS, (outcome, fault, number)
            upgrade(shared.open()).run()
            shared.land_late()
            after = opened(shared)
            assert positions(after) == before, (fault, number)
            check_cluster(after, settled=True)
            number += 3
            if plan.calls <= number:
                break


def test_interrupted_upgrade_keeps_its_number_of_shards() -> None:
    """Half of the groups would be looked for elsewhere."""
    shared, old = old_world()
    before = positions(old)
    store = shared.open()
    puts = 0

    def plan(verb: str, path: str) -> Fault:
        nonlocal puts
        puts += verb == "put" and path.startswith("__consumer_offsets-") and "json" in path
        return Fault.CRASH_BEFORE if puts == 3 else Fault.NONE

    store.plan = plan
    with pytest.raises(SimulatedCrash):
        upgrade(store, shards=4).run()
    with pytest.raises(UnsupportedProtocolError, match="`txnlog upgrade`"):
        opened(shared)
    assert "copy it into 2 of 4 shards" in upgrade(shared.open(), shards=9).run().steps
    after = opened(shared)
    assert positions(after) == before
    assert len(after.offsets_shards()) == 4


def test_two_upgrades_at_once() -> None:
    """Every step of one between any two of the other."""
    for number in range(0, 60, 4):
        shared, old = old_world()
        before = positions(old)
        store = shared.open()
        store.plan = FaultsAt(
            {}, interlude=lambda s=shared: upgrade(s.open()).run(), interlude_at=number
        )
        upgrade(store).run()
        after = opened(shared)
        assert positions(after) == before
        check_cluster(after, settled=True)


def test_markers_are_in_every_shard() -> None:
    """`txnlog verify` expects the marker of each ended transaction that its log remembers (R4)."""
    shared, old = old_world()
    row = owned(old, "a")
    row = old.coordinator.commit(row, both(old, "a"), offsets=several(20, 50))
    upgrade(shared.open()).run()
    for log in opened(shared).offsets_shards():
        log.refresh()
        assert dict(log.view.markers) == {row.producer_id: row.txn_epoch}


def test_root_without_groups_and_no_root_at_all() -> None:
    """The old log may be missing: its process died when it created the cluster."""
    shared = SharedMemory()
    with pytest.raises(ConfigError, match="no txnlog cluster"):
        upgrade(shared.open()).run()
    assert shared.open().list("") == []
    old_root(shared.open())
    report = upgrade(shared.open()).run()
    assert (report.groups, report.format) == (0, "2")
    assert opened(shared).groups.start("first") == 1


def test_upgrade_of_a_root_on_a_local_disk(tmp_path: Path) -> None:
    """Its folders are made with the tables, and by nothing else (D66)."""
    store = ObjectStore.from_url(str(tmp_path / "root"), create=True)
    old = old_root(store)
    for name in OTHERS:
        old.groups.start(name)
    root = str(tmp_path / "root")
    upgraded = ObjectStore.from_url(root, create=False)
    assert Upgrade(upgraded, watch_ms=0, shards=4).run().groups == len(OTHERS)
    after = Cluster.open(root, settings=PLAIN)
    assert set(positions(after)) == set(OTHERS)
    check_cluster(after, settled=True)
