"""Backup and clone of a root: what they take, and what they cost a producer that writes beside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

import pyarrow as pa

from benchmarks.figures import Comparison, Figure, reported
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from txnlog.admin import AdminClient, NewTopic
from txnlog.producer import Producer

VALUE_BYTES = 100
IN_TRANSACTION = 100
RATE = 50
PERIODS = 3
ALONE, BESIDE = "alone", "beside a backup"


def measure(scale: Scale) -> list[Figure]:
    """On a disk."""
    root = new_folder()
    places = Path(f"{root}-copies")
    places.mkdir()
    admin = AdminClient({"txnlog.root": root})
    topics = [f"topic-{number}" for number in range(scale.copied_topics)]
    admin.create_topics([NewTopic(topic, 1) for topic in topics])
    with Producer({"txnlog.root": root, "transactional.id": "bench"}) as producer:
        producer.init_transactions()
        random = Random(1)
        for topic in topics:
            values = [random.randbytes(VALUE_BYTES) for _ in range(scale.copied_records)]
            with producer.transaction():
                producer.produce_batch(topic, pa.table({"value": values}))
        figures = _copies(admin, places)
        times_ms: dict[str, list[float]] = {BESIDE: [], ALONE: []}
        for number in range(PERIODS):
            alone = subprocess.Popen(["sleep", str(scale.writer_s)])
            times_ms[ALONE].append(_p50_ms(producer, topics[0], alone))
            place = str(places / str(number))
            command = [sys.executable, "-m", "txnlog.cli.main", "backup", root, place]
            copying = subprocess.Popen(command)
            times_ms[BESIDE].append(_p50_ms(producer, topics[0], copying))
            assert copying.returncode == 0
    name = f"transaction of {IN_TRANSACTION} records, {RATE} a second, p50"
    written = Comparison(name, "ms", times_ms, ours=BESIDE)
    return [*figures, *written.each(), written.at_most(ALONE, 1.2)]


def _copies(admin: AdminClient, places: Path) -> list[Figure]:
    figures = []
    for name, copy, place in (
        ("backup", admin.backup, "backup"),
        ("next backup", admin.backup, "backup"),
        ("clone", admin.clone, "clone"),
    ):
        begun_s = time.perf_counter()
        report = copy(str(places / place)).result()
        took_s = time.perf_counter() - begun_s
        what = f"{name} of {report.topics} topics, {report.size_bytes / 1e6:,.0f} MB"
        figures += [
            reported(f"{what}: time, verified", took_s, "s"),
            reported(f"{what}: data moved", report.bytes_copied / 1e6, "MB"),
        ]
    return figures


def _p50_ms(producer: Producer, topic: str, process: subprocess.Popen[bytes]) -> float:
    """While a process runs, so many a second."""
    value = b"v" * VALUE_BYTES
    times_ms = []
    while process.poll() is None:
        begun_s = time.perf_counter()
        with producer.transaction():
            for _ in range(IN_TRANSACTION):
                producer.produce(topic, value)
        took_s = time.perf_counter() - begun_s
        times_ms.append(took_s * 1000)
        time.sleep(max(0.0, 1 / RATE - took_s))
    return median(times_ms)
