"""Expiry of producers: markers and sequences leave the log, and zombies stay fenced (R8)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.cases import Some
from tests.faults import KILLS, Trial, cuts, meetings
from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    LOGGED,
    WEEK_MS,
    expire_producers,
    expire_row,
)
from tests.staged_files import append_idempotent, append_ongoing
from tests.world import (
    MINUTE_MS,
    PLAIN,
    TOPICS,
    both,
    check_settled,
    consumed,
    eager,
    faults,
    finish_read,
    outcome_of,
    owned,
    position,
    process,
    staged,
    visible,
    world,
)
from txnlog.coordinator.fencing import time_out
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import UnknownProducerIdError
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.process.clock import Clock
from txnlog.producer import Producer
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import TopicCommit, end_app_id
from txnlog.protocol.txn_memory import EXPIRED_TRANSACTIONS
from txnlog.storage.delta.actions import Txn
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import Fault, FaultsAt, PausedClock, SharedMemory, SkewedClock
from txnlog.testing.invariants import check_cluster, check_topic_rebuilds


def expire_all(shared: SharedMemory) -> None:
    """Announce what is old enough, wait, expire it."""
    expire_producers(shared)
    shared.clock.advance_ms(HOUR_MS)
    expire_producers(shared)


def one_off(shared: SharedMemory, name: str) -> None:
    cluster = process(shared)
    commit_one_off(cluster, both(cluster, name), Owner(run_id=name))


def markers(shared: SharedMemory, topic: str = "orders") -> dict[int, int]:
    return dict(process(shared).topic(topic).view.markers)


# --- Markers --------------------------------------------------------------------------------------


def test_markers_of_ids_without_rows_leave_after_a_week_and_others_stay() -> None:
    """The log of a year of batch writes would hold each of them for ever (R8)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "query", tid="alive")
    cluster.coordinator.commit(row, both(cluster, "x"), offsets=[consumed(0, 10)])
    for number in range(5):
        one_off(shared, f"n{number}")
    assert len(markers(shared)) == 6
    shared.clock.advance_ms(WEEK_MS)
    expire_producers(shared)
    assert len(markers(shared)) == 6
    shared.clock.advance_ms(MINUTE_MS)
    expire_all(shared)
    assert list(markers(shared)) == [row.producer_id]
    assert process(shared).offsets_log("readers").view.markers == {
        row.producer_id: row.producer_epoch
    }
    check_cluster(process(shared))
    again = process(shared)
    again.coordinator.commit(owned(again, "query", tid="alive"), both(again, "y"))
    assert visible(process(shared), "y") == (True, True)
    assert position(process(shared)) == 10


