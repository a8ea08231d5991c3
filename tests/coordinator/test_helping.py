"""A commit to a topic that others write carries what they have decided, too (R79, D149)."""

from __future__ import annotations

import random
from functools import partial

import pytest
from msgspec.structs import replace
from obstore.store import MemoryStore

from tests.cases import Some
from tests.faults import Trial, cuts, meetings
from tests.world import (
    MINUTE_MS,
    TOPICS,
    both,
    complete_all,
    decide,
    faults,
    owned,
    process,
    recover,
    row_of,
    staged,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.helping import Helping
from txnlog.producer import Producer
from txnlog.protocol.helping import ACTIONS_MAX, HELPERS, WAITS_MAX, helps, with_markers
from txnlog.protocol.metadata import Manifest, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, no_faults
from txnlog.testing.invariants import check_cluster
from txnlog.testing.virtual_time import SlowStore, VirtualTime

OTHERS = ("other-1", "other-2")


def begun(*, decides: bool = True) -> Trial:
    """A process that has met others in both topics, and knows their shards; they have decided."""
    shared = world()
    mine, theirs = process(shared), process(shared)
    for tid in OTHERS:
        theirs.coordinator.commit(owned(theirs, tid, tid=tid), both(theirs, f"{tid}-first"))
    row = mine.coordinator.commit(owned(mine, "run"), both(mine, "first"))
    for topic in TOPICS:
        meet(mine, topic)
    shared.clock.advance_ms(1)
    decided = [decide_next(theirs, tid) for tid in OTHERS if decides]
    batches = both(mine, "mine")
    act = partial(mine.coordinator.commit, row, batches)
    return Trial(shared, mine, act, more=(theirs, decided))


def meet(cluster: Cluster, topic: str) -> Helping:
    """As after a lost race: who writes there is known, and is expected to write again."""
    helping = cluster.helping(cluster.topic(topic))
    helping._read_rows()
    helping._until_ms = cluster.store.clock.boot_ms() + MINUTE_MS
    return helping


def decide_next(cluster: Cluster, tid: str) -> TransactionMetadata:
    row = cluster.coordinator.describe(tid)
    assert row is not None
    return decide(cluster, row, both(cluster, tid))


def is_published(cluster: Cluster, name: str) -> bool:
    return all(visible(cluster, name))


def test_commit_carries_what_others_have_decided() -> None:
    """Each of 32 producers waited for 31 commits: one commit of the topic has them all."""
    trial = begun()
    reader = process(trial.shared)
    log = reader.topic("orders")
    before = log.log.version
    trial.act()
    assert all(is_published(reader, name) for name in ("mine", *OTHERS))
    assert log.log.version == before + 1
    theirs, decided = trial.more
    for row in decided:
        # Its owner finds the marker, and the offsets.
        finish(theirs, row)
    assert log.log.version == before + 1
    check_cluster(process(trial.shared))
    recover(trial.shared)


def test_each_call_of_a_helper_may_fail(some: Some[int]) -> None:
    """What was decided is published once, by whoever comes next (R79)."""
    for trial in cuts(begun, some):
        recovered = recover(trial.shared)
        for name in OTHERS:
            assert is_published(recovered, name)
        if trial.outcome == "done":
            assert is_published(recovered, "mine")


@pytest.mark.parametrize("late", [False, True])
def test_others_finish_complete_and_go_on_while_a_helper_is_paused(
    some: Some[int], late: bool
) -> None:
    """Its rows are old then, or its put lands late: the topic refuses, or takes them once."""

    def meanwhile(trial: Trial) -> None:
        theirs, decided = trial.more
        for row in decided:
            finish(theirs, row)
            theirs.coordinator.commit(owned(theirs, "next", tid=row.transactional_id), [])
        trial.shared.clock.advance_ms(1)

    for trial in meetings(begun, meanwhile, some, late=late):
        recovered = recover(trial.shared)
        assert all(is_published(recovered, name) for name in OTHERS)


def test_topic_that_is_created_again_while_a_helper_is_paused(some: Some[int]) -> None:
    def meanwhile(trial: Trial) -> None:
        theirs, _ = trial.more
        theirs.delete_topic("orders")
        theirs.create_topic("orders", partitions=2)

    for trial in meetings(begun, meanwhile, some):
        there = " ".join(recover(trial.shared).topic("orders").view.by_path)
        assert not any(name in there for name in OTHERS), "records of the former topic"


@pytest.mark.parametrize("looks", [False, True])
def test_shard_that_may_not_be_read_delays_nobody(looks: bool) -> None:
    """Its owners publish for themselves; those of the other shards are helped."""
    trial = begun(decides=False)
    mine, (theirs, _) = trial.cluster, trial.more
    own = mine.shard_for("tx").path
    near = next(tid for tid in map(str, range(9)) if mine.shard_for(tid).path == own)
    theirs.coordinator.commit(owned(theirs, "near", tid=near), both(theirs, "near-first"))
    for topic in TOPICS:
        meet(mine, topic)._looked_ms = None if looks else mine.store.clock.boot_ms()
    for tid in (near, *OTHERS):
        decide_next(theirs, tid)

    def plan(verb: str, path: str) -> Fault:
        is_other = path.startswith("__transaction_state") and not path.startswith(f"{own}/")
        return Fault.DENY if is_other else Fault.NONE

    faults(mine).plan = plan
    trial.act()
    faults(mine).plan = no_faults
    reader = process(trial.shared)
    assert all(is_published(reader, name) for name in ("mine", near))
    recover(trial.shared)


def test_topics_that_were_forgotten_are_read_again(some: Some[int]) -> None:
    """As after a copy: the commit waited for a log that nobody read any more."""

    def begin() -> Trial:
        trial = begun()
        trial.cluster.forget_topics()
        return trial

    def meanwhile(trial: Trial) -> None:
        theirs, decided = trial.more
        for row in decided:
            finish(theirs, row)

    for trial in meetings(begin, meanwhile, some):
        assert trial.outcome == "done"


def test_interrupt_of_a_helper_is_not_its_last_act() -> None:
    """Ctrl-C as a lock was acquired: its release never comes."""
    trial = begun()
    trial.cluster._helping.acquire()
    trial.act()
    assert all(is_published(process(trial.shared), name) for name in OTHERS)


def test_transaction_is_helped_in_a_topic_that_has_fewer_partitions_than_another() -> None:
    trial = begun(decides=False)
    theirs, _ = trial.more
    theirs.create_topic("wide", partitions=9)
    row = theirs.coordinator.describe(OTHERS[0])
    assert row is not None
    wide = replace(staged(theirs, "wide", "wide"), partition=8)
    decide(theirs, row, [*both(theirs, OTHERS[0]), wide])
    trial.act()
    assert is_published(process(trial.shared), OTHERS[0])
    recover(trial.shared)


def test_ids_without_a_transaction_cost_nothing() -> None:
    """All rows that were ever written were walked over at each commit, and `_old` only grew."""
    trial = begun()
    for shard in trial.cluster.existing_shards():
        dict.__setitem__(shard.view.rows, "idle", None)
    trial.act()
    reader = process(trial.shared)
    assert all(is_published(reader, name) for name in OTHERS)
    late = process(trial.shared)
    helping = meet(late, "orders")
    assert len(helping._old) == 3
    complete_all(process(trial.shared))
    helping._looked_ms = None
    helping._read_rows()
    assert helping._old == set()


def test_what_was_decided_before_a_process_began_is_left_to_who_looks_for_its_files() -> None:
    """A topic's folder may have been restored since then: readers would stop at the header."""
    shared = world()
    theirs = process(shared)
    theirs.coordinator.commit(owned(theirs, "a", tid="other-1"), both(theirs, "first"))
    decide_next(theirs, "other-1")
    mine = process(shared)
    row = mine.coordinator.commit(owned(mine, "run"), both(mine, "mine-first"))
    helping = meet(mine, "orders")
    assert helping.rows == []
    mine.coordinator.commit(row, both(mine, "mine"))
    assert not any(visible(process(shared), "other-1"))
    recover(shared)


def test_row_that_no_topic_can_take_costs_its_own_id() -> None:
    """Its records would have offsets above 2^63 (D57)."""
    trial = begun(decides=False)
    theirs, _ = trial.more
    row = theirs.coordinator.describe(OTHERS[0])
    assert row is not None
    huge = replace(staged(theirs, "orders", "huge"), num_records=2**63 - 1)
    decide(theirs, row, [huge])
    trial.act()
    assert is_published(process(trial.shared), "mine")
    decide_next(theirs, OTHERS[1])
    row = row_of(trial.cluster)
    trial.cluster.coordinator.commit(row, both(trial.cluster, "more"))
    assert all(is_published(process(trial.shared), name) for name in ("more", OTHERS[1]))


def test_who_writes_alone_reads_no_row_of_others() -> None:
    trial = begun(decides=False)
    for topic in TOPICS:
        trial.cluster.helping(trial.cluster.topic(topic))._until_ms = -1
    calls = faults(trial.cluster).calls
    calls.clear()
    trial.act()
    own = trial.cluster.shard_for("tx").path
    assert all(own in path for _, path in calls if path.startswith("__transaction_state-"))


def test_commit_of_many_markers_has_a_limit_and_dense_offsets() -> None:
    """A commit is read by all readers of the topic."""
    shared = world()
    cluster = process(shared)
    batch = staged(cluster, "orders", "b")
    rows = [
        TransactionMetadata(
            transactional_id=f"id-{number}",
            producer_id=1_000 + number,
            producer_epoch=0,
            txn_epoch=0,
            state=TransactionState.PREPARE_COMMIT,
            timeout_ms=1,
            pending=Manifest(
                batches=tuple(
                    replace(batch, path=f"part-0-{number}-{at}.parquet") for at in range(300)
                )
            ),
        )
        for number in range(4)
    ]
    view = cluster.topic("orders").view
    mine = TopicCommit(operation="WRITE TXN MARKERS", txns={"txnlog/1": 0})
    made = with_markers(view, mine, "orders", rows)
    assert len(made.adds) == 900 <= ACTIONS_MAX
    bases = [add.base_offset for add in made.adds]
    assert bases == list(range(bases[0], bases[0] + 2 * 900, 2))
    assert with_markers(view, made, "orders", rows[:1]) == made
    aborted = [
        replace(rows[0], producer_id=number, state=TransactionState.PREPARE_ABORT)
        for number in range(2_000, 2_000 + 2 * ACTIONS_MAX)
    ]
    assert len(with_markers(view, mine, "orders", aborted).txns) == 1 + ACTIONS_MAX


def test_who_has_waited_long_enough_helps() -> None:
    assert helps(waits=0, waiting=1.0, jitter=0.99)
    assert not helps(waits=0, waiting=32.0, jitter=0.99)
    assert helps(waits=WAITS_MAX, waiting=32.0, jitter=0.99)
    assert helps(waits=0, waiting=32.0, jitter=0.9 * HELPERS / 32.0)


class _Far(SlowStore):
    is_remote = True


def rates(producers: int, seconds: int) -> tuple[list[int], list[float], int]:
    """Transactions of each producer of one topic behind 25 ms, their times, and all requests."""
    random.seed(1)
    backing, time = MemoryStore(), VirtualTime()
    stores = [_Far(backing, time, latency_ms=(22, 28), seed=n) for n in range(producers)]
    settings = LogSettings(checkpoint_mode="off")
    Cluster.open(stores[0], create=True, shards=32, settings=settings).create_topic(
        "t", partitions=4
    )
    times_ms: list[list[float]] = [[] for _ in stores]

    def program(number: int) -> None:
        cluster = Cluster.open(stores[number], settings=settings)
        config = {"txnlog.root": "memory://", "transactional.id": f"id-{number}"}
        producer = Producer(config, cluster=cluster, background=False)
        producer.init_transactions()
        begin_ms = 1_000_000 + 6_000.0
        time.sleep_ms(begin_ms - time.at_ms)
        while time.at_ms < begin_ms + 1000 * (seconds + 1):
            at_ms = time.at_ms
            producer.begin_transaction()
            producer.produce("t", b"v", partition=number % 4)
            producer.commit_transaction()
            # In the first second they meet, and learn of one another.
            if at_ms > begin_ms + 1_000:
                times_ms[number].append(time.at_ms - at_ms)

    time.run([partial(program, number) for number in range(producers)])
    all_ms = sorted(ms for times in times_ms for ms in times)
    return [len(times) for times in times_ms], all_ms, sum(store.requests for store in stores)


def test_producers_of_one_topic_do_not_wait_for_each_other() -> None:
    """16 producers: 19 transactions a second, and one of a hundred took 3 s."""
    counts, all_ms, _ = rates(16, 2)
    assert sum(counts) / 2 >= 50, counts
    assert all_ms[len(all_ms) * 99 // 100] <= 700
