"""Upkeep beside a row that cannot be read: it removes nothing that the row may need."""

from __future__ import annotations

import pytest

from tests.admin.spoiled import (
    admin,
    spoil,
    two,
)
from tests.housekeeping.steps import DAY_MS, FOREVER, keep, names, written_both
from tests.world import (
    MINUTE_MS,
    TOPICS,
    both,
    consumed,
    eager,
    faults,
    owned,
    process,
    visible,
    world,
)
from txnlog.admin import AbortTransactionSpec
from txnlog.consumer import Consumer
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    CorruptLogError,
    StorePermissionError,
)
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.messages import TopicPartition
from txnlog.testing.faults import Fault


def test_sweeper_settles_the_others_and_logs_once() -> None:
    """Every client sweeps: one bad row must neither stop them nor fill their logs (R73)."""
    shared = two()
    first = process(shared)
    eager(first, owned(first, "run", tid="t"), "open")
    row = owned(first, "tx-run")
    first.coordinator.add_partitions(row, offsets=[consumed(5, 10)])
    spoil(shared, "tx", {"state": "?"})
    sweeper = Sweeper(process(shared))
    with pytest.raises(CorruptLogError) as raised:
        sweeper.sweep()
    assert raised.value.key == "tx"
    settled = 0
    for _ in range(8):
        shared.clock.advance_ms(10_000)
        settled += sweeper.sweep()
    assert settled == 2, "the open one, and a COMPLETE that was left"
    now = process(shared).coordinator.describe("t")
    assert now is not None
    assert now.state.is_idle


def test_vacuum_keeps_files_that_an_unreadable_row_may_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its manifest names staged files that nothing else names (D40, R72)."""
    shared = two(prepared=True)
    cluster = process(shared)
    gone = written_both(cluster, "gone")
    published = cluster.coordinator.commit(owned(cluster, "r", tid="published"), gone)
    complete(cluster, published)
    for batch in gone:
        log = cluster.topic(batch.topic)
        log.delete()
        log.create(partitions=2, config=FOREVER)
    spoil(shared, "tx", {"pending": "?"})
    shared.clock.advance_ms(30 * DAY_MS)
    cluster = process(shared)
    listed = {item.path for item in Vacuum(cluster).find()}
    Vacuum(process(shared)).run()
    assert "'tx' cannot be" in caplog.text
    for topic in TOPICS:
        left = names(cluster, topic)
        assert sorted(name for name in left if "held" in name)
        # A commit has removed it, so no manifest names it.
        assert not [name for name in left if "gone" in name]
        assert not [path for path in listed if "held" in path]
    admin(process(shared)).delete_transactions(["tx"])["tx"].result()
    Vacuum(process(shared)).run()
    for topic in TOPICS:
        assert not [name for name in names(cluster, topic) if "held" in name]


@pytest.mark.parametrize("producer_id", ["readable", None])
def test_producers_of_unreadable_rows_do_not_expire(producer_id: str | None) -> None:
    """Without its marker a topic would take a transaction's data twice (D41)."""
    shared = two()
    first = process(shared)
    row = owned(first, "tx-run")
    first.coordinator.commit(row, both(first, "a"))
    changes: dict[str, str | None] = {"state": "?"}
    if producer_id is None:
        changes["producer_id"] = None
    spoil(shared, "tx", changes)
    for _ in range(4):
        shared.clock.advance_ms(10 * DAY_MS)
        expiry = ProducerExpiry(process(shared))
        expiry.find()
        if producer_id is None:
            with pytest.raises(CorruptLogError):
                expiry.run()
        else:
            expiry.run()
    assert row.producer_id in process(shared).topic("orders").view.markers


def test_housekeeping_does_its_other_duties_and_fails_at_the_end() -> None:
    """The exit code of `txnlog housekeeping --once` reports that an operator must act."""
    shared = two()
    spoil(shared, "tx", {"state": "?"})
    keeper = Housekeeper(process(shared))
    with pytest.raises(CorruptLogError) as raised:
        keeper.run_once()
    keeper.close()
    assert "'tx'" in raised.value.message
    admin(process(shared)).delete_transactions(["tx"])["tx"].result()
    assert Housekeeper(process(shared)).run_once() is not None


def test_hanging_data_of_an_unreadable_row_is_not_aborted() -> None:
    """The row may have decided it as a commit, and other topics may show it (R21, R5)."""
    shared = two()
    first = process(shared)
    row = eager(first, owned(first, "tx-run"), "open")
    spoil(shared, "tx", {"owner": "?"})
    batch = both(first, "open")[0]
    spec = AbortTransactionSpec(
        topic_partition=TopicPartition(batch.topic, batch.partition),
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
    )
    with pytest.raises(CorruptLogError):
        admin(process(shared)).abort_transaction(spec).result()
    admin(process(shared)).delete_transactions(["tx"])["tx"].result()
    admin(process(shared)).abort_transaction(spec).result()
    assert visible(process(shared), "open") == (False, False)


@pytest.mark.parametrize("once", [False, True])
def test_offsets_that_cannot_be_read_keep_no_dead_members_elsewhere(once: bool) -> None:
    """Dead members stayed in every group while one shard could not be read (R37)."""
    shared = world(groups=(), offsets_shards=2)
    cluster = process(shared)
    names = {cluster.offsets_shard_of(name): name for name in ("a", "b", "c", "d")}
    for name in names.values():
        dead = Consumer({"group.id": name}, cluster=process(shared), background=False)
        dead.subscribe(["orders"])
        dead.poll(0)
    keeping = process(shared)
    faults(keeping).plan = lambda verb, path: (
        Fault.DENY if path.startswith("__consumer_offsets-0/") else Fault.NONE
    )
    keeper = Housekeeper(keeping)
    for _ in range(2 if once else 0):
        with pytest.raises(StorePermissionError):
            keeper.run_once()
        shared.clock.advance_ms(2 * MINUTE_MS)
    keep(shared, keeper, 0 if once else 2 * MINUTE_MS)
    groups = {number: process(shared).groups.describe(name) for number, name in names.items()}
    assert [len(groups[number].members) for number in (0, 1)] == [1, 0]  # type: ignore[union-attr]
