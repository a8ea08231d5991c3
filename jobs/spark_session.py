"""Starts Spark with the settings of conf/, for every process of this checkout.

Spark reads conf/spark-defaults.conf and conf/log4j2.properties if SPARK_CONF_DIR names that folder
when the JVM starts, so it is enough to set the environment before. Under spark-submit the JVM is
already running, and keeps its settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).resolve().parent.parent
CONF_DIR = PROJECT / "conf"

# For one machine with few cores; a cluster uses the defaults of Spark and Delta.
LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # By default Delta uses 50 tasks for the state of even the smallest table.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def spark_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` plus the variables of a Spark driver, for os.environ or for a subprocess.

    Driver and workers run this Python (unless PYSPARK_PYTHON is set), conf/ has the settings, and
    the workers import the code of this checkout whether or not it is installed.
    """
    environment = dict(base)
    environment["SPARK_CONF_DIR"] = str(CONF_DIR)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Otherwise Spark resolves the host name, which may fail on a laptop or in a container.
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(PROJECT) not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *paths])
    return environment


def build_session(
    app_name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with conf/, then LOCAL_SETTINGS when the master is local, then `settings`.

    Sets os.environ, which the JVM and the Python workers inherit. An existing session is returned
    with those settings applied that can be changed at run time.
    """
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment(os.environ))
    builder = SparkSession.builder.appName(app_name).master(master)
    local = LOCAL_SETTINGS if master.startswith("local") else {}
    for name, value in {**local, **(settings or {})}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
