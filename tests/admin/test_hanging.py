"""What blocks readers now: open, decided, prepared and hanging transactions (R21)."""

from __future__ import annotations

import shlex
from contextlib import suppress

import pytest

from tests.admin.test_transactions_admin import HOUR_MS, forget, found_hanging, hang
from tests.admin.worlds import admin
from tests.world import (
    GROUP,
    MINUTE_MS,
    both,
    consumed,
    eager,
    faults,
    owned,
    prepared,
    process,
    visible,
    world,
)
from txnlog.admin import HangingTransaction
from txnlog.cluster import Cluster
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.messages import TopicPartition
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import Fault, FaultsAt, SimulatedCrash


def of_orders(cluster: Cluster, **limits: int) -> HangingTransaction:
    """The only entry of topic `orders`."""
    [found] = [one for one in found_hanging(cluster, **limits) if one.topic == "orders"]
    return found


def reading(start: int = 0, end: int = 5) -> GroupOffsets:
    """Offsets of a topic that is there."""
    return GroupOffsets(
        group_id=GROUP, generation=1, start={"stock": {0: start}}, end={"stock": {0: end}}
    )


def test_open_transaction_is_listed_at_once_with_its_owner_and_its_time_out() -> None:
    """Readers wait for it now, and an operator looks now (R21)."""
    shared = world()
    cluster = process(shared)
    owner = Owner(run_id="run", query_id="q1", query_name="hourly", host="driver", pid=7)
    row = cluster.coordinator.init_producer_id("tx", owner, timeout_ms=MINUTE_MS)
    began_ms = shared.clock.now_ms()
    eager(cluster, row, "x")
    found = of_orders(process(shared))
    assert (found.transactional_id, found.state) == ("tx", TransactionState.ONGOING)
    assert (found.start_offset, found.producer_epoch, found.groups) == (0, 0, ())
    assert found.since_ms == began_ms
    assert found.until_ms == began_ms + MINUTE_MS
    assert (found.owner, found.query_name) == (
        "query q1, run run on driver, process 7",
        "hourly",
    )
    assert found.command == "txnlog transactions abort --transactional-id=tx"


def test_age_is_that_of_the_files_and_can_be_limited() -> None:
    """A record's own timestamp (here 1970) is not its age."""
    shared = world()
    hang(shared, tid="young")
    cluster = process(shared)
    assert found_hanging(cluster, max_transaction_timeout_ms=1) == []
    shared.clock.advance_ms(HOUR_MS)
    assert of_orders(cluster, max_transaction_timeout_ms=HOUR_MS).duration_ms >= HOUR_MS
    assert found_hanging(cluster, max_transaction_timeout_ms=2 * HOUR_MS) == []


def test_prepared_transaction_is_listed_without_a_time_out() -> None:
    """Nobody but its client may decide it, and readers wait as for any other (KIP-939)."""
    shared = world()
    row = hang(shared, tid="two")
    cluster = process(shared)
    cluster.coordinator.prepare(row)
    found = of_orders(cluster)
    assert found.prepared_by_client
    assert (found.state, found.until_ms) == (TransactionState.ONGOING, None)


