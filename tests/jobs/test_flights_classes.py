"""Drivers of the demo load classes from an archive, when there is one, and start without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flights_classes import Starter
from flights_driver import DriverProcess

from txnlog import Cluster


class Started(DriverProcess):
    """What a starter would run."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.command, self.environment = command, environment


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".classes"


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Started:
    monkeypatch.setattr("flights_classes.DriverProcess", Started)
    found = Starter(folder, folder).start([name], {}, folder / "log")
    assert isinstance(found, Started)
    return found


def test_driver_without_an_archive_starts_with_the_files_of_conf(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class path may have no folder with files, and the settings must not go with it."""
    driver = started(folder, monkeypatch, "stream")
    command = " ".join(driver.command)
    assert "conf/spark-defaults.conf" in command
    assert "conf/log4j2.properties" in command
    assert "SharedArchiveFile" not in command
    assert os.listdir(driver.environment["SPARK_CONF_DIR"]) == []


def test_only_the_driver_that_checks_loads_delta(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads with Spark's Delta reader, too; to the others its classes cost a second."""
    assert "spark.jars.packages=" in started(folder, monkeypatch, "stream").command
    assert "spark.jars.packages=" not in started(folder, monkeypatch, "check").command


@pytest.mark.soak
@pytest.mark.spark
def test_archive_is_made_and_read(folder: Path, tmp_path: Path, scratch: Path) -> None:
    """A JVM ignores an archive that does not fit, and starts as slowly as without."""
    starter = Starter(folder, scratch)
    assert not starter.has_archive
    starter.make_archive()
    assert starter.has_archive
    root, loaded = str(tmp_path / "root"), tmp_path / "loaded"
    Cluster.open(root, create=True).create_topic("flights", partitions=1)
    command = ["stream", "--root", root, "--checkpoint", str(tmp_path / "checkpoint")]
    driver = starter.start(
        [*command, "--available-now"],
        {"SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={loaded}"},
        tmp_path / "log",
    )
    assert driver.wait() == 0, driver.log_tail()
    driver.kill()
    read = [line for line in loaded.read_text().splitlines() if " org.apache.spark." in line]
    shared = [line for line in read if "shared objects file (top)" in line]
    # The others are lambdas and generated code.
    assert len(shared) > len(read) / 2 > 1_000
