"""What the sink refuses before anything runs, and where its tasks refuse to run (R60)."""

from __future__ import annotations

import pickle
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from spark_sink.sink import batch_writer, stream_writer
from txnlog.cluster import CLUSTERS, Cluster
from txnlog.errors import ConfigError, InvalidRecordError

VALUE = StructType([StructField("value", StringType())])
ODD_HEADERS = StructType([*VALUE.fields, StructField("headers", ArrayType(StringType()))])


def options(root: Path, **more: str) -> dict[str, str]:
    return {"path": str(root / "never-made"), "topic": "t", **more}


WRITERS = [batch_writer, stream_writer]


@pytest.fixture
def other_host() -> Callable[[], None]:
    """What an executor elsewhere is: a process that has opened nothing."""
    return CLUSTERS.clear


def rows() -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"value": ["a"]})])


@pytest.mark.parametrize("make", WRITERS)
def test_task_where_the_root_is_not_mounted_names_its_host_and_makes_nothing(
    make: Any, tmp_path: Path, other_host: Callable[[], None]
) -> None:
    """It made a second cluster there, whose files the driver's commit then named."""
    root = tmp_path / "never-made"
    task = pickle.loads(pickle.dumps(make(options(tmp_path), VALUE, overwrite=False)))
    assert (root / "__cluster").is_dir(), "made where the driver is"
    mounted = root.rename(tmp_path / "mounted")
    for _ in ("no folder", "an empty mount point"):
        other_host()
        with pytest.raises(ConfigError, match=f"Host {re.escape(socket.gethostname())}") as failure:
            task.write(rows())
        assert "Mount the same folder" in str(failure.value)
        assert not root.exists() or not list(root.iterdir())
        root.mkdir(exist_ok=True)
    assert not list(mounted.glob("t"))


@pytest.mark.parametrize("make", WRITERS)
def test_task_where_the_root_is_another_cluster_writes_nothing(
    make: Any, tmp_path: Path, other_host: Callable[[], None]
) -> None:
    """A disk of the same name on another machine."""
    root = tmp_path / "never-made"
    task = make(options(tmp_path), VALUE, overwrite=False)
    expected = Cluster.open(str(root)).cluster_id
    root.rename(tmp_path / "mounted")
    found = Cluster.open(str(root), create=True).cluster_id
    other_host()
    with pytest.raises(ConfigError, match=f"has cluster {found} .*has cluster {expected}"):
        task.write(rows())
    assert not (root / "t").exists()


def test_writer_of_missing_root_with_creation_off_refused(tmp_path: Path) -> None:
    """auto.create.topics.enable=false makes no cluster either."""
    for make in WRITERS:
        with pytest.raises(ConfigError, match="There is no folder"):
            make(
                options(tmp_path, **{"auto.create.topics.enable": "false"}), VALUE, overwrite=False
            )
    assert list(tmp_path.iterdir()) == []


def test_writers_overwrite_refused_with_the_way_out(tmp_path: Path) -> None:
    """Complete mode and overwrite would drop a topic's history."""
    with pytest.raises(ConfigError, match="foreachBatch"):
        stream_writer(options(tmp_path), VALUE, overwrite=True)
    with pytest.raises(ConfigError, match='mode\\("append"\\)'):
        batch_writer(options(tmp_path), VALUE, overwrite=True)


def test_batch_writer_txn_app_id_alone_refused(tmp_path: Path) -> None:
    """Half of the pair would silently not deduplicate."""
    with pytest.raises(ConfigError, match="txnVersion"):
        batch_writer(options(tmp_path, txnAppId="a"), VALUE, overwrite=False)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"txnAppId": "txnlog/7"}, "start with txnlog/"),
        ({"txnAppId": "a", "transactional.id": "b"}, "exclude each other"),
    ],
)
def test_batch_writer_txn_app_id_that_cannot_be_kept_refused(
    tmp_path: Path, more: dict[str, str], says: str
) -> None:
    """The pair is a `txn` action in the topic's log, beside txnlog's own; one id decides it."""
    with pytest.raises(ConfigError, match=says):
        batch_writer(options(tmp_path, txnVersion="1", **more), VALUE, overwrite=False)


def test_writers_headers_checked_unless_switched_off(tmp_path: Path) -> None:
    """A job that moves over from Kafka must not lose its headers without a word."""
    with pytest.raises(InvalidRecordError, match="headers"):
        batch_writer(options(tmp_path), ODD_HEADERS, overwrite=False)
    batch_writer(options(tmp_path, includeHeaders="false"), ODD_HEADERS, overwrite=False)
