"""Transactions by example: fencing, repeated calls, doubt, deleted topics, two phases, old rows."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from msgspec.structs import replace

from tests.cases import Some
from tests.faults import Trial, cuts
from tests.staged_files import append_ongoing
from tests.world import (
    GROUP,
    both,
    consumed,
    eager,
    faults,
    owned,
    position,
    prepared,
    process,
    recover,
    row_of,
    staged,
    state_of,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish, publish
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StagedFileTooOldError,
    StorageError,
    TopicAuthorizationError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.protocol.metadata import Manifest, Owner, TopicPartitions
from txnlog.protocol.states import TransactionState
from txnlog.protocol.transitions import prepare_expire
from txnlog.storage.delta import delta_log
from txnlog.storage.delta.readings import Reading
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, SkewedClock
from txnlog.testing.invariants import check_cluster, read_committed

HALF_DAY_MS = 12 * 3_600_000
FENCED = (ProducerFencedError, InvalidProducerEpochError)


# --- What readers see -----------------------------------------------------------------------------


def test_read_committed_shows_eager_data_only_after_the_commit() -> None:
    """Undecided data, and data after it, is not visible yet (R12, R15, R17)."""
    shared = world()
    cluster = process(shared)
    row = eager(cluster, owned(cluster, "a"), "open")
    other = process(shared)
    behind = other.coordinator.init_producer_id("other", Owner(run_id="b"))
    other.coordinator.commit(behind, both(other, "behind"))
    assert visible(other, "open") == (False, False)
    cluster.coordinator.commit(row)
    for reader in (other, process(shared)):
        assert visible(reader, "open") == visible(reader, "behind") == (True, True)
        # No offset is spent on a marker: the next record follows the last.
        ends = [state.end_offset for state in reader.topic("orders").view.partitions]
        assert sum(ends) == 4
    check_cluster(other, settled=True)


def test_aborts_between_commits_are_filtered_exactly() -> None:
    """An abort never hides the commit after it (R16)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    for number in range(8):
        row = eager(cluster, row, f"n{number}")
        end = cluster.coordinator.abort if number % 3 == 0 else cluster.coordinator.commit
        row = end(row)
    for number in range(8):
        assert visible(process(shared), f"n{number}") == (number % 3 != 0,) * 2
    check_cluster(cluster, settled=True)


# --- Fencing and repeated calls -------------------------------------------------------------------


def test_zombie_of_every_kind_is_fenced_by_the_successor() -> None:
    """The zombie's open transaction is aborted, and its calls are refused (R44)."""
    shared = world()
    zombie, successor = process(shared), process(shared)
    old = eager(zombie, owned(zombie, "old"), "zombie")
    new = owned(successor, "new")
    assert new.producer_id == old.producer_id
    assert new.producer_epoch > old.producer_epoch
    late = staged(zombie, "orders", "late")
    for call in (
        lambda: zombie.coordinator.commit(old),
        lambda: zombie.coordinator.commit(old, [late], offsets=[consumed(0, 9)]),
        lambda: eager(zombie, old, "again"),
        lambda: append_ongoing(zombie, old, [late], {late.partition: 2}),
        lambda: owned(zombie, "old"),
    ):
        with pytest.raises(FENCED):
            call()
    with suppress(TxnLogError):
        zombie.coordinator.abort(old)
    successor.coordinator.commit(new, both(successor, "mine"))
    assert visible(successor, "zombie") == visible(successor, "late") == (False, False)
    assert visible(successor, "mine") == (True, True)
    assert recover(shared).groups.fetch(GROUP) == {}


def test_end_repeated_succeeds_and_the_opposite_is_refused() -> None:
    """A late EndTxn never ends a later transaction (R31)."""
    shared = world()
    cluster = process(shared)
    first = eager(cluster, owned(cluster, "a"), "one")
    second = cluster.coordinator.commit(first)
    assert cluster.coordinator.commit(first).producer_epoch == second.producer_epoch
    with pytest.raises(InvalidTxnStateError):
        cluster.coordinator.abort(first)
    open_row = eager(cluster, second, "two")
    for late in (cluster.coordinator.commit, cluster.coordinator.abort):
        with pytest.raises(FENCED):
            late(first)
    assert state_of(cluster) is TransactionState.ONGOING
    cluster.coordinator.commit(open_row)
    assert visible(cluster, "two") == (True, True)


