"""Requests to a transaction state row, one after the other, each persisted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.protocol.group_row import a_ticket
from tests.staged_files import named_file
from txnlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    ProducerFencedError,
)
from txnlog.protocol.metadata import (
    GroupTicket,
    Holder,
    LastBatch,
    Manifest,
    Owner,
    ProducerIdAndEpoch,
    StagedBatch,
    TopicPartitions,
    TransactionMetadata,
)
from txnlog.protocol.states import TransactionResult, TransactionState
from txnlog.protocol.transitions import (
    TIMEOUT_MS_MAX,
    Done,
    Transition,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_expire,
    prepare_fence,
    prepare_init,
    prepare_one_off_commit,
    prepare_time_out,
)

COMMIT, ABORT = TransactionResult.COMMIT, TransactionResult.ABORT
S = TransactionState
Row = TransactionMetadata | None


def moved(decision: Transition | Done) -> TransactionMetadata:
    assert isinstance(decision, Transition)
    return decision.next


def init(row: Row, run: str = "a", *, query: str = "", timeout_ms: int = 1000) -> Transition | Done:
    return prepare_init(
        row,
        transactional_id="id",
        new_producer_id=7,
        owner=Owner(run_id=run, query_id=query, host="h", pid=1),
        timeout_ms=timeout_ms,
        now_ms=1,
    )


def add(
    row: Row,
    *topics: str,
    epoch: int = 0,
    run: str = "a",
    tickets: tuple[GroupTicket, ...] = (),
    manifest: Manifest | None = None,
) -> Transition | Done:
    return prepare_add_partitions(
        row,
        holder=Holder(transactional_id="id", producer_id=7, producer_epoch=epoch, run_id=run),
        partitions=tuple(
            TopicPartitions(topic=topic, topic_id=f"{topic}-id", partitions=(0,))
            for topic in topics
        ),
        tickets=tickets,
        manifest=manifest,
        now_ms=2,
    )


def end(
    row: Row,
    result: TransactionResult,
    *,
    epoch: int = 0,
    run: str = "a",
    manifest: Manifest | None = None,
    last_batch: LastBatch | None = None,
) -> Transition | Done:
    return prepare_end(
        row,
        holder=Holder(transactional_id="id", producer_id=7, producer_epoch=epoch, run_id=run),
        result=result,
        manifest=manifest,
        last_batch=last_batch,
        now_ms=3,
    )


def complete(row: TransactionMetadata) -> TransactionMetadata:
    return moved(prepare_complete(row, transaction=row.transaction, now_ms=4))


def staged(topic: str = "t") -> StagedBatch:
    return named_file(topic=topic, topic_id=f"{topic}-id")


def fence(row: Row, above_epoch: int) -> Transition | Done:
    return prepare_fence(
        row,
        above_epoch=above_epoch,
        by="admin",
        reason="test",
        now_ms=5,
    )


def time_out(row: TransactionMetadata) -> Transition | Done:
    return prepare_time_out(
        row, transaction=ProducerIdAndEpoch(row.producer_id, 0), by="sweeper", now_ms=9
    )


def test_init_of_a_new_id_starts_at_epoch_zero_and_each_takeover_raises_it() -> None:
    """Two owners under one epoch could both decide (R10, R26)."""
    first = moved(init(None))
    second = moved(init(first, "b"))
    assert (first.producer_id, first.producer_epoch, first.state) == (7, 0, S.EMPTY)
    assert (second.producer_id, second.producer_epoch) == (7, 1)
    assert second.owner.former_runs == ("a",)


def test_init_again_by_the_same_run_changes_nothing() -> None:
    """A lost reply to the fencing write must not fence a second time (R28)."""
    row = moved(init(moved(init(None)), "b"))
    assert init(row, "b") == Done(row)


def test_init_by_a_run_that_was_taken_over_is_fenced() -> None:
    """A zombie that restarts its client would take the id back (R27, R42)."""
    row = moved(init(moved(init(None)), "b"))
    with pytest.raises(ProducerFencedError, match="run a may no longer write") as error:
        init(row, "a")
    assert error.value.fatal


def test_init_while_ongoing_aborts_first_and_then_assigns_the_epoch() -> None:
    """The former owner's data would become part of the new owner's transaction (R27)."""
    ongoing = moved(add(moved(init(None)), "t"))
    aborting = moved(init(ongoing, "b", timeout_ms=2000))
    assert (aborting.state, aborting.txn_epoch, aborting.producer_epoch) == (S.PREPARE_ABORT, 0, 1)
    with pytest.raises(ConcurrentTransactionsError):
        init(aborting, "b")
    done = complete(aborting)
    assert init(done, "b") == Done(done)
    assert (done.producer_epoch, done.owner.run_id, done.timeout_ms) == (2, "b", 2000)


def test_init_by_the_owner_itself_while_ongoing_does_not_fence_the_owner() -> None:
    """A client that restarts after an error would be among the former runs (R27)."""
    aborting = moved(init(moved(add(moved(init(None)), "t"))))
    assert aborting.state is S.PREPARE_ABORT
    done = complete(aborting)
    assert init(done) == Done(done)
    assert "a" not in done.owner.former_runs


@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_init_beside_a_decision_changes_the_owner_only(result: TransactionResult) -> None:
    """A superseded decision would never be carried out; an owner that decides one after the other
    would keep its successor waiting (R27, R36).
    """
    decided = replace(moved(end(moved(add(moved(init(None)), "t")), result)), updated_ms=12)
    owned = moved(init(decided, "b", timeout_ms=77))
    assert (owned.owner.run_id, owned.timeout_ms, owned.updated_ms) == ("b", 77, 12)
    assert "a" in owned.owner.former_runs
    assert owned.producer_epoch == decided.producer_epoch + 1
    same = ("state", "txn_epoch", "producer_id", "pending", "partitions", "started_ms")
    assert [getattr(owned, name) for name in same] == [getattr(decided, name) for name in same]
    with pytest.raises(ConcurrentTransactionsError):
        init(owned, "b")
    with pytest.raises(ProducerFencedError):
        init(owned, "a")
    completed = moved(prepare_complete(owned, transaction=owned.transaction, now_ms=9))
    assert init(completed, "b") == Done(completed)
    assert end(owned, result) == Done(owned), "the former owner asks again, and learns the result"


def test_init_of_a_batch_writes_id_asks_to_finish_first() -> None:
    """Its row is removed when it completes."""
    decided = moved(
        prepare_one_off_commit(
            None,
            transactional_id="id",
            producer_id=1,
            manifest=Manifest(batches=(staged(),)),
            owner=Owner(run_id="a"),
            now_ms=0,
        )
    )
    with pytest.raises(ConcurrentTransactionsError):
        init(decided, "b")


def test_former_owner_cannot_chain_beside_its_successor() -> None:
    """Both would read the same input (R27, R41)."""
    first = moved(init(None))
    decided = moved(end(first, COMMIT, manifest=Manifest(batches=(staged(),))))
    owned = moved(init(decided, "b"))
    with pytest.raises(ProducerFencedError):
        prepare_end(
            owned,
            holder=Holder(transactional_id="id", producer_id=7, producer_epoch=1, run_id="a"),
            result=COMMIT,
            manifest=Manifest(batches=(staged(),)),
            follows=decided.transaction,
            now_ms=9,
        )


def test_init_of_an_id_that_expired_meanwhile_asks_again_for_a_producer_id() -> None:
    """A row with producer id -1 has no markers: all its transactions would land twice (R10)."""
    with pytest.raises(ConcurrentTransactionsError):
        prepare_init(
            None,
            transactional_id="id",
            new_producer_id=-1,
            owner=Owner(run_id="a"),
            timeout_ms=1,
            now_ms=0,
        )


def test_init_with_a_timeout_above_the_maximum_names_both_values() -> None:
    """A transaction that may hang for days blocks every reader (R33)."""
    with pytest.raises(InvalidTxnTimeoutError, match=rf"900001.*{TIMEOUT_MS_MAX}"):
        init(None, timeout_ms=TIMEOUT_MS_MAX + 1)
    with pytest.raises(InvalidTxnTimeoutError):
        init(None, timeout_ms=0)


def test_init_of_an_empty_id_is_refused() -> None:
    """All producers without a name would fence one another (R30)."""
    with pytest.raises(InvalidProducerIdMappingError):
        prepare_init(
            None,
            transactional_id="",
            new_producer_id=1,
            owner=Owner(),
            timeout_ms=1,
            now_ms=0,
        )


def test_begin_writes_nothing_and_the_first_partition_starts_the_clock() -> None:
    """A timeout that starts at begin would abort a producer that has not written yet (R29)."""
    row = moved(init(None))
    assert (row.state, row.started_ms) == (S.EMPTY, -1)
    ongoing = moved(add(row, "t"))
    assert (ongoing.state, ongoing.started_ms, ongoing.txn_epoch) == (S.ONGOING, 2, 0)


def test_add_partitions_is_idempotent_and_adds_partitions() -> None:
    """A repeated request must not restart the timeout (R30)."""
    one = moved(add(moved(init(None)), "t"))
    assert add(one, "t") == Done(one)
    two = moved(add(one, "u", tickets=(a_ticket(),)))
    assert two.topic_ids == (("t", "t-id"), ("u", "u-id"))
    assert two.started_ms == one.started_ms
    assert add(two, "t", tickets=(a_ticket(),)) == Done(two)


def test_add_partitions_checks_run_epoch_and_state() -> None:
    """A zombie would add partitions to its successor's transaction (R30)."""
    row = moved(init(moved(init(None)), "b"))
    with pytest.raises(ProducerFencedError):
        add(row, "t", epoch=1, run="a")
    with pytest.raises(ProducerFencedError):
        add(row, "t", epoch=1, run="other")
    with pytest.raises(InvalidProducerEpochError):
        add(row, "t", epoch=0, run="b")
    decided = moved(end(moved(add(row, "t", epoch=1, run="b")), ABORT, epoch=1, run="b"))
    with pytest.raises(ConcurrentTransactionsError):
        add(decided, "u", epoch=1, run="b")


