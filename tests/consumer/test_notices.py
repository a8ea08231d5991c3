"""What a consumer says by itself: its membership, ends, statistics, and that it was dropped."""

from __future__ import annotations

import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.consumer.records import consumer, member, parts, put, read, sent, turn, world
from tests.world import process
from txnlog import AdminClient, Consumer, NewTopic, Producer
from txnlog.consuming import membership
from txnlog.errors import GroupIdNotFoundError, StorageError
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Owner

ROOT = Path(__file__).resolve().parents[2]
READS = """
from txnlog import Consumer
reader = Consumer({"txnlog.root": ROOT, "group.id": "g", "auto.offset.reset": "earliest"})
reader.subscribe(["t"])
assert reader.poll(60) is not None
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with a record in topic t."""
    made = str(tmp_path / "root")
    AdminClient({"txnlog.root": made}).create_topics([NewTopic("t", 1)])["t"].result()
    with Producer({"txnlog.root": made}) as producer:
        producer.produce("t", "a")
    return made


def members(root: str) -> int:
    described = AdminClient({"txnlog.root": root}).describe_consumer_groups(["g"])
    try:
        return len(described["g"].result().members)
    except GroupIdNotFoundError:
        return 0


@pytest.mark.parametrize(
    ("end", "said"),
    [("", True), ("del reader; import gc; gc.collect()", True), ("reader.close()", False)],
)
def test_consumer_without_close_leaves_its_group_with_the_program(
    root: str, end: str, said: bool
) -> None:
    """The others of the group waited for its session time-out."""
    code = READS.replace("ROOT", repr(root)) + end
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ("was dropped without close()" in run.stderr) == said, run.stderr
    assert members(root) == 0


def test_consumer_that_is_collected_leaves_its_group(root: str) -> None:
    """A program may make many consumers."""
    reader = Consumer({"txnlog.root": root, "group.id": "g", "auto.offset.reset": "earliest"})
    reader.subscribe(["t"], on_assign=lambda one, partitions: None)
    assert reader.poll(60) is not None
    assert members(root) == 1
    before = threading.active_count()
    del reader
    gc.collect()
    end = time.monotonic() + 300
    while members(root) or threading.active_count() >= before:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_static_member_stays_in_its_group(root: str) -> None:
    """It may restart within session.timeout.ms, without a rebalance."""
    given = '"group.id": "g", "group.instance.id": "one"'
    code = READS.replace("ROOT", repr(root)).replace('"group.id": "g"', given)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "was dropped" not in run.stderr
    assert members(root) == 1


def test_membership_and_ends_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "txnlog")
    shared = world(2)
    put(process(shared), b"a")
    first = member(shared)
    assert read(first) == [b"a"]
    second = member(shared)
    turn(shared, first, second)
    info = [one.message for one in caplog.records if one.levelno == logging.INFO]
    debug = [one.message for one in caplog.records if one.levelno == logging.DEBUG]
    assert any("of group 'g' and reads t-0, t-1" in text for text in info)
    assert any("rejoins: its group rebalances" in text for text in info)
    assert "Reached the end of t-0 at offset 1" in debug


def test_statistics_have_librdkafkas_names() -> None:
    """Dashboards compute the lag from them."""
    shared = world(2)
    put(process(shared), b"a", b"b", b"c")
    told: list[str] = []
    reader = member(
        shared,
        stats_cb=told.append,
        statistics_interval_ms=1_000,
        enable_auto_offset_store=False,
    )
    message = reader.poll(0)
    assert message is not None
    reader.store_offsets(message)
    shared.clock.advance_ms(1_000)
    turn(shared, reader, rounds=1)
    found = json.loads(told[-1])
    assert found["type"] == "consumer"
    partitions = found["topics"]["t"]["partitions"]
    assert sorted(partitions) == ["0", "1"]
    first = partitions["0"]
    assert (first["app_offset"], first["stored_offset"], first["consumer_lag"]) == (1, 1, 2)
    assert (first["lo_offset"], first["hi_offset"], first["ls_offset"]) == (0, 3, 3)
    assert (found["cgrp"]["join_state"], found["cgrp"]["assignment_size"]) == ("steady", 2)


def test_statistics_have_what_will_be_committed_without_store_offsets() -> None:
    """By default the position is stored; stored_offset said that nothing was."""
    shared = world(1)
    put(process(shared), b"a", b"b")
    told: list[str] = []
    reader = member(shared, stats_cb=told.append, statistics_interval_ms=1_000)
    assert reader.poll(0) is not None
    shared.clock.advance_ms(1_000)
    # It polls before it tells.
    turn(shared, reader, rounds=1)
    first = json.loads(told[-1])["topics"]["t"]["partitions"]["0"]
    assert first["stored_offset"] == first["app_offset"] >= 1


