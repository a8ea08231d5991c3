"""Spark's own Delta reader on tables after housekeeping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.housekeeping.steps import expire_row, keep_house, watched_for_two_hours
from tests.world import owned
from txnlog.cluster import Cluster
from txnlog.producer import Producer
from txnlog.protocol.topics import TopicCommit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]

WEEK_S = 7 * 86_400


def test_spark_reads_every_table_after_all_housekeeping(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Logs without a beginning, checkpoints with a tombstone for vacuum to heed (R11, R72)."""
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, create=True, shards=1, offsets_shards=1)
    cluster.create_topic("orders", partitions=2)
    cluster.groups.start("readers")
    with Producer({"txnlog.root": root, "transactional.id": "tx"}) as producer:
        producer.init_transactions()
        for number in range(15):
            with producer.transaction():
                producer.produce("orders", f"v{number}".encode())
    log = cluster.topic("orders")
    (removed, *_) = log.view.by_path
    log.transact(
        lambda state: (
            TopicCommit(operation="DELETE", removes=(removed,))
            if removed in state.by_path
            else None
        )
    )
    owned(cluster, "w", tid="gone")
    expire_row(cluster, "gone")
    tables = ("orders", "__transaction_state-0", "__consumer_offsets-0", "__cluster")
    for table in tables:
        for entry in os.scandir(tmp_path / "root" / table / "_delta_log"):
            then_s = entry.stat().st_mtime - WEEK_S
            os.utime(entry.path, (then_s, then_s))
    orphan = tmp_path / "root" / "orders" / "part-0-orphan.parquet"
    orphan.write_bytes(b"PAR1")
    then_s = orphan.stat().st_mtime - WEEK_S - 60
    for path in (orphan, tmp_path / "root" / "orders" / removed):
        os.utime(path, (then_s, then_s))
    cluster = Cluster.open(root)
    watched_for_two_hours(cluster.store)
    _, log_files, files = keep_house(cluster)
    assert log_files > 15
    assert files == 1
    rows = spark.read.format("delta").load(f"{root}/orders").collect()
    assert len({bytes(row.value) for row in rows} & {f"v{n}".encode() for n in range(15)}) == 14
    assert spark.sql(f"VACUUM delta.`{root}/orders` DRY RUN").collect() == []
    assert (tmp_path / "root" / "orders" / removed).exists()
    states = spark.read.format("delta").load(f"{root}/__transaction_state-0").collect()
    assert [(row.transactional_id, row.state) for row in states] == [("tx", "COMPLETE_COMMIT")]