@pytest.mark.parametrize(("result", "opposite"), [(COMMIT, ABORT), (ABORT, COMMIT)])
def test_end_again_succeeds_and_the_opposite_is_refused(
    result: TransactionResult, opposite: TransactionResult
) -> None:
    """A retry after a lost reply must not turn a commit into an abort (R31, R41)."""
    decided = moved(end(moved(add(moved(init(None)), "t")), result))
    for row in (decided, complete(decided)):
        assert end(row, result) == Done(row)
        with pytest.raises(InvalidTxnStateError):
            end(row, opposite)


def test_late_end_never_ends_a_later_transaction() -> None:
    """A delayed EndTxn arrives during the next transaction (R31)."""
    first = complete(moved(end(moved(add(moved(init(None)), "t")), COMMIT)))
    second = moved(add(first, "t", epoch=1))
    with pytest.raises(InvalidProducerEpochError):
        end(second, ABORT, epoch=0)
    with pytest.raises(InvalidProducerEpochError):
        end(second, COMMIT, epoch=0)


def test_end_by_a_fenced_run_is_refused() -> None:
    """The zombie's PREPARE arrives after the take-over (R31, R58)."""
    row = moved(init(moved(init(None)), "b"))
    with pytest.raises(ProducerFencedError):
        end(row, COMMIT, manifest=Manifest(batches=(staged(),)))