def test_group_whose_offsets_wait_for_a_prepared_transaction_is_named() -> None:
    """Its data is in no topic, but who reads next for the group waits (R46)."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    cluster.coordinator.prepare(row, both(cluster, "x"), offsets=[reading()])
    [found] = found_hanging(process(shared))
    assert (found.topic, found.partition, found.start_offset) == ("stock", 0, None)
    assert (found.groups, found.prepared_by_client) == ((GROUP,), True)


def test_open_transaction_with_offsets_blocks_their_readers_and_its_own() -> None:
    """One entry for each partition in which anybody waits."""
    shared = world()
    cluster = process(shared)
    eager(cluster, owned(cluster, "a"), "x", offsets=[reading()])
    found = [(one.topic, one.partition, one.groups) for one in found_hanging(process(shared))]
    assert found == [("orders", 0, ()), ("stock", 0, ()), ("stock", 0, (GROUP,))]


def test_decided_transaction_is_listed_until_it_is_published() -> None:
    """Its producer has an acknowledgement, and readers do not see it."""
    # Its records are of 1970.
    shared = world(config={"retention.ms": "-1"})
    prepared(shared)
    cluster = process(shared)
    shared.clock.advance_ms(MINUTE_MS)
    found = found_hanging(cluster)
    assert [(one.topic, one.start_offset) for one in found] == [("orders", None), ("stock", None)]
    assert {one.state for one in found} == {TransactionState.PREPARE_COMMIT}
    assert {one.until_ms for one in found} == {None}
    assert {one.duration_ms for one in found} == {MINUTE_MS}
    assert {one.command for one in found} == {"txnlog housekeeping --once"}
    Housekeeper(process(shared)).run_once()
    assert visible(process(shared), "mine") == (True, True)
    assert found_hanging(cluster) == []


def test_decided_eager_transaction_is_listed_where_it_is_not_settled() -> None:
    """Its process died between the markers of two topics."""
    shared = world()
    dying = process(shared)
    row = eager(dying, owned(dying, "a"), "x")
    faults(dying).plan = lambda verb, path: (
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("stock/_delta_log") else Fault.NONE
    )
    with suppress(SimulatedCrash):
        dying.coordinator.commit(row)
    found = [one for one in found_hanging(process(shared)) if one.topic == "stock"]
    assert [(one.state, one.start_offset) for one in found] == [
        (TransactionState.PREPARE_COMMIT, 0)
    ]


def test_hanging_transaction_has_no_state_and_the_command_for_each_partition() -> None:
    """Only an operator ends it (R21)."""
    shared = world()
    row = hang(shared)
    cluster = process(shared)
    forget(cluster, row)
    shared.clock.advance_ms(MINUTE_MS)
    found = of_orders(cluster)
    assert (found.state, found.transactional_id, found.owner) == (None, "", "")
    assert (found.until_ms, found.since_ms) == (None, shared.clock.now_ms() - MINUTE_MS)
    assert found.command == (
        f"txnlog transactions abort --topic=orders -p 0 --producer-id {row.producer_id} "
        "--producer-epoch 0"
    )


def test_data_of_an_epoch_that_its_row_has_left_is_hanging() -> None:
    """As after the topic was restored alone: its row is idle, or in a later transaction."""
    shared = world()
    cluster = process(shared)
    row = owned(cluster, "a")
    left = eager(cluster, row, "x")
    faults(cluster).plan = lambda verb, path: (
        Fault.CRASH_BEFORE if verb == "put" and path.startswith("stock/_delta_log") else Fault.NONE
    )
    with suppress(SimulatedCrash):
        cluster.coordinator.abort(left)
    forget(process(shared), left)
    later = process(shared)
    eager(later, owned(later, "b", tid="tx"), "xx")
    found = {
        (one.producer_id, one.state)
        for one in found_hanging(process(shared))
        if one.topic == "stock"
    }
    assert (left.producer_id, None) in found
    assert len(found) == 2


@pytest.mark.parametrize("ends", [True, False])
def test_transaction_that_begins_or_ends_while_rows_and_topics_are_read_is_never_hanging(
    ends: bool,
) -> None:
    """The command would abort a healthy one: a row that was read before it shows nothing."""
    for number in range(40):
        shared = world()
        other = process(shared)
        row = owned(other, "a")
        if ends:
            row = eager(other, row, "x")

        def meanwhile(row: TransactionMetadata = row, other: Cluster = other) -> None:
            if ends:
                row = other.coordinator.commit(row)
            eager(other, row, "xx")

        cluster = process(shared)
        plan = FaultsAt({}, interlude=meanwhile, interlude_at=number)
        faults(cluster).plan = plan
        found = found_hanging(cluster)
        assert all(one.state is not None for one in found), (number, found)
        if plan.calls <= number:
            break
    assert number > 5


def test_command_quotes_an_id_for_the_shell() -> None:
    """It is pasted as it is."""
    shared = world()
    cluster = process(shared)
    eager(cluster, owned(cluster, "a", tid="a b; $(touch F)"), "x")
    words = shlex.split(of_orders(cluster).command)
    assert words[-1] == "--transactional-id=a b; $(touch F)"


def test_only_the_partitions_asked_for_are_listed() -> None:
    """Of a transaction that blocks others, too."""
    shared = world()
    cluster = process(shared)
    eager(cluster, owned(cluster, "a"), "x", offsets=[consumed(0, 5)])
    asked = [TopicPartition("stock", 0)]
    found = admin(cluster).find_hanging(asked).result()
    assert [one.topic for one in found] == ["stock"]
    assert admin(cluster).find_hanging([TopicPartition("stock", 1)]).result() == []


def test_who_may_not_write_is_shown_what_blocks() -> None:
    """The store's time is that of a small write."""
    shared = world()
    hang(shared)
    cluster = process(shared)
    faults(cluster).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    assert len(found_hanging(cluster)) == 2