def test_failed_heartbeat_is_an_error_of_error_cb(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes in the application's own poll, not in the thread's."""
    shared = world(1)
    told: list[tuple[Exception, int]] = []
    failed = threading.Event()

    def fail(self: membership.Heartbeat) -> None:
        failed.set()
        raise StorageError("the store is away")

    monkeypatch.setattr(membership.Heartbeat, "send", fail)
    config = {
        "group.id": "g",
        "heartbeat.interval.ms": 1,
        "error_cb": lambda error: told.append((error, threading.get_ident())),
    }
    reader = Consumer(config, cluster=process(shared))
    reader.subscribe(["t"])
    reader.poll(0)
    assert failed.wait(60)
    end = time.monotonic() + 300
    while not told:
        assert time.monotonic() < end
        reader.poll(0)
    (error, thread), *others = told
    assert isinstance(error, StorageError)
    assert (thread, others) == (threading.get_ident(), [])
    monkeypatch.undo()
    reader.close()


def test_offsets_can_be_asked_for_without_statistics() -> None:
    """stats_cb without an interval is never called, as in librdkafka."""
    shared = world(1)
    told: list[str] = []
    reader = consumer(process(shared), stats_cb=told.append)
    reader.assign([TopicPartition("t", 0)])
    shared.clock.advance_ms(60_000)
    reader.poll(0)
    assert told == []


# --- Who fenced whom ------------------------------------------------------------------------------


def group_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """(level, text without the group) of what was logged about group g since the last call."""
    found = [
        (one.levelname, one.getMessage().removeprefix("Group 'g', "))
        for one in caplog.records
        if one.getMessage().startswith("Group 'g', ")
    ]
    caplog.clear()
    return found


def test_rebalances_say_who_joined_who_left_and_what_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "txnlog")
    shared = world(2)
    first = member(shared, client_id="one")
    turn(shared, first)
    one = first.memberid()
    assert group_lines(caplog) == [
        ("INFO", f"generation 0: member {one} joins"),
        ("INFO", f"generation 0: generation 1 begins with 1 member ({one}), by {one}"),
    ]
    second = member(shared, client_id="two")
    turn(shared, first, second)
    two = second.memberid()
    assert group_lines(caplog) == [
        ("INFO", f"generation 1: member {two} joins"),
        ("INFO", f"generation 1: generation 2 begins with 2 members ({one}, {two}), by {one}"),
    ]
    second.close()
    turn(shared, first)
    assert group_lines(caplog) == [
        ("INFO", f"generation 2: member {two} leaves"),
        ("INFO", f"generation 2: generation 3 begins with 1 member ({one}), by {one}"),
    ]


def test_expelled_member_is_named_with_its_host_and_its_time_outs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "txnlog")
    shared = world(2)
    alive, dead = member(shared), member(shared)
    turn(shared, alive, dead)
    one, two = alive.memberid(), dead.memberid()
    group_lines(caplog)
    turn(shared, alive, rounds=20)
    found = group_lines(caplog)
    assert [level for level, _ in found] == ["WARNING", "INFO"]
    assert found[0][1].startswith(f"generation 2: member {two} on {socket.gethostname()} was expel")
    assert f"by {one}: no heartbeat for session.timeout.ms=45000" in found[0][1]


def test_static_member_and_its_successor_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txnlog")
    shared = world(2)
    former = member(shared, group_instance_id="i")
    turn(shared, former)
    group_lines(caplog)
    successor = member(shared, group_instance_id="i")
    successor.poll(0)
    one, two = former.memberid(), successor.memberid()
    assert group_lines(caplog) == [
        (
            "INFO",
            f"generation 1: static member {one} (group.instance.id='i') was fenced by its "
            f"successor {two}",
        ),
        ("INFO", f"generation 1: member {two} joins"),
    ]


def test_member_that_takes_over_a_partition_says_whose_offsets_it_fenced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The former one copies in transactions, and no longer follows its group."""
    caplog.set_level(logging.INFO, "txnlog")
    shared = world(1)
    put(process(shared), b"a")
    former, cluster = member(shared), process(shared)
    assert read(former) == [b"a"]
    row = cluster.coordinator.init_producer_id("copy", Owner(run_id="r1", host="h", pid=7))
    cluster.coordinator.commit(row, (), offsets=[sent(former)])
    successor = member(shared)
    turn(shared, successor, rounds=70)
    assert parts(successor) == [0]
    [found] = [one for one in caplog.records if "may no longer commit" in one.getMessage()]
    assert found.levelname == "INFO"
    assert found.getMessage() == (
        "transactional.id 'copy', epoch 1: r1 on h, process 7 may no longer commit offsets of "
        f"group 'g' below ticket 2: fenced by member {successor.memberid()} of group 'g', "
        "generation 2"
    )
