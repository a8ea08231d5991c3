"""The publisher of commit.wait=decided: its errors, and what happens beside it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.coordinator.processes import (
    check_settled,
    faults,
    planned,
    position,
    process,
    recover,
)
from tests.coordinator.restoring import remove_all
from tests.producer.deciding import (
    DAY_MS,
    allow_all,
    commit_refused,
    deciding,
    interrupted,
    refuse_markers,
)
from tests.producer.following import commit
from tests.producer.worlds import (
    BOTH,
    Reports,
    cluster_of,
    group,
    input_at,
    producer,
    started,
    values,
    world,
)
from txnlog.cluster import Cluster
from txnlog.errors import (
    CommitStateUnknownError,
    OperationTimedOutError,
    ProducerFencedError,
    TopicAuthorizationError,
    TransactionAbortableError,
)
from txnlog.producer import Producer
from txnlog.producing.producer_session import ProducerSession
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.testing.faults import Fault, SharedMemory


def begin(made: Producer) -> None:
    made.begin_transaction()


@BOTH
@pytest.mark.parametrize("tries", [1, 5])
def test_publisher_tries_again_after_an_error_that_may_pass(publish: str, tries: int) -> None:
    shared = world()
    made = deciding(shared, publish)
    commit_refused(made, Fault.FAIL_BEFORE)
    for _ in range(tries):
        made.poll()
    assert made.flush(0) == 1
    assert len(made) == 1
    assert values(process(shared), "orders") == []
    with pytest.raises(OperationTimedOutError, match="closed before the transaction"):
        made.close(0)
    assert values(recover(shared), "orders") == ["0"]


def test_commit_that_timed_out_waiting_for_the_one_before_is_repeated() -> None:
    shared = world()
    made = deciding(shared)
    commit_refused(made, Fault.FAIL_BEFORE)
    made.begin_transaction()
    made.produce("orders", "1", partition=0)
    with pytest.raises(OperationTimedOutError, match="not visible to all"):
        made.commit_transaction(0)
    allow_all(made)
    made.commit_transaction()
    made.close()
    assert values(process(shared), "orders") == ["0", "1"]


def test_publisher_that_fails_for_a_while_goes_on_without_a_call() -> None:
    shared = world()
    made = deciding(shared)
    commit_refused(made, Fault.FAIL_BEFORE)
    made.poll()
    allow_all(made)
    made.poll()
    assert values(process(shared), "orders") == ["0"]


def refused(made: Producer) -> None:
    """A commit whose publisher meets an error that does not pass by itself."""
    commit_refused(made, Fault.DENY)
    made.poll()


@pytest.mark.parametrize("act", [begin, Producer.flush, Producer.close])
@BOTH
def test_error_of_the_publisher_reaches_the_next_call(
    publish: str, act: Callable[[Producer], None]
) -> None:
    """It says that the commit is decided; any process publishes it later."""
    shared = world()
    made = deciding(shared, publish)
    refused(made)
    with planned(cluster_of(made), {}) as counted:
        made.poll()
    assert counted.calls == 0
    refuse_markers(made, Fault.DENY)
    with pytest.raises(TopicAuthorizationError, match="is decided, and not visible") as raised:
        act(made)
    assert not raised.value.abortable
    assert values(process(shared), "orders") == []
    assert values(recover(shared), "orders") == ["0"]


@BOTH
def test_producer_goes_on_when_what_refused_its_publisher_has_passed(publish: str) -> None:
    shared = world()
    made = deciding(shared, publish)
    refused(made)
    with pytest.raises(TopicAuthorizationError):
        made.begin_transaction()
    allow_all(made)
    commit(made, "1")
    assert made.flush() == 0
    assert values(process(shared), "orders") == ["0", "1"]


def test_transaction_opened_before_its_publisher_failed_can_be_aborted() -> None:
    """Its own commit decides nothing; the one before stays committed."""
    shared = world()
    made = deciding(shared)
    commit_refused(made, Fault.DENY)
    made.begin_transaction()
    made.produce("orders", "1", partition=0)
    with pytest.raises(TransactionAbortableError, match="is decided, and not visible"):
        made.commit_transaction()
    made.abort_transaction()
    allow_all(made)
    commit(made, "2")
    made.close()
    assert values(process(shared), "orders") == ["0", "2"]
    check_settled(shared)


def test_begin_while_the_thread_publishes_is_a_transaction_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A begin needs no lock: it came between a read and a write of the thread, whose write then
    ended the new transaction; its commit returned, and nothing was written.
    """
    shared = world()
    made = deciding(shared)
    commit(made, "0")
    read = ProducerSession._is_ours

    def begins(session: ProducerSession, row: TransactionMetadata) -> bool:
        monkeypatch.setattr(ProducerSession, "_is_ours", read)
        made.begin_transaction()
        return read(session, row)

    monkeypatch.setattr(ProducerSession, "_is_ours", begins)
    made.poll()
    made.produce("orders", "1", partition=0)
    made.commit_transaction()
    made.close()
    assert values(process(shared), "orders") == ["0", "1"]


def test_producer_whose_prepared_transaction_another_owner_committed_is_fenced() -> None:
    """It took the other's row for its own, and its records were committed by the other."""
    shared = world()
    first = deciding(shared, "eager")
    first.begin_transaction()
    first.produce("orders", "0", partition=0)
    state = first.prepare_transaction()
    second = producer(shared, "tx", "eager", commit_wait="decided")
    second.init_transactions(keep_prepared=True)
    assert second.complete_transaction(state)
    assert first.complete_transaction(state)
    with pytest.raises(ProducerFencedError):
        first.begin_transaction()
    commit(second, "next")
    second.close()
    assert values(process(shared), "orders") == ["0", "next"]


