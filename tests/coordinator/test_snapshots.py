"""Snapshots of a root while others write, fail, compact and delete; and named ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.tables import with_table
from tests.world import (
    CRASHES,
    ERRORS,
    GROUP,
    PLAIN,
    TOPICS,
    both,
    consumed,
    decide,
    eager,
    faults,
    owned,
    persist,
    planned,
    process,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.pins import kept_snapshots, renew_snapshot
from txnlog.coordinator.snapshots import TRIES_MAX
from txnlog.coordinator.versions import topic_at
from txnlog.errors import (
    ConcurrentTransactionsError,
    ConfigError,
    OperationTimedOutError,
    SnapshotNotFoundError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.batches import NONE, BatchHeader
from txnlog.protocol.compaction import OPERATION
from txnlog.protocol.metadata import Owner
from txnlog.protocol.snapshots import TTL_MS_DEFAULT, Snapshot
from txnlog.protocol.tickets import prepare_floor
from txnlog.protocol.topics import TopicCommit, TopicState
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SimulatedCrash
from txnlog.testing.rounds import RoundsStore

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def shown(cluster: Cluster, snapshot: Snapshot) -> dict[str, set[str]]:
    """Topic -> the names of the batches that the snapshot shows in it."""
    found: dict[str, set[str]] = {}
    for topic in snapshot.topics:
        view = topic_at(cluster, topic, snapshot).view
        assert all(view.last_stable_offset(n) == view.high_watermark(n) for n in (0, 1))
        names = {path[len("part-0-") : -len(".parquet")] for path in view.by_path}
        found[topic] = {one for name in names for one in name.split("+")}
    return found


def check(cluster: Cluster, snapshot: Snapshot, *, at_least: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """The same transactions in both topics, and their offsets; the names are numbers."""
    orders, stock = shown(cluster, snapshot).values()
    assert orders == stock
    assert orders >= at_least
    position = snapshot.offsets.get(GROUP, {}).get("input", {}).get(0, 0)
    numbers = sorted(int(name) for name in orders if name.isdigit())
    assert numbers == [*range(1, len(numbers) + 1)]
    assert position == 10 * len(numbers)
    return orders


class Writer:
    """A process that commits the transactions 1, 2, ... with offsets."""

    def __init__(self, shared: SharedMemory, tid: str = "tx") -> None:
        self.cluster = process(shared)
        self.row = owned(self.cluster, "run", tid=tid)
        later = next(n for n in range(99) if self.cluster.shard_of(f"b{n}") > 0)
        assert self.cluster.shard_of("tx") == 0
        self.successor = owned(self.cluster, "b", tid=f"b{later}")
        self.number = 0

    def commit(self) -> None:
        start = 10 * self.number
        self.number += 1
        batches = both(self.cluster, str(self.number))
        offsets = [consumed(start, start + 10)]
        self.row = self.cluster.coordinator.commit(self.row, batches, offsets=offsets)

    def decide(self) -> None:
        start = 10 * self.number
        self.number += 1
        batches = both(self.cluster, str(self.number))
        decide(self.cluster, self.row, batches, offsets=[consumed(start, start + 10)])

    def commit_eagerly(self) -> None:
        row = eager(self.cluster, owned(self.cluster, "eager", tid="eager"), "late")
        self.cluster.coordinator.commit(row)

    def commit_once(self) -> None:
        commit_one_off(self.cluster, both(self.cluster, "once"), Owner(run_id="once"))

    def raise_floor(self) -> None:
        """As a group's next reader does while a transaction is decided."""
        self.decide()
        [holder] = self.cluster.groups.describe(GROUP).tickets.holders  # type: ignore[union-attr]
        shard = self.cluster.shard_for("tx")
        shard.transition(
            "tx",
            lambda row: prepare_floor(row, group_id=GROUP, holder=holder, by="b", now_ms=0),
        )

    def hand_over(self) -> None:
        """Another reader of the group goes on, under an id of the shard that is read later."""
        self.commit()
        cluster = self.cluster
        generation = cluster.groups.start(GROUP)
        start = 10 * self.number
        self.number += 1
        offsets = [consumed(start, start + 10, generation=generation)]
        batches = both(cluster, str(self.number))
        cluster.coordinator.commit(self.successor, batches, offsets=offsets)

    def compact(self) -> None:
        """Merge all batches of each topic, as compaction does."""
        self.commit()
        for topic in TOPICS:

            def merge(state: TopicState) -> TopicCommit:
                segments, paths = [], []
                for number, partition in enumerate(state.partitions):
                    if len(partition.batches) < 2:
                        continue
                    gone = [batch.path for batch in partition.batches]
                    names = "+".join(path[len("part-0-") : -len(".parquet")] for path in gone)
                    path, end = f"part-{number}-{names}.parquet", partition.end_offset - 1
                    segments.append(BatchHeader(path, number, 0, end, -1, -1, -1, NONE, 1, ""))
                    paths += gone
                return TopicCommit(
                    operation=OPERATION,
                    adds=tuple(segments),
                    removes=tuple(paths),
                    data_change=False,
                )

            self.cluster.topic(topic).transact(merge)