def test_commit_with_offsets_repeated_after_it_was_completed_succeeds() -> None:
    """The reply to step 4 is lost; only commit may be called again, and succeeds (R36, R41)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    batches, offsets = both(cluster, "mine"), [consumed(0, 10)]
    done = cluster.coordinator.commit(row, batches, offsets=offsets)
    again = process(shared).coordinator.commit(row, batches, offsets=offsets)
    assert again == done
    assert visible(cluster, "mine") == (True, True)
    assert position(cluster) == 10
    cluster.delete_topic("stock")
    assert cluster.coordinator.commit(row, batches, offsets=offsets) == done


def test_commit_repeated_after_its_decision_names_the_files_it_has_decided() -> None:
    """Its ticket may be below a floor by then, which reads as fenced (R36, R41)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    batches, offsets = both(cluster, "mine"), [consumed(0, 10)]
    puts = 0

    def lose_offsets(verb: str, path: str) -> Fault:
        """After the registration."""
        nonlocal puts
        puts += verb == "put" and path.startswith("__consumer_offsets")
        return Fault.FAIL_BEFORE if puts > 1 else Fault.NONE

    faults(cluster).plan = lose_offsets
    with pytest.raises(TxnLogError):
        cluster.coordinator.commit(row, batches, offsets=offsets)
    faults(cluster).plan = lambda verb, path: Fault.NONE
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    cluster.coordinator.commit(row, batches, offsets=offsets)
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    assert visible(process(shared), "mine") == (True, True)
    assert position(process(shared)) == 10


def test_init_is_repeated_without_a_second_bump(some: Some[int]) -> None:
    """The reply to a take-over is lost at every storage call (R28)."""

    def begin() -> Trial:
        shared = world()
        cluster = process(shared)
        eager(cluster, owned(cluster, "a"), "open")
        return Trial(shared, cluster, partial(owned, cluster, "b"))

    for trial in cuts(begin, some, (Fault.LOSE_REPLY,)):
        # Epoch 0 was open, 1 fenced it, 2 came with its completion; there is no more.
        for cluster in (trial.cluster, process(trial.shared)):
            assert owned(cluster, "b").producer_epoch == 2


def test_init_of_an_id_that_expires_at_that_moment_gets_a_producer_id() -> None:
    """The row exists when it is read, and has expired at the decision (R35, R10)."""
    shared = world()
    first = process(shared)
    owned(first, "a")
    second = process(shared)

    def expire() -> None:
        log = first.shard(first.shard_of("tx"))
        log.transition("tx", lambda row: prepare_expire(row, now_ms=0))

    for number in range(6):
        faults(second).plan = FaultsAt({}, interlude=expire, interlude_at=number)
        row = owned(second, f"run{number}")
        assert row.producer_id >= 0
        check_cluster(process(shared))


# --- Clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_ms", [-(10**12), -86_400_000, 86_400_000 * 4_000, 10**14])
def test_wrong_wall_clocks_break_no_transition(skew_ms: int) -> None:
    """Another machine's clock may show any time; errors print such times, too (R34)."""
    shared = world()
    wrong = process(shared, clock=SkewedClock(shared.clock, skew_ms))
    right = process(shared)
    row = owned(wrong, "a")
    row = wrong.coordinator.commit(row, both(wrong, "one"), offsets=[consumed(0, 10)])
    row = eager(wrong, row, "two")
    taken = owned(right, "b")
    with pytest.raises(FENCED, match="fenced"):
        wrong.coordinator.commit(row)
    owned(wrong, "c")
    with pytest.raises(ProducerFencedError, match="fenced"):
        right.coordinator.commit(taken, both(right, "three"))
    after = recover(shared)
    assert visible(after, "one") == (True, True)
    assert visible(after, "two") == visible(after, "three") == (False, False)


