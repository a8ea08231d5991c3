"""Unexpected exceptions in the heartbeat thread: heartbeats continue, commits are reported."""

from __future__ import annotations

import threading

import pytest

from tests.world import process, world
from txnlog.consumer import Consumer
from txnlog.consuming.heartbeat_thread import HeartbeatThread
from txnlog.consuming.membership import Heartbeat, MemberSettings
from txnlog.errors import UnexpectedError
from txnlog.messages import TopicPartition
from txnlog.process.client_events import ClientEvents
from txnlog.testing.faults import Fault


def test_heartbeat_thread_survives_a_failing_job() -> None:
    """Without the thread the member is expelled, and later commits are not made."""
    cluster = process(world())
    heartbeat = Heartbeat(cluster, MemberSettings(group_id="g"))
    events = ClientEvents(error_cb=None, stats_cb=None, interval_ms=0, boot_ms=lambda: 0)
    background = HeartbeatThread("t", heartbeat, 1_000, events)
    done = threading.Event()

    def bug() -> None:
        raise RuntimeError("a bug")

    background.submit(bug)
    background.submit(done.set)
    assert done.wait(600)
    background.stop()


@pytest.mark.parametrize("background", [False, True])
def test_commit_with_an_unexpected_error_is_reported_to_on_commit(background: bool) -> None:
    """The commit was lost without an error, and the thread ended."""
    shared = world()
    told: list[tuple[object, object]] = []
    config = {"group.id": "readers", "on_commit": lambda *args: told.append(args)}
    made = Consumer(config, cluster=process(shared), background=background)
    made.assign([TopicPartition("orders", 0, 0)])
    session = made._consumption().require_session()

    def plan(verb: str, path: str) -> Fault:
        if verb == "put":
            raise RuntimeError("a bug")
        return Fault.NONE

    session._background_cluster.store.plan = plan  # type: ignore[attr-defined]
    made.commit(offsets=[TopicPartition("orders", 0, 1)])
    session.drain()
    session._background_cluster.store.plan = lambda verb, path: Fault.NONE  # type: ignore[attr-defined]
    made.poll(0)
    [(error, partitions)] = told
    assert isinstance(error, UnexpectedError)
    assert partitions == [TopicPartition("orders", 0, 1)]
    made.commit(offsets=[TopicPartition("orders", 0, 2)])
    session.drain()
    made.poll(0)
    assert told[1][0] is None
    made.close()
