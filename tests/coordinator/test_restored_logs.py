"""One log of a root is restored alone, from an older backup: what is acknowledged is there (D131).

The tables of the backup are those of `backup`; everything else in the root is newer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import count
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from tests.cases import Some
from tests.coordinator.restoring import Backup, backup, remove_all, restore
from tests.faults import Trial, cuts
from tests.world import (
    ERRORS,
    GROUP,
    MINUTE_MS,
    TOPICS,
    both,
    consumed,
    decide,
    eager,
    faults,
    outcome_of,
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
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import InvalidProducerEpochError, LogGapError, StorageError, TxnLogError
from txnlog.protocol.metadata import (
    AppTransaction,
    Manifest,
    Owner,
    StagedBatch,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import prepare_end
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory


def commit(cluster: Cluster, row: TransactionMetadata, *names: str) -> TransactionMetadata:
    for name in names:
        row = cluster.coordinator.commit(row, both(cluster, name))
    return row


def restored_shard(lost: int = 3) -> SharedMemory:
    """`lost` transactions of "tx" are in both topics, and not in its shard."""
    shared = world()
    first = process(shared)
    row = commit(first, owned(first, "a"), "kept")
    files = backup(shared, "__transaction_state")
    commit(first, row, *(f"lost{number}" for number in range(lost)))
    restore(shared, "__transaction_state", files)
    return shared


def deferred(cluster: Cluster, row: TransactionMetadata) -> None:
    cluster.coordinator.commit(row, both(cluster, "new"))


def one_topic(cluster: Cluster, row: TransactionMetadata) -> None:
    cluster.coordinator.commit(row, [staged(cluster, "stock", "new")])


def in_two_phases(cluster: Cluster, row: TransactionMetadata) -> None:
    row = cluster.coordinator.prepare(row, both(cluster, "new"))
    cluster.coordinator.commit(row, ())


def eagerly(cluster: Cluster, row: TransactionMetadata) -> None:
    cluster.coordinator.commit(eager(cluster, row, "new"), ())


@pytest.mark.parametrize("act", [deferred, one_topic, in_two_phases, eagerly])
def test_commit_of_a_restored_row_is_refused_until_it_is_past_the_markers(
    act: Callable[[Cluster, TransactionMetadata], None],
) -> None:
    """The marker of a lost transaction was taken for its own: acknowledged, in no topic (R4)."""
    shared = restored_shard()
    errors = []
    for number in range(9):
        cluster = process(shared)
        row = owned(cluster, f"run{number}")
        try:
            act(cluster, row)
        except TxnLogError as error:
            errors.append(type(error))
            assert not any(visible(process(shared), "new"))
            continue
        break
    assert set(errors) == ({InvalidProducerEpochError} if act is eagerly else {LogGapError})
    assert 1 <= len(errors) <= 3
    expected = {"orders", "stock"} if act is not one_topic else {"stock"}
    assert visible(process(shared), "new") == tuple(topic in expected for topic in TOPICS)


def test_error_names_the_table_and_what_to_restore() -> None:
    cluster = process(restored_shard())
    with pytest.raises(LogGapError) as failure:
        deferred(cluster, owned(cluster, "b"))
    message = failure.value.message
    assert "table 'orders' has the marker of epoch 3 of producer id 0" in message
    assert "'tx' would have epoch 2" in message
    assert "all tables of the root together" in message
    assert failure.value.fatal
    assert (failure.value.transactional_id, failure.value.table) == ("tx", "orders")


def test_offsets_alone_are_refused_by_the_marker_of_their_group() -> None:
    """They would be committed, and not moved: the input is read twice (R45)."""
    shared = world()
    first = process(shared)
    row = owned(first, "a")
    files = backup(shared, "__transaction_state")
    for start in (0, 10):
        row = first.coordinator.commit(row, (), offsets=[consumed(start, start + 10)])
    restore(shared, "__transaction_state", files)
    again = process(shared)
    with pytest.raises(LogGapError, match="__consumer_offsets"):
        again.coordinator.commit(owned(again, "b"), (), offsets=[consumed(20, 30)])
    assert position(process(shared)) == 20


def test_restored_row_whose_transaction_was_published_is_completed() -> None:
    """A producer leaves COMPLETE to its next transaction: most backups have such a row (D103)."""
    shared = world()
    first = process(shared)
    decided = decide(first, owned(first, "a"), both(first, "kept"))
    files = backup(shared, "__transaction_state")
    row = finish(first, decided)
    assert row is not None
    commit(first, row, "lost")
    restore(shared, "__transaction_state", files)
    for name in TOPICS:
        # Its file is in no state any more, and the log says that it was.
        first.topic_log(name).transact(remove_all)
    recover(shared)
    assert state_of(process(shared)) is TransactionState.COMPLETE_COMMIT


def decided_by_a_process_that_did_not_look(shared: SharedMemory) -> TransactionMetadata:
    """PREPARE_COMMIT of a version that asked no topic."""
    cluster = process(shared)
    row = owned(cluster, "old")
    manifest = Manifest(batches=tuple(both(cluster, "new")))
    decided = cluster.shard_for("tx").transition(
        "tx",
        lambda now: prepare_end(
            now, holder=row.holder, result=TransactionResult.COMMIT, manifest=manifest, now_ms=0
        ),
    )
    assert decided is not None
    return decided


def test_what_was_decided_all_the_same_is_not_taken_for_published() -> None:
    """An older process has decided it: nobody acknowledges it, its files are kept (R36, R72)."""
    shared = restored_shard()
    row = decided_by_a_process_that_did_not_look(shared)
    cluster = process(shared)
    with pytest.raises(LogGapError, match="never had its file 'part-0-new.parquet'"):
        finish(cluster, row)
    with pytest.raises(LogGapError, match="all tables of the root together"):
        owned(cluster, "successor")
    sweeper = Sweeper(cluster, interval_ms=1)
    sweeper.sweep()
    shared.clock.advance_ms(60_000)
    with pytest.raises(LogGapError):
        sweeper.sweep()
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT


def test_commit_cut_at_any_call_is_not_refused_by_its_own_marker(some: Some[int]) -> None:
    """Its PREPARE has landed, and another process has published it: the row says so (R31, R63)."""

    def begin() -> Trial:
        shared = world()
        cluster = process(shared)
        row = commit(cluster, owned(cluster, "a"), "first")
        return Trial(
            shared, cluster, partial(cluster.coordinator.commit, row, both(cluster, "mine"))
        )

    for trial in cuts(begin, some, ERRORS):
        helper = process(trial.shared)
        found = row_of(helper)
        finish(helper, found)
        assert outcome_of(trial.act) == "done"
        assert visible(process(trial.shared), "mine") == (True, True)


def test_batch_write_that_another_process_completed_is_not_refused_by_its_own_marker() -> None:
    """Its PREPARE is in doubt, and by the time of the answer its row is gone (R63)."""
    shared, _ = restored_cluster()
    cluster = process(shared)
    batches = both(cluster, "mine")
    for number in range(cluster.shards):
        cluster.shard(number)
    is_settled = False

    def plan(verb: str, path: str) -> Fault:
        nonlocal is_settled
        if is_settled or not re.match("__transaction_state.*/_delta_log", path):
            return Fault.NONE
        if not path.endswith(".json"):
            # It has given up, and opens the log again.
            is_settled = True
            assert shared.land_late()
            recover(shared)
            return Fault.NONE
        return Fault.LAND_LATE if verb == "put" else Fault.FAIL_BEFORE

    def prepares() -> None:
        faults(cluster).plan = plan

    write = partial(commit_one_off, cluster, batches, Owner(run_id="x"), phases=None)
    with patch("txnlog.coordinator.one_off.check_ages", lambda *_: prepares()):
        assert write()
    assert is_settled
    assert visible(process(shared), "mine") == (True, True)


def test_init_that_knows_its_topics_refuses_before_it_raises_the_epoch() -> None:
    """A query that is restarted again and again would get past the markers, and write a batch
    twice whose row is lost (R54, R55).
    """
    shared = restored_shard()
    before = process(shared).coordinator.describe("tx")
    for number in range(5):
        cluster = process(shared)
        for name in TOPICS:
            cluster.topic(name)
        with pytest.raises(LogGapError):
            cluster.coordinator.init_producer_id("tx", Owner(run_id=f"r{number}"), topics=TOPICS)
    assert process(shared).coordinator.describe("tx") == before


# --- `__cluster`: a producer id is given out twice ------------------------------------------------


def restored_cluster() -> tuple[SharedMemory, Backup]:
    """A root with all its shards, and `__cluster` before the next ids were given out."""
    shared = world()
    first = process(shared)
    for number in range(first.shards):
        first.shard(number)
    return shared, backup(shared, "__cluster")


def once(cluster: Cluster, name: str, version: int = -1) -> None:
    app = AppTransaction(app_id="nightly", version=version) if version >= 0 else None
    commit_one_off(cluster, both(cluster, name), Owner(run_id=name), app=app, phases=None)


@pytest.mark.parametrize("is_app", [False, True])
def test_batch_writes_take_a_producer_id_that_their_topics_do_not_know(is_app: bool) -> None:
    """The marker of another write was taken for its own, after a lost reply (R10)."""
    shared, files = restored_cluster()
    for number, name in enumerate(("one", "two")):
        once(process(shared), name, number if is_app else -1)
    restore(shared, "__cluster", files)
    for number, name in enumerate(("three", "four"), 2):
        once(process(shared), name, number if is_app else -1)
        assert visible(process(shared), name) == (True, True)
    assert process(shared).next_producer_id() >= 3_000


def test_row_of_another_write_with_the_same_producer_id_is_not_its_own() -> None:
    """It was finished, and the caller told that its own records are written (R10)."""
    shared, files = restored_cluster()
    dying = process(shared)
    faults(dying).plan = lambda verb, path: (
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("orders/_delta_log") else Fault.NONE
    )
    assert outcome_of(lambda: once(dying, "dead", 0)) == "crashed"
    restore(shared, "__cluster", files)
    once(process(shared), "mine", 1)
    assert visible(process(shared), "dead") == (True, True)
    assert visible(process(shared), "mine") == (True, True)


def test_two_writes_with_one_producer_id_at_once_never_both_claim_its_marker() -> None:
    """Both have looked before the other one wrote: who comes second gets an error (R10, R36)."""
    met = set()
    for number in count():
        shared, files = restored_cluster()
        late = process(shared)
        assert late.next_producer_id() == 0
        restore(shared, "__cluster", files)
        other = process(shared)
        assert other.next_producer_id() == 0
        mine, theirs, ends = both(late, "mine"), both(other, "theirs"), {}

        def write(cluster: Cluster, batches: list[StagedBatch], name: str, ends=ends) -> None:
            act = partial(commit_one_off, cluster, batches, Owner(run_id=name), phases=None)
            ends[name] = outcome_of(act)

        between = partial(write, other, theirs, "theirs")
        faults(late).plan = FaultsAt({}, interlude=between, interlude_at=number)
        write(late, mine, "mine")
        if "theirs" not in ends:
            break
        for name, outcome in ends.items():
            assert outcome != "done" or visible(process(shared), name) == (True, True)
            met.add((name, outcome))
    assert met == {("mine", "done"), ("mine", "LogGapError"), ("theirs", "done")}


def test_new_transactional_id_with_a_producer_id_of_another_is_refused() -> None:
    shared, files = restored_cluster()
    first = process(shared)
    commit(first, owned(first, "a"), "one")
    restore(shared, "__cluster", files)
    second = process(shared)
    row = owned(second, "b", tid="other")
    assert row.producer_id == 0
    with pytest.raises(LogGapError, match="__cluster"):
        commit(second, row, "two")
    assert visible(process(shared), "two") == (False, False)


def test_shard_that_a_restored_cluster_does_not_know_is_recorded_by_who_opens_it() -> None:
    """Its groups look new to readers, and its files unreferenced to vacuum (D95)."""
    shared = SharedMemory()
    process(shared)
    files = backup(shared, "__cluster")
    process(shared).groups.start(GROUP)
    restore(shared, "__cluster", files)
    assert process(shared).groups.describe(GROUP) is None
    process(shared).offsets_log(GROUP)
    assert process(shared).groups.describe(GROUP) is not None


def test_restored_row_of_a_paused_process_is_told_from_a_restored_table() -> None:
    """See also test_producer_in_a_paused_guest_is_fenced_by_its_successor."""
    shared = world()
    row = prepared(shared)
    helper = process(shared)
    other = process(shared)
    finished = finish(other, row)
    assert finished is not None
    commit(other, owned(other, "b"), "next")
    # It knows the row of then, and finds that this has been finished.
    assert finish(helper, replace(row)) is not None
    assert visible(process(shared), "mine") == (True, True)


# --- Two-phase transactions -----------------------------------------------------------------------


def restored_prepared(shared: SharedMemory, *topics: str) -> TransactionMetadata:
    """A prepared transaction whose abort, and the transaction after it, are lost."""
    first = process(shared)
    row = owned(first, "a")
    row = first.coordinator.prepare(row, [staged(first, topic, "mine") for topic in topics])
    files = backup(shared, "__transaction_state")
    commit(first, first.coordinator.abort(row), "lost")
    restore(shared, "__transaction_state", files)
    return row


@pytest.mark.parametrize("days", [0, 8])
def test_commit_of_what_was_prepared_is_not_taken_for_published_in_a_topic_it_did_not_read(
    days: int,
) -> None:
    """Its decision asks only the topics that can be read; its files may be of any age (R36)."""
    shared = world()
    row = restored_prepared(shared, "stock")
    shared.clock.advance_ms(days * 24 * 60 * MINUTE_MS)
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if path.startswith("stock/") else Fault.NONE
    )
    with pytest.raises(TxnLogError) as failure:
        cluster.coordinator.commit(row)
    assert failure.value.context["decided"] is TransactionResult.COMMIT
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT
    faults(cluster).plan = lambda verb, path: Fault.NONE
    for again in (cluster, process(shared)):
        with pytest.raises(LogGapError, match="never had its file 'part-1-mine.parquet'"):
            finish(again, row_of(again))
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT


def test_kept_transaction_whose_commit_is_lost_is_recognised() -> None:
    """Its marker has the very epoch under which it is kept, and its files may be compacted away."""
    shared = world()
    first = process(shared)
    row = first.coordinator.prepare(owned(first, "a"), both(first, "mine"))
    files = backup(shared, "__transaction_state")
    first.coordinator.commit(row)
    restore(shared, "__transaction_state", files)
    second = process(shared)
    for name in TOPICS:
        second.topic(name)
    keep = partial(second.coordinator.init_producer_id, "tx", Owner(run_id="b"), keep_prepared=True)
    with pytest.raises(LogGapError, match="marker of epoch 0"):
        keep(topics=TOPICS)
    with pytest.raises(LogGapError, match="marker of epoch 0"):
        second.coordinator.commit(keep())
    assert visible(process(shared), "mine") == (True, True)


def test_prepared_commit_asks_nothing_of_what_it_read_of_a_topic_before() -> None:
    """One that cannot be read now was read before the records: they were taken for lost (R37)."""
    shared = world()
    first, second = process(shared), process(shared)
    for name in TOPICS:
        second.topic(name)
    row = first.coordinator.prepare(eager(first, owned(first, "a"), "mine"))
    faults(second).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if path.startswith("orders/") else Fault.NONE
    )
    with pytest.raises(StorageError) as failure:
        second.coordinator.commit(row)
    assert failure.value.context["decided"] is TransactionResult.COMMIT
    faults(second).plan = lambda verb, path: Fault.NONE
    second.coordinator.commit(row)
    assert visible(process(shared), "mine") == (True, True)
