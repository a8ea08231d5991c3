"""Throughput of the streaming sink, compared with Spark's Delta sink and one that does nothing."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.do_nothing import NOTHING
from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.places import Place
from benchmarks.scale import Scale
from benchmarks.session import (
    input_stream,
    register_peers,
    run_query,
    take_turns,
    triggers_ms,
    write_input,
)
from txnlog.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "sink, 2 M records in"
RATE = "records/ms"


def measure(spark: SparkSession, scale: Scale) -> list[Figure]:
    """Records per millisecond of whole micro-batches; all read the same Parquet files."""
    root = new_folder()
    source = write_input(spark, Path(root), scale)
    runs = SinkRuns(spark, Path(root), source, scale)
    many = scale.micro_batches
    streams = take_turns(
        {"Delta": partial(runs.delta, many), OURS: partial(runs.txnlog, many)}, scale.rounds
    )
    singles = take_turns(
        {"nothing": partial(runs.nothing, 1), OURS: partial(runs.txnlog, 1)}, scale.rounds
    )
    in_many = Comparison(f"{NAME} 10 micro-batches", RATE, streams)
    in_one = Comparison(f"{NAME} one micro-batch", RATE, singles)
    return [
        in_many.at_least("Delta", 2.5, "Spark's Delta sink"),
        in_one.at_least("nothing", 0.5, "a Python sink that drops its rows"),
    ]


class SinkRuns:
    """Each run is a new query from `source` into a new table, in `micro_batches` micro-batches."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        source: str,
        scale: Scale,
        place: Place | None = None,
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._place = place or Place.on_disk(folder)
        self._source = source
        self._scale = scale
        self._numbers = itertools.count()
        register_peers(spark)

    def txnlog(self, micro_batches: int) -> list[float]:
        topic, place = f"topic{next(self._numbers)}", self._place
        cluster = Cluster.open(place.root, place.storage, create=True)
        cluster.create_topic(topic, partitions=self._scale.partitions)
        options = {"topic": topic, "path": place.root, **place.options}
        return self._run("txnlog", options, micro_batches)

    def delta(self, micro_batches: int) -> list[float]:
        path = f"{self._place.tables}/delta{next(self._numbers)}"
        return self._run("delta", {"path": path}, micro_batches)

    def nothing(self, micro_batches: int) -> list[float]:
        """A Python sink that drops its rows: the upper limit of a sink in Python."""
        return self._run(NOTHING, {}, micro_batches)

    def _run(self, name: str, options: dict[str, str], micro_batches: int) -> list[float]:
        frame = input_stream(
            self._spark, self._source, micro_batches=micro_batches, scale=self._scale
        )
        writer = frame.writeStream.format(name).options(**options)
        took_ms = triggers_ms(run_query(writer, self._folder))
        assert len(took_ms) == micro_batches
        return [self._scale.records / sum(took_ms)]
