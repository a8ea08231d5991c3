"""What a process imports before its first record; a query of Spark starts five such processes.

numpy and pyarrow take 0.1 s of processor time, pyarrow.compute 0.04, pandas 0.2. `pa.array` imports
pandas where it is installed; see txnlog/process/arrow_arrays.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txnlog import Producer

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "key binary, value binary"

PRODUCER = """
from txnlog import Producer
with Producer({"txnlog.root": root, "transactional.id": "t"}) as producer:
    producer.init_transactions()
    with producer.transaction():
        producer.produce("out", "value", key="key")
"""
# Its thread makes checkpoints, and another process opens what it has written from them.
CHECKPOINTS = """
from txnlog import Producer
from txnlog.cluster import Cluster
from txnlog.storage.delta.checkpointer import wait_for_background
with Producer({"txnlog.root": root, "transactional.id": "c", "linger.ms": 0}) as producer:
    producer.init_transactions()
    for number in range(250):
        with producer.transaction():
            producer.produce("often", "value", key="key")
        if number % 120 == 0:
            wait_for_background()
wait_for_background()
again = Cluster.open(root).topic("often")
again.refresh()
files = again.store.list("often/_delta_log")
assert again.log.version > 200 and [f for f in files if "checkpoint.parquet" in f.path]
"""
CONSUMER = """
from txnlog import Consumer
with Consumer({"txnlog.root": root, "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
    consumer.subscribe(["orders"])
    assert len(consumer.consume(10, timeout=60)) == 10
"""
BATCH_CONSUMER = """
from txnlog import Consumer, TopicPartition
with Consumer({"txnlog.root": root}) as consumer:
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert consumer.consume_batch(10, timeout=60).num_rows == 10
"""
ADMIN = """
from txnlog import AdminClient
assert "orders" in AdminClient({"txnlog.root": root}).list_topics().topics
"""
# The processes of a query, as Spark calls them.
STREAM_READER = """
from txnlog.connector.spark_versions import ReadAllAvailable
from spark_source.schema import spark_schema
from spark_source.stream import stream_reader
options = {"path": root, "subscribe": "orders", "startingOffsets": "earliest"}
reader = stream_reader(options, spark_schema(include_headers=False))
start = reader.initialOffset()
end = reader.latestOffset(start, ReadAllAvailable())
partitions = reader.partitions(start, end)
"""
READING_TASK = f"""{STREAM_READER}
assert sum(batch.num_rows for split in partitions for batch in reader.read(split)) == 10
"""
SINK_PLANNER = """
from pyspark.sql.types import BinaryType, StructField, StructType
from spark_sink.sink import stream_writer
fields = [StructField(name, BinaryType()) for name in ("key", "value")]
writer = stream_writer({"path": root, "topic": "out"}, StructType(fields), overwrite=False)
"""
COMMITTER = f"""{SINK_PLANNER}
from spark_sink.messages import StagedTask
writer.commit([StagedTask(0, (), "query", "run", 0)], 0)
"""
PANDAS = {"pandas"}
COMPUTE = {"pandas", "pyarrow.compute", "pyarrow.dataset"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A root with a topic `orders` of ten records."""
    root = str(tmp_path_factory.mktemp("root"))
    with Producer({"txnlog.root": root, "num.partitions": 1}) as producer:
        for number in range(10):
            producer.produce("orders", str(number), key="key")
    return root


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        pytest.param(PRODUCER, COMPUTE, id="producer"),
        pytest.param(CONSUMER, COMPUTE, id="consumer"),
        pytest.param(BATCH_CONSUMER, PANDAS, id="consumer of Arrow"),
        pytest.param(ADMIN, PANDAS, id="admin client"),
        pytest.param(STREAM_READER, COMPUTE, id="Spark's stream reader"),
        pytest.param(READING_TASK, PANDAS, id="Spark's reading task"),
        pytest.param(SINK_PLANNER, COMPUTE, id="Spark's planner of a sink"),
        pytest.param(COMMITTER, COMPUTE, id="Spark's committer"),
    ],
)
def test_first_records_need_no_module_that_starts_slowly(
    root: str, code: str, left_out: set[str]
) -> None:
    assert not left_out & imported_by(code, root)


def test_checkpoints_need_no_pandas(tmp_path: Path) -> None:
    """Its import, in the first checkpoint of each producer, took a quarter of a second, in which
    commits waited for the interpreter's lock.
    """
    assert not PANDAS & imported_by(CHECKPOINTS, str(tmp_path / "root"))


def imported_by(code: str, root: str) -> set[str]:
    """The modules of a process that runs the code."""
    script = f"import sys\nroot = sys.argv[1]\n{code}\nprint(*sys.modules, file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", script, root],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stderr.split())
