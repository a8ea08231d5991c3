"""A topic is restored alone, with its data: no header names a file that is gone (D131)."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from tests.coordinator.restoring import backup, remove_all, restore
from tests.world import (
    TOPICS,
    both,
    owned,
    process,
    row_of,
    staged,
    state_of,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import LogGapError
from txnlog.protocol.states import TransactionState
from txnlog.testing.faults import SharedMemory, VirtualClock

DAY_MS = 24 * 3_600_000


def restored(prefix: str) -> SharedMemory:
    """A transaction of both topics whose producer died before COMPLETE; what begins so is older."""
    shared = world()
    files = backup(shared, prefix)
    first = process(shared)
    first.coordinator.commit(owned(first, "a"), both(first, "mine"))
    restore(shared, prefix, files)
    return shared


def start(cluster: Cluster) -> None:
    owned(cluster, "successor")


def fetch(cluster: Cluster) -> None:
    row = row_of(cluster)
    assert row.state is TransactionState.PREPARE_COMMIT
    finish(cluster, row)


def sweep(cluster: Cluster) -> None:
    sweeper = Sweeper(cluster, interval_ms=1)
    sweeper.sweep()
    cluster.store.clock.advance_ms(60_000)
    sweeper.sweep()


@pytest.mark.parametrize("act", [start, fetch, sweep])
def test_transaction_is_not_published_again_in_a_topic_whose_folder_was_restored(
    act: Callable[[Cluster], None],
) -> None:
    """A header whose file is gone stopped every reader of the topic, for ever."""
    shared = restored("orders")
    with pytest.raises(LogGapError, match="all tables of the root together") as failure:
        act(process(shared))
    assert failure.value.context["topic"] == "orders"
    assert visible(process(shared), "mine") == (False, True)
    assert state_of(process(shared)) is TransactionState.PREPARE_COMMIT


def test_transaction_is_published_again_in_a_topic_whose_log_was_restored() -> None:
    """Its file is there: nothing is lost."""
    shared = restored("orders/_delta_log")
    owned(process(shared), "successor")
    assert visible(process(shared), "mine") == (True, True)


def test_helper_that_knew_the_topic_before_it_was_published_looks_for_no_file() -> None:
    """Compaction and vacuum may have deleted the file since: the marker is there."""
    shared = world()
    first, helper = process(shared), process(shared)
    helper.topic("orders"), helper.topic("stock")
    first.coordinator.commit(owned(first, "a"), both(first, "mine"))
    for name in TOPICS:
        first.topic_log(name).transact(remove_all)
        first.store.delete([f"{name}/{batch.path}" for batch in row_of(first).pending.batches])
    finish(helper, row_of(helper))
    assert state_of(process(shared)) is TransactionState.COMPLETE_COMMIT


def test_clock_of_who_decided_does_not_say_for_how_long_a_removed_file_is_missed() -> None:
    """It was ahead: once the tombstones were forgotten, nothing lost was taken for lost."""
    shared = world()
    ahead = VirtualClock()
    ahead.advance_ms(400 * DAY_MS + shared.clock.now_ms())
    first = process(shared, clock=ahead)
    first.coordinator.commit(owned(first, "a"), [staged(first, "orders", "mine")])
    log = first.topic_log("orders")
    log.transact(remove_all)
    shared.clock.advance_ms(20 * DAY_MS)
    with patch("txnlog.coordinator.staged_files.read_tombstones", lambda *_, **__: {}):
        owned(process(shared), "successor")
    assert state_of(process(shared)) is not TransactionState.PREPARE_COMMIT
