"""Files that another tool has rewritten: rows erased, statistics left out or garbled."""

from __future__ import annotations

import pytest

from tests.consumer.records import TIME_MS, consumer, put, read, staged, world
from tests.world import process
from txnlog.admin.dumps import dump_topic
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import CorruptLogError
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.protocol.batches import Statistics, decode_stats
from txnlog.storage.delta.actions import Add, Remove
from txnlog.testing.faults import SharedMemory


def rewritten(stats: str | None) -> tuple[SharedMemory, Cluster]:
    """Topic t, whose first file, of two records, was rewritten with `stats`; one is left of it."""
    shared = world(1)
    cluster = process(shared)
    put(cluster, b"erased", b"kept")
    put(cluster, b"next", time_ms=TIME_MS + 1_000)
    log = cluster.topic("t")
    old = log.view.partitions[0].batches[0]
    batch = staged(cluster, [b"kept"])
    add = Add(batch.path, dict(old.to_values()), batch.size_bytes, 0, True, stats)
    log.log.commit([Remove(old.path, 0, True), add], operation="REWRITE")
    return shared, process(shared)


def reader_of(cluster: Cluster) -> Consumer:
    made = consumer(cluster)
    made.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    return made


@pytest.mark.parametrize("stats", [None, "", "{}", '{"numRecords":null}'])
def test_file_without_statistics_is_read_and_looked_into(stats: str | None) -> None:
    """Statistics are a hint; a tool that leaves them out must not stop every reader (R66)."""
    _, cluster = rewritten(stats)
    reader = reader_of(cluster)
    assert read(reader) == [b"kept", b"next"]
    for time_ms, offset in [(TIME_MS, 0), (TIME_MS + 1, 2)]:
        assert reader.offsets_for_times([TopicPartition("t", 0, time_ms)])[0].offset == offset
    counts = [entry.get("count") for entry in dump_topic(cluster, "t")]
    assert {None, 1, 2} == set(counts)


@pytest.mark.parametrize("stats", ["{", "null", '{"numRecords":"two"}', '{"minValues":3}'])
def test_file_with_statistics_that_cannot_be_read_is_named(stats: str) -> None:
    """An error from the middle of a JSON decoder does not say which file to check (R66)."""
    _, cluster = rewritten(stats)
    path = cluster.topic("t").view.partitions[0].batches[0].path
    with pytest.raises(CorruptLogError, match=path):
        read(reader_of(cluster))


def test_statistics_unknown_are_wide() -> None:
    """What is not known must exclude no file from a search."""
    assert decode_stats("") == Statistics(None, -(2**63), 2**63 - 1)
    some = decode_stats('{"numRecords":3,"maxValues":{"timestamp":"1970-01-01T00:00:01.000Z"}}')
    assert some == Statistics(3, -(2**63), 1_000_000)
