"""What is logged when a producer, reader or member is fenced: who, by whom, from and to, why."""

from __future__ import annotations

import logging

import pytest

from tests.world import (
    GROUP,
    MINUTE_MS,
    both,
    consumed,
    eager,
    owned,
    prepared,
    process,
    recover,
    world,
)
from txnlog.admin.transactions import fence_producer
from txnlog.coordinator.sweeper import Sweeper
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.protocol.group_metadata import Member
from txnlog.protocol.membership import prepare_join

Lines = list[tuple[str, str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "txnlog")
    return caplog


def lines(logged: pytest.LogCaptureFixture) -> Lines:
    """(level, text) of what was logged since the last call."""
    found = [(one.levelname, one.getMessage()) for one in logged.records]
    logged.clear()
    return found


def test_successor_of_an_idle_producer_is_told_at_info(logged: pytest.LogCaptureFixture) -> None:
    cluster = process(world())
    owned(cluster, "first")
    owned(cluster, "first")
    assert not [text for _, text in lines(logged) if "transactional.id" in text]
    owned(cluster, "second")
    [(level, text)] = lines(logged)
    assert level == "INFO"
    assert text == (
        "transactional.id 'tx', epoch 0 -> 1: first on , process 0 was fenced by second on , "
        "process 0: taken over by a newer start"
    )


def test_successor_that_aborts_an_open_transaction_warns(logged: pytest.LogCaptureFixture) -> None:
    """Two programs with one transactional.id abort each other: this is the line that says so."""
    cluster = process(world())
    eager(cluster, owned(cluster, "first"), "a")
    lines(logged)
    owned(cluster, "second")
    [(level, text)] = lines(logged)
    assert level == "WARNING"
    assert "epoch 0 -> 1: first" in text
    assert text.endswith("its open transaction of epoch 0 is aborted")


def test_successor_beside_a_decided_transaction_says_that_it_will_be_published(
    logged: pytest.LogCaptureFixture,
) -> None:
    shared = world()
    prepared(shared)
    lines(logged)
    owned(process(shared), "second")
    [(level, text)] = [one for one in lines(logged) if "transactional.id" in one[1]]
    assert level == "INFO"
    assert text.endswith("its decided transaction of epoch 0 will be published")


def test_sweeper_names_itself_and_the_timeout(logged: pytest.LogCaptureFixture) -> None:
    shared = world()
    cluster = process(shared)
    eager(cluster, owned(cluster, "slow"), "a")
    sweeper = Sweeper(process(shared), interval_ms=2 * MINUTE_MS)
    sweeper.sweep()
    shared.clock.advance_ms(2 * MINUTE_MS)
    lines(logged)
    assert sweeper.sweep() == 1
    [(level, text)] = lines(logged)
    assert level == "WARNING"
    assert text.startswith("transactional.id 'tx', epoch 0 -> 1: slow on , process 0 was fenced")
    assert "by the sweeper of process" in text
    assert "timed out (transaction.timeout.ms=60000)" in text


def test_operator_that_fences_is_named_with_the_reason(logged: pytest.LogCaptureFixture) -> None:
    cluster = process(world())
    owned(cluster, "first")
    lines(logged)
    fence_producer(cluster, "tx", by="ann", reason="it is stuck")
    [(level, text)] = lines(logged)
    assert (level, "epoch 0 -> 1" in text) == ("INFO", True)
    assert text.endswith("was fenced by ann: it is stuck")
    fence_producer(cluster, "tx", by="ann", reason="again")
    assert not lines(logged)


def test_expiry_of_an_id_is_told(logged: pytest.LogCaptureFixture) -> None:
    shared = world()
    cluster = process(shared)
    owned(cluster, "first")
    keeper = Housekeeper(cluster, HousekeepingSettings())
    for _ in range(8 * 24):
        keeper.run_once()
        shared.clock.advance_ms(60 * MINUTE_MS)
    [(level, text)] = [one for one in lines(logged) if "expired" in one[1]]
    assert level == "INFO"
    assert "transactional.id 'tx', producer id 0, epoch 0: expired" in text
    assert "first on" in text


def test_generation_from_outside_says_which_producer_may_commit_no_offsets(
    logged: pytest.LogCaptureFixture,
) -> None:
    """A Spark query, or a consumer with assign(), starts in the group of a copying producer."""
    cluster = process(world())
    row = owned(cluster, "first")
    cluster.coordinator.commit(row, both(cluster, "a"), offsets=[consumed(0, 10)])
    lines(logged)
    cluster.groups.start(GROUP)
    found = lines(logged)
    assert [level for level, _ in found] == ["INFO", "INFO"]
    assert found[0][1] == (
        "Group 'readers', generation 1: generation 2 begins with no members, by a "
        "reader of group 'readers'"
    )
    assert found[1][1].endswith(
        "first on , process 0 may no longer commit offsets of group 'readers' below ticket 2: "
        "fenced by a reader of group 'readers'"
    )


def test_reader_that_aborts_an_open_transaction_with_offsets_warns(
    logged: pytest.LogCaptureFixture,
) -> None:
    cluster = process(world())
    eager(cluster, owned(cluster, "first"), "a", offsets=[consumed(0, 10)])
    lines(logged)
    cluster.groups.start(GROUP)
    found = [text for level, text in lines(logged) if level == "WARNING"]
    assert len(found) == 1
    assert "was fenced by a reader of group 'readers'" in found[0]
    assert found[0].endswith("its open transaction of epoch 0 is aborted")


def test_generation_from_outside_of_a_group_with_members_warns(
    logged: pytest.LogCaptureFixture,
) -> None:
    cluster = process(world())
    cluster.groups.change_members(
        GROUP,
        lambda group: prepare_join(
            group,
            group_id=GROUP,
            member_id="m1",
            member=Member(topics=("orders",)),
            released=-1,
            counts={"orders": 2},
            now_ms=0,
        ),
        by="m1",
    )
    assert lines(logged)[-2:] == [
        ("INFO", "Group 'readers', generation 1: member m1 joins"),
        ("INFO", "Group 'readers', generation 1: generation 2 begins with 1 member (m1), by m1"),
    ]
    cluster.groups.start(GROUP)
    assert lines(logged) == [
        (
            "WARNING",
            "Group 'readers', generation 2: generation 3 was begun by a reader of group "
            "'readers', from outside: it fences 1 member (m1), to rejoin",
        )
    ]


def test_recovery_without_fencing_says_nothing(logged: pytest.LogCaptureFixture) -> None:
    """Finishing what a dead process has decided fences nobody."""
    shared = world()
    prepared(shared)
    lines(logged)
    recover(shared)
    assert not [text for _, text in lines(logged) if "fenced" in text]
