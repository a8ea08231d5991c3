"""`transactional` on the installed Spark: a topic, Delta tables and offsets in one transaction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark import pipeline, tables_pipeline
from tests.spark.tables_pipeline import NUMBERS, ROWS
from tests.tables import definition
from tests.versions.installed import SPARK
from txnlog.connector.spark_delta import DELTA_FOR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_sink import Transaction

pytestmark = pytest.mark.versions


@pytest.mark.skipif(SPARK not in DELTA_FOR, reason="Delta has no jar for this Spark")
def test_tables_go_on_exactly_once_after_a_restart_and_a_lost_checkpoint(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """A batch that Spark repeats is skipped; a new query goes on from the offsets (R54, R59, R74).

    What Spark keeps of a query, and how Delta stages and is told to forget, is another on each.
    """

    def run(function: tables_pipeline.Function = tables_pipeline.route) -> None:
        pipeline.run(tables_pipeline.start(spark, root, checkpoint, function=function))

    def fails(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        tables_pipeline.route(tx, frame, batch_id)
        raise RuntimeError("this batch fails")

    pipeline.feed(root, range(10))
    tables_pipeline.create(spark, root)
    run()
    for name in ("0", ".0.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
    run()
    tables_pipeline.check(spark, root, 10)
    pipeline.feed(root, range(10, 20))
    with pytest.raises(StreamingQueryException, match="this batch fails"):
        run(fails)
    tables_pipeline.check(spark, root, 10)
    run()
    tables_pipeline.check(spark, root, 20)
    shutil.rmtree(checkpoint)
    pipeline.feed(root, range(20, 30))
    run()
    tables_pipeline.check(spark, root, 30)


@pytest.mark.skipif(SPARK in DELTA_FOR, reason="Delta has a jar for this Spark")
def test_without_delta_only_tables_are_refused(
    spark: SparkSession, root: str, checkpoint: str
) -> None:
    """By name, and the batch whose function does without them is committed."""
    pipeline.feed(root, range(10))
    log = Path(tables_pipeline.place(root, NUMBERS)) / "_delta_log"
    log.mkdir(parents=True)
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}]
    lines.append(definition((("id", "long"), ("day", "string"))))
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    tables_pipeline.enlist(root, NUMBERS)

    def appends(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        tx.write(pipeline.split(frame))
        tx.append(NUMBERS, frame.selectExpr(*ROWS).withColumnRenamed("parity", "day"))

    def writes(tx: Transaction, frame: DataFrame, batch_id: int) -> None:
        tx.write(pipeline.split(frame))

    with pytest.raises(StreamingQueryException, match=f"no release for Spark {SPARK} yet"):
        pipeline.run(tables_pipeline.start(spark, root, checkpoint, function=appends))
    pipeline.run(tables_pipeline.start(spark, root, checkpoint, function=writes))
    pipeline.check(root, 10)
