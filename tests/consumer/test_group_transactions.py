"""Offsets in transactions, as seen by consumers of the group."""

from __future__ import annotations

import pytest

from tests.consumer.records import Writer, beat, committed, consumer, member, put, read, sent, world
from tests.world import check_settled, process
from txnlog.consumer import Consumer
from txnlog.consuming.group_session import SETTLE_PATIENCE_MS
from txnlog.errors import (
    UnstableOffsetCommitError,
)
from txnlog.messages import OFFSET_INVALID, TopicPartition
from txnlog.protocol.metadata import Manifest, Owner
from txnlog.protocol.transitions import prepare_add_partitions
from txnlog.testing.faults import SharedMemory


def copying(shared: SharedMemory) -> tuple[Consumer, Writer]:
    """A consumer that has read everything, and an open transaction with its offsets."""
    put(process(shared), b"0", b"1")
    reader = member(shared, enable_auto_commit=False)
    assert len(read(reader)) == 2
    process(shared).create_topic("out", partitions=1)
    writer = Writer(process(shared))
    writer.append(b"copy", topic="out")
    writer.row = writer.cluster.coordinator.add_partitions(writer.row, offsets=[sent(reader)])
    return reader, writer


def test_offsets_of_a_transaction_are_committed_with_it() -> None:
    """Input is committed exactly when its output is (R45, R49)."""
    shared = world(1)
    reader, writer = copying(shared)
    looker = consumer(process(shared), group_id="g")
    with pytest.raises(UnstableOffsetCommitError):
        committed(looker, timeout=2)
    careless = consumer(process(shared), group_id="g", isolation_level="read_uncommitted")
    assert committed(careless) == OFFSET_INVALID
    writer.commit()
    assert committed(looker) == 2
    reader.close()
    assert read(member(shared)) == []


def test_after_an_abort_the_consumer_returns_to_the_committed_offsets() -> None:
    """Else the input of an aborted transaction is skipped (R45, R49)."""
    shared = world(1)
    reader, writer = copying(shared)
    writer.abort()
    assert committed(reader) == OFFSET_INVALID
    for p in reader.committed(reader.assignment(), 0):
        reader.seek(TopicPartition(p.topic, p.partition, max(0, p.offset)))
    assert read(reader) == [b"0", b"1"]


def test_reading_offsets_fences_no_transaction() -> None:
    """A lag monitor would fence every producer (R46)."""
    shared = world(1)
    reader, writer = copying(shared)
    with pytest.raises(UnstableOffsetCommitError, match="writer"):
        committed(reader, timeout=1)
    writer.commit()
    assert committed(reader) == 2


def test_new_owner_settles_pending_offsets_of_its_predecessor() -> None:
    """A dead member's transaction must not commit input that the new owner reads (R46, R48)."""
    shared = world(1)
    reader, writer = copying(shared)
    reader.close()
    successor = member(shared)
    assert read(successor) == []
    wait_out(shared, successor)
    assert read(successor) == [b"0", b"1"]
    with pytest.raises(Exception, match="fenced|ended|epoch"):
        writer.commit()
    successor.commit(asynchronous=False)
    check_settled(shared)


@pytest.mark.parametrize("is_commit", [True, False])
def test_new_owner_waits_before_it_fences_the_holder_of_pending_offsets(is_commit: bool) -> None:
    """A transaction that is slow to commit must not be fenced too early (R46)."""
    shared = world(1)
    reader, writer = copying(shared)
    reader.close()
    successor = member(shared)
    assert read(successor, 0.5) == []
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(successor)
    assert read(successor, 0.5) == []
    assert successor.position([TopicPartition("t", 0)])[0].offset == OFFSET_INVALID
    if is_commit:
        writer.commit()
    else:
        writer.abort()
    assert read(successor) == ([] if is_commit else [b"0", b"1"])
    assert committed(successor) == (2 if is_commit else OFFSET_INVALID)
    check_settled(shared)


def wait_out(shared: SharedMemory, successor: Consumer) -> None:
    """Wait until the holder's time is over, with polls between: a longer gap does not count."""
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(successor)
    assert read(successor, 0.5) == []
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(successor)


def test_new_owner_waits_for_a_prepared_transaction() -> None:
    """Its client may commit it days later, together with its offsets (R32, R46)."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    reader = member(shared, enable_auto_commit=False)
    read(reader)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="r"))
    tickets = cluster.groups.tickets(row, [sent(reader)])
    held = cluster.shard(cluster.shard_of("tx")).transition(
        "tx",
        lambda now: prepare_add_partitions(
            now,
            holder=row.holder,
            manifest=Manifest(tickets=tickets),
            now_ms=0,
        ),
    )
    assert held is not None
    reader.close()
    successor = member(shared)
    assert read(successor) == []
    wait_out(shared, successor)
    for _ in range(2):
        with pytest.raises(UnstableOffsetCommitError):
            read(successor)
    cluster.coordinator.commit(held)
    assert read(successor) == []
    assert committed(successor) == 2
