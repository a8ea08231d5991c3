"""Copies of a root while others write, fail and compact."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from unittest.mock import patch

import msgspec
import pytest

from tests.cases import Some
from tests.coordinator.test_app_transactions import write
from tests.coordinator.test_helping import meet
from tests.coordinator.test_snapshots import ACTS as _ACTS
from tests.coordinator.test_snapshots import Writer as _Writer
from tests.world import (
    GROUP,
    PLAIN,
    TOPICS,
    both,
    decide,
    eager,
    faults,
    outcome_of,
    owned,
    process,
    row_of,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator import one_off
from txnlog.coordinator.copied_topics import CopiedTopic
from txnlog.coordinator.copies import CopyReport, copy_root
from txnlog.coordinator.copy_target import CopyTarget
from txnlog.coordinator.finishing import finish_own
from txnlog.coordinator.root import Root
from txnlog.errors import ConfigError
from txnlog.protocol.copies import is_in_copy
from txnlog.protocol.metadata import LastBatch
from txnlog.protocol.transitions import Transition
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.invariants import check_cluster, read_committed
from txnlog.verifying.verifier import verify

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

    def commit_thrice(self) -> None:
        for _ in range(3):
            self.commit()


ACTS = {**_ACTS, "compact": Writer.compact, "commit": Writer.commit_thrice}


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
        # Its ids go on, above all that they have left there.
        copy = process(place)
        copy.coordinator.commit(owned(copy, "run"), both(copy, "next"))
        assert names(copy, "orders") >= {"next"} <= names(copy, "stock")
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert len(met) > 1 or name == "floor"


def test_copy_keeps_what_a_consumer_noted_with_its_offset() -> None:
    """The offset itself is of the snapshot; a transaction's has no metadata."""
    shared, place = world(ALL), SharedMemory()
    cluster = process(shared)
    at, notes = {"orders": {1: 0}}, {"orders": {1: "note"}}
    cluster.groups.commit("noting", cluster.groups.start("noting"), at, metadata=notes)
    copied(process(shared), place.open())
    group = process(place).groups.describe("noting")
    assert group is not None
    assert group.offsets["orders"][1].metadata == "note"


def test_verify_says_that_a_copy_is_unfinished() -> None:
    """Nobody opens it, though nothing in it is damaged; whoever makes it is not stopped (R75)."""
    shared, place = world(), SharedMemory()
    origin = process(shared)
    origin.coordinator.commit(owned(origin, "run"), both(origin, "1"))

    def dies() -> None:
        verify(place.open()).check()
        raise RuntimeError("dies")

    def kinds() -> list[FindingKind]:
        return [one.kind for one in verify(place.open()).findings]

    with pytest.raises(RuntimeError, match="dies"):
        copied(process(shared), place.open(), check=dies)
    assert kinds() == [FindingKind.COPY_UNFINISHED]
    copied(process(shared), place.open())
    assert kinds() == []


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


def test_position_behind_what_a_copy_leaves_out_is_not_in_it() -> None:
    """A query that has read it went on in the copy, without what it had made of that batch."""
    shared, place = world(ALL), SharedMemory()
    opener = process(shared)
    row = eager(opener, owned(opener, "open", tid="open"), "open")
    Writer(shared).commit_thrice()
    copied(process(shared), place.open())
    opener.coordinator.commit(row)
    view = process(shared).topic("orders").view
    [ends] = process(place).origins().values()
    for number, partition in enumerate(view.partitions):
        first = next((b for b in partition.batches if b.path.endswith("-open.parquet")), None)
        end = partition.end_offset if first is None else first.base_offset
        assert partition.end_offset > 0
        for position in range(partition.end_offset + 1):
            assert is_in_copy({"orders": {number: position}}, ends) is (position <= end)


def test_ids_of_a_copy_go_on_and_its_producer_ids_are_new() -> None:
    """An epoch or an id that is given out twice loses or doubles transactions (R10)."""
    shared, place = world(ALL), SharedMemory()
    Writer(shared).commit()
    before = process(shared).coordinator.describe("tx")
    copied(process(shared), place.open())
    copy = process(place)
    row = row_of(copy)
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


def test_batch_write_that_is_left_out_can_be_repeated_in_the_copy(some: Some[int]) -> None:
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

    for at in some(range(trial(0))):
        trial(at)
    assert (False, True) in outcomes


def test_batch_write_that_is_shown_is_not_repeated_in_the_copy(some: Some[int]) -> None:
    """Its commit has the markers of others, too, which are left out: it was written twice (R79)."""
    met = set()

    def trial(at: int) -> int:
        shared, place = world(ALL), SharedMemory()
        mine, theirs = process(shared), process(shared)
        row = theirs.coordinator.commit(owned(theirs, "other", tid="other"), both(theirs, "a"))
        for topic in TOPICS:
            meet(mine, topic)
        shared.clock.advance_ms(1)
        with (
            patch.object(one_off, "finish_own", side_effect=SimulatedCrash) as finishing,
            suppress(SimulatedCrash),
        ):
            write(mine, both(mine, "first"), 1)

        def publish_both() -> None:
            decide(theirs, row, both(theirs, "b"))
            finish_own(*finishing.call_args.args, **finishing.call_args.kwargs)

        origin = process(shared)
        plan = FaultsAt({}, interlude=publish_both, interlude_at=at)
        faults(origin).plan = plan
        copied(origin, place.open())
        copy = process(place)
        assert not write(copy, both(copy, "again"), 1)
        met.add(frozenset(check(place, at_least={"a", "first"})))
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert len(met) == 2


@pytest.mark.parametrize("is_killed", [True, False])
def test_copy_of_a_copy_that_is_brought_on_meanwhile_has_one_state(
    is_killed: bool, some: Some[int]
) -> None:
    """Restored while the next backup ran: half a transaction, and verified as whole (R75)."""
    outcomes = set()
    write = CopyTarget._write_topic

    def write_one(target: CopyTarget, name: str, wanted: CopiedTopic) -> int:
        write(target, name, wanted)
        raise SimulatedCrash

    def trial(at: int) -> int:
        shared, place, restored = world(ALL), SharedMemory(), SharedMemory()
        writer = Writer(shared)
        writer.commit()
        copied(process(shared), place.open())
        writer.commit()

        def bring_on() -> None:
            with (
                patch.object(CopyTarget, "_write_topic", write_one if is_killed else write),
                suppress(SimulatedCrash, ConfigError),
            ):
                copied(process(shared), place.open())

        origin = place.open()
        origin.plan = plan = FaultsAt({}, interlude=bring_on, interlude_at=at)
        outcome = outcome_of(lambda: copied(Root(origin, settings=PLAIN), restored.open()))
        outcomes.add("".join(sorted(check(restored))) if outcome == "done" else outcome)
        return plan.calls

    for at in some(range(trial(0))):
        trial(at)
    assert outcomes - {"ConfigError"} == ({"1"} if is_killed else {"1", "12"})
