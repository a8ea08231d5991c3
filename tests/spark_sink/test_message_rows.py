"""Rows of small tasks: one file per partition of all tasks, in their order; a crash loses none."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from spark_sink.commit import commit_once, staging_facts, task_files
from spark_sink.message_rows import DRIVER_BYTES, MESSAGE_BYTES_MAX, message_bytes_max
from spark_sink.messages import StagedTask
from spark_sink.staging import Stager
from tests.cases import Some
from tests.world import CRASHES, ERRORS, outcome_of, planned, process, recover, world
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import complete
from txnlog.coordinator.phases import Phases
from txnlog.errors import StorageError, UnknownTopicIdError
from txnlog.protocol.metadata import StagedBatch
from txnlog.settings.config import parse_config
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.records import HEADERS_TYPE
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import read_committed

OPTIONS = parse_config({"path": "/memory", "topic": "orders"}, "writeStream")
QUERY = "query"


def task_of(
    cluster: Cluster,
    number: int,
    values: Sequence[str],
    *,
    batch_id: int = 0,
    run: str = "r1",
    message_bytes: int = MESSAGE_BYTES_MAX,
    **columns: Any,
) -> StagedTask:
    """What task `number` makes of keyed rows, after Spark has sent it to the driver."""
    include_headers = "headers" in columns
    stager = Stager(
        cluster,
        topic=None if "topic" in columns else "orders",
        include_headers=include_headers,
        target_size_bytes=1 << 20,
        message_bytes_max=message_bytes,
    )
    keys = [value.encode()[-1:] for value in values]
    halves = [slice(0, len(values) // 2), slice(len(values) // 2, None)]
    rows = [
        pa.RecordBatch.from_pydict(
            {"key": keys[half], "value": values[half]}
            | {name: column[half] for name, column in columns.items()}
        )
        for half in halves
    ]
    batches = tuple(stager.write(rows))
    assert (stager.message_rows is None) == (bool(batches) or not values)
    task = StagedTask(number, batches, QUERY, run, batch_id, rows=stager.message_rows)
    sent: StagedTask = pickle.loads(pickle.dumps(task))
    return sent


def values_of(cluster: Cluster, files: Sequence[StagedBatch]) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for file in files:
        span = FileSpan(
            f"{file.topic}/{file.path}", num_records=file.num_records, size_bytes=file.size_bytes
        )
        for rows in read_batch_file(cluster.store, span):
            there = found.setdefault((file.topic, file.partition), [])
            there += [value.decode() for value in rows.column("value").to_pylist()]
    return found


def test_tasks_share_one_file_per_partition_in_their_order() -> None:
    """16 tasks and 16 partitions would make 256 files of each micro-batch (D148)."""
    cluster = process(world())
    values = [[f"{task}-{row}" for row in range(40)] for task in range(5)]
    tasks = [task_of(cluster, task, some) for task, some in enumerate(values)]
    files = task_files(OPTIONS, tasks)
    facts = staging_facts(tasks, files)
    assert [facts[name] for name in ("tasks", "files", "records")] == ["5", "2", "200"]
    written = files.write(cluster.store)
    assert files.write(cluster.store) == written, "a repeated call writes nothing"
    found = values_of(cluster, written)
    assert sorted(found) == [("orders", 0), ("orders", 1)]
    everything = [value for some in values for value in some]
    for there in found.values():
        assert there == [value for value in everything if value in set(there)]
    assert sum(map(len, found.values())) == len(everything)


def test_a_task_with_files_of_its_own_keeps_its_place() -> None:
    """The order of the input partitions is that of the offsets."""
    cluster = process(world(partitions=1))
    tasks = [
        task_of(cluster, 0, ["a"]),
        task_of(cluster, 1, ["b"]),
        task_of(cluster, 2, ["c", "d"], message_bytes=3),
        task_of(cluster, 3, []),
        task_of(cluster, 4, ["e"]),
        task_of(cluster, 5, ["f"]),
    ]
    assert [len(task.batches) for task in tasks] == [0, 0, 1, 0, 0, 0]
    written = task_files(OPTIONS, tasks).write(cluster.store)
    assert [file.num_records for file in written] == [2, 2, 2]
    assert values_of(cluster, written) == {("orders", 0): list("abcdef")}


def test_writes_with_and_without_headers_keep_their_order() -> None:
    """A transaction of foreachBatch may write frames of both kinds to one topic."""
    cluster = process(world(partitions=1))
    headers = pa.array([[{"key": "h", "value": b"1"}]], HEADERS_TYPE)
    with_headers = [
        task_of(cluster, task, [value], headers=headers) for task, value in enumerate("ac")
    ]
    tasks = [with_headers[0], task_of(cluster, 1, ["b"]), with_headers[1]]
    written = task_files(OPTIONS, tasks).write(cluster.store)
    assert values_of(cluster, written) == {("orders", 0): list("abc")}


def test_topics_headers_and_times_are_kept() -> None:
    cluster = process(world(partitions=1))
    options = parse_config({"path": "/memory", "includeHeaders": "true"}, "writeStream")
    columns = {
        "topic": ["stock", "orders", "stock"],
        "headers": pa.array([None, [{"key": "h", "value": b"1"}], []], HEADERS_TYPE),
        "timestamp": pa.array([3_000, 1_000, 2_000], pa.timestamp("us", tz="UTC")),
    }
    tasks = [task_of(cluster, task, ["x", "y", "z"], **columns) for task in range(2)]
    written = task_files(options, tasks).write(cluster.store)
    assert {(file.topic, file.timestamp_min_us, file.timestamp_max_us) for file in written} == {
        ("orders", 1_000, 1_000),
        ("stock", 2_000, 3_000),
    }
    (orders,) = (file for file in written if file.topic == "orders")
    rows = [
        row
        for part in read_batch_file(cluster.store, FileSpan(f"orders/{orders.path}"))
        for row in part.to_pylist()
    ]
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"1"}]] * 2


def test_what_the_driver_gets_is_bounded() -> None:
    """No task knows how many there are; Spark's own limit is 1 GiB of results."""
    assert message_bytes_max(0) == message_bytes_max(15) == MESSAGE_BYTES_MAX
    assert sum(map(message_bytes_max, range(16))) == DRIVER_BYTES
    assert sum(map(message_bytes_max, range(10_000))) < 8 * DRIVER_BYTES
    cluster = process(world(partitions=1))
    for value, size_bytes in (("aa", 230), ("", 200)):
        sent = task_of(cluster, 0, [value] * 10, message_bytes=size_bytes)
        assert sent.rows is not None
        assert task_of(cluster, 0, [value] * 10, message_bytes=size_bytes - 1).rows is None
    many = task_of(cluster, 0, [""] * 50_000)
    assert many.rows is not None
    assert len(many.rows.data) < 50_000 * 20


