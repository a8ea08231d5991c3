"""Spark with the settings of conf/, for every process of this checkout that starts it.

Spark reads conf/spark-defaults.conf and conf/log4j2.properties by itself when SPARK_CONF_DIR names
that folder while the JVM starts; so all there is to do is to set the environment first. Under
spark-submit the JVM runs already, and what it was started with stays.
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

# For one machine with few cores; a cluster keeps Spark's and Delta's own numbers.
LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    # Delta spreads the state of even the smallest table over 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def spark_environment(base: Mapping[str, str]) -> dict[str, str]:
    """`base` with what a Spark driver of this checkout needs, for os.environ or for a subprocess.

    Both sides run this Python (unless PYSPARK_PYTHON names one), conf/ holds the settings, and the
    workers find the code of this checkout whether or not it is installed.
    """
    environment = dict(base)
    environment["SPARK_CONF_DIR"] = str(CONF_DIR)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # Else Spark looks up the host name, and a laptop's or a container's may lead nowhere.
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(PROJECT) not in paths:
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *paths])
    return environment


def build_session(
    app_name: str, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session with conf/, then LOCAL_SETTINGS when the master is local, then `settings`.

    Sets os.environ: the JVM and the Python workers inherit it. A session that is there already is
    returned, with the settings applied that Spark lets one change.
    """
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment(os.environ))
    builder = SparkSession.builder.appName(app_name).master(master)
    local = LOCAL_SETTINGS if master.startswith("local") else {}
    for name, value in {**local, **(settings or {})}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
