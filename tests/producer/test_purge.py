"""Producer.purge and Producer.list_topics, as confluent-kafka's."""

from __future__ import annotations

import pytest

from tests.producer.worlds import (
    BOTH,
    TOPICS,
    Reports,
    cluster_of,
    producer,
    started,
    values,
    world,
)
from tests.world import faults, process, state_of
from txnlog.errors import (
    ClientStateError,
    RecordPurgedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault
from txnlog.testing.invariants import check_cluster

PURGED = RecordPurgedError.__name__


def stuck(verb: str, path: str) -> Fault:
    """Fail all calls to the log of topic `orders`; the outcome of its puts is unknown."""
    return Fault.FAIL_BEFORE if path.startswith("orders/_delta_log") else Fault.NONE


def test_purged_records_are_reported_to_their_callbacks_and_never_written() -> None:
    """Records in memory are discarded; the producer stays usable."""
    shared = world()
    made, reports = producer(shared, linger_ms=10_000), Reports()
    for number in range(3):
        made.produce("orders", f"no-{number}", on_delivery=reports)
    made.purge()
    assert len(made) == 3
    assert made.poll() == 3
    assert reports.errors == [PURGED] * 3
    assert len(made) == 0
    made.produce("orders", "yes", on_delivery=reports)
    made.flush()
    assert values(process(shared), "orders") == ["yes"]


def test_purge_in_queue_keeps_records_in_flight_and_vice_versa() -> None:
    """Only records in flight may be in the topic; the caller chooses which to discard."""
    shared = world()
    made, reports = producer(shared, linger_ms=10_000, delivery_timeout_ms=3_600_000), Reports()
    for purge_in_queue in (True, False):
        name = "queue" if purge_in_queue else "flight"
        # The topic's metadata is read before the outage.
        made.produce("orders", f"{name}-tried", partition=0, on_delivery=reports)
        faults(cluster_of(made)).plan = stuck
        made.flush(0)
        made.produce("orders", f"{name}-waits", partition=0, on_delivery=reports)
        made.purge(in_queue=purge_in_queue, in_flight=not purge_in_queue)
        faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE
        made.flush()
    assert values(process(shared), "orders") == ["queue-tried", "flight-waits"]
    assert reports.errors == [PURGED] * 2
    check_cluster(process(shared))


def test_purge_of_a_batch_that_landed_is_not_taken_for_the_next_one() -> None:
    """A new batch with the old sequences would be taken for a repeat, and be lost (R2)."""
    shared = world()
    made, reports = producer(shared, delivery_timeout_ms=3_600_000), Reports()
    made.produce("orders", "first", partition=0)
    made.flush()
    made.produce("orders", "landed", partition=0, on_delivery=reports)
    faults(cluster_of(made)).plan = lambda verb, path: (
        Fault.LAND_LATE
        if verb == "put" and path.startswith("orders/_delta_log")
        else Fault.FAIL_BEFORE
        if path.startswith("orders/_delta_log")
        else Fault.NONE
    )
    made.flush(0)
    made.purge()
    assert shared.land_late()
    faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE
    made.produce("orders", "next", partition=0, on_delivery=reports)
    made.flush()
    assert values(process(shared), "orders") == ["first", "landed", "next"]
    assert reports.errors == [PURGED]
    assert reports.offsets == [("orders", 0, 2)]


@BOTH
def test_purge_in_a_transaction_leaves_only_the_abort(publish: str) -> None:
    """A commit of the remaining records would be a torn transaction (R40)."""
    shared = world()
    made, reports = started(shared, publish), Reports()
    made.begin_transaction()
    made.produce("orders", "sent", on_delivery=reports)
    made.flush()
    made.produce("orders", "no", on_delivery=reports)
    made.purge()
    with pytest.raises(TransactionAbortableError, match="purge"):
        made.commit_transaction()
    with pytest.raises(TransactionAbortableError, match="purge"):
        made.produce("orders", "more")
    made.abort_transaction()
    made.poll()
    assert reports.errors == ([PURGED] * 2 if publish == "deferred" else [PURGED])
    with made.transaction():
        made.produce("orders", "yes")
    assert values(process(shared), "orders") == ["yes"]
    made.close()
    assert state_of(process(shared)) is TransactionState.COMPLETE_COMMIT


@BOTH
def test_purge_with_nothing_to_discard_changes_nothing(publish: str) -> None:
    """Between transactions, in an empty one, and where only the other kind of records waits."""
    shared = world()
    made = producer(shared, "tx", publish)
    made.purge()
    made.init_transactions()
    made.purge()
    made.begin_transaction()
    made.purge()
    made.produce("orders", "yes")
    made.purge(in_queue=False)
    made.commit_transaction()
    made.purge()
    assert values(process(shared), "orders") == ["yes"]
    made.close()
    with pytest.raises(ClientStateError):
        made.purge()


def test_list_topics_shows_partitions_and_missing_topics() -> None:
    """A missing topic comes with its error, as in confluent-kafka."""
    shared = world()
    made = producer(shared)
    found = made.list_topics(timeout=5)
    assert sorted(found.topics) == sorted(TOPICS)
    assert sorted(found.topics["orders"].partitions) == [0, 1]
    assert list(made.list_topics("stock").topics) == ["stock"]
    missing = made.list_topics("nothing").topics["nothing"]
    assert isinstance(missing.error, UnknownTopicOrPartitionError)
