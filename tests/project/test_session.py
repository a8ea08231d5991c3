"""The session shared by tests and jobs: it has the settings of conf/, and Delta works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_session import CONF_DIR, LOCAL_SETTINGS, spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_environment_keeps_a_chosen_python_and_adds_what_is_missing() -> None:
    """With different Pythons driver and workers fail in the first task, far from the cause."""
    chosen = spark_environment({"PYSPARK_PYTHON": "/opt/python", "PYTHONPATH": "/lib/a"})
    assert chosen["PYSPARK_PYTHON"] == "/opt/python"
    assert chosen["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert chosen["SPARK_CONF_DIR"] == str(CONF_DIR)
    assert chosen["PYTHONPATH"].split(":") == [str(CONF_DIR.parent), "/lib/a"]
    assert spark_environment(chosen) == chosen


@pytest.mark.spark
def test_session_has_every_setting_of_conf(spark: SparkSession) -> None:
    """If Spark does not read conf/, jobs run slower or without Delta, without an error."""
    actual = spark.sparkContext.getConf()
    wanted = dict(conf_lines(CONF_DIR / "spark-defaults.conf"))
    assert wanted
    # A session of our jobs is small.
    wanted.update({name: value for name, value in LOCAL_SETTINGS.items() if name in wanted})
    assert {name: actual.get(name) for name in wanted} == wanted


@pytest.mark.spark
def test_session_workers_run_this_python(spark: SparkSession) -> None:
    """PYSPARK_PYTHON decides which packages, and which pyspark_txnlog, the workers see."""

    def executable(batches):  # type: ignore[no-untyped-def]
        import sys

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.prefix]})

    rows = spark.range(1).mapInArrow(executable, "python string").collect()
    assert {row.python for row in rows} == {sys.prefix}


@pytest.mark.spark
def test_session_delta_table_written_and_changed_reads_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """This needs three settings: the jar, the extension and the catalog."""
    table = str(tmp_path / "numbers")
    spark.range(10).write.format("delta").save(table)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")
    ids = {row.id for row in spark.read.format("delta").load(table).collect()}
    assert ids == set(range(10)) - {3}
    before = spark.sql(f"SELECT count(*) AS n FROM delta.`{table}` VERSION AS OF 0").collect()
    assert before[0].n == 10


def conf_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(name, value) of a properties file as spark-submit reads it."""
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, value = line.split(maxsplit=1)
            yield name, value.strip()
