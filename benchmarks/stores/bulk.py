"""Bulk sink and source on S3, beside Spark's Delta sink and source on s3a."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.figures import OURS, Comparison, Figure
from benchmarks.folders import new_folder
from benchmarks.scale import Scale
from benchmarks.session import bench_session, take_turns
from benchmarks.sink import SinkRuns
from benchmarks.source import SourceRuns, fill
from benchmarks.stores.server import s3_server

DELTA = "Delta"
RATE = "records/ms"
RECORDS = "2 M records in 10 micro-batches on S3"


def measure(scale: Scale) -> list[Figure]:
    """Records per millisecond, as in `make bench`; input and checkpoints are on the local disk."""
    many = scale.micro_batches
    with s3_server() as server, bench_session(server.far.hadoop()) as spark:
        folder, place = Path(new_folder()), server.far.place("bulk")
        fill(spark, folder, scale, place)
        sink = SinkRuns(spark, folder, f"{folder}/input", scale, place)
        source = SourceRuns(spark, place, folder, scale)
        sinks = take_turns(
            {DELTA: partial(sink.delta, many), OURS: partial(sink.txnlog, many)}, scale.rounds
        )
        sources = take_turns(
            {DELTA: partial(source.delta, many), OURS: partial(source.txnlog, many)}, scale.rounds
        )
        batches = take_turns({DELTA: source.delta_batch, OURS: source.txnlog_batch}, scale.rounds)
    compared = [
        Comparison(f"sink, {RECORDS}", RATE, sinks),
        Comparison(f"source, {RECORDS}", RATE, sources),
        Comparison("batch read of 2 M records on S3", RATE, batches),
    ]
    return [figure for one in compared for figure in (*one.each(), one.ratio(DELTA))]
