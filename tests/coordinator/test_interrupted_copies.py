"""Copies that are interrupted, repeated, made by two, and refused; their snapshot."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

import pytest

from tests.cases import Some
from tests.coordinator.test_copies import ALL, Writer, check, copied, names, same
from tests.coordinator.test_snapshots import MINUTE_MS
from tests.world import (
    CRASHES,
    GROUP,
    PLAIN,
    both,
    faults,
    outcome_of,
    owned,
    process,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator import copies
from txnlog.coordinator.copies import check_apart
from txnlog.coordinator.pins import renew_snapshot
from txnlog.coordinator.root import Root
from txnlog.coordinator.versions import topic_at
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    CorruptLogError,
    LogGapError,
    SnapshotNotFoundError,
    StorageError,
    StorePermissionError,
)
from txnlog.protocol.verification.findings import FindingKind
from txnlog.repairing.repair import Repair
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.read_only import ReadOnlyStore
from txnlog.storage.tables.schemas import row_add
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster
from txnlog.verifying.verifier import verify

# -- interrupted -----------------------------------------------------------------------------------


def grown(shared: SharedMemory, writer: Writer) -> None:
    """More of everything, and less: what an increment has to bring."""
    writer.commit()
    writer.compact()
    writer.commit()
    writer.commit_eagerly()


@pytest.mark.parametrize("is_first", [True, False])
def test_copy_that_dies_at_any_call_is_continued_and_its_former_state_is_there(
    is_first: bool, some: Some[int]
) -> None:
    """Half of two states, or neither: until it is whole nobody opens it (R75)."""

    def trial(at: int, *, of_target: bool) -> int:
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        before: set[str] = set()
        if not is_first:
            copied(process(shared), place.open())
            before = check(place)
        grown(shared, writer)
        origin, target = process(shared), place.open()
        plan = FaultsAt({at // 2: CRASHES[(at + at // 6) % 2]})
        (target if of_target else faults(origin)).plan = plan
        with suppress(SimulatedCrash):
            copied(origin, target)
        if outcome_of(lambda: Cluster.open(place.open(), settings=PLAIN)) == "done":
            assert check(place) in (before, {"1", "2", "3", "4", "late"})
        if not is_first:
            # What it was can be restored, whatever has become of the origin.
            restored = SharedMemory()
            copied(Root(place.open(), settings=PLAIN), restored.open())
            assert check(restored) in (before, {"1", "2", "3", "4", "late"})
        again = copied(process(shared), place.open())
        assert check(place) == {"1", "2", "3", "4", "late"}
        same(process(shared), process(place))
        assert again.files_copied <= again.files
        return plan.calls

    for of_target in (True, False):
        for at in some(range(2 * trial(10_000, of_target=of_target))):
            trial(at, of_target=of_target)


@pytest.mark.parametrize(
    "fault", [Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.SAY_EXISTS, Fault.LAND_LATE]
)
def test_copy_whose_calls_fail_is_whole_or_says_so(fault: Fault, some: Some[int]) -> None:
    """Each call of the target, and what it does again."""

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        copied(process(shared), place.open())
        grown(shared, writer)
        target = place.open()
        target.plan = plan = FaultsAt({at: fault})
        with suppress(StorageError, ConcurrentTransactionsError):
            copied(process(shared), target)
        place.land_late()
        copied(process(shared), place.open())
        assert check(place) == {"1", "2", "3", "4", "late"}
        same(process(shared), process(place))
        return plan.calls

    for at in some(range(trial(10_000))):
        trial(at)


def test_second_copy_gets_only_new_files_and_deletes_what_no_copy_shows() -> None:
    """By name and size: a torn file of a killed run is copied again."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    writer.commit()
    assert copied(process(shared), place.open()).files_copied == 4
    assert copied(process(shared), place.open()).files_copied == 0
    writer.commit()
    torn = next(iter(process(place).topic("orders").view.by_path))
    place.open().put(f"orders/{torn}", b"re")
    assert copied(process(shared), place.open()).files_copied == 3
    writer.compact()
    found = copied(process(shared), place.open())
    assert found.files_copied == found.files
    assert {i.path.rpartition("/")[2] for i in place.open().list_files("orders")} == {
        *process(place).topic("orders").view.by_path
    }
    assert check(place) == {"1", "2", "3", "4"}


