"""What is tried again is said at once: once for each cause and place, and when it works again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.admin.worlds import admin
from tests.consumer import records
from tests.consumer.records import member, put, read, turn
from tests.producer.worlds import cluster_of, producer, started
from tests.world import MINUTE_MS, faults, prepared, process, world
from txnlog.admin import NewPartitions
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.consuming.heartbeat_thread import HeartbeatThread
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import (
    BufferExhaustedError,
    NothingWrittenError,
    OperationTimedOutError,
    StorageError,
    TxnLogError,
)
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.process.client_events import ClientEvents
from txnlog.process.clock import VirtualClock
from txnlog.process.failures import combined
from txnlog.process.retries import Retries
from txnlog.storage.delta.log_settings import LogSettings
from txnlog.testing.faults import Fault, Plan, SharedMemory, no_faults

INLINE = LogSettings(checkpoint_interval=2, checkpoint_mode="inline")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[int, str]]]:
    """(level, text) of the lines about retries since the last call."""
    caplog.set_level(logging.INFO, "txnlog")

    def lines() -> list[tuple[int, str]]:
        found = [(one.levelno, one.getMessage()) for one in caplog.records]
        caplog.clear()
        signs = ("is tried again", "works again")
        return [line for line in found if any(sign in line[1] for sign in signs)]

    return lines


Said = Callable[[], list[tuple[int, str]]]


def full(path: str, code: str = "ENOSPC") -> NothingWrittenError:
    return NothingWrittenError(
        f"/lake/{path}: nothing was written ({code}). The disk is full: make room, then try again.",
        path=path,
        store_error="OSError",
        store_code=code,
    )


def refuse(folder: str, verb: str = "put", fault: Fault = Fault.FAIL_BEFORE) -> Plan:
    """Each such call below a folder fails."""
    return lambda what, path: fault if what == verb and path.startswith(folder) else Fault.NONE


def check_said(lines: list[tuple[int, str]], *parts: str) -> None:
    """One WARNING, with all of these parts."""
    [(level, text)] = lines
    assert level == logging.WARNING
    for part in parts:
        assert part in text


def check_works(lines: list[tuple[int, str]], what: str) -> None:
    """It is said that it works again."""
    assert [level for level, text in lines if what in text] == [logging.INFO], lines


def grow_to(cluster: Cluster, partitions: int) -> None:
    grown = admin(cluster).create_partitions([NewPartitions("orders", partitions)])
    grown["orders"].result()


# --- The lines ------------------------------------------------------------------------------------


def test_first_failure_says_what_is_tried_again_until_when_and_what_to_do(said: Said) -> None:
    """After the time-out of two minutes the disk may be full of other things."""
    Retries(lambda: 0).failed("t", "Sending to 't'", full("t/part-1"), until="for up to 60 s")
    check_said(said(), "Sending to 't' failed and is tried again for up to 60 s", "make room")


def test_repeated_failures_are_said_once_for_each_cause_and_place(said: Said) -> None:
    """A retry each 100 ms would fill the log, and the disk."""
    clock = VirtualClock()
    retries = Retries(clock.boot_ms)
    for _ in range(600):
        clock.advance_ms(100)
        for place in ("t", "u"):
            for code in ("ENOSPC", "EACCES"):
                retries.failed(place, f"Sending to {place}", full(f"{place}/x", code), until="soon")
    assert len(said()) == 4
    retries.worked("t")
    assert [text for _, text in said()] == ["Sending to t works again, after 59.9 s."] * 2
    retries.worked("t")
    assert not said()
    retries.failed("t", "Sending to t", full("t/x"), until="soon")
    retries.failed("u", "Sending to u", full("u/x"), until="soon")
    check_said(said(), "Sending to t")


def test_each_part_of_a_combined_error_is_said_once(said: Said) -> None:
    """A topic that fails for hours must not hide that another one begins to."""
    retries = Retries(lambda: 0)
    a, b = full("a/x"), full("b/x")
    retries.failed("vacuum", "Vacuum", a, until="soon")
    retries.failed("vacuum", "Vacuum", combined("Vacuum", [("a", a), ("b", b)]), until="soon")
    assert ["/lake/b" in text for _, text in said()] == [False, True]


def test_damage_does_not_work_again(said: Said) -> None:
    """What is reported once per process is still damaged when it is not reported again."""
    retries = Retries(lambda: 0)
    retries.failed("sweep", "Sweeping", TxnLogError("a row is damaged"), until="soon")
    said()
    retries.worked("sweep")
    assert not said()


# --- Producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["orders/part-", "orders/_delta_log"])
def test_record_that_cannot_be_sent_is_said_at_the_first_try(folder: str, said: Said) -> None:
    """Not after delivery.timeout.ms, when it is lost."""
    shared = world()
    sending = producer(shared, linger_ms=0)
    began_ms = shared.clock.boot_ms()
    faults(cluster_of(sending)).plan = refuse(folder)
    sending.produce("orders", b"x", partition=0)
    sending.poll(0)
    found = said()
    check_said(found[:1], "orders", "is tried again")
    if folder.endswith("part-"):
        assert "until delivery.timeout.ms=120000 is over" in found[0][1]
        assert shared.clock.boot_ms() - began_ms < 1_000
    for _ in range(3):
        sending.poll(0)
    assert len(found) + len(said()) <= 2
    faults(cluster_of(sending)).plan = no_faults
    sending.poll(0)
    check_works(said(), "orders")


def test_call_that_is_retried_until_its_deadline_says_it_at_once(said: Said) -> None:
    """commit_transaction() waits for max.block.ms, a minute, before it raises."""
    shared = world()
    made = started(shared)
    made.begin_transaction()
    made.produce("orders", b"x", partition=0)
    faults(cluster_of(made)).plan = refuse("orders/part-")
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=5)
    check_said(said(), "commit_transaction() failed and is tried again for up to 5 s", "orders")
    with pytest.raises(OperationTimedOutError):
        made.commit_transaction(timeout=5)
    assert not said()
    faults(cluster_of(made)).plan = no_faults
    made.commit_transaction()
    check_works(said(), "commit_transaction()")


def test_wait_for_another_client_is_no_failure(said: Said) -> None:
    """init_transactions() finishes what a former owner has decided; nothing is wrong."""
    shared = world()
    prepared(shared)
    started(shared, name="tx")
    assert not said()


def test_file_of_a_deferred_transaction_that_cannot_be_written_is_said_before_the_commit(
    said: Said,
) -> None:
    """The commit may be hours later."""
    shared = world()
    made = started(shared, buffer_memory=10_000)
    made.begin_transaction()
    faults(cluster_of(made)).plan = refuse("orders/part-")

    def fill() -> None:
        for _ in range(30):
            made.produce("orders", b"x" * 1_000, partition=0)

    with pytest.raises(BufferExhaustedError):
        fill()
    assert sum("by commit_transaction()" in text for _, text in said()) == 1


def test_commit_in_doubt_is_said_while_it_is_settled(said: Said) -> None:
    """Nobody knows for half a minute whether it landed, and three times that for one call."""
    cluster = process(world())
    log = cluster.topic("orders")
    faults(cluster).plan = refuse("orders/_delta_log")
    with pytest.raises(StorageError):
        grow_to(cluster, 3)
    check_said(said(), "A commit to orders failed and is tried again for up to 30 s")
    faults(cluster).plan = no_faults
    grow_to(cluster, 3)
    check_works(said(), "A commit to orders")
    assert log.partitions == 3


# --- Consumers ------------------------------------------------------------------------------------


def consuming() -> tuple[SharedMemory, Consumer, Callable[[Plan], None]]:
    """A member of group g, and a setter of the plan of all its stores."""
    shared = records.world()
    made = member(shared)
    turn(shared, made)
    session = made._consumption().require_session()
    clusters = [made._consumption().cluster, session._background_cluster]

    def plan(wanted: Plan) -> None:
        for cluster in clusters:
            faults(cluster).plan = wanted

    return shared, made, plan


def test_failed_heartbeats_are_said_once_and_the_next_that_is_written_says_so(said: Said) -> None:
    """A disk that is full for an hour would give 1,200 lines for each member."""
    _, made, plan = consuming()
    session = made._consumption().require_session()
    clock = session._background_cluster.store.clock
    events = ClientEvents(error_cb=None, stats_cb=None, interval_ms=0, boot_ms=clock.boot_ms)
    thread = HeartbeatThread("test", session.heartbeat, 3_600_000, events)
    try:
        plan(refuse("", "get"))
        for _ in range(5):
            thread._send()
        check_said(said(), "A heartbeat of ", "session.timeout.ms=45000")
        plan(no_faults)
        thread._send()
        clock.sleep_ms(MINUTE_MS)
        thread._send()
        check_works(said(), "A heartbeat of ")
    finally:
        thread.stop()


def test_failed_automatic_commits_are_said_once(said: Said) -> None:
    """Each comes five seconds after the one before."""
    shared, made, plan = consuming()

    def commit() -> None:
        put(records.process(shared), b"x")
        shared.clock.advance_ms(6_000)
        assert read(made) == [b"x"]
        made._consumption().maintain()

    plan(refuse("__consumer_offsets", "put", Fault.DENY))
    for _ in range(3):
        commit()
    check_said(said(), "Committing offsets in group 'g'", "auto.commit.interval.ms=5000")
    plan(no_faults)
    commit()
    check_works(said(), "Committing offsets")


# --- Work that no client waits for ----------------------------------------------------------------


def test_sweeps_that_fail_are_said_once(said: Said) -> None:
    """Each client sweeps each ten seconds."""
    shared = world()
    prepared(shared)
    cluster = process(shared)
    sweeper = Sweeper(cluster, interval_ms=10_000)
    faults(cluster).plan = refuse("orders/", "put")
    for _ in range(200):
        sweeper.sweep_if_due()
        shared.clock.advance_ms(10_000)
    found = said()
    assert sum("Sweeping" in text for _, text in found) <= 2
    assert any("Sweeping" in text and "in 10 s" in text for _, text in found)
    faults(cluster).plan = no_faults
    for _ in range(200):
        sweeper.sweep_if_due()
        shared.clock.advance_ms(10_000)
    check_works(said()[-1:], "Sweeping")


def test_duties_of_housekeeping_that_fail_are_said_once(said: Said) -> None:
    """A topic that denies deletes is tried again each time."""
    shared = world()
    cluster = process(shared)
    keeper = Housekeeper(cluster)
    faults(cluster).plan = refuse("orders/", "get")
    for _ in range(60):
        shared.clock.advance_ms(keeper.step())
    found = [text for _, text in said() if "Housekeeping" in text]
    assert found
    assert len(found) == len(set(found))
    assert all("is tried again in" in text for text in found)
    faults(cluster).plan = no_faults
    for _ in range(60):
        shared.clock.advance_ms(keeper.step())
    assert {level for level, _ in said()} == {logging.INFO}


def test_checkpoints_that_fail_are_said_once(said: Said) -> None:
    """Without them each process that opens the log reads more commits."""
    shared = world(settings=INLINE)
    cluster = process(shared, settings=INLINE)
    log = cluster.topic("orders")
    faults(cluster).plan = lambda verb, path: (
        Fault.FAIL_BEFORE if verb == "put" and "checkpoint" in path else Fault.NONE
    )

    def grow() -> None:
        for _ in range(6):
            grow_to(cluster, log.partitions + 1)

    grow()
    check_said(said(), "A checkpoint of orders failed and is tried again each 2 commits")
    faults(cluster).plan = no_faults
    grow()
    check_works(said(), "A checkpoint of orders")


def test_retries_of_two_clients_of_one_store_are_said_once(said: Said) -> None:
    """A process with a hundred consumers has one disk."""
    cluster: Cluster = process(world())
    for client in range(100):
        cluster.store.retries.failed("t", f"Client {client}", full("t/x"), until="soon")
    assert len(said()) == 1