ACTS: dict[str, Callable[[Writer], None]] = {
    "commit": Writer.commit,
    "decide": Writer.decide,
    "eager": Writer.commit_eagerly,
    "once": Writer.commit_once,
    "floor": Writer.raise_floor,
    "hand over": Writer.hand_over,
    "compact": Writer.compact,
}


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("name", ACTS)
def test_snapshot_shows_whole_transactions_whatever_happens_between_two_of_its_calls(
    name: str, is_warm: bool
) -> None:
    """A half of one, or offsets of another moment: at each call another process acts."""
    met = set()
    for at in range(1_000):
        shared = world()
        writer = Writer(shared)
        writer.commit()
        writer.commit()
        reader = process(shared)
        if is_warm:
            check(reader, reader.snapshot())
        plan = FaultsAt({}, interlude=lambda w=writer: ACTS[name](w), interlude_at=at)  # type: ignore[misc]
        faults(reader).plan = plan
        snapshot = reader.snapshot()
        faults(reader).plan = FaultsAt({})
        met.add(frozenset(check(reader, snapshot, at_least={"1", "2"})))
        everything = {topic: one.excluded for topic, one in snapshot.topics.items()}
        met.add(bool(any(everything.values())))  # type: ignore[arg-type]
        if plan.calls <= at:
            break
    assert len(met) > 2


def test_transaction_that_is_left_out_is_in_no_topic() -> None:
    """Decided after the shards were read, and in one topic when the topics are read."""
    shared = world()
    writer = Writer(shared)
    writer.commit()
    reader = process(shared)
    reader.snapshot()
    excluded = []
    for at in range(40):
        faults(reader).plan = FaultsAt({}, interlude=writer.commit, interlude_at=at)
        snapshot = reader.snapshot()
        check(reader, snapshot)
        excluded += [one.excluded for one in snapshot.topics.values() if one.excluded]
    assert excluded


def test_decided_transaction_of_a_dead_process_is_published_and_shown() -> None:
    """All that was decided before is in it; also its offsets (R36)."""
    shared = world()
    writer = Writer(shared)
    writer.commit()
    writer.decide()
    reader = process(shared)
    assert check(reader, reader.snapshot()) == {"1", "2"}
    assert reader.groups.fetch(GROUP) == {"input": {0: 20}}


def test_what_is_open_or_aborted_is_in_no_snapshot_and_hides_nothing() -> None:
    """Committed records above the last stable offset are shown: the other topics show them."""
    shared = world()
    opener = process(shared)
    row = eager(opener, owned(opener, "open", tid="open"), "open")
    aborted = eager(opener, owned(opener, "bad", tid="bad"), "bad")
    opener.coordinator.abort(aborted)
    writer = Writer(shared)
    writer.commit()
    reader = process(shared)
    snapshot = reader.snapshot()
    assert check(reader, snapshot) == {"1"}
    opener.coordinator.commit(row)
    assert check(reader, snapshot) == {"1"}


def test_topics_that_are_deleted_and_created_meanwhile() -> None:
    """A deleted topic is in later snapshots no more, and in earlier ones as it was."""
    shared = world()
    writer = Writer(shared)
    writer.commit()
    reader = process(shared)
    before = reader.snapshot()
    writer.cluster.delete_topic("stock")
    writer.cluster.create_topic("new", partitions=1)
    after = reader.snapshot()
    assert (set(before.topics), set(after.topics)) == ({*TOPICS}, {"orders", "new"})
    assert check(reader, before) == {"1"}
    with pytest.raises(UnknownTopicOrPartitionError, match="there are: new, orders"):
        topic_at(reader, "stock", after)


def test_snapshot_ends_where_compaction_never_does() -> None:
    """It is begun again a number of times, and says so."""
    shared = world()
    writer = Writer(shared)
    writer.commit()
    writer.compact()
    writer.compact()
    reader = process(shared)
    reader.snapshot()

    def plan(verb: str, path: str) -> Fault:
        if (verb, path) == ("list", ""):
            writer.compact()
        return Fault.NONE

    faults(reader).plan = plan
    with pytest.raises(ConcurrentTransactionsError, match=f"{TRIES_MAX} times in a row"):
        reader.snapshot()


# -- rounds ----------------------------------------------------------------------------------------


def counted(
    *, groups: tuple[str, ...], topics: int = 8, tables: int = 0
) -> tuple[RoundsStore, Cluster]:
    shared = SharedMemory()
    store = RoundsStore(shared)
    cluster = Cluster.open(store, create=True, shards=4, settings=PLAIN)
    for number in range(topics):
        cluster.create_topic(f"t{number}", partitions=2)
    for number in range(tables):
        url = f"memory://{number}"
        with_table(shared, cluster, name=f"table{number}", url=url, table_id=str(number))
    for group in groups:
        cluster.groups.start(group)
    for number in range(8):
        owned(cluster, "run", tid=f"tx{number}")
    cluster.snapshot()
    shared.clock.advance_ms(1_000)
    return store, cluster


