"""State of Spark's Python workers between micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import Lab
from tests.spark.watched_sink import WATCHED, WatchedTxnLog
from txnlog.cluster import Cluster

IMPORTED_MIN = 10_000


@pytest.mark.spark
def test_workers_set_aside_what_they_have_imported(lab: Lab, tmp_path: Path) -> None:
    """Spark collects garbage after each call, which would take a third of a small micro-batch."""
    lab.feed(0, 60)
    Cluster.open(str(lab.root)).create_topic("copy", partitions=1)
    lab.spark.dataSource.register(WatchedTxnLog)
    reader = lab.spark.readStream.format("txnlog").option("subscribe", "numbers")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 10)
    notes = tmp_path / "notes"
    writer = (
        frame.load(str(lab.root))
        .select("key", "value")
        .writeStream.format(WATCHED)
        .options(topic="copy", path=str(lab.root), notes=str(notes))
        .option("checkpointLocation", str(lab.checkpoint))
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    frozen: dict[str, list[int]] = {}
    for line in notes.read_text().splitlines():
        call, count = line.split()
        frozen.setdefault(call, []).append(int(count))
    assert set(frozen) == {"plan", "write", "commit"}
    for call, counts in frozen.items():
        assert len(counts) >= 6, call
        assert counts[-1] > IMPORTED_MIN, f"{call}: {counts}"
