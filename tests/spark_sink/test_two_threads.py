"""A task that receives in one thread and stages in another: order, errors, no thread left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_sink import sink
from txnlog.cluster import Cluster
from txnlog.errors import InvalidRecordError, StorageError
from txnlog.protocol.metadata import StagedBatch
from txnlog.settings.config import parse_config
from txnlog.storage.batches.reader import FileSpan, read_batch_file

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
ROWS = 500
BATCHES = 40
Stage = Callable[[Iterator[pa.RecordBatch]], tuple[StagedBatch, ...]]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic("t", partitions=3)
    return cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Stage rows as task 7 of Spark does, into files."""
    monkeypatch.setattr(sink, "message_bytes_max", lambda task: 0)
    monkeypatch.setattr(sink, "task_context", lambda: SimpleNamespace(partitionId=lambda: 7))
    options = parse_config({"path": str(tmp_path), "topic": "t"}, "writeStream")
    return lambda rows: sink.stage_rows(options, cluster.cluster_id, rows).batches


def batch(number: int, **more: list[int]) -> pa.RecordBatch:
    rows = range(number * ROWS, (number + 1) * ROWS)
    columns = {"key": [b"%d" % (row % 10) for row in rows], "value": [b"%d" % row for row in rows]}
    columns |= {name: pa.array(values, pa.int32()) for name, values in more.items()}
    return pa.RecordBatch.from_pydict(columns)


def test_rows_of_each_partition_stay_in_order(cluster: Cluster, stage: Stage) -> None:
    staged = stage(batch(number) for number in range(BATCHES))
    assert sum(file.num_records for file in staged) == BATCHES * ROWS
    for partition in range(3):
        values = [
            int(value)
            for file in staged
            if file.partition == partition
            for found in read_batch_file(cluster.store, FileSpan(f"t/{file.path}"))
            for value in found.column("value").to_pylist()
        ]
        assert values == sorted(values)


@pytest.mark.parametrize("bad", [0, 1, 2, BATCHES - 1])
def test_error_of_a_row_names_task_and_row_and_ends_the_task(stage: Stage, bad: int) -> None:
    """Raised where Spark sees it, by its own thread."""

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(BATCHES):
            partition = 3 if number == bad else 0
            yield batch(number, partition=[0] * (ROWS - 1) + [partition])

    with pytest.raises(InvalidRecordError) as raised:
        stage(rows())
    row = (bad + 1) * ROWS - 1
    assert raised.value.message.startswith(
        f"Task 7: Row {row} of this task: partition 3 does not exist"
    )
    assert raised.value.context["row"] == row
    assert raised.value.context["task"] == 7


def test_error_of_the_disk_ends_the_task(
    stage: Stage, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StorageError("No space left on device.")

    def refuse(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(type(cluster.store), "put_new", refuse)
    monkeypatch.setattr(type(cluster.store), "open_writer", refuse)
    with pytest.raises(StorageError, match="No space left on device") as raised:
        stage(batch(number) for number in range(BATCHES))
    assert raised.value is error


def test_task_that_spark_kills_stages_nothing_more(stage: Stage, tmp_path: Path) -> None:
    """Spark closes the connection; files that are complete stay for vacuum, unreferenced."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield from (batch(number) for number in range(3))
        raise EOFError("the connection is closed")

    with pytest.raises(EOFError, match="the connection is closed"):
        stage(rows())
    assert not list((tmp_path / "t").glob("*.parquet"))
