"""Copies of a root while others write, fail and compact; interrupted, repeated, refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec
import pytest

from tests.cases import Some
from tests.coordinator.test_app_transactions import write
from tests.coordinator.test_snapshots import ACTS as _ACTS
from tests.coordinator.test_snapshots import MINUTE_MS
from tests.coordinator.test_snapshots import Writer as _Writer
from tests.world import (
    GROUP,
    PLAIN,
    TOPICS,
    both,
    eager,
    faults,
    outcome_of,
    owned,
    process,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator import copies
from txnlog.coordinator.copies import CopyReport, check_apart, copy_root
from txnlog.coordinator.pins import renew_snapshot
from txnlog.coordinator.root import Root
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    CorruptLogError,
    SnapshotNotFoundError,
    StorageError,
)
from txnlog.protocol.metadata import LastBatch
from txnlog.protocol.transitions import Transition
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster, read_committed

ALL = (*TOPICS, "input")


class Writer(_Writer):
    """Its segments are files, too."""

    def compact(self) -> None:
        super().compact()
        for topic in TOPICS:
            there = {item.path for item in self.cluster.store.list_files(topic)}
            for path in self.cluster.topic_log(topic).view.by_path:
                if f"{topic}/{path}" not in there:
                    self.cluster.store.put(f"{topic}/{path}", b"x")


ACTS = {**_ACTS, "compact": Writer.compact}


def copied(
    origin: Root, store: ObjectStore, check: Callable[[], None] = lambda: None
) -> CopyReport:
    return copy_root(origin, store, check=check, fsync=False, report=lambda *_: None)


def names(cluster: Cluster, topic: str) -> set[str]:
    """The names of the batches that a reader gets, whose files are all there."""
    view = cluster.topic(topic).view
    paths = [b.path for batches in read_committed(view).values() for b in batches]
    there = {item.path for item in cluster.store.list_files(topic)}
    assert {f"{topic}/{path}" for path in view.by_path} <= there
    assert all(view.last_stable_offset(n) == view.high_watermark(n) for n in (0, 1))
    found = {path[len("part-0-") : -len(".parquet")] for path in paths}
    return {name for path in found for name in path.split("+")}


def check(place: SharedMemory, *, at_least: Collection[str] = ()) -> set[str]:
    """A copy has the same transactions in both topics, and their offsets; nothing is under way."""
    cluster = process(place)
    check_cluster(cluster, settled=True)
    orders, stock = (names(cluster, topic) for topic in TOPICS)
    assert orders == stock
    assert orders >= {*at_least}
    position = cluster.groups.fetch(GROUP).get("input", {}).get(0, 0)
    assert position == max((10 * int(name) for name in orders if name.isdigit()), default=0)
    return orders


def same(first: Cluster, second: Cluster) -> None:
    """Two roots have the same batches at the same offsets, where they show any."""
    for topic in TOPICS:
        views = [one.topic(topic).view for one in (first, second)]
        assert read_committed(views[0]) == read_committed(views[1])


@pytest.mark.parametrize("name", ACTS)
def test_copy_has_whole_transactions_whatever_happens_between_two_of_its_calls(
    name: str, some: Some[int]
) -> None:
    """A half of one, or an offset that nobody has: at each call another process acts (R75)."""
    met = set()

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        writer.commit()
        origin = process(shared)
        plan = FaultsAt({}, interlude=lambda: ACTS[name](writer), interlude_at=at)
        faults(origin).plan = plan
        copied(origin, place.open())
        met.add(frozenset(check(place, at_least={"1", "2"})))
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert len(met) > 1 or name == "floor"


def test_what_a_copy_leaves_out_is_aborted_there_and_can_come_later() -> None:
    """Open, left out, and decided by the next copy; no offset is missing in between."""
    shared, place = world(ALL), SharedMemory()
    writer = Writer(shared)
    writer.commit()
    opener = process(shared)
    row = eager(opener, owned(opener, "open", tid="open"), "open")
    copied(process(shared), place.open())
    assert check(place) == {"1"}
    copy = process(place)
    assert {b.status for b in copy.topic("orders").view.by_path.values()} == {
        "committed",
        "aborted",
    }
    assert not copy.topic("orders").view.partitions[0].ongoing
    opener.coordinator.commit(row)
    writer.commit()
    copied(process(shared), place.open())
    assert check(place) == {"1", "2", "open"}
    same(process(shared), process(place))


def test_ids_of_a_copy_go_on_and_its_producer_ids_are_new() -> None:
    """An epoch or an id that is given out twice loses or doubles transactions (R10)."""
    shared, place = world(ALL), SharedMemory()
    Writer(shared).commit()
    before = process(shared).coordinator.describe("tx")
    copied(process(shared), place.open())
    copy = process(place)
    row = copy.coordinator.describe("tx")
    assert row is not None
    assert before is not None
    assert (row.producer_id, row.state.name, row.owner.run_id) == (before.producer_id, "EMPTY", "")
    assert row.producer_epoch > before.producer_epoch
    assert (
        owned(copy, "new", tid="another").producer_id
        > owned(process(shared), "o", tid="o").producer_id
    )
    row = copy.coordinator.commit(owned(copy, "run"), both(copy, "9"))
    assert names(copy, "orders") == {"1", "9"}
    check_cluster(process(place), settled=True)


def last_batch(cluster: Cluster, batch_id: int) -> None:
    """A query's row, as its commit of a micro-batch leaves it."""
    owned(cluster, "run", tid="query")
    shard = cluster.shard_for("query")
    known = cluster.coordinator.describe("query")
    assert known is not None
    owner = msgspec.structs.replace(
        known.owner,
        query_id="query",
        last_batch=LastBatch(batch_id=batch_id, digest="d", topics=("orders", "gone")),
    )
    row = msgspec.structs.replace(known, owner=owner)
    shard.transition("query", lambda _: Transition(operation="FENCE", previous=known, next=row))