def test_topic_that_is_deleted_and_created_again_is_so_in_the_copy() -> None:
    """Its id is another one, and its offsets continue (R71)."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    copied(process(shared), place.open())
    writer.cluster.delete_topic("stock")
    copied(process(shared), place.open())
    assert process(place).list_topics() == ["input", "orders"]
    writer.cluster.create_topic("stock", partitions=2)
    writer.commit()
    copied(process(shared), place.open())
    same(process(shared), process(place))
    assert names(process(place), "stock") == {"2"}
    check_cluster(process(place), settled=True)


# -- several, and refusals -------------------------------------------------------------------------


def test_of_two_copies_to_one_place_at_most_one_is_whole(some: Some[int]) -> None:
    """Tables of two snapshots would be one root: the later run takes over (R75)."""
    outcomes = set()

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        copied(process(shared), place.open())
        writer.commit()
        found = []

        def other() -> None:
            writer.commit()
            with suppress(ConcurrentTransactionsError, ConfigError):
                copied(process(shared), place.open())
                found.append("other")

        target = place.open()
        target.plan = plan = FaultsAt({}, interlude=other, interlude_at=at)
        with suppress(ConcurrentTransactionsError, ConfigError):
            copied(process(shared), target)
            found.append("this")
        outcomes.add(tuple(found))
        check(place, at_least={"1", "2"})
        assert process(place).whole_copy() is not None
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert ("other",) in outcomes


def test_copy_that_is_paused_at_its_end_deletes_nothing_of_a_later_one(some: Some[int]) -> None:
    """A third had left a file that only the later one shows: it was there, and was then deleted."""
    is_dying = is_first = True

    def act(step: str) -> None:
        nonlocal is_first
        if step == "copy.copied" and is_dying:
            raise SimulatedCrash
        if step == "copy.ended" and is_first:
            is_first = False
            copied(process(shared), place.open())

    def leave_files() -> None:
        nonlocal is_dying
        writer.commit()
        is_dying = True
        with suppress(SimulatedCrash):
            copied(process(shared), place.open())
        is_dying = False

    for at in some(range(60)):
        is_dying, is_first = False, True
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        origin = process(shared)
        faults(origin).plan = FaultsAt({}, interlude=leave_files, interlude_at=at)
        with patch.object(copies, "reach", act):
            copied(origin, place.open())
        check(place, at_least={"1"})


def test_copy_keeps_what_its_named_snapshots_show() -> None:
    """To look at a backup is no write: the next one deleted what was kept by a name."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit_thrice()
    copied(process(shared), place.open())
    before = names(process(place), "orders")
    process(place).snapshot("kept")
    writer.compact()
    copied(process(shared), place.open())
    copy = process(place)
    shown = topic_at(copy, "orders", copy.find_snapshot("kept")).view.by_path
    there = {item.path for item in copy.store.list_files("orders")}
    assert len(shown) == len(before) == 3
    assert there >= {f"orders/{path}" for path in shown}
    copy.drop_snapshot("kept")
    copied(process(shared), place.open())
    assert len(copy.store.list_files("orders")) == len(copy.topic("orders").view.by_path)


def test_copy_that_a_client_begins_to_use_meanwhile_stays_open(some: Some[int]) -> None:
    """In a disaster, while a backup runs: what is written there since must not be locked in."""
    outcomes = set()

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        copied(process(shared), place.open())
        writer.commit()

        def go_live() -> None:
            with suppress(ConfigError):
                live = process(place)
                live.coordinator.commit(owned(live, "run"), both(live, "9"))
                outcomes.add(at)

        target = place.open()
        target.plan = plan = FaultsAt({}, interlude=go_live, interlude_at=at)
        outcome = outcome_of(lambda: copied(process(shared), target))
        if at in outcomes:
            assert "9" in names(process(place), "orders")
            if outcome != "done":
                with pytest.raises(ConfigError, match="was written to since"):
                    copied(process(shared), place.open())
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert len(outcomes) > 3


def test_copy_is_refused_where_it_would_overwrite_something() -> None:
    """A root that is used, one of another cluster, and a folder of something else."""
    shared, place = world(ALL), SharedMemory()
    Writer(shared).commit()
    with pytest.raises(ConfigError, match="is no copy"):
        copied(process(shared), world().open())
    other = SharedMemory()
    other.open().put("notes.txt", b"mine")
    with pytest.raises(ConfigError, match=r"is not empty: it holds 'notes\.txt'"):
        copied(process(shared), other.open())
    copied(process(shared), place.open())
    with pytest.raises(ConfigError, match="is a copy of cluster"):
        copied(process(world()), place.open())
    copy = process(place)
    copy.coordinator.commit(owned(copy, "run"), both(copy, "9"))
    with pytest.raises(ConfigError, match="was written to since it was copied"):
        copied(process(shared), place.open())
    assert names(copy, "orders") == {"1", "9"}
    with pytest.raises(ConfigError, match="There is no txnlog cluster"):
        copied(Root(SharedMemory().open(), settings=PLAIN), SharedMemory().open())
    for target in ("file:///a/b", "file:///a", "file:///a/b/c"):
        with pytest.raises(ConfigError, match="are not apart"):
            check_apart("file:///a/b", target)
    check_apart("file:///a/b", "file:///a/bc")