def test_cached_state_expires_what_rebuilt_state_never_had() -> None:
    """At each version both know the same producers, with and without checkpoints (R11)."""
    shared = world(config=FOREVER, settings=LOGGED)
    warm = process(shared, settings=PLAIN)
    topics = [warm.topic(topic) for topic in TOPICS]
    memories = [topic.view.txns for topic in topics]
    for number in range(20):
        one_off(shared, f"n{number}")
        cluster = process(shared)
        batch = staged(cluster, "orders", f"idle{number}")
        append_idempotent(cluster, 1_000_000 + number, [batch], {batch.partition: 0})
        for _ in range(60):
            # A log not read for half an hour would be opened again.
            shared.clock.advance_ms(DAY_MS // 60)
            for topic in topics:
                topic.refresh()
        expire_producers(shared)
        if number % 4 == 0:
            create_checkpoint(cluster.store, "orders", trust_ms=LOGGED.trust_ms)
        for topic in topics:
            check_topic_rebuilds(topic)
        check_cluster(warm)
    assert [topic.view.txns is memory for topic, memory in zip(topics, memories, strict=True)] == [
        True,
        True,
    ]
    view = topics[0].view
    assert 7 <= len(view.markers) <= 10
    assert len(view.last_sequences) <= 2
    assert len(view.txns.markers.updated_ms) == len(view.markers)


def test_marker_of_a_transaction_that_cannot_be_finished_stays() -> None:
    """One topic refuses for a month: the other one must not get its data twice (R36, R37)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if verb == "put" and path.startswith("stock/_delta_log") else Fault.NONE
    )
    assert outcome_of(
        lambda: commit_one_off(cluster, both(cluster, "x"), Owner(run_id="w"))
    ) == "TopicAuthorizationError"  # fmt: skip
    before = process(shared).topic("orders").view.high_watermark(0)
    shared.clock.advance_ms(30 * DAY_MS)
    for _ in range(3):
        expire_all(shared)
    assert len(markers(shared)) == 1
    after = process(shared)
    rows = [row for n in range(after.shards) for row in after.shard(n).view.rows.values()]
    assert [row.state for row in rows] == [TransactionState.PREPARE_COMMIT]
    finish(after, rows[0])
    assert visible(process(shared), "x") == (True, True)
    assert process(shared).topic("orders").view.high_watermark(0) == before
    shared.clock.advance_ms(2 * WEEK_MS)
    expire_all(shared)
    assert markers(shared) == {}


@pytest.mark.parametrize("is_paused", [False, True])
def test_expiry_that_slept_expires_no_marker_of_an_id_that_it_has_not_seen(
    is_paused: bool, some: Some[int]
) -> None:
    """It had read which ids have a row, and slept for weeks; a transaction that could not be
    finished since was published twice (R36).
    """

    def begin() -> Trial:
        shared = world(config=FOREVER)
        one_off(shared, "old")
        shared.clock.advance_ms(8 * DAY_MS)
        clock = PausedClock(shared.clock)
        sleeping = process(shared, settings=LOGGED, clock=clock)
        return Trial(shared, sleeping, ProducerExpiry(sleeping).run, more=clock)

    def stuck(trial: Trial) -> None:
        with trial.more.paused() if is_paused else nullcontext():
            cluster = process(trial.shared)
            faults(cluster).plan = lambda verb, path: (
                Fault.DENY if verb == "put" and path.startswith("stock/_delta_log") else Fault.NONE
            )
            outcome_of(lambda: commit_one_off(cluster, both(cluster, "x"), Owner(run_id="w")))
            trial.shared.clock.advance_ms(8 * DAY_MS)

    for trial in meetings(begin, stuck, some):
        trial.shared.clock.advance_ms(HOUR_MS)
        expire_producers(trial.shared)
        after = process(trial.shared)
        ends = sum(after.topic("orders").view.high_watermark(n) for n in range(2))
        for row in [row for n in range(after.shards) for row in after.shard(n).view.rows.values()]:
            finish(after, row)
        assert sum(after.topic("orders").view.high_watermark(n) for n in range(2)) == ends
        assert visible(process(trial.shared), "x") == (True, True)


@pytest.mark.parametrize("is_paused", [False, True])
def test_helper_that_slept_while_a_marker_expired_publishes_nothing(is_paused: bool) -> None:
    """It read the row as decided; at each of its calls weeks pass and the marker goes (R70).

    With all its clocks standing still it cannot know how old the row is (R34).
    """
    published = set()
    for number in range(40):
        shared = world(config=FOREVER)
        cluster = process(shared)
        faults(cluster).plan = lambda verb, path: (
            Fault.CRASH_BEFORE if verb == "put" and path.startswith("orders/") else Fault.NONE
        )
        batches = both(cluster, "x")
        outcome_of(lambda c=cluster, b=batches: commit_one_off(c, b, Owner(run_id="dead")))
        clock = PausedClock(shared.clock)
        helper = process(shared, clock=clock)
        rows = [row for n in range(helper.shards) for row in helper.shard(n).view.rows.values()]
        assert len(rows) == 1

        def meanwhile(
            shared: SharedMemory = shared,
            row: TransactionMetadata = rows[0],
            clock: PausedClock = clock,
        ) -> None:
            with clock.paused() if is_paused else nullcontext():
                finish(process(shared), row)
                shared.clock.advance_ms(2 * WEEK_MS)
                expire_all(shared)
                assert markers(shared) == {}

        reading = Reading.begin(clock)
        faults(helper).plan = FaultsAt({}, interlude=meanwhile, interlude_at=number)
        outcome_of(lambda h=helper, r=rows[0], at=reading: finish_read(h, r, at))
        after = process(shared)
        for topic in TOPICS:
            view = after.topic(topic).view
            ends = [view.high_watermark(partition) for partition in range(2)]
            assert sum(ends) == 2, f"published twice at call {number}"
            published.add(markers(shared, topic) == {})
        check_cluster(after)
    assert published == {True, False}


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("expired", [False, True])
def test_zombie_of_an_eager_transaction_finds_its_row_before_the_topic(
    expired: bool, is_paused: bool
) -> None:
    """The topic has no marker of it: its batch would stay undecided forever (R8, R34)."""
    shared = world(config=FOREVER)
    clock = PausedClock(shared.clock)
    zombie = process(shared, clock=clock)
    row = eager(zombie, owned(zombie, "z"), "x")
    reading = Reading.begin(clock)
    with clock.paused() if is_paused else nullcontext():
        sweeper = process(shared)
        time_out(sweeper, row, by="test")
        if expired:
            expire_row(sweeper, "tx")
        shared.clock.advance_ms(2 * WEEK_MS)
        expire_all(shared)
    assert (row.producer_id in markers(shared)) is not expired
    first = staged(zombie, "orders", "x")
    late = staged(zombie, "orders", "f" if first.partition == sum(b"f") % 2 else "e")
    assert late.partition == first.partition
    error = "InvalidProducerIdMappingError" if expired else "InvalidProducerEpochError"
    for at_ms in (reading, None):
        assert outcome_of(
            lambda at=at_ms: append_ongoing(
                zombie, row, [late], {late.partition: 0}, reading=at
            )
        ) in (error, "InvalidTxnStateError", "ProducerFencedError")  # fmt: skip
    view = process(shared).topic("orders").view
    assert all(not state.ongoing for state in view.partitions)
    check_settled(shared)


def test_producer_with_an_open_transaction_never_expires() -> None:
    """Its row is Ongoing, or a hanging batch of it is in the topic (R8)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    row = owned(cluster, "a")
    row = cluster.coordinator.commit(row, both(cluster, "first"))
    row = eager(cluster, row, "x")
    for _ in range(3):
        shared.clock.advance_ms(WEEK_MS)
        expire_all(shared)
    assert list(markers(shared)) == [row.producer_id]
    cluster.coordinator.commit(row)
    assert visible(process(shared), "x") == (True, True)


@pytest.mark.parametrize("skew_ms", [-52 * WEEK_MS, 52 * WEEK_MS])
def test_marker_of_a_writer_with_a_wrong_clock_has_the_stores_time(skew_ms: int) -> None:
    """A marker with a time a year ago would expire at once (R34)."""
    shared = world(config=FOREVER)
    clock: Clock = SkewedClock(shared.clock, skew_ms)
    writer = process(shared, clock=clock)
    commit_one_off(writer, both(writer, "x"), Owner(run_id="w"))
    expire_all(shared)
    assert len(markers(shared)) == 1
    shared.clock.advance_ms(WEEK_MS)
    expire_all(shared)
    assert markers(shared) == {}


def test_expiry_killed_at_any_call_is_repeated(some: Some[Any]) -> None:
    """Every table expires producers by a commit of its own."""

    def begin() -> Trial:
        shared = world(config=FOREVER)
        for name in ("a", "b"):
            one_off(shared, name)
        shared.clock.advance_ms(8 * DAY_MS)
        dying = process(shared, settings=LOGGED)
        return Trial(shared, dying, ProducerExpiry(dying).run)

    for trial in cuts(begin, some, KILLS):
        trial.shared.clock.advance_ms(HOUR_MS)
        expire_all(trial.shared)
        assert [markers(trial.shared, topic) for topic in TOPICS] == [{}, {}]
        check_cluster(process(trial.shared))


# --- Sequences ------------------------------------------------------------------------------------


def retained(log: TopicLog) -> None:
    """Remove every file, as retention does: then only the `txn` action knows the producer."""
    log.transact(
        lambda state: (
            TopicCommit(
                operation="DELETE EXPIRED",
                removes=tuple(state.by_path),
                txns={
                    end_app_id(number): state.high_watermark(number)
                    for number in range(len(state.partitions))
                },
            )
            if state.by_path
            else None
        )
    )


def test_idle_producer_continues_after_it_expired() -> None:
    """producer.id.expiration.ms passes, its records are gone, and it continues (R8)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    producer = Producer({"txnlog.root": "memory://"}, cluster=cluster, background=False)
    producer.produce("orders", b"one", partition=0)
    producer.flush()
    retained(process(shared).topic("orders"))
    shared.clock.advance_ms(DAY_MS + MINUTE_MS)
    assert len(process(shared).topic("orders").view.last_sequences) == 1
    expire_producers(shared)
    assert process(shared).topic("orders").view.last_sequences == {}
    reports = []
    producer.produce("orders", b"two", partition=0, on_delivery=lambda e, m: reports.append(e))
    assert producer.flush() == 0
    assert reports == [None]
    view = process(shared).topic("orders").view
    assert view.high_watermark(0) == 2
    assert len(view.last_sequences) == 1
    check_cluster(process(shared))


def test_repeat_of_an_expired_producer_is_refused_and_not_written_twice() -> None:
    """The reply was lost, the process slept for two days; the log has no sequence of it (R2)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    batch = staged(cluster, "orders", "x")
    repeat = (7, [batch], {batch.partition: 0})
    append_idempotent(cluster, *repeat)
    assert append_idempotent(cluster, *repeat) == (0,)
    retained(process(shared).topic("orders"))
    shared.clock.advance_ms(2 * DAY_MS)
    expire_producers(shared)
    with pytest.raises(UnknownProducerIdError) as error:
        append_idempotent(cluster, *repeat)
    assert error.value.code == 59
    fresh = staged(cluster, "orders", "x2")
    append_idempotent(cluster, 8, [fresh], {fresh.partition: 0})
    assert sum(process(shared).topic("orders").view.high_watermark(n) for n in range(2)) == 4


def test_sequence_of_a_producer_at_work_stays() -> None:
    """It wrote within the day; its next batch continues from the last one (R1)."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    producer = Producer({"txnlog.root": "memory://"}, cluster=cluster, background=False)
    for number in range(6):
        producer.produce("orders", b"x", partition=0)
        producer.flush()
        shared.clock.advance_ms(20 * HOUR_MS)
        expire_producers(shared)
        retained(process(shared).topic("orders"))
        view = process(shared).topic("orders").view
        assert list(view.last_sequences.values()) == [number]


def test_marker_that_came_after_the_horizon_outlives_a_checkpoint() -> None:
    """Its put was in flight for a week; an expiry before it must not remove it (R11)."""
    shared = world(config=FOREVER)
    topic = process(shared).topic("orders")
    old_ms = topic.store.now_ms() - WEEK_MS
    before = [Txn(f"txnlog/{number}", 0, old_ms) for number in range(20)]
    after = [Txn(f"txnlog/{number}", 1, old_ms) for number in range(10, 30)]
    horizon = Txn(EXPIRED_TRANSACTIONS, old_ms + 1, old_ms + WEEK_MS)
    for actions in (before, [horizon], after):
        topic.log.commit(actions, operation="TEST")
        create_checkpoint(topic.store, "orders", trust_ms=LOGGED.trust_ms)
        check_topic_rebuilds(topic)
    assert dict(topic.view.markers) == dict.fromkeys(range(10, 30), 1)


def test_first_batch_of_a_producer_that_expired_in_doubt_is_not_written_again() -> None:
    """The evidence that the first attempt landed is gone: its machine slept meanwhile (R2, R34).

    It asks again only after the error that says so.
    """
    shared = world(config=FOREVER)
    cluster = process(shared)
    batch = staged(cluster, "orders", "x")
    pauses: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb != "put" or not path.startswith("orders/_delta_log") or pauses:
            return Fault.NONE
        pauses.append(path)
        return Fault.LOSE_REPLY

    def sleep(verb: str, path: str) -> Fault:
        if len(pauses) == 1 and verb == "get" and path == pauses[0]:
            pauses.append(path)
            shared.clock.advance_ms(2 * WEEK_MS)
            expire_all(shared)
        return plan(verb, path)

    faults(cluster).plan = sleep
    outcome = outcome_of(
        lambda: append_idempotent(cluster, 5_000_000, [batch], {batch.partition: 0})
    )
    assert (outcome, len(pauses)) == ("CommitStateUnknownError", 2)
    view = process(shared).topic("orders").view
    assert sum(view.high_watermark(number) for number in range(2)) == batch.num_records
