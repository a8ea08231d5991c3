"""The job over Spark Connect, and what is different there."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import job
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Listener(StreamingQueryListener):
    """Keeps what it hears; it runs in the client."""

    def __init__(self) -> None:
        self.rows = 0
        self.ended = 0

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.rows += event.progress.numInputRows

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.ended += 1


def main() -> None:
    """Run it and report."""
    folder = Path(sys.argv[1]).resolve()
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    listener = Listener()
    spark.streams.addListener(listener)
    report = job.run(spark, folder)
    root = str(folder / "root")
    report["session"] = type(spark).__module__
    report["batches"] = foreach_batch(spark, root, folder / "batches")
    report["registered"] = registered(spark, root)
    report["artifact"] = artifact(spark, folder)
    report["unknown option"] = unknown_option(spark, root)
    deadline = time.monotonic() + 300
    while listener.ended < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    report["heard"] = {"rows": listener.rows, "ended": listener.ended}
    spark.streams.removeListener(listener)
    (folder / "report.json").write_text(json.dumps(report))
    spark.stop()


def foreach_batch(spark: SparkSession, root: str, checkpoint: Path) -> list[int]:
    """An idempotent batch write in foreachBatch, which runs in a Python worker of the server."""

    def copy(frame: DataFrame, batch_id: int) -> None:
        options = {"topic": "copies", "txnAppId": "copier", "txnVersion": str(batch_id)}
        frame.write.format("txnlog").options(**options).mode("append").save(root)

    numbers = (
        spark.readStream.format("txnlog")
        .options(subscribe="numbers", startingOffsets="earliest")
        .load(root)
    )
    query = (
        numbers.select("key", "value")
        .writeStream.foreachBatch(copy)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(600):
        raise TimeoutError("the query is still at work")
    return job.read(spark, root, "copies")


def registered(spark: SparkSession, root: str) -> int:
    """The class registered in the session, under a name of its own."""
    from pyspark_txnlog import DefaultSource

    class Registered(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "registered"

    spark.dataSource.register(Registered)
    frame = spark.read.format("registered").option("subscribe", "odds").load(root)
    return frame.count()


def artifact(spark: SparkSession, folder: Path) -> str:
    """A source sent with addArtifacts; the look-up was before, and elsewhere."""
    module = folder / "pyspark_late.py"
    module.write_text(
        "from pyspark_txnlog import DefaultSource as Base\n"
        "class DefaultSource(Base):\n"
        "    @classmethod\n"
        "    def name(cls): return 'late'\n"
    )
    spark.addArtifacts(str(module), pyfile=True)
    return failure(spark, "late", str(folder / "root"), subscribe="odds")


def unknown_option(spark: SparkSession, root: str) -> str:
    """Our error, as the client sees it."""
    return failure(spark, "txnlog", root, subscribed="odds")


def failure(spark: SparkSession, name: str, root: str, **options: str) -> str:
    """What a batch read fails with; "" when it works."""
    try:
        spark.read.format(name).options(**options).load(root).count()
    except Exception as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
