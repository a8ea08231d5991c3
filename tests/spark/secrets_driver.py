"""A Spark driver whose options hold secrets; writes to a folder all that it can show of them.

Started with the folder, in a process of its own: event logs are chosen when the JVM starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from jobs.spark_session import build_session
from txnlog.cluster import Cluster


def main(folder: Path, secrets: dict[str, str]) -> None:
    """Read, write, stream and fail with the options, as a batch and as a query."""
    events = folder / "events"
    events.mkdir()
    spark = build_session(
        "txnlog tests, secrets",
        settings={
            "spark.ui.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{events}",
            # Otherwise a plan shows the first 25 options only.
            "spark.sql.debug.maxToStringFields": "10000",
        },
    )
    shown: list[str] = []

    def explain(what: DataFrame) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for mode in ("extended", "formatted"):
                what.explain(mode)
        shown.append(f"--- plan\n{printed.getvalue()}")

    def failing(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            shown.append(f"--- error of {what}\n{error}\n{error!r}\n{error.__cause__!r}")
            return
        raise AssertionError(f"{what} did not fail")

    root = str(folder / "root")
    rows = spark.createDataFrame([(b"k", b"v")] * 3, "key binary, value binary")
    rows.write.format("txnlog").options(**secrets).option("topic", "a").mode("append").save(root)
    read = spark.read.format("txnlog").options(**secrets)
    batch = read.option("subscribe", "a").load(root)
    explain(batch)
    assert batch.count() == 3
    batch.createOrReplaceTempView("a")
    shown.append(repr(spark.sql("EXPLAIN EXTENDED SELECT * FROM a").collect()))
    stream = spark.readStream.format("txnlog").options(**secrets)
    source = stream.option("subscribe", "a").option("startingOffsets", "earliest").load(root)
    explain(source)
    sink = source.select("key", "value").writeStream.format("txnlog").options(**secrets)
    sink = sink.option("topic", "b").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.trigger(availableNow=True).start(root)
    query.awaitTermination()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        query.explain(True)
    shown.append(f"--- query\n{printed.getvalue()}")
    assert query.lastProgress is not None
    shown.append(json.dumps([one.json for one in query.recentProgress]))

    failing("planning", lambda: read.option("subscribe", "absent").load(root).count())
    keys = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    unreachable = {f"storage.{key}": secrets[f"storage.{key}"] for key in keys}
    unreachable |= {"storage.endpoint": "http://127.0.0.1:1", "storage.allow_http": "true"}
    remote = spark.read.format("txnlog").options(**unreachable, **{"storage.max_retries": "0"})
    failing("the driver", lambda: remote.option("subscribe", "a").load("s3a://b/x").count())
    for file in Cluster.open(root).store.list("a"):
        if file.path.endswith(".parquet") and "_delta_log" not in file.path:
            (folder / "root" / file.path).unlink()
    failing("a task", lambda: read.option("subscribe", "a").load(root).collect())
    (folder / "shown.txt").write_text("\n".join(shown))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.stdin.read()))