def test_copy_of_a_damaged_file_is_not_whole() -> None:
    """A file of another size is named; what the check refuses is not opened, and its former state
    is there.
    """
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    copied(process(shared), place.open())
    writer.commit()
    paths = process(shared).topic("orders").view.by_path
    [path] = [path for path in paths if path.endswith("-2.parquet")]
    process(shared).store.put(f"orders/{path}", b"cut")
    with pytest.raises(CorruptLogError, match=f"orders/{path} has 3 bytes, and its log says 7"):
        copied(process(shared), place.open())
    process(shared).store.put(f"orders/{path}", b"records")

    def refuse() -> None:
        raise CorruptLogError("damaged")

    with pytest.raises(CorruptLogError, match="damaged"):
        copied(process(shared), place.open(), check=refuse)
    with pytest.raises(ConfigError, match="is a copy that is not whole"):
        process(place)
    with pytest.raises(ConfigError, match="is a copy that is not whole"):
        Repair(place.open()).find()
    restored = SharedMemory()
    copied(Root(place.open(), settings=PLAIN), restored.open())
    assert check(restored) == {"1"}


@pytest.mark.parametrize("table", ["stock", "__transaction_state-0"])
def test_copy_that_has_lost_commits_is_found_and_not_restored(table: str) -> None:
    """No row of a copy names a topic that it wrote to: its folder was gone, and nobody told."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    copied(process(shared), place.open())
    writer.commit()
    copied(process(shared), place.open())

    def lost() -> list[str]:
        kinds = (FindingKind.LOG_MISSING, FindingKind.COMMIT_MISSING)
        return [one.table for one in verify(place.open()).findings if one.kind in kinds]

    assert lost() == []
    newest = place.open().list(f"{table}/_delta_log")[-1]
    gone = [newest] if table.startswith("__") else place.open().list(f"{table}/")
    place.open().delete([item.path for item in gone])
    assert lost() == [table]
    with pytest.raises(LogGapError, match=f"{table} has version .* when this copy was whole"):
        copied(Root(place.open(), settings=PLAIN), SharedMemory().open())


def test_copy_of_what_cannot_be_read_is_refused_and_the_former_one_stays() -> None:
    """A damaged topic, or group, was in no snapshot: the copy of it was deleted."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    copied(process(shared), place.open())
    store = process(shared).store
    path = commit_path("stock", process(shared).topic("stock").log.version)
    whole = store.get(path)
    store.put(path, b"damaged")
    with pytest.raises(CorruptLogError, match="stock/_delta_log"):
        copied(process(shared), place.open())
    store.put(path, whole)
    [log] = process(shared).offsets_shards()
    [row] = log.view.rows.values()
    spoiled = {**row.to_values(), "tickets": "?"}
    log.log.commit([row_add(row.path, spoiled, size_bytes=1, now_ms=0)], operation="DAMAGE")
    with pytest.raises(CorruptLogError, match=f"group '{GROUP}' cannot be read"):
        copied(process(shared), place.open())
    restored = SharedMemory()
    copied(Root(place.open(), settings=PLAIN), restored.open())
    assert check(restored) == {"1"}


def test_backup_that_can_only_be_read_is_restored() -> None:
    """No snapshot can be kept there, and none needs to be."""
    shared, place, restored = world(ALL), SharedMemory(), SharedMemory()
    Writer(shared).commit()
    copied(process(shared), place.open())
    copied(Root(ReadOnlyStore(place.open()), settings=PLAIN), restored.open())
    assert check(restored) == {"1"}
    with pytest.raises(StorePermissionError):
        copied(Root(ReadOnlyStore(shared.open()), settings=PLAIN), SharedMemory().open())


def test_copy_that_clients_use_is_not_taken_for_what_it_was() -> None:
    """Who may not keep a snapshot there got its state of then, as if of now."""
    shared, place = world(ALL), SharedMemory()
    Writer(shared).commit()
    copied(process(shared), place.open())
    live = Cluster.open(place.open(), settings=PLAIN)
    live.create_topic("later")
    with pytest.raises(StorePermissionError):
        copied(Root(ReadOnlyStore(place.open()), settings=PLAIN), SharedMemory().open())


# -- the snapshot ----------------------------------------------------------------------------------


def test_snapshot_of_a_copy_is_renewed_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum would delete what is still to be copied; and nothing stays that keeps files."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    for _ in range(3):
        writer.commit()
    monkeypatch.setattr(copies, "FILES_AT_ONCE", 1)
    target = place.open()
    expiries = set()

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and "/part-" in path:
            shared.clock.advance_ms(30 * MINUTE_MS)
            expiries.update(pin.expires_ms for pin in process(shared).snapshots().values())
        return Fault.NONE

    target.plan = plan
    copied(process(shared), target)
    assert len(expiries) == 6
    assert process(shared).snapshots() == {}


def test_snapshot_is_not_renewed_after_it_has_expired() -> None:
    """Files of it may be gone: what is copied of it would end in the midst."""
    shared = world(ALL)
    cluster = process(shared)
    cluster.snapshot("kept", ttl_ms=60 * MINUTE_MS)
    shared.clock.advance_ms(50 * MINUTE_MS)
    renew_snapshot(cluster, "kept", ttl_ms=60 * MINUTE_MS)
    shared.clock.advance_ms(50 * MINUTE_MS)
    assert "kept" in cluster.snapshots()
    shared.clock.advance_ms(11 * MINUTE_MS)
    with pytest.raises(SnapshotNotFoundError):
        renew_snapshot(cluster, "kept", ttl_ms=60 * MINUTE_MS)
