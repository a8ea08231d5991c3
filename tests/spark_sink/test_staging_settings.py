"""Staging follows the sink's options and the topics' configs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark_sink.test_staging import stage
from txnlog.cluster import Cluster
from txnlog.errors import InvalidRecordError


@pytest.fixture
def cluster() -> Cluster:
    return Cluster.open("memory://", create=True)


def test_staging_compression_follows_the_option(cluster: Cluster) -> None:
    """`kafka.compression.type` of a job moved from Kafka keeps its meaning."""
    cluster.create_topic("t", partitions=1)
    batch = pa.RecordBatch.from_pydict({"value": [b"v" * 100] * 2_000})
    for asked, found in (("lz4", "LZ4"), (None, "ZSTD")):
        [staged] = stage(cluster, [batch], compression=asked)
        data = cluster.store.get(f"t/{staged.path}")
        group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
        assert {group.column(i).compression for i in range(4)} == {found}


def test_row_without_a_key_is_refused_where_keys_are_compacted(cluster: Cluster) -> None:
    """As Kafka's brokers do: key compaction would have to drop it (R23)."""
    cluster.create_topic("latest", partitions=2, config={"cleanup.policy": "compact"})
    cluster.create_topic("all", partitions=2)
    rows = {"topic": ["all", "latest", "latest"], "key": [None, b"k", None], "value": [b"v"] * 3}
    batch = pa.RecordBatch.from_pydict({**rows, "key": pa.array(rows["key"], pa.binary())})
    with pytest.raises(InvalidRecordError, match="Row 2 of this task has no key.*latest.*compact"):
        stage(cluster, [batch], topic=None)
    assert len(stage(cluster, [batch.slice(0, 2)], topic=None)) == 2