def test_deferred_commit_is_one_write_and_a_deferred_abort_none() -> None:
    """Staged files need no write before PREPARE, or without it (R29, R36)."""
    row = moved(init(None))
    assert end(row, ABORT) == Done(row)
    assert end(row, COMMIT) == Done(row)
    decided = moved(end(row, COMMIT, manifest=Manifest(batches=(staged(),))))
    assert (decided.state, decided.txn_epoch) == (S.PREPARE_COMMIT, 0)
    assert decided.topic_ids == (("t", "t-id"),)
    done = complete(decided)
    assert (done.state, done.producer_epoch, done.pending) == (S.COMPLETE_COMMIT, 1, Manifest())


def test_commit_remembers_the_batch_in_the_same_write() -> None:
    """A crash between the decision and its batch id would repeat the batch (R55)."""
    manifest = Manifest(batches=(staged(),))
    last = LastBatch(batch_id=4, digest="d")
    row = moved(end(moved(init(None)), COMMIT, manifest=manifest, last_batch=last))
    assert row.owner.last_batch == last
    successor = moved(init(complete(row), "b", query=""))
    assert successor.owner.last_batch == last


def test_commit_keeps_the_offsets_named_in_the_row_and_an_abort_moves_none() -> None:
    """A forgotten group would lose its offsets, an abort skip its input (R45)."""
    one, other = a_ticket(), a_ticket("h")
    row = moved(add(moved(init(None)), "t", tickets=(one,)))
    assert moved(end(row, COMMIT, manifest=Manifest(tickets=(other,)))).moves == (one, other)
    assert moved(end(row, COMMIT)).moves == (one,)
    aborted = moved(end(row, ABORT))
    assert (aborted.moves, aborted.pending.tickets) == ((), ())


def test_two_phase_prepare_keeps_offsets_sent_before() -> None:
    """They would never move (R45)."""
    row = moved(add(moved(init(None)), tickets=(a_ticket(),)))
    prepared = moved(add(row, manifest=Manifest(batches=(staged(),))))
    assert prepared.pending.tickets == (a_ticket(),)
    assert add(prepared, manifest=Manifest(batches=(staged(),))) == Done(prepared)


def test_complete_raises_the_epoch_once_and_repeats_change_nothing() -> None:
    """Two helpers complete one transaction (R10, R36)."""
    done = complete(moved(end(moved(add(moved(init(None)), "t")), COMMIT)))
    assert (done.producer_epoch, done.txn_epoch, done.partitions) == (1, 0, ())
    assert prepare_complete(
        done, transaction=ProducerIdAndEpoch(done.producer_id, 0), now_ms=9
    ) == Done(done)
    assert prepare_complete(None, transaction=ProducerIdAndEpoch(0, 0), now_ms=9) == Done(None)