def test_a_topic_that_was_created_again_is_refused() -> None:
    """Its rows were routed by the partitions of the former topic."""
    shared = world()
    task = task_of(process(shared), 0, ["a"])
    cluster = process(shared)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", partitions=3)
    with pytest.raises(UnknownTopicIdError):
        commit_once(process(shared), OPTIONS, [task], 0, Phases())
    assert committed(shared) == []


def test_a_failed_write_is_made_again_and_no_other() -> None:
    cluster = process(world())
    files = task_files(OPTIONS, [task_of(cluster, 0, list("abcdef"))])
    with planned(cluster, {1: Fault.FAIL_BEFORE}), pytest.raises(StorageError):
        files.write(cluster.store)
    before = names(cluster)
    written = files.write(cluster.store)
    assert before < names(cluster) == {f"orders/{file.path}" for file in written}


def names(cluster: Cluster) -> set[str]:
    return {item.path for item in cluster.store.list("orders") if item.path.endswith(".parquet")}


def commit(cluster: Cluster, run: str, batch_id: int) -> bool:
    """Commit a batch of two tasks; the values name it."""
    values = [[f"{batch_id}.{task}.{row}" for row in range(4)] for task in range(2)]
    tasks = [
        task_of(cluster, task, some, batch_id=batch_id, run=run) for task, some in enumerate(values)
    ]
    row = commit_once(cluster, OPTIONS, tasks, batch_id, Phases())
    if row is not None and row.state.is_prepared:
        complete(cluster, row)
    return row is not None


def committed(shared: SharedMemory) -> list[str]:
    cluster = process(shared)
    files = [
        file for some in read_committed(cluster.topic("orders").view).values() for file in some
    ]
    return sorted(
        value.decode()
        for file in files
        for rows in read_batch_file(cluster.store, FileSpan(f"orders/{file.path}"))
        for value in rows.column("value").to_pylist()
    )


@pytest.mark.parametrize("fault", [*CRASHES, *ERRORS])
def test_batch_that_dies_at_any_call_is_there_once(fault: Fault, some: Some[Any]) -> None:
    """Also while the commit writes its files; Spark starts again, and repeats it (R54)."""

    def begun() -> tuple[SharedMemory, Cluster]:
        shared = world()
        cluster = process(shared)
        assert commit(cluster, "r1", 0)
        return shared, cluster

    _, cluster = begun()
    with planned(cluster, {}) as plan:
        commit(cluster, "r1", 1)
    for number in some(range(plan.calls)):
        shared, cluster = begun()
        with planned(cluster, {number: fault}):
            died = outcome_of(lambda c=cluster: commit(c, "r1", 1)) == "crashed"
        assert died == (fault in CRASHES)
        commit(process(shared), "r2", 1)
        assert not commit(process(shared), "r2", 1)
        recover(shared)
        assert committed(shared) == sorted(
            f"{batch}.{task}.{row}" for batch in range(2) for task in range(2) for row in range(4)
        )