# --- A topic in trouble ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.DENY, Fault.FAIL_BEFORE])
def test_topic_that_cannot_be_written_delays_only_its_own_marker(fault: Fault) -> None:
    """Other topics of the transaction, and other transactions, continue (R37, R68)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    batches = both(cluster, "mine")
    faults(cluster).plan = lambda verb, path: (
        fault if verb == "put" and path.startswith("orders/") else Fault.NONE
    )
    with pytest.raises((TopicAuthorizationError, StorageError)):
        cluster.coordinator.commit(row, batches, offsets=[consumed(0, 10)])
    assert state_of(cluster) is TransactionState.PREPARE_COMMIT
    assert visible(cluster, "mine") == (False, True)
    other = cluster.coordinator.init_producer_id("other", Owner(run_id="b"))
    cluster.coordinator.commit(other, [staged(cluster, "stock", "theirs")])
    assert visible(cluster, "theirs") == (False, True)
    after = recover(shared)
    assert visible(after, "mine") == (True, True)
    assert position(after) == 10


def test_commit_to_a_topic_created_again_is_refused_before_anything_is_written() -> None:
    """A writer with the old id gets UnknownTopicId, and the other topic nothing (R71)."""
    shared = world()
    cluster, admin = process(shared), process(shared)
    row = owned(cluster, "a")
    batches = both(cluster, "mine")
    admin.delete_topic("orders")
    admin.create_topic("orders", partitions=2)
    for call in (
        lambda: cluster.coordinator.commit(row, batches, offsets=[consumed(0, 10)]),
        lambda: commit_one_off(cluster, batches, Owner(run_id="x")),
    ):
        with pytest.raises(UnknownTopicIdError, match="orders"):
            call()
    assert visible(cluster, "mine") == (False, False)
    row = cluster.coordinator.commit(row, both(cluster, "again"), offsets=[consumed(0, 10)])
    assert visible(cluster, "again") == (True, True)


def test_prepared_transaction_never_changes_a_topic_created_again() -> None:
    """Its marker for the deleted topic counts as written (R71)."""
    shared = world()
    prepared(shared)
    admin = process(shared)
    admin.delete_topic("orders")
    admin.create_topic("orders", partitions=2)
    after = recover(shared)
    assert visible(after, "mine") == (False, True)
    assert position(after) == 10


def test_manifest_with_two_topics_of_one_name_publishes_each_where_it_belongs() -> None:
    """A topic is recreated between two tasks' staging and the PREPARE of both (R71)."""
    shared = world()
    cluster, admin = process(shared), process(shared)
    row = owned(cluster, "a")
    old = staged(cluster, "orders", "old")
    admin.delete_topic("orders")
    admin.create_topic("orders", partitions=2)
    new = staged(cluster, "orders", "new")
    for batches in ([old, new], [new, old]):
        shared_row = row_of(cluster)
        decided = replace(
            shared_row,
            state=TransactionState.PREPARE_COMMIT,
            txn_epoch=row.producer_epoch,
            pending=Manifest(batches=tuple(batches)),
        )
        assert publish(cluster, decided, reading=Reading.begin(cluster.store.clock))
        assert visible(cluster, "old") == (False, False)
        assert visible(cluster, "new") == (True, False)


# --- Old rows and old files -----------------------------------------------------------------------


@pytest.mark.parametrize("number", range(8))
def test_helper_that_paused_reads_the_row_again_before_it_writes(
    number: int,
) -> None:
    """The marker's `txn` may have expired by now; the batch would be published twice."""
    shared = world()
    prepared(shared)
    helper = process(shared)

    def long_night() -> None:
        recover(shared)
        for _ in range(3):
            shared.clock.advance_ms(HALF_DAY_MS)
        forget_markers(shared)

    row = row_of(helper)
    faults(helper).plan = FaultsAt({}, interlude=long_night, interlude_at=number)
    finish(helper, row)
    for topic in ("orders", "stock"):
        log = process(shared).topic(topic)
        paths = [b.path for found in read_committed(log.view).values() for b in found]
        assert len(paths) == 1
        assert sum(state.end_offset for state in log.view.partitions) == 2, "published twice"


def test_helper_with_the_row_of_an_id_that_expired_publishes_nothing_of_it() -> None:
    """After expiry the id has a decided transaction at the same epoch: another one (D4, R35)."""
    shared = world()
    row = prepared(shared)
    log = recover(shared).shard(process(shared).shard_of("tx"))
    log.transition("tx", lambda now: prepare_expire(now, now_ms=0))
    forget_markers(shared)
    successor = prepared(shared, "successor", 10)
    assert successor.txn_epoch == row.txn_epoch
    assert successor.producer_id > row.producer_id
    finish(process(shared), row)
    for topic in ("orders", "stock"):
        assert sum(s.end_offset for s in process(shared).topic(topic).view.partitions) == 2


