"""Code blocks of the documentation that need a Spark session, run in one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks
from txnlog import Cluster, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# README.md's block is run by tests/spark/test_readme.py.
PAGES = (
    "README.md",
    "docs/deploying.md",
    "docs/howto/spark-job.md",
    "docs/monitoring.md",
    "docs/sql.md",
)
JOB = ROOT / "docs" / "howto" / "spark-job.md"

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A root with a topic `orders` of three records."""
    root = str(tmp_path / "lake")
    with Producer({"txnlog.root": root, "num.partitions": 1}) as producer:
        for value in ("apple", "pear", "plum"):
            producer.produce("orders", value)
    return root


def code(block: Block, root: str) -> str:
    """With the test's root in place of the page's."""
    return block.text.replace("/data/lake", root)


def run(block: Block, names: dict[str, Any], root: str) -> None:
    exec(compile(code(block, root), block.place, "exec"), names)


def titled(title: str) -> Block:
    [found] = [block for block in blocks(JOB) if block.title == title]
    return found


def end(root: str, topic: str) -> int:
    """The number of records of a topic; offsets are dense."""
    return sum(p.end_offset for p in Cluster.open(root).topic(topic).view.partitions)


@pytest.mark.soak
@pytest.mark.parametrize("title", ["txnlog_job.py", "exactly_once.py"])
def test_moved_job_copies_every_record_once(
    spark: SparkSession, lake: str, tmp_path: Path, title: str
) -> None:
    names: dict[str, Any] = {"spark": spark, "root": lake, "checkpoint": str(tmp_path / "c")}
    run(titled(title), names, lake)
    names["query"].processAllAvailable()
    names["query"].stop()
    values = spark.read.format("txnlog").option("subscribe", "shouted").load(lake)
    shouted = sorted(row.value.decode() for row in values.select("value").collect())
    assert shouted == ["APPLE", "PEAR", "PLUM"]


def test_moved_job_differs_in_format_and_address_only() -> None:
    """The page promises it."""
    moved = titled("kafka_job.py").text.replace('format("kafka")', 'format("txnlog")')
    moved = moved.replace('"kafka.bootstrap.servers", "broker:9092"', '"txnlog.root", root')
    assert moved == titled("txnlog_job.py").text


def test_blocks_of_the_sql_page_run(spark: SparkSession, lake: str) -> None:
    names: dict[str, Any] = {"spark": spark}
    for block in blocks(ROOT / "docs" / "sql.md"):
        if block.language == "python":
            run(block, names, lake)
            assert names["orders"].count() == 3
        elif block.language == "sql":
            for statement in code(block, lake).split(";"):
                if statement.strip():
                    spark.sql(statement).collect()
    names["views"].drop()


def test_blocks_of_the_monitoring_page_run(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    """The listener's, and the two that read the history of a shard that has one."""
    python = [b for b in blocks(ROOT / "docs/monitoring.md") if b.language == "python"]
    # tests/monitoring/test_page.py runs the one before.
    _, first, history = python
    [statement] = [b for b in blocks(ROOT / "docs/monitoring.md") if b.language == "sql"]
    names: dict[str, Any] = {"spark": spark}
    run(first, names, lake)
    job: dict[str, Any] = {"spark": spark, "root": lake, "checkpoint": str(tmp_path / "c")}
    try:
        run(titled("txnlog_job.py"), job, lake)
        job["query"].processAllAvailable()
        # The figures of a batch come with the next one.
        more = spark.sql("select 'more' value, 'orders' topic").write.format("txnlog")
        more.mode("append").save(lake)
        job["query"].processAllAvailable()
        job["query"].stop()
    finally:
        spark.streams.removeListener(names["listener"])
    shard = f"__transaction_state-{Cluster.open(lake).shard_of(job['query'].id)}"
    in_shard = [b.text.replace("__transaction_state-3", shard) for b in (statement, history)]
    assert spark.sql(in_shard[0].replace("/data/lake", lake)).count() >= 3
    exec(
        in_shard[1].replace("/data/lake", lake).replace("history.where", "rows = history.where"),
        names,
    )
    assert [row.batchId for row in names["rows"].collect()] == ["0"]


def test_blocks_of_the_deployment_page_run(spark: SparkSession, lake: str) -> None:
    """In a session that is there already, as in a notebook's second cell."""
    for block in blocks(ROOT / "docs" / "deploying.md"):
        if block.language == "python":
            names: dict[str, Any] = {"spark": spark}
            run(block, names, lake)
            found = names["spark"].read.format("txnlog").option("subscribe", "orders").load(lake)
            assert found.count() == 3
