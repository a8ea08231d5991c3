"""A driver for tests that kill it: the pipeline, for ever. Its arguments: root and checkpoint."""

from __future__ import annotations

import sys

from jobs.spark_session import build_session
from tests.spark import pipeline


def main(root: str, checkpoint: str) -> None:
    """Run until it is killed, or the query fails."""
    spark = build_session("txnlog versions", settings={"spark.ui.enabled": "false"})
    frame = pipeline.split(pipeline.numbers(spark, root))
    query = pipeline.writer(frame, root, checkpoint).trigger(processingTime="0 seconds").start()
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
