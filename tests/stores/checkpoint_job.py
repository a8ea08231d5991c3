"""A streaming query from topic to topic with its checkpoint on s3a, as a user would run it.

    python checkpoint_job.py <settings.json>

The settings: root, checkpoint, options (of the store, as txnlog's), spark (settings of the
session), until (the number of records after which the query may end; it runs until then).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

GROUP = "copiers"


def main() -> None:
    """Run the query until it has read everything, or is killed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    builder = SparkSession.builder.appName("checkpoint on s3a").master("local[2]")
    for name, value in settings["spark"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    storage = {f"storage.{name}": value for name, value in settings["options"].items()}
    own = {f"checkpoint.storage.{name}": value for name, value in settings["options"].items()}
    read = (
        spark.readStream.format("txnlog")
        .options(**storage)
        .options(subscribe="input", maxOffsetsPerTrigger=settings["per_trigger"])
        .options(**{"group.id": GROUP, "startingOffsets": "committed"})
        .option("auto.offset.reset", "earliest")
        .load(settings["root"])
    )
    query = (
        read.selectExpr("key", "value", "'output' AS topic")
        .writeStream.format("txnlog")
        .options(**storage, **own)
        .option("path", settings["root"])
        .option("group.id", GROUP)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