def test_snapshot_takes_three_rounds_and_five_with_offsets() -> None:
    """Shards, topics, shards; before them shards and groups. Whatever their number."""
    for groups, expected in (((), 3), ((GROUP, "other"), 5)):
        for topics in (1, 8):
            store, cluster = counted(groups=groups, topics=topics)
            store.rounds = 0
            cluster.snapshot()
            assert store.rounds == expected


def test_named_snapshot_takes_two_rounds_more() -> None:
    """Its file; then the property."""
    store, cluster = counted(groups=())
    store.rounds = 0
    cluster.snapshot("n")
    assert store.rounds == 5


# -- named snapshots -------------------------------------------------------------------------------


def test_named_snapshot_is_found_by_every_process_until_it_is_dropped_or_expires() -> None:
    """Names in use are refused; an expired one is free."""
    shared = world()
    cluster = process(shared)
    writer = Writer(shared)
    writer.commit()
    taken = cluster.snapshot("nightly", ttl_ms=HOUR_MS)
    other = process(shared)
    assert other.find_snapshot("nightly") == taken
    assert list(other.snapshots()) == ["nightly"]
    with pytest.raises(ConfigError, match="There is a snapshot 'nightly' already"):
        other.snapshot("nightly")
    with pytest.raises(SnapshotNotFoundError, match="there are: nightly"):
        other.find_snapshot("weekly")
    with pytest.raises(ConfigError, match="Snapshot name"):
        other.snapshot("a/b")
    shared.clock.advance_ms(HOUR_MS)
    assert not other.snapshots()
    with pytest.raises(SnapshotNotFoundError, match="there are: none"):
        other.find_snapshot("nightly")
    again = other.snapshot("nightly")
    assert cluster.find_snapshot("nightly") == again
    cluster.drop_snapshot("nightly")
    with pytest.raises(SnapshotNotFoundError):
        other.drop_snapshot("nightly")


def test_snapshot_of_another_root_is_refused() -> None:
    other = process(world())
    with pytest.raises(SnapshotNotFoundError, match="of another root"):
        other.read(TOPICS[0], snapshot=process(world()).snapshot())


@pytest.mark.parametrize("fault", [*CRASHES, *ERRORS], ids=lambda fault: fault.value)
@pytest.mark.parametrize("act", ["create", "drop"])
def test_named_snapshot_is_there_or_not_whatever_call_fails(act: str, fault: object) -> None:
    """A crash leaves at most a file that nothing names; a repeated call ends the work."""
    for at in range(1_000):
        shared = world()
        writer = Writer(shared)
        writer.commit()
        cluster = process(shared)
        if act == "drop":
            cluster.snapshot("n")

        def work(cluster: Cluster = cluster) -> None:
            if act == "create":
                cluster.snapshot("n")
            else:
                cluster.drop_snapshot("n")

        with planned(cluster, {at: fault}) as plan, suppress(SimulatedCrash):  # type: ignore[dict-item]
            try:
                persist(work)
            except (ConfigError, SnapshotNotFoundError):
                # The call before has done it, and its reply was lost for good.
                assert fault not in CRASHES
        shared.land_late()
        other = process(shared)
        for name in other.snapshots():
            assert check(other, other.find_snapshot(name)) == {"1"}
        if fault not in CRASHES:
            assert bool(other.snapshots()) == (act == "create")
        if plan.calls <= at:
            break


def test_snapshot_that_is_renewed_while_it_is_dropped_is_dropped() -> None:
    """The name stayed, and its file was gone: vacuum could not read it, and failed ever after."""
    for at in range(3):
        shared = world()
        process(shared).snapshot("n")
        cluster, other = process(shared), process(shared)
        renew = partial(renew_snapshot, other, "n", ttl_ms=30 * TTL_MS_DEFAULT)
        faults(cluster).plan = FaultsAt({}, interlude=renew, interlude_at=at)
        cluster.drop_snapshot("n")
        assert not process(shared).pins()


def test_snapshot_that_is_dropped_while_it_is_read_is_not_there() -> None:
    """Each backup drops one: vacuum beside it failed."""
    for at in range(6):
        for finds in (False, True):
            shared = world()
            process(shared).snapshot("n")
            cluster, other = process(shared), process(shared)
            drop = partial(other.drop_snapshot, "n")
            faults(cluster).plan = FaultsAt({}, interlude=drop, interlude_at=at)
            if not finds:
                assert len(kept_snapshots(cluster, {})) <= 1
                continue
            with suppress(SnapshotNotFoundError):
                assert cluster.find_snapshot("n").topics


def test_snapshot_that_was_saved_too_late_is_not_kept() -> None:
    """Vacuum may have deleted its files before it could see the name."""
    shared = world()
    writer = Writer(shared)
    writer.commit()
    cluster = process(shared)

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and "snapshot-" in path:
            shared.clock.advance_ms(20 * MINUTE_MS)
        return Fault.NONE

    faults(cluster).plan = plan
    with pytest.raises(OperationTimedOutError, match="took longer than 900 s"):
        cluster.snapshot("n")
    assert not process(shared).snapshots()
