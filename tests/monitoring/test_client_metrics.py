"""Metrics of producers and consumers: what was done is counted, once; nothing else happens."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.why.worlds import TOPICS, Disk
from tests.world import faults, process, world
from txnlog.compat import confluent_kafka as compatible
from txnlog.compat.confluent_kafka.aio import AIOConsumer, AIOProducer
from txnlog.messages import TopicPartition
from txnlog.monitoring import ClientCollector
from txnlog.process.client_metrics import SECONDS, Metric
from txnlog.producer import Producer
from txnlog.testing.faults import Fault, no_faults

ROOT = {"txnlog.root": "memory://"}


def named(metrics: Iterable[Metric]) -> dict[str, float]:
    """Name -> value, of those without further tags."""
    return {one.name: one.value for one in metrics if set(one.tags) == {"client-id"}}


@pytest.mark.parametrize("publish", ["deferred", "eager"])
@pytest.mark.parametrize("on_delivery", [None, lambda error, message: None])
def test_producer_counts_records_bytes_commits_and_aborts(
    tmp_path: Path, publish: str, on_delivery: Callable[..., object] | None
) -> None:
    """With and without callbacks, whose batches are kept for other reasons."""
    disk = Disk(tmp_path / "lake")
    made = disk.producer(transaction_publish=publish)
    for number in range(3):
        made.begin_transaction()
        for topic in ("orders", "stock"):
            made.produce(topic, f"{number}", on_delivery=on_delivery)
        made.commit_transaction()
    made.begin_transaction()
    made.produce("orders", "never", on_delivery=on_delivery)
    made.abort_transaction()
    found = named(made.metrics())
    assert found["record-send-total"] == 6
    assert found["batch-total"] == 6
    files = [path for topic in TOPICS for path in (disk.folder / topic).glob("*.parquet")]
    written = sum(path.stat().st_size for path in files)
    assert found["byte-total"] == written
    assert found["record-error-total"] == 1, "of the aborted transaction"
    assert found["record-retry-total"] == 0
    assert (found["txn-commit-seconds-count"], found["txn-abort-total"]) == (3, 1)
    buckets = [one.value for one in made.metrics() if one.name == "txn-commit-seconds-bucket"]
    assert buckets == sorted(buckets)
    assert (len(buckets), buckets[-1]) == (len(SECONDS) + 1, 3)
    assert found["txn-commit-seconds-sum"] > 0
    assert found["buffer-available-bytes"] == found["buffer-total-bytes"]
    made.close()
    assert named(made.metrics()) == found


def test_producer_counts_what_is_tried_again_and_what_fails() -> None:
    """A store that is away for a while, and one that stays away."""
    cluster = process(world())
    made = Producer({**ROOT, "delivery.timeout.ms": 1_000}, cluster=cluster, background=False)
    made.produce("orders", "x", partition=0)
    made.poll(0)
    before = named(made.metrics())
    assert (before["record-send-total"], before["record-retry-total"]) == (1, 0)
    faults(cluster).plan = lambda verb, path: Fault.FAIL_BEFORE
    made.produce("orders", "y", partition=0)
    made.poll(0)
    made.poll(0)
    again = named(made.metrics())
    assert (again["record-send-total"], again["record-error-total"]) == (1, 0)
    assert again["record-retry-total"] >= 1
    cluster.store.clock.advance_ms(2_000)  # type: ignore[attr-defined]
    made.poll(0)
    failed = named(made.metrics())
    assert (failed["record-send-total"], failed["record-error-total"]) == (1, 1)
    faults(cluster).plan = no_faults
    made.close()


def test_consumer_counts_records_commits_rebalances_and_knows_its_lag(tmp_path: Path) -> None:
    """The lag is that of the last look at the logs."""
    disk = Disk(tmp_path / "lake")
    with disk.producer() as made, made.transaction():
        for number in range(5):
            made.produce("orders", f"{number}")
    reader = disk.consumer()
    assert reader.metrics() == []
    reader.subscribe(["orders"])
    assert len(reader.consume(2, timeout=600)) == 2
    [lag] = [one for one in reader.metrics() if one.name == "records-lag"]
    assert (lag.tags["topic"], lag.tags["partition"], lag.value) == ("orders", "0", 3)
    assert len(reader.consume(3, timeout=600)) == 3
    reader.commit(asynchronous=False)
    reader.commit()
    found = named(reader.metrics())
    assert (found["records-consumed-total"], found["fetch-total"]) == (5, 1)
    assert found["bytes-consumed-total"] == sum(
        path.stat().st_size for path in (disk.folder / "orders").glob("*.parquet")
    )
    assert (found["rebalance-total"], found["assigned-partitions"]) == (1, 1)
    assert found["commit-seconds-count"] == 2
    reader.close()
    assert reader.metrics() == []


def test_unused_metrics_cost_no_thread_and_no_request() -> None:
    """Nobody has asked for them."""
    cluster = process(world())
    threads = threading.active_count()
    made = Producer(ROOT, cluster=cluster, background=False)
    collector = ClientCollector(made)
    faults(cluster).calls.clear()
    made.metrics()
    list(collector.collect())
    assert threading.active_count() == threads
    assert faults(cluster).calls == []


# --- Prometheus -----------------------------------------------------------------------------------


def exposed(collector: ClientCollector) -> dict[str, Any]:
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_collector_exposes_counters_gauges_and_histograms(tmp_path: Path) -> None:
    """As Prometheus's own parser reads them."""
    disk = Disk(tmp_path / "lake")
    made, reader = disk.producer(client_id="writer"), disk.consumer(client_id="reader")
    with made.transaction():
        made.produce("orders", "x")
    reader.assign([TopicPartition("orders", 0, 0)])
    assert reader.poll(5) is not None
    found = exposed(ClientCollector(made, reader))
    sent = found["txnlog_producer_record_send"]
    assert sent.type == "counter"
    [sample] = [one for one in sent.samples if one.name.endswith("_total")]
    assert (sample.labels, sample.value) == ({"client_id": "writer"}, 1)
    commits = found["txnlog_producer_txn_commit_seconds"]
    assert commits.type == "histogram"
    assert {one.name.rpartition("_")[2] for one in commits.samples} == {"bucket", "sum", "count"}
    [lag] = found["txnlog_consumer_records_lag"].samples
    assert lag.labels == {"client_id": "reader", "topic": "orders", "partition": "0"}
    reader.close()
    made.close()


