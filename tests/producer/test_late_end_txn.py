"""The flaw that Jepsen showed in Kafka's protocol: a late EndTxn ends a later transaction.

In Kafka the late request and the next transaction have the same producer id and epoch. Here every
end of a transaction raises the epoch (D4), and a put has one version; so a late write, on any path,
finds its own transaction or none (R31).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from msgspec.structs import replace

from tests.producer.worlds import BOTH, cluster_of, group, input_at, started, values, world
from tests.world import check_settled, finish_read, process, recover
from txnlog.coordinator.fencing import time_out
from txnlog.errors import OperationTimedOutError, TxnLogError
from txnlog.producer import Producer
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.transitions import as_completed
from txnlog.storage.delta.readings import Reading
from txnlog.testing.faults import Fault, SharedMemory

Late = Callable[[], object]
"""A write that arrives after the next transaction has begun."""

ENDS = ("commit", "abort")


def opened(made: Producer, value: str, position: int) -> None:
    made.begin_transaction()
    made.produce("orders", value, partition=0)
    made.flush()
    made.send_offsets_to_transaction(input_at(position), group())


def end(made: Producer, how: str) -> None:
    if how == "commit":
        made.commit_transaction()
    else:
        made.abort_transaction()


def row_of(shared: SharedMemory) -> TransactionMetadata:
    row = process(shared).coordinator.describe("tx")
    assert row is not None
    return row


def end_whose_put_is_late(shared: SharedMemory, made: Producer, how: str) -> Late:
    """The client timed out, retried and got a reply; the first put is still in flight."""
    call = made.commit_transaction if how == "commit" else made.abort_transaction
    if how == "abort" and not made._transactions.is_eager:
        # The transaction has written nothing, so the abort writes nothing.
        call()
        return shared.land_late
    store = cluster_of(made).store
    store.plan = lambda verb, path: (
        Fault.LAND_LATE if verb == "put" and "__transaction_state" in path else Fault.NONE
    )
    try:
        with pytest.raises(OperationTimedOutError):
            call(timeout=40)
    finally:
        store.plan = lambda verb, path: Fault.NONE
    call()
    return shared.land_late


def end_by_another_coordinator(shared: SharedMemory, made: Producer, how: str) -> Late:
    """A repeat of a request that was answered, at another process, as by a proxy's retry."""
    before = made._transactions.session.row if made._transactions.is_eager else row_of(shared)
    end(made, how)
    late = process(shared).coordinator
    return lambda: late.commit(before) if how == "commit" else late.abort(before)


def helper_that_paused(shared: SharedMemory, made: Producer, how: str) -> Late:
    """It has read the decided row, and writes markers and COMPLETE when it resumes."""
    found: list[TransactionMetadata] = []
    store = cluster_of(made).store

    def read_after_prepare(verb: str, path: str) -> Fault:
        row = row_of(shared) if verb == "put" and not found else None
        if row is not None and row.state.is_prepared:
            found.append(row)
        return Fault.NONE

    store.plan = read_after_prepare
    end(made, how)
    store.plan = lambda verb, path: Fault.NONE
    helper = process(shared)
    reading = Reading.begin(helper.store.clock)
    return lambda: [finish_read(helper, row, reading) for row in found]


def time_out_that_paused(shared: SharedMemory, made: Producer, how: str) -> Late:
    """A sweeper has found the transaction timed out, and decides when it resumes."""
    row = row_of(shared)
    end(made, how)
    late = process(shared)
    return lambda: time_out(late, row, by="a sweeper that paused")


def once_completed(row: TransactionMetadata) -> TransactionMetadata:
    """The row after the COMPLETE that a producer leaves to its next commit, or anybody writes."""
    completed = as_completed(row) if row.state.is_prepared else row
    return replace(completed, path="")


PATHS = [
    end_whose_put_is_late,
    end_by_another_coordinator,
    helper_that_paused,
    time_out_that_paused,
]


@BOTH
@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", ENDS)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_jepsen_late_end_txn_never_ends_a_later_transaction(
    publish: str, first: str, second: str, path: Callable[[SharedMemory, Producer, str], Late]
) -> None:
    """The next transaction ends as its producer asks, whenever the write lands (R31, R32, R36)."""
    shared = world()
    made = started(shared, publish)
    opened(made, "first", 5)
    late = path(shared, made, first)
    opened(made, "second", 9)
    before = once_completed(row_of(shared))
    with suppress(TxnLogError):
        late()
    assert once_completed(row_of(shared)) == before
    end(made, second)
    expected = [name for name, how in (("first", first), ("second", second)) if how == "commit"]
    assert values(process(shared), "orders") == expected
    place = {"first": 5, "second": 9}
    found = process(shared).groups.fetch(group().group_id).get("input", {}).get(0)
    assert found == (max(place[name] for name in expected) if expected else None)
    check_settled(shared)


@BOTH
@pytest.mark.parametrize("second", ENDS)
def test_jepsen_late_end_txn_of_a_zombie_never_ends_its_successors_transaction(
    publish: str, second: str
) -> None:
    """The client is gone, its commit in flight: another instance has begun meanwhile (R31, R44)."""
    shared = world()
    zombie = started(shared, publish)
    opened(zombie, "zombie", 5)
    store = cluster_of(zombie).store
    store.plan = lambda verb, path: (
        Fault.LAND_LATE if verb == "put" and "__transaction_state" in path else Fault.NONE
    )
    with pytest.raises(OperationTimedOutError):
        zombie.commit_transaction(timeout=40)
    successor = started(shared, publish)
    opened(successor, "successor", 9)
    before = row_of(shared)
    assert not [path for path in shared.land_late() if "_delta_log" in path]
    assert row_of(shared) == before
    end(successor, second)
    assert values(process(shared), "orders") == (["successor"] if second == "commit" else [])
    recover(shared)