def forget_markers(shared: SharedMemory) -> None:
    """What housekeeping may do after seven days: expire the markers of dead producers."""
    for topic in ("orders", "stock"):
        log = process(shared).topic(topic).log
        path = f"{topic}/_delta_log/{log.version:020}.json"
        store = shared.open()
        kept = [line for line in store.get(path).splitlines()[1:] if b'"txn"' not in line]
        info = b'{"commitInfo":{"operation":"EXPIRE PRODUCERS"}}'
        store.put(path, b"\n".join([info, *kept]) + b"\n")


def test_batch_write_in_doubt_that_another_process_finished_is_not_written_again() -> None:
    """Its row is removed by then; only the marker in its first topic shows it (R63)."""
    shared = world()
    cluster = process(shared)
    lost: list[str] = []
    helped: list[Cluster] = []

    def plan(verb: str, path: str) -> Fault:
        is_state = path.startswith("__transaction_state") and "_delta_log" in path
        if not is_state or (verb != "put" and not lost):
            return Fault.NONE
        if len(lost) < 2 * delta_log._PUTS_MAX:
            lost.append(verb)
            return Fault.LOSE_REPLY
        if not helped:
            helped.append(recover(shared))
        return Fault.NONE

    faults(cluster).plan = plan
    commit_one_off(cluster, both(cluster, "mine"), Owner(run_id="x"))
    assert helped
    for topic in ("orders", "stock"):
        assert sum(s.end_offset for s in process(shared).topic(topic).view.partitions) == 2


def test_append_to_a_partition_that_was_not_added_is_refused() -> None:
    """A partition that the row does not name gets no marker and stays undecided (R30)."""
    shared = world()
    cluster = process(shared)
    first, second = both(cluster, "mine")
    touched = TopicPartitions(
        topic=first.topic, topic_id=first.topic_id, partitions=(first.partition,)
    )
    row = cluster.coordinator.add_partitions(owned(cluster, "a"), [touched])
    with pytest.raises(InvalidTxnStateError, match="was not added"):
        append_ongoing(cluster, row, [second], {second.partition: 0})
    assert not process(shared).topic(second.topic).view.by_path


@pytest.mark.parametrize("kind", ["append", "commit", "prepare", "one-off"])
def test_age_of_files_is_checked_again_when_a_commit_under_way_conflicts(kind: str) -> None:
    """Vacuum's barrier commit makes every commit under way check again (R72)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    ids = [f"other-{number}" for number in range(8)]
    for tid in ids:
        # Creates the other shard, whose first commit decides nothing.
        owned(process(shared), "first", tid=tid)
    half_of_the_age_ms = 7 * 86_400_000 // 2
    staged_ms = shared.clock.now_ms() - half_of_the_age_ms + 1_000
    old = [replace(batch, staged_ms=staged_ms) for batch in both(cluster, "mine")]
    if kind == "append":
        touched = TopicPartitions(
            topic=old[0].topic, topic_id=old[0].topic_id, partitions=(old[0].partition,)
        )
        row = cluster.coordinator.add_partitions(row, [touched])
    calls = {
        "append": lambda: append_ongoing(cluster, row, old[:1], {old[0].partition: 0}),
        "commit": lambda: cluster.coordinator.commit(row, old),
        "prepare": lambda: cluster.coordinator.prepare(row, old),
        "one-off": lambda: commit_one_off(cluster, old, Owner(run_id="x")),
    }
    decides = f"{old[0].topic}/_delta_log/" if kind == "append" else "__transaction_state"
    is_put = False

    def others_are_first(verb: str, path: str) -> Fault:
        """The files get too old before the put, and others commit to every log."""
        nonlocal is_put
        if verb == "put" and path.startswith(decides) and not is_put:
            is_put = True
            shared.clock.advance_ms(2_000)
            other = process(shared)
            for tid in ids:
                owned(other, "b", tid=tid)
            commit_one_off(other, both(other, "theirs"), Owner(run_id="y"))
        return Fault.NONE

    faults(cluster).plan = others_are_first
    with pytest.raises(StagedFileTooOldError):
        calls[kind]()
    assert is_put
    assert visible(process(shared), "mine") == (False, False)
