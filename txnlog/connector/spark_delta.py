"""What Spark's own Delta reader and writer need: a URL as Hadoop has it, its settings, a jar."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from txnlog.process.caches import local_path, normal_url
from txnlog.settings.config import warn_once
from txnlog.settings.hadoop import general_name, hadoop_settings, hadoop_url, is_secret_setting
from txnlog.settings.redaction import SETTING, SPARK_DEFAULT, warning_of
from txnlog.settings.roots import place_of
from txnlog.settings.storage_options import StoreSettings
from txnlog.storage.store.opening import complete_options

DELTA_FOR: Final = ("4.0", "4.1", "4.2")
"""The Sparks that Delta has a jar for; it is built for each, and loads into others, too."""

_LINES: Final = (
    "spark.jars.packages (Delta's jar for this Spark), "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
    "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog"
)
_WITHIN_RETENTION: Final = (
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
)
_SETTING: Final = threading.Lock()
_NO_DELTA: Final = ("DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION")


def _version(spark: Any) -> str:
    return ".".join(spark.version.split(".")[:2])


def is_of_this_spark(spark: Any) -> bool:
    """Whether there is a Delta for the Spark of a session."""
    return _version(spark) in DELTA_FOR


def why_no_delta(spark: Any, error: Exception) -> str | None:
    """What to do about an error of a session that has no Delta; None for any other error."""
    if not is_of_this_spark(spark):
        return f"Delta has no release for Spark {_version(spark)} yet"
    if any(condition in str(error) for condition in _NO_DELTA):
        return (
            "this Spark session has no Delta. Start Spark with the Delta lines of "
            f"conf/spark-defaults.conf: {_LINES}"
        )
    return None


def spark_url(spark: Any, url: str, storage: StoreSettings) -> str:
    """The URL of a folder as Spark has it."""
    if local_path(url) is not None:
        # Without a scheme Spark would resolve the path on its default file system.
        return f"file://{normal_url(url)}"
    # EMR has a file system of its own for s3://.
    own_s3 = spark.conf.get("spark.hadoop.fs.s3.impl", None) is not None
    return (url if own_s3 else hadoop_url(url, storage)).rstrip("/")


def escaped_url(spark: Any, url: str, storage: StoreSettings) -> str:
    """The URL of a folder with escapes, spelled as Spark names files that it reads."""
    path = spark._jvm.org.apache.hadoop.fs.Path(spark_url(spark, url, storage))
    return str(path.toUri().toString()).replace("file:///", "file:/", 1)


@contextmanager
def opening_any_version(spark: Any) -> Iterator[None]:
    """While the block runs Delta opens versions older than delta.deletedFileRetentionDuration, too.

    It judges by the time of the version's commit, which may be long before the next one; and files
    that a snapshot shows are kept for longer.
    """
    with _SETTING:
        before = spark.conf.get(_WITHIN_RETENTION, None)
        spark.conf.set(_WITHIN_RETENTION, "false")
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_WITHIN_RETENTION)
            else:
                spark.conf.set(_WITHIN_RETENTION, before)


def forget_table(spark: Any, place: str) -> None:
    """Let Delta forget a table that nobody uses any more: else it keeps 0.4 MB for an hour."""
    jvm = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, path)


def hadoop_options(spark: Any, url: str, storage: StoreSettings) -> dict[str, str]:
    """What Spark needs for the store at a URL, except what the session has of it."""
    if place_of(url) is None:
        return {}
    conf = spark.conf

    def is_set(name: str) -> bool:
        names = (name, general_name(url, name))
        return any(conf.get(f"spark.hadoop.{one}", None) is not None for one in names)

    settings = hadoop_settings(url, complete_options(url, storage))
    found = {name: value for name, value in settings.items() if not is_set(name)}
    secrets = [name for name in found if is_secret_setting(name)]
    warning = warning_of(secrets, conf.get(SETTING, SPARK_DEFAULT) or SPARK_DEFAULT)
    if warning:
        warn_once(warning)
    return found
