"""Producer and consumer together: the usual code to copy a topic exactly once (KIP-447)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import IllegalGenerationError
from txnlog.messages import OFFSET_INVALID, Message
from txnlog.producer import Producer

RECORDS = 300


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A cluster with an input of RECORDS records in three partitions."""
    folder = str(tmp_path / "cluster")
    cluster = Cluster.open(folder, create=True)
    cluster.create_topic("t", partitions=3)
    cluster.create_topic("out", partitions=2)
    producer = Producer({"txnlog.root": folder})
    for number in range(RECORDS):
        producer.produce("t", value=b"%d" % number, key=b"k%d" % (number % 7))
    assert producer.flush(30) == 0
    return folder


def reader(root: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "txnlog.root": root,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 50,
            "session.timeout.ms": 1_000,
            **settings,
        }
    )


def copier(root: str, publish: str) -> Producer:
    producer = Producer(
        {"txnlog.root": root, "transactional.id": "copy", "transaction.publish": publish}
    )
    producer.init_transactions(10)
    return producer


def copy_some(
    source: Consumer, producer: Producer, then: Callable[[], object] = lambda: None
) -> int:
    """One transaction: read, write, and send the offsets."""
    found = source.consume(40, 1)
    if not found:
        return 0
    with producer.transaction():
        for message in found:
            producer.produce("out", value=message.value(), key=message.key())
        producer.send_offsets_to_transaction(
            source.position(source.assignment()), source.consumer_group_metadata()
        )
        then()
    return len(found)


def values_of(root: str, topic: str) -> list[int]:
    with reader(root, **{"group.id": "check"}) as checker:
        checker.subscribe([topic])
        found: list[Message] = []
        while more := checker.consume(1_000, 0.5):
            found += more
        return sorted(int(message.value() or b"-1") for message in found)


@pytest.mark.parametrize("publish", ["deferred", "eager"])
def test_topic_is_copied_exactly_once_across_restarts_and_aborts(root: str, publish: str) -> None:
    """Offsets and output are one transaction: no record is lost or repeated (R44, R45, R49)."""
    copied = 0
    for _ in range(2):
        with reader(root) as source:
            source.subscribe(["t"])
            producer = copier(root, publish)
            copied += copy_some(source, producer)
            with pytest.raises(ZeroDivisionError):
                copy_some(source, producer, then=lambda: 1 // 0)
            for p in source.committed(source.assignment(), 5):
                p.offset = max(p.offset, 0)
                source.seek(p)
            copied += copy_some(source, producer)
    with reader(root) as source:
        source.subscribe(["t"])
        producer = copier(root, publish)
        while copied < RECORDS:
            copied += copy_some(source, producer)
        assert source.consume(10, 0.2) == []
    assert copied == RECORDS
    assert values_of(root, "out") == list(range(RECORDS))


def test_consumer_that_lost_its_assignment_cannot_commit(root: str) -> None:
    """Else a slow consumer commits input that the new owner copies, too (R48)."""
    slow = reader(root)
    slow.subscribe(["t"])
    producer = copier(root, "deferred")
    found = slow.consume(50, 5)
    assert found
    positions, who = slow.position(slow.assignment()), slow.consumer_group_metadata()
    slow.close()
    with reader(root) as successor:
        successor.subscribe(["t"])
        assert len(successor.consume(RECORDS, 5)) == RECORDS
        producer.begin_transaction()
        producer.produce("out", value=found[0].value())
        with pytest.raises(IllegalGenerationError):
            producer.send_offsets_to_transaction(positions, who)
        producer.abort_transaction()
        assert {p.offset for p in successor.committed(successor.assignment(), 5)} == {
            OFFSET_INVALID
        }
    assert values_of(root, "out") == []
