"""Ten aborted transactions for each committed one, as Kafka's TransactionsTest has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.producer import Producer
from txnlog.testing.invariants import check_cluster

PARTITIONS = 20
ABORTED_PER_COMMITTED = 10


def write(root: Path, committed: int) -> tuple[list[list[str]], list[list[str]]]:
    """Two records in two partitions per transaction; partition -> committed, and all values."""
    kept: list[list[str]] = [[] for _ in range(PARTITIONS)]
    written: list[list[str]] = [[] for _ in range(PARTITIONS)]
    config = {
        "txnlog.root": str(root),
        "transactional.id": "many",
        # Deferred transactions that abort leave nothing behind to filter.
        "transaction.publish": "eager",
        "linger.ms": 60_000,
    }
    with Producer(config) as producer:
        producer.init_transactions()
        for number in range(committed * (ABORTED_PER_COMMITTED + 1)):
            is_kept = number % (ABORTED_PER_COMMITTED + 1) == ABORTED_PER_COMMITTED
            producer.begin_transaction()
            for partition in (number % PARTITIONS, (number + 7) % PARTITIONS):
                producer.produce("t", str(number), partition=partition)
                written[partition].append(str(number))
                if is_kept:
                    kept[partition].append(str(number))
            producer.flush()
            if is_kept:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    return kept, written


def read(root: Path, level: str) -> list[list[str]]:
    """Partition -> values that a new reader gets."""
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    with Consumer({"txnlog.root": str(root), "isolation.level": level}) as reader:
        reader.assign([TopicPartition("t", p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        while messages := reader.consume(10_000, 0.1):
            for message in messages:
                found[message.partition()].append((message.value() or b"").decode())
    return found


@pytest.mark.parametrize(
    "committed",
    [
        pytest.param(50, id="550 transactions"),
        pytest.param(1_000, marks=pytest.mark.soak, id="11000 transactions"),
    ],
)
def test_committed_records_between_many_aborted_ones_are_read(
    tmp_path: Path, committed: int
) -> None:
    """A filter that is off by one, or hides the commit after an abort (R16, R18, R52)."""
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("t", partitions=PARTITIONS)
    begun_s = time.monotonic()
    kept, written = write(tmp_path, committed)
    written_s = time.monotonic()
    assert read(tmp_path, "read_committed") == kept
    read_s = time.monotonic()
    print(
        f"{committed * (ABORTED_PER_COMMITTED + 1)} transactions written in "
        f"{written_s - begun_s:.1f} s, the committed ones read in {read_s - written_s:.2f} s"
    )
    assert read(tmp_path, "read_uncommitted") == written
    assert sum(map(len, kept)) == 2 * committed
    check_cluster(Cluster.open(str(tmp_path)), settled=True)