@BOTH
@pytest.mark.parametrize("fault", [Fault.DENY, Fault.FAIL_BEFORE])
def test_interrupted_commit_is_repeated_while_it_cannot_be_published(
    publish: str, fault: Fault
) -> None:
    """It is decided: an abort was offered, and its records were reported as aborted."""
    shared = world()
    made = deciding(shared, publish)
    reports = Reports()
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    made.flush()
    refuse_markers(made, fault)
    manager = made._transactions
    assert manager is not None
    end, manager._end = manager._end, interrupted  # type: ignore[method-assign]
    with suppress(KeyboardInterrupt):
        made.commit_transaction()
    manager._end = end  # type: ignore[method-assign]
    made.commit_transaction(0)
    allow_all(made)
    assert made.flush() == 0
    assert len(reports.offsets) == 1
    assert not reports.errors
    commit(made, "1")
    made.close()
    assert values(process(shared), "orders") == ["0", "1"]


def test_close_that_could_not_publish_reports_that_the_records_are_committed() -> None:
    """Nobody may write them again; and a report without an error has an offset."""
    made = deciding(world())
    reports = Reports()
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    refuse_markers(made, Fault.DENY)
    made.commit_transaction()
    with pytest.raises(TopicAuthorizationError):
        made.close()
    assert not reports.offsets
    [(error, _)] = reports.received
    assert isinstance(error, CommitStateUnknownError)
    assert not error.retriable
    assert "committed: do not produce it again" in error.message


def published_by_another(made: Producer, shared: SharedMemory, reports: Reports) -> Cluster:
    """A transaction that another process has made visible."""
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    made.commit_transaction()
    return recover(shared)


def test_records_that_another_process_published_are_reported_with_their_offsets() -> None:
    shared = world()
    made, reports = deciding(shared), Reports()
    published_by_another(made, shared, reports)
    made.flush()
    assert reports.offsets == [("orders", 0, 0)]


def test_records_whose_file_is_gone_already_are_reported_as_committed() -> None:
    """Compaction has replaced it: where they are is not known (R22)."""
    shared = world()
    made, reports = deciding(shared), Reports()
    helper = published_by_another(made, shared, reports)
    helper.topic_log("orders").transact(remove_all)
    made.flush()
    [(error, message)] = reports.received
    assert isinstance(error, CommitStateUnknownError)
    assert "has replaced its file" in error.message
    assert message.offset() is None


def test_records_of_a_topic_deleted_before_they_were_visible_are_not_delivered() -> None:
    """They are in no topic (R71)."""
    shared = world()
    made, reports = deciding(shared), Reports()
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    made.commit_transaction()
    process(shared).delete_topic("orders")
    made.flush()
    assert reports.errors == ["UnknownTopicIdError"]
    assert not reports.offsets


def test_flush_counts_a_transaction_of_offsets_that_is_not_visible() -> None:
    shared = world()
    made = deciding(shared)
    made.begin_transaction()
    made.send_offsets_to_transaction(input_at(10), group())
    made.commit_transaction()
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if verb == "put" and path.startswith("__consumer") else Fault.NONE
    )
    assert (len(made), made.flush(1)) == (1, 1)
    allow_all(made)
    assert (made.flush(), len(made)) == (0, 0)
    assert position(process(shared)) == 10


@pytest.mark.parametrize("wait", ["visible", "decided"])
def test_close_without_time_succeeds_when_nothing_is_left(wait: str) -> None:
    """Although its thread holds the lock, for a sweep."""
    shared = world()
    made = started(shared, commit_wait=wait)
    commit(made, "0")
    made.flush()
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with made._sender.io:
            held.set()
            may_end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    threading.Timer(0.1, may_end.set).start()
    made.close(0)
    thread.join()


def test_close_and_flush_of_a_fenced_producer_whose_commit_is_visible_do_not_raise() -> None:
    """An ordinary handover: the successor has published it. The next transaction is told."""
    for act in (Producer.flush, Producer.close):
        shared = world()
        made = deciding(shared)
        commit(made, "0")
        deciding(shared)
        shared.clock.advance_ms(DAY_MS)
        act(made)
        assert values(process(shared), "orders") == ["0"]
    with pytest.raises(ProducerFencedError):
        fenced_by_flush().begin_transaction()


def fenced_by_flush() -> Producer:
    shared = world()
    made = deciding(shared)
    commit(made, "0")
    deciding(shared)
    shared.clock.advance_ms(DAY_MS)
    made.flush()
    return made


def test_eager_transaction_that_meets_the_error_of_the_publisher_says_so() -> None:
    shared = world()
    made = deciding(shared, "eager")
    commit_refused(made, Fault.DENY)
    reports = Reports()
    made.begin_transaction()
    made.produce("stock", "1", partition=0, on_delivery=reports)
    with pytest.raises(TransactionAbortableError, match="is decided, and not visible"):
        made.commit_transaction()
    made.abort_transaction()
    made.poll()
    assert "decided" not in reports.received[0][0].context  # type: ignore[union-attr]
    allow_all(made)
    commit(made, "2")
    made.close()
    assert values(process(shared), "orders") == ["0", "2"]


def test_thread_of_a_dropped_producer_publishes_first() -> None:
    shared = world()
    dropped = [f"tx-{number}" for number in range(5)]
    for name in dropped:
        config = {"txnlog.root": "memory://", "transactional.id": name, "commit.wait": "decided"}
        made = Producer(config, cluster=process(shared))
        made.init_transactions()
        commit(made, name)
        del made
        gc.collect()
    deadline_s = time.monotonic() + 300
    while sorted(values(process(shared), "orders")) != dropped:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