def test_query_of_a_copy_knows_its_last_batch() -> None:
    """A replayed micro-batch would come twice (R55)."""
    shared, place = world(ALL), SharedMemory()
    last_batch(process(shared), 7)
    copied(process(shared), place.open())
    row = process(place).coordinator.describe("query")
    assert row is not None
    assert (row.owner.query_id, row.owner.run_id) == ("query", "")
    assert row.owner.last_batch == LastBatch(batch_id=7, digest="d", topics=("orders",))


def test_batch_write_that_is_left_out_can_be_repeated_in_the_copy() -> None:
    """Its txnVersion is in the version that is copied: the repetition was taken for done."""
    outcomes = set()

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        assert write(process(shared), both(process(shared), "first"), 1)
        origin, other = process(shared), process(shared)
        plan = FaultsAt(
            {}, interlude=lambda: write(other, both(other, "second"), 2), interlude_at=at
        )
        faults(origin).plan = plan
        copied(origin, place.open())
        copy = process(place)
        is_in = "second" in check(place)
        assert write(copy, both(copy, "again"), 2) is not is_in
        assert not write(copy, both(copy, "again"), 1)
        assert check(place) == {"first", "second" if is_in else "again"}
        statuses = {b.status for b in copy.topic("stock").view.by_path.values()}
        outcomes.add((is_in, "aborted" in statuses))
        return plan.calls

    for at in range(trial(0)):
        trial(at)
    assert (False, True) in outcomes


# -- interrupted -----------------------------------------------------------------------------------


def grown(shared: SharedMemory, writer: Writer) -> None:
    """More of everything, and less: what an increment has to bring."""
    writer.commit()
    writer.compact()
    writer.commit()
    writer.commit_eagerly()


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
@pytest.mark.parametrize("is_first", [True, False])
def test_copy_that_dies_at_any_call_is_continued_and_its_former_state_is_there(
    fault: Fault, is_first: bool, some: Some[int]
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
        plan = FaultsAt({at: fault})
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
        for at in some(range(trial(10_000, of_target=of_target))):
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
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert ("other",) in outcomes


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
    restored = SharedMemory()
    copied(Root(place.open(), settings=PLAIN), restored.open())
    assert check(restored) == {"1"}


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


def test_snapshot_is_not_renewed_when_vacuum_may_have_looked_already() -> None:
    """Expired, or about to: files of it may be gone."""
    shared = world(ALL)
    cluster = process(shared)
    cluster.snapshot("kept", ttl_ms=60 * MINUTE_MS)
    shared.clock.advance_ms(54 * MINUTE_MS)
    renew_snapshot(cluster, "kept", ttl_ms=60 * MINUTE_MS)
    shared.clock.advance_ms(56 * MINUTE_MS)
    with pytest.raises(SnapshotNotFoundError):
        renew_snapshot(cluster, "kept", ttl_ms=60 * MINUTE_MS)
    cluster.snapshot("late", ttl_ms=20 * MINUTE_MS)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path.startswith("__cluster/_delta_log"):
            shared.clock.advance_ms(16 * MINUTE_MS)
        return Fault.NONE

    faults(cluster).plan = plan
    with pytest.raises(SnapshotNotFoundError):
        renew_snapshot(cluster, "late", ttl_ms=60 * MINUTE_MS)
