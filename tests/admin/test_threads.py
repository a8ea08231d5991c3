"""One AdminClient, several threads: its cluster's logs are for one thread at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.consumer.records import put, world
from tests.threads import WAIT_S, in_threads
from tests.world import process
from txnlog.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupTopicPartitions,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from txnlog.messages import TopicPartition
from txnlog.testing.faults import SharedMemory

ROUNDS = 6


def client(shared: SharedMemory) -> AdminClient:
    return AdminClient({}, cluster=process(shared))


def test_calls_of_several_threads_all_succeed() -> None:
    shared = world(1)
    put(process(shared), b"a", b"b")
    admin = client(shared)

    def topics(of: str) -> None:
        for number in range(ROUNDS):
            name = f"{of}-{number}"
            admin.create_topics([NewTopic(name, 1)])[name].result()
            admin.create_partitions([NewPartitions(name, 3)])[name].result()
            change = ConfigEntry("retention.ms", "5")
            resource = ConfigResource(ResourceType.TOPIC, name, [change])
            admin.incremental_alter_configs([resource])[resource].result()
            found = admin.describe_topics([name])[name].result()
            assert len(found.partitions) == 3
            assert name in admin.list_topics().topics

    def groups(of: str) -> None:
        for number in range(ROUNDS):
            name = f"{of}-{number}"
            wanted = ConsumerGroupTopicPartitions(name, [TopicPartition("t", 0, number % 3)])
            admin.alter_consumer_group_offsets([wanted])[name].result()
            asked = ConsumerGroupTopicPartitions(name)
            found = admin.list_consumer_group_offsets([asked])[name].result()
            assert [p.offset for p in found.topic_partitions or ()] == [number % 3]
            admin.describe_consumer_groups([name])[name].result()
            assert name in {each.group_id for each in admin.list_consumer_groups().result().valid}
            if number % 2:
                admin.delete_consumer_groups([name])[name].result()

    def looks() -> None:
        for _ in range(ROUNDS):
            [end] = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()}).values()
            assert end.result().offset == 2
            admin.list_transactions().result()
            admin.describe_producers([TopicPartition("t", 0)])

    in_threads(lambda: topics("x"), lambda: topics("y"), lambda: groups("g"), lambda: groups("h"),
               looks)  # fmt: skip
    after = client(shared)
    names = {f"{of}-{number}" for of in "xy" for number in range(ROUNDS)}
    assert names <= set(after.list_topics().topics)
    left = {each.group_id for each in after.list_consumer_groups().result().valid}
    assert left == {f"{of}-{number}" for of in "gh" for number in range(0, ROUNDS, 2)}


def test_call_waits_for_that_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read in the middle of another one would see half of what it has learned."""
    admin = client(world(1))
    look_up, entered, may_end = admin.cluster.look_up, threading.Event(), threading.Event()
    inside: list[int] = []
    most: list[int] = []

    def slow(*args: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        entered.set()
        may_end.wait(WAIT_S)
        inside.pop()
        return look_up(*args)

    monkeypatch.setattr(admin.cluster, "look_up", slow)
    describe = lambda: admin.describe_topics(["t"])["t"].result()  # noqa: E731
    threads = [threading.Thread(target=describe) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(WAIT_S)
    # What takes long and has a store of its own does not wait.
    assert not admin.verify().result().findings
    may_end.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert most == [1, 1, 1]
