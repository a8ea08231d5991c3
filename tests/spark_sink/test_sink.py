"""What the sink refuses before anything runs: constructors check, and do no I/O (R60)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from spark_sink.sink import batch_writer, stream_writer
from txnlog.errors import ConfigError, InvalidRecordError

VALUE = StructType([StructField("value", StringType())])
ODD_HEADERS = StructType([*VALUE.fields, StructField("headers", ArrayType(StringType()))])


def options(root: Path, **more: str) -> dict[str, str]:
    return {"path": str(root / "never-made"), "topic": "t", **more}


def test_writers_constructed_and_pickled_no_io(tmp_path: Path) -> None:
    """Spark builds and pickles them for every micro-batch; a folder made here would be a leak."""
    for made in (
        batch_writer(options(tmp_path), VALUE, overwrite=False),
        stream_writer(options(tmp_path), VALUE, overwrite=False),
    ):
        pickle.loads(pickle.dumps(made))
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


def test_writers_headers_checked_unless_switched_off(tmp_path: Path) -> None:
    """A job that moves over from Kafka must not lose its headers without a word."""
    with pytest.raises(InvalidRecordError, match="headers"):
        batch_writer(options(tmp_path), ODD_HEADERS, overwrite=False)
    batch_writer(options(tmp_path, includeHeaders="false"), ODD_HEADERS, overwrite=False)
