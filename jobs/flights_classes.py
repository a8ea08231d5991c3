"""An archive of the classes that a driver of the demo loads; it halves the work of a start.

A JVM takes classes from it as they were when they had been loaded and verified. Its class path must
be the same, and may have no folder with files in it: so SPARK_CONF_DIR is an empty folder here, and
spark-submit is told the files of conf/ by name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyspark
from flights_driver import DriverProcess, driver_environment, spark_submit_command
from flights_pipeline import INPUT_TOPIC
from spark_session import CONF_DIR

from txnlog import Cluster, Producer

# format("txnlog") needs no jar; loading Delta's classes would cost each driver a second.
WITHOUT_DELTA = {
    "spark.jars.packages": "",
    "spark.sql.extensions": "",
    "spark.sql.catalog.spark_catalog": "builtin",
}
NEED_DELTA = ("check",)


class Starter:
    """Starts drivers of the demo with the archive in a folder, if it is there."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """folder: of the archive. scratch: of Spark's temporary files."""
        self._scratch = scratch
        self._archive = folder.resolve() / f"spark-{pyspark.__version__}.jsa"
        self._conf = folder.resolve() / "conf"
        self._conf.mkdir(parents=True, exist_ok=True)

    @property
    def has_archive(self) -> bool:
        return self._archive.exists()

    def start(self, arguments: Sequence[str], extra: dict[str, str], log: Path) -> DriverProcess:
        """`jobs/flights.py <arguments>` in a process of its own."""
        classes = f"-XX:SharedArchiveFile={self._archive}" if self.has_archive else ""
        return self._start(arguments, extra, log, classes)

    def make_archive(self) -> None:
        """Run the stream once on a few records; without success the demo starts slowly."""
        home = self._scratch / "classes"
        root, made = str(home / "root"), self._archive.with_suffix(f".{os.getpid()}")
        Cluster.open(root, create=True)
        with Producer({"txnlog.root": root}) as producer:
            producer.produce(INPUT_TOPIC, '{"dep_time": 517}', key="N14228")
        command = ["stream", "--root", root, "--checkpoint", str(home / "checkpoint")]
        classes = f"-XX:ArchiveClassesAtExit={made}"
        driver = self._start([*command, "--available-now"], {}, home / "log", classes)
        try:
            if driver.wait() == 0 and made.exists():
                made.replace(self._archive)
        finally:
            driver.kill()
            made.unlink(missing_ok=True)
            shutil.rmtree(home)

    def _start(
        self, arguments: Sequence[str], extra: dict[str, str], log: Path, classes: str
    ) -> DriverProcess:
        java = f"-Dlog4j2.configurationFile=file:{CONF_DIR / 'log4j2.properties'} {classes}"
        files = ["--properties-file", str(CONF_DIR / "spark-defaults.conf")]
        settings = {} if arguments[0] in NEED_DELTA else WITHOUT_DELTA
        command = spark_submit_command(
            arguments, settings, [*files, "--driver-java-options", java.strip()]
        )
        environment = driver_environment(self._scratch, extra)
        environment["SPARK_CONF_DIR"] = str(self._conf)
        return DriverProcess(command, environment, log)
