"""A bug in the consumer's thread: heartbeats go on, and a commit that met it is reported."""

from __future__ import annotations

import threading

import pytest

from tests.coordinator.processes import process, world
from txnlog.consumer import Consumer
from txnlog.consuming.membership import Heartbeat, HeartbeatThread, MemberSettings
from txnlog.errors import UnexpectedError
from txnlog.messages import TopicPartition
from txnlog.testing.faults import Fault


def test_thread_outlives_a_job_that_fails() -> None:
    """Without it the member sends no heartbeat and is expelled, and no later commit is made."""
    cluster = process(world())
    background = HeartbeatThread("t", Heartbeat(cluster, MemberSettings(group_id="g")), 1_000)
    done = threading.Event()

    def bug() -> None:
        raise RuntimeError("a bug")

    background.submit(bug)
    background.submit(done.set)
    assert done.wait(60)
    background.stop()


@pytest.mark.parametrize("background", [False, True])
def test_commit_that_ends_in_a_bug_is_reported_to_on_commit(background: bool) -> None:
    """It was lost without a word, and the thread with it."""
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
