"""A producer that expires while some of its batches are merged and others are not (R2, R8).

Its remaining headers are not of its last batches, so nothing may be concluded from them (D48).
"""

from __future__ import annotations

import random

import pytest

from tests.housekeeping.compaction.logs import TOPIC, Idempotent, Record, world
from tests.world import process
from txnlog.errors import OutOfOrderSequenceError, UnknownProducerIdError
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.producer import Producer
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.testing.faults import SharedMemory
from txnlog.testing.invariants import check_cluster, check_topic_rebuilds

DAY_MS = 86_400_000
LARGE = random.Random(1).randbytes(100_000)
FOREVER = {"retention.ms": "-1"}


def expire_and_merge(shared: SharedMemory) -> None:
    """Two days later: of the first producer's batches only its large one stays as it was."""
    for number in range(14):
        Idempotent.start(process(shared)).send([Record(None, b"%d" % number)])
    shared.clock.advance_ms(2 * DAY_MS)
    ProducerExpiry(process(shared)).run()
    assert Compactor(process(shared)).compact(TOPIC)
    view = process(shared).topic(TOPIC).view
    assert [batch.producer_id >= 0 for batch in view.partitions[0].batches] == [True, False]


def test_repeat_of_a_merged_batch_is_refused_and_not_written_twice() -> None:
    """Its put landed, and the process that waited for the reply slept for two days (R2)."""
    shared = world(config=FOREVER)
    sleeper = Idempotent.start(process(shared))
    sleeper.send([Record(None, LARGE)])
    sleeper.send([Record(None, b"once")])
    expire_and_merge(shared)
    end = process(shared).topic(TOPIC).view.high_watermark(0)
    for batch, sequence in reversed(sleeper.sent):
        with pytest.raises((OutOfOrderSequenceError, UnknownProducerIdError)):
            sleeper.repeat(batch, sequence)
    assert process(shared).topic(TOPIC).view.high_watermark(0) == end
    with pytest.raises(OutOfOrderSequenceError) as error:
        sleeper.send([Record(None, b"next")])
    assert error.value.context["expected_sequence"] == 0


def test_idle_producer_of_which_a_part_was_merged_comes_back_cleanly() -> None:
    """All its records were acknowledged; it continues under a new producer id (R8)."""
    shared = world(config=FOREVER)
    producer = Producer({"txnlog.root": "memory://"}, cluster=process(shared), background=False)
    for value in (LARGE, b"small"):
        producer.produce(TOPIC, value, partition=0)
        assert producer.flush() == 0
    expire_and_merge(shared)
    end = process(shared).topic(TOPIC).view.high_watermark(0)
    reports = []
    producer.produce(TOPIC, b"again", partition=0, on_delivery=lambda e, m: reports.append(e))
    assert producer.flush() == 0
    assert reports == [None]
    topic = process(shared).topic(TOPIC)
    assert topic.view.high_watermark(0) == end + 1
    check_cluster(process(shared))


def test_memory_of_half_merged_producers_is_the_same_after_a_checkpoint() -> None:
    """What decisions ask for is in the log, whichever way it was read (R11)."""
    shared = world(config=FOREVER)
    warm = process(shared).topic(TOPIC)
    producer = Idempotent.start(process(shared))
    producer.send([Record(None, LARGE)])
    for number in range(8):
        producer.send([Record(None, b"%d" % number)])
    expire_and_merge(shared)
    warm.refresh()
    create_checkpoint(warm.store, TOPIC, trust_ms=60_000)
    check_topic_rebuilds(warm)
