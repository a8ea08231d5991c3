"""Producers over a root with one log restored alone: what is acknowledged is there (D131)."""

from __future__ import annotations

import pytest

from tests.coordinator.restoring import backup, restore
from tests.producer.following import commit
from tests.producer.worlds import BOTH, Reports, producer, read, started, values, world
from tests.world import position, process
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
    with pytest.raises(LogGapError, match="nothing was committed there"):
        started_again(shared).complete_transaction(state)
    assert dict(read(process(shared), "orders")[0]) == {}


def started_again(shared: SharedMemory, publish: str = "deferred") -> Producer:
    made = producer(shared, "tx", publish)
    made.init_transactions(keep_prepared=True)
    return made


def two_with_one_id(shared: SharedMemory, publish: str) -> tuple[Producer, Producer]:
    """Producers of two transactional ids, to whom a restored `__cluster` gave one producer id."""
    commit(started(shared, name="warm"), "warm", input_offset=1)
    files = backup(shared, "__cluster")
    first = started(shared, publish, name="first")
    restore(shared, "__cluster", files)
    return first, started(shared, publish, name="second")


def test_eager_commit_is_refused_where_another_has_ended_its_records() -> None:
    """The other's abort had dropped them, and the commit returned: its topic was not read again."""
    shared = world()
    first, second = two_with_one_id(shared, "eager")
    for made, partition in ((first, 0), (second, 1)):
        made.begin_transaction()
        made.produce("orders", "x", partition=partition)
        made.flush()
    first.abort_transaction()
    with pytest.raises(LogGapError):
        second.commit_transaction()
    assert values(process(shared), "orders") == ["warm"]


def test_commit_is_refused_where_another_has_ended_above_its_offsets() -> None:
    """A marker of a later epoch was taken for its own, and its offsets were not moved."""
    shared = world()
    first, second = two_with_one_id(shared, "deferred")
    commit(second, "y", input_offset=5)
    for _ in range(5):
        first = started(shared, name="first")
    commit(first, "x", input_offset=6)
    with pytest.raises(LogGapError):
        commit(second, "z", input_offset=7)
    assert position(process(shared)) == 6


@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_commit_publishes_no_transaction_whose_row_is_lost(publish: str) -> None:
    """It was never decided, and its epoch is below that of the commit, which marks it aborted."""
    shared = world()
    commit(started(shared, "eager"), "before")
    dead = started(shared, "eager")
    files = backup(shared, "__transaction_state")
    dead.begin_transaction()
    dead.produce("orders", "never committed", partition=0)
    dead.flush()
    restore(shared, "__transaction_state", files)
    commit(started(shared, publish), "after")
    assert values(process(shared), "orders") == ["before", "after"]


def test_prepared_records_that_a_restored_topic_has_lost_are_not_committed() -> None:
    """complete_transaction returned True, and the record was gone."""
    shared = world()
    commit(started(shared, "eager"), "before")
    files = backup(shared, "orders")
    made = started(shared, "eager")
    made.begin_transaction()
    made.produce("orders", "prepared", partition=0)
    state = made.prepare_transaction()
    restore(shared, "orders", files)
    again = producer(shared, "tx", "eager")
    again.init_transactions(keep_prepared=True)
    with pytest.raises(LogGapError, match="does not have them"):
        again.complete_transaction(state)
