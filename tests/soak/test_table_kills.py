"""Delta tables of others in the transactions of a process that is killed repeatedly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.soak.table_kills import Copy
from txnlog.testing.counts import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("kills", "staging"),
    [
        pytest.param(6, "hidden", id="short"),
        pytest.param(1_000, "hidden", marks=pytest.mark.soak, id="long"),
        pytest.param(200, "visible", marks=pytest.mark.soak, id="visible"),
    ],
)
def test_killed_copy_leaves_each_number_once_in_topic_and_tables(
    tmp_path: Path, seed: int, kills: int, staging: str
) -> None:
    """SIGKILL at any moment, zombies, and delta-rs in the same tables: nothing is lost, twice or
    half there after recovery (R36, R44, R50, R74).
    """
    check(Copy(tmp_path, seed, staging=staging), kills)


@pytest.mark.spark
@pytest.mark.soak
def test_killed_copy_beside_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """The same, with a table that Spark writes, deletes from, compacts, vacuums and alters."""
    # VACUUM lists a folder in 10,000 tasks, and Delta reads each log in 50.
    for name, value in {
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }.items():
        spark.conf.set(name, value)
    check(Copy(tmp_path, seed, spark), kills=int(os.environ.get("TXNLOG_KILLS", "1000")))


def check(copied: Copy, kills: int) -> None:
    try:
        copied.run(kills)
        end = copied.finish()
    finally:
        copied.close()
    copied.check(end)
    assert end >= 3 * kills
    count("kills", "copy into tables", copied.kills)
    count("kills", "zombie beside tables", copied.zombies)
    print(f"{end // 3} transactions, {copied.kills} kills, {copied.zombies} zombies")
