"""A consumer may see only a part of a transaction, as in Kafka."""

from __future__ import annotations

import pytest

from tests.consumer.records import consumer, world
from tests.world import check_settled, process
from txnlog.admin.topics import delete_records
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.topics import TopicCommit
from txnlog.testing.faults import SharedMemory

BOTH = pytest.mark.parametrize("publish", ["deferred", "eager"])


def purchased(publish: str) -> SharedMemory:
    """Topic t with two committed transactions around an aborted one, in two partitions each.

    A transaction has two batches of two records in each partition.
    """
    shared = world(2)
    config = {"txnlog.root": "memory://", "transactional.id": "p", "transaction.publish": publish}
    with Producer(config, cluster=process(shared), background=False) as producer:
        producer.init_transactions()
        for name in ("a", "x", "b"):
            producer.begin_transaction()
            for batch in range(2):
                for partition in range(2):
                    for record in range(2):
                        value = f"{name}{partition}{2 * batch + record}"
                        producer.produce("t", value, partition=partition)
                producer.flush()
            if name == "x":
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return shared


def values(reader: Consumer) -> list[str]:
    return [(message.value() or b"").decode() for message in reader.consume(100, 0)]


def reading(cluster: Cluster, *where: tuple[int, int]) -> Consumer:
    """A consumer of these partitions of t, from these offsets on."""
    reader = consumer(cluster)
    reader.assign([TopicPartition("t", partition, offset) for partition, offset in where])
    return reader


@BOTH
def test_expired_part_of_a_transaction_is_gone_and_the_rest_is_read(publish: str) -> None:
    """Retention ignores transactions: half of one may remain after its marker (R14, R24)."""
    shared = purchased(publish)
    delete_records(process(shared), "t", {0: 2})
    reader = reading(process(shared), (0, OFFSET_BEGINNING), (1, OFFSET_BEGINNING))
    found = values(reader)
    assert [v for v in found if v[1] == "0"] == ["a02", "a03", "b00", "b01", "b02", "b03"]
    assert [v for v in found if v[1] == "1"] == [f"{n}1{i}" for n in "ab" for i in range(4)]
    # Also within a batch: the file exists, and records below the log start are not read.
    delete_records(process(shared), "t", {0: 3})
    assert values(reading(process(shared), (0, OFFSET_BEGINNING)))[0] == "a03"
    check_settled(shared)


@BOTH
def test_gap_that_compaction_left_in_a_transaction_is_skipped(publish: str) -> None:
    """Offsets of a removed batch are missing, and no reader waits for them (R22, R24)."""
    shared = purchased(publish)
    cluster = process(shared)
    log = cluster.topic("t")
    gone = log.view.partitions[0].batches[0 if publish == "deferred" else 1].path

    def compact(state: object) -> TopicCommit | None:
        if gone not in log.view.by_path:
            return None
        return TopicCommit(operation="OPTIMIZE", removes=(gone,))

    log.transact(compact)
    found = values(reading(process(shared), (0, OFFSET_BEGINNING)))
    assert len(found) < 8
    assert found == sorted(found)
    assert found[-4:] == ["b00", "b01", "b02", "b03"]


@BOTH
def test_seek_into_the_middle_of_a_transaction_reads_the_rest_of_it(publish: str) -> None:
    """A position is an offset, not a transaction (R24); aborted data stays hidden (R16)."""
    cluster = process(purchased(publish))
    reader = reading(cluster, (0, 1))
    assert values(reader) == ["a01", "a02", "a03", "b00", "b01", "b02", "b03"]
    reader.seek(TopicPartition("t", 0, 3))
    assert values(reader)[0] == "a03"
    if publish == "eager":
        # Into the aborted one: its offsets exist, its records are not returned.
        reader.seek(TopicPartition("t", 0, 5))
        assert values(reader) == ["b00", "b01", "b02", "b03"]


@BOTH
def test_consumer_of_some_partitions_reads_its_part_of_a_transaction(publish: str) -> None:
    """It neither knows nor waits for the other part (R24)."""
    cluster = process(purchased(publish))
    assert values(reading(cluster, (1, OFFSET_BEGINNING))) == [
        f"{name}1{number}" for name in "ab" for number in range(4)
    ]
