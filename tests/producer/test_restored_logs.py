"""Producers over a root with one log restored alone: what is acknowledged is there (D131)."""

from __future__ import annotations

import pytest

from tests.coordinator.processes import process
from tests.coordinator.restoring import backup, restore
from tests.producer.worlds import BOTH, Reports, producer, read, started, values, world
from txnlog.errors import LogGapError, TxnLogError
from txnlog.producer import Producer
from txnlog.producing.requests import Idempotent
from txnlog.testing.faults import SharedMemory


def acknowledged(reports: Reports) -> dict[int, bytes]:
    """Offset -> value of each record that was reported without an error."""
    found = {message.offset(): message.value() for error, message in reports.received if not error}
    assert all(offset is not None and offset >= 0 for offset in found)
    return found


def assert_there(shared: SharedMemory, reports: Reports) -> None:
    there = dict(read(process(shared), "orders")[0])
    assert acknowledged(reports).items() <= there.items()


def write(made: Producer, name: str, reports: Reports) -> str:
    """The error of one transaction, "" without one."""
    try:
        with made.transaction():
            made.produce("orders", name, partition=0, on_delivery=reports)
    except TxnLogError as error:
        return type(error).__name__
    finally:
        made.poll()
    return ""


@BOTH
def test_records_of_a_restored_shard_are_never_acknowledged_and_lost(publish: str) -> None:
    """Six commits returned, and reported deliveries without offsets; no record was there (R4)."""
    shared = world()
    made = started(shared, publish)
    for name in ("a", "b"):
        assert not write(made, name, Reports())
    made.close()
    files = backup(shared, "__transaction_state")
    made = started(shared, publish)
    for number in range(4):
        assert not write(made, f"lost{number}", Reports())
    made.close()
    restore(shared, "__transaction_state", files)
    reports, errors = Reports(), []
    for number in range(12):
        made = started(shared, publish)
        errors.append(write(made, f"after{number}", reports))
        made.close()
        assert_there(shared, reports)
    # Each init raises the epoch: in the end it is past what was lost.
    assert errors[0]
    assert not errors[-1]
    assert "after11" in values(process(shared), "orders")


def test_refused_commit_ends_the_producer_with_an_error_that_says_what_to_restore() -> None:
    """Trying again would get it past the markers, and hide the loss (R42)."""
    shared = world()
    made = started(shared)
    files = backup(shared, "__transaction_state")
    assert [write(made, name, Reports()) for name in "ab"] == ["", ""]
    made.close()
    restore(shared, "__transaction_state", files)
    made, reports = started(shared), Reports()
    assert write(made, "c", reports) == "LogGapError"
    with pytest.raises(LogGapError, match="all tables of the root together"):
        made.begin_transaction()
    made.close()
    assert reports.errors == ["ClientStateError"]


def test_idempotent_producer_takes_another_id_where_its_own_is_in_use() -> None:
    """`__cluster` was restored: its first batch was taken for a repeat of another producer's."""
    shared = world()
    files = backup(shared, "__cluster")
    for name in ("first", "other"):
        made, reports = producer(shared), Reports()
        for number in range(3):
            made.produce("orders", f"{name}{number}", partition=0, on_delivery=reports)
            made.flush()
        made.close()
        assert len(acknowledged(reports)) == 3
        assert_there(shared, reports)
        restore(shared, "__cluster", files)
    assert len(values(process(shared), "orders")) == 6


def test_two_living_producers_with_one_id_never_share_a_partition() -> None:
    """Each finds the other's sequences at its first batch in a partition, and takes another id."""
    shared = world()
    files = backup(shared, "__cluster")
    first, mine = producer(shared), Reports()
    first.produce("orders", "a", partition=0, on_delivery=mine)
    first.flush()
    restore(shared, "__cluster", files)
    second, theirs = producer(shared), Reports()
    for partition in (1, 0):
        second.produce("orders", "b", partition=partition, on_delivery=theirs)
        second.flush()
    for partition in (0, 1):
        first.produce("orders", "c", partition=partition, on_delivery=mine)
        first.flush()
    assert len(mine.offsets) == 3
    assert len(theirs.offsets) == 2
    assert sorted(values(process(shared), "orders")) == ["a", "b", "b", "c", "c"]


def test_clone_of_a_producer_takes_another_id() -> None:
    """A copy of a running machine sends the same sequences in other files (R2)."""
    shared = world()
    first, reports = producer(shared), Reports()
    first.produce("orders", "a", partition=0, on_delivery=reports)
    first.flush()
    clone = producer(shared)
    clone.produce("orders", "of the clone", partition=0, on_delivery=reports)
    of_first, of_clone = first._sender.publication, clone._sender.publication
    assert isinstance(of_first, Idempotent)
    assert isinstance(of_clone, Idempotent)
    of_clone._producer_id = of_first._producer_id
    of_clone._next_sequences = dict(of_first._next_sequences)
    first.produce("orders", "b", partition=0, on_delivery=reports)
    first.flush()
    clone.flush()
    first.produce("orders", "c", partition=0, on_delivery=reports)
    first.flush()
    assert values(process(shared), "orders") == ["a", "b", "of the clone", "c"]
    assert acknowledged(reports).keys() <= {0, 1, 2, 3}


def test_prepared_transaction_that_a_restored_shard_holds_again_is_not_committed() -> None:
    """It was aborted in the topic: its commit returned, and no reader ever saw the record."""
    shared = world()
    made = started(shared, "eager")
    made.begin_transaction()
    made.produce("orders", "held", partition=0)
    state = made.prepare_transaction()
    files = backup(shared, "__transaction_state")
    assert not started_again(shared, "eager").complete_transaction(None)
    restore(shared, "__transaction_state", files)
    with pytest.raises(LogGapError, match="Nothing was committed"):
        started_again(shared, "eager").complete_transaction(state)
    assert dict(read(process(shared), "orders")[0]) == {}


def test_prepared_transaction_whose_file_is_gone_is_not_committed() -> None:
    """Its topic was restored alone: the records were acknowledged, and those after them could not
    be read.
    """
    shared = world()
    files = backup(shared, "orders/")
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", "held", partition=0)
    state = made.prepare_transaction()
    restore(shared, "orders/", files)
    with pytest.raises(LogGapError, match="has prepared orders/part-0-"):
        started_again(shared).complete_transaction(state)
    assert dict(read(process(shared), "orders")[0]) == {}


def started_again(shared: SharedMemory, publish: str = "deferred") -> Producer:
    made = producer(shared, "tx", publish)
    made.init_transactions(keep_prepared=True)
    return made