def test_clients_of_one_name_are_told_apart_and_dropped_ones_forgotten() -> None:
    """Two series of one name are an error of the whole scrape."""
    cluster = process(world())
    made = [Producer({**ROOT, "client.id": "same"}, cluster=cluster) for _ in range(2)]
    collector = ClientCollector(*made)

    def names() -> set[str]:
        samples = exposed(collector)["txnlog_producer_batch"].samples
        return {one.labels["client_id"] for one in samples}

    assert names() == {"same", "same-2"}
    del made[0]
    gc.collect()
    assert names() == {"same"}


def test_collector_may_be_asked_while_the_consumer_works(tmp_path: Path) -> None:
    """Prometheus asks in a thread of its own, whenever it likes."""
    disk = Disk(tmp_path / "lake")
    with disk.producer() as made, made.transaction():
        for number in range(2_000):
            made.produce("orders", f"{number}")
    reader = disk.consumer()
    reader.subscribe(["orders"])
    collector = ClientCollector(reader)
    errors: list[Exception] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            try:
                exposed(collector)
            except Exception as error:
                errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    taken = 0
    while taken < 2_000:
        taken += len(reader.consume(10, timeout=5))
    reader.close()
    is_over.set()
    asking.join()
    assert errors == []


def test_compatible_clients_have_them_too(tmp_path: Path) -> None:
    """Whoever moves over keeps the names of confluent-kafka, and can ask for these."""
    root = str(tmp_path / "lake")
    made = compatible.Producer({"txnlog.root": root})
    made.produce("t", "x")
    made.flush()
    assert named(made.metrics())["record-send-total"] == 1
    reader = compatible.Consumer({"txnlog.root": root, "group.id": "g"})
    reader.subscribe(["t"])
    reader.poll(0)
    assert "rebalance-total" in named(reader.metrics())

    async def waiting() -> tuple[list[Metric], list[Metric]]:
        writer = AIOProducer({"txnlog.root": root})
        await (await writer.produce("t", "y"))
        found = writer.metrics()
        await writer.close()
        other = AIOConsumer({"txnlog.root": root, "group.id": "other"})
        await other.subscribe(["t"])
        await other.poll(0)
        read = other.metrics()
        await other.close()
        return found, read

    sent, read = asyncio.run(waiting())
    assert named(sent)["record-send-total"] == 1
    assert "rebalance-total" in named(read)
    reader.close()
    made.close()
