"""Opening a topic of many versions on S3, by a process that has read nothing of it."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.figures import Figure, reported
from benchmarks.scale import Scale
from benchmarks.stores.server import ROUND_TRIP_MS, s3_server
from txnlog.cluster import Cluster
from txnlog.producer import Producer
from txnlog.storage.delta.checkpointer import wait_for_background

TOPIC = "old"


def measure(scale: Scale) -> list[Figure]:
    """The log is written from near, and opened from far."""
    with s3_server() as server:
        near = server.near.settings("opening")
        Cluster.open(server.near.root("opening"), server.near.storage, create=True).create_topic(
            TOPIC, partitions=1
        )
        with Producer({**near, "transactional.id": "writer"}) as producer:
            producer.init_transactions()
            for _ in range(scale.store_versions):
                with producer.transaction():
                    producer.produce(TOPIC, b"v" * 100, partition=0)
        wait_for_background()
        times_ms = []
        for _ in range(2 * scale.rounds + 1):
            started = time.perf_counter()
            cluster = Cluster.open(server.far.root("opening"), server.far.storage)
            opened = time.perf_counter()
            topic = cluster.topic(TOPIC)
            times_ms.append(((opened - started) * 1000, (time.perf_counter() - opened) * 1000))
            assert topic.view.high_watermark(0) == scale.store_versions
    cluster_ms, topic_ms = (median(times) for times in zip(*times_ms[1:], strict=True))
    name = f"opening a topic of {scale.store_versions:,} versions"
    return [
        reported("opening the cluster", cluster_ms, "ms"),
        reported(name, topic_ms, "ms"),
        reported(f"{name}, in round trips of {ROUND_TRIP_MS:g} ms", topic_ms / ROUND_TRIP_MS, ""),
    ]
