"""Write the checkpoints that the tests read, with a real Spark; run again when Spark is upgraded.

    python tests/checkpoint/make_spark_checkpoints.py

Three queries of three batches each, one per layout of the offset log: v1, v2, and v2 with named
sources. Their sources: topic `flights` twice in a union with itself, a folder of text that stays
empty until the last batch, topic `orders` that has data in batch 0 only, and a counter.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

HERE = Path(__file__).parent / "spark_checkpoints"
BATCHES = 3
LAYOUTS: dict[str, dict[str, str]] = {
    "v1": {},
    "v2": {"spark.sql.streaming.offsetLog.formatVersion": "2"},
    "v2_named": {
        "spark.sql.streaming.offsetLog.formatVersion": "2",
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    },
}


class TopicReader(DataSourceStreamReader):
    """A fake txnlog source: its offset JSON, without its data."""

    def __init__(self, options: dict[str, str]) -> None:
        self.topic, self.group = options["topic"], options["group"]
        self.batches_max = int(options["batches"])
        self.batch = 0

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self) -> dict[str, Any]:
        # A source without new data gives the same JSON again, or Spark would run a batch for it.
        self.batch = min(self.batch + 1, self.batches_max)
        mark: dict[str, Any] = {
            "cluster": "c0ffee00-0000-4000-8000-000000000001",
            "topics": {self.topic: f"id-of-{self.topic}"},
            "group": self.group,
            "generation": 3,
        }
        if self.batch == 1:
            mark["start"] = {self.topic: {"0": 2, "1": 0}}
        return {self.topic: {"0": 10 * self.batch, "1": 7 * self.batch}, "@": mark}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(json.dumps([start, end]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)

    def commit(self, end: dict[str, Any]) -> None:
        pass


class TopicSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "stand_in"

    def schema(self) -> str:
        return "value string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TopicReader(dict(self.options))


def run_query(spark: SparkSession, layout: str, work: Path) -> Path:
    """Run one query into a checkpoint of the layout and return its folder."""
    checkpoint, folder = work / layout, work / f"{layout}-in"
    folder.mkdir()

    def stream(name: str) -> Any:
        return spark.readStream.name(name) if layout == "v2_named" else spark.readStream

    def topic(name: str, topic: str, group: str, batches: int) -> Any:
        reader = stream(name).format("stand_in").option("topic", topic).option("group", group)
        return reader.option("batches", batches).load()

    flights = topic("flights", "flights", "shipping", BATCHES)
    again = topic("flights_again", "flights", "shipping", BATCHES)
    orders = topic("orders", "orders", "billing", 1)
    text = stream("text").format("text").load(folder.as_uri())
    counter = stream("counter").format("rate").load().selectExpr("cast(value as string)")
    union = flights.union(text).union(orders).union(counter).union(again)
    writer = union.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="2 seconds").start()
    while not (checkpoint / "commits" / str(BATCHES - 1)).exists():
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        if (checkpoint / "commits" / str(BATCHES - 2)).exists():
            (folder / "a.txt").write_text("x\n")
        time.sleep(0.05)
    query.stop()
    return checkpoint


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as work:
        for layout, conf in LAYOUTS.items():
            builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
            builder = builder.config("spark.sql.shuffle.partitions", "1")
            for key, value in conf.items():
                builder = builder.config(key, value)
            spark = builder.getOrCreate()
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(TopicSource)
            made = run_query(spark, layout, Path(work))
            spark.stop()
            shutil.rmtree(HERE / layout, ignore_errors=True)
            for number in range(BATCHES):
                for log in ("offsets", "commits"):
                    for name in (f"{number}", f".{number}.crc"):
                        (HERE / layout / log).mkdir(parents=True, exist_ok=True)
                        shutil.copy(made / log / name, HERE / layout / log / name)
            shutil.copy(made / "metadata", HERE / layout / "metadata")


if __name__ == "__main__":
    main()
