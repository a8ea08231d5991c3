"""Offsets in transactions, as consumers of the group see them."""

from __future__ import annotations

import pytest

from tests.consumer.records import (
    Writer,
    beat,
    committed,
    consumer,
    member,
    process,
    put,
    read,
    sent,
    world,
)
from txnlog.consumer import Consumer
from txnlog.consuming.group_session import SETTLE_PATIENCE_MS
from txnlog.errors import (
    UnstableOffsetCommitError,
)
from txnlog.messages import OFFSET_INVALID, TopicPartition
from txnlog.protocol.metadata import Manifest, Owner
from txnlog.protocol.transitions import prepare_add_partitions
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster


def copying(shared: SharedMemory) -> tuple[Consumer, Writer]:
    """A consumer that has read everything, and a transaction that holds its offsets."""
    put(process(shared), b"0", b"1")
    reader = member(shared, enable_auto_commit=False)
    assert len(read(reader)) == 2
    process(shared).create_topic("out", partitions=1)
    writer = Writer(process(shared))
    groups = ("g",)
    writer.append(b"copy", topic="out")
    writer.row = writer.cluster.coordinator.add_partitions(writer.row, [], groups=groups)
    writer.cluster.groups.add_pending(writer.row, [sent(reader)])
    return reader, writer


def test_offsets_of_a_transaction_count_when_it_commits() -> None:
    """Input counts as read exactly when the output is there (R45, R49)."""
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


def test_after_an_abort_the_consumer_goes_back_to_what_is_committed() -> None:
    """Input of an aborted transaction would be skipped (R45, R49)."""
    shared = world(1)
    reader, writer = copying(shared)
    writer.abort()
    assert committed(reader) == OFFSET_INVALID
    for p in reader.committed(reader.assignment(), 0):
        reader.seek(TopicPartition(p.topic, p.partition, max(0, p.offset)))
    assert read(reader) == [b"0", b"1"]


def test_looking_at_offsets_ends_nobodys_transaction() -> None:
    """A lag monitor would fence every producer it meets (R46)."""
    shared = world(1)
    reader, writer = copying(shared)
    with pytest.raises(UnstableOffsetCommitError, match="writer"):
        committed(reader, timeout=1)
    writer.commit()
    assert committed(reader) == 2


def test_new_owner_settles_what_its_predecessor_left_pending() -> None:
    """The dead member's transaction can no longer commit input that the heir reads (R46, R48)."""
    shared = world(1)
    reader, writer = copying(shared)
    reader.close()
    heir = member(shared)
    assert read(heir) == []
    wait_out(shared, heir)
    assert read(heir) == [b"0", b"1"]
    with pytest.raises(Exception, match="fenced|ended|epoch"):
        writer.commit()
    heir.commit(asynchronous=False)
    check_cluster(process(shared), settled=True)


@pytest.mark.parametrize("is_commit", [True, False])
def test_new_owner_leaves_a_holder_the_time_to_end_its_transaction(is_commit: bool) -> None:
    """Who is slow between its offsets and its decision must not be fenced for it (R46)."""
    shared = world(1)
    reader, writer = copying(shared)
    reader.close()
    heir = member(shared)
    assert read(heir, 0.5) == []
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(heir)
    assert read(heir, 0.5) == []
    assert heir.position([TopicPartition("t", 0)])[0].offset == OFFSET_INVALID
    if is_commit:
        writer.commit()
    else:
        writer.abort()
    assert read(heir) == ([] if is_commit else [b"0", b"1"])
    assert committed(heir) == (2 if is_commit else OFFSET_INVALID)
    check_cluster(process(shared), settled=True)


def wait_out(shared: SharedMemory, heir: Consumer) -> None:
    """All the time that a holder of offsets is given, with a poll on the way: a gap counts less."""
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(heir)
    assert read(heir, 0.5) == []
    shared.clock.advance_ms(SETTLE_PATIENCE_MS - 3_000)
    beat(heir)


def test_new_owner_waits_for_a_prepared_transaction() -> None:
    """Its client may commit it days later, and then the input counts as read (R32, R46)."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    reader = member(shared, enable_auto_commit=False)
    read(reader)
    cluster = process(shared)
    row = cluster.coordinator.init_producer_id("tx", Owner(run_id="r"))
    cluster.groups.add_pending(row, [sent(reader)])
    held = cluster.shard(cluster.shard_of("tx")).transition(
        "tx",
        lambda now: prepare_add_partitions(
            now,
            holder=row.holder,
            manifest=Manifest(groups=("g",)),
            now_ms=0,
        ),
    )
    assert held is not None
    reader.close()
    heir = member(shared)
    assert read(heir) == []
    wait_out(shared, heir)
    for _ in range(2):
        with pytest.raises(UnstableOffsetCommitError):
            read(heir)
    cluster.coordinator.commit(held)
    assert read(heir) == []
    assert committed(heir) == 2