def test_complete_of_another_producer_id_changes_nothing() -> None:
    """The id expired and was initialized again: its epochs restart (R35, R36)."""
    decided = moved(end(moved(add(moved(init(None)), "t")), COMMIT))
    again = replace(decided, producer_id=8)
    assert prepare_complete(again, transaction=ProducerIdAndEpoch(7, 0), now_ms=9) == Done(again)


def test_time_out_is_one_write_and_ends_only_this_ongoing_transaction() -> None:
    """With epoch and result in two writes the producer could commit in between (R32)."""
    idle = moved(init(None))
    ongoing = moved(add(idle, "t"))
    row = moved(time_out(ongoing))
    assert (row.state, row.producer_epoch, row.txn_epoch) == (S.PREPARE_ABORT, 1, 0)
    with pytest.raises(InvalidTxnStateError, match="timed out"):
        end(row, COMMIT)
    for other in (idle, row, complete(row), moved(end(ongoing, COMMIT))):
        assert time_out(other) == Done(other)
    later = moved(add(complete(row), "t", epoch=2))
    assert time_out(later) == Done(later)


def test_timed_out_producer_continues_after_init() -> None:
    """A slow producer is no zombie: it may initialize again (R32, R41)."""
    timed_out = moved(time_out(moved(add(moved(init(None)), "t"))))
    row = complete(timed_out)
    assert init(row) == Done(row)
    assert moved(add(row, "t", epoch=2)).state is S.ONGOING


def test_two_phase_transaction_never_times_out() -> None:
    """A prepared transaction must stay committable (R32)."""
    prepared = moved(add(moved(init(None)), manifest=Manifest(batches=(staged(),))))
    assert time_out(prepared) == Done(prepared)


def test_fence_raises_the_epoch_and_refuses_the_run() -> None:
    """A new commit worker of the fenced run would adopt the raised epoch (R43, R58)."""
    row = moved(fence(moved(init(None)), 0))
    assert (row.state, row.producer_epoch) == (S.EMPTY, 1)
    with pytest.raises(ProducerFencedError, match="by admin: test"):
        init(row, "a")
    assert fence(row, 0) == Done(row)
    assert fence(None, 0) == Done(None)


def test_fence_above_an_epoch_that_the_row_has_not_reached_goes_beyond_it() -> None:
    """A topic's: the row is an old one, and its holder would decide below the marker (R43)."""
    ongoing = moved(add(moved(init(None)), "t"))
    for row in (moved(init(None)), ongoing, moved(end(ongoing, COMMIT))):
        assert moved(fence(row, 5)).producer_epoch == 6


def test_fence_of_an_ongoing_transaction_aborts_it_in_the_same_write() -> None:
    """Its headers would stay undecided under an epoch that never ends (R43, R44)."""
    row = moved(fence(moved(add(moved(init(None)), "t")), 0))
    assert (row.state, row.txn_epoch, row.producer_epoch) == (S.PREPARE_ABORT, 0, 1)
    with pytest.raises(ProducerFencedError, match="by admin: test"):
        end(row, COMMIT)


def test_fence_of_a_decided_transaction_leaves_it_as_it_is() -> None:
    """A decision is final; its owner decides no other one (R36, R43)."""
    decided = replace(moved(end(moved(add(moved(init(None)), "t")), COMMIT)), updated_ms=12)
    fenced = moved(fence(decided, 0))
    assert (fenced.state, fenced.transaction) == (decided.state, decided.transaction)
    assert (fenced.pending, fenced.updated_ms) == (decided.pending, 12)
    completed = moved(prepare_complete(fenced, transaction=fenced.transaction, now_ms=9))
    with pytest.raises(ProducerFencedError):
        end(completed, COMMIT, epoch=completed.producer_epoch, manifest=Manifest())


def test_fence_aborts_a_prepared_two_phase_transaction() -> None:
    """Only an operator asks for it, who knows what the other system has decided (R43)."""
    prepared = moved(add(moved(init(None)), manifest=Manifest(batches=(staged(),))))
    assert moved(fence(prepared, 0)).state is S.PREPARE_ABORT


def test_expiry_forgets_idle_ids_only_and_never_a_querys() -> None:
    """A query that pauses for a month must know its last batch id (R35)."""
    idle = moved(init(None))
    assert moved(prepare_expire(idle, now_ms=9)).state is S.DEAD
    ongoing = moved(add(idle, "t"))
    assert prepare_expire(ongoing, now_ms=9) == Done(ongoing)
    query = moved(init(None, query="q"))
    assert prepare_expire(query, now_ms=9) == Done(query)
    last = Owner(run_id="a", last_batch=LastBatch(batch_id=0))
    of_producer = replace(query, owner=last)
    assert prepare_expire(of_producer, now_ms=9) == Done(of_producer), "a replay must find it"
