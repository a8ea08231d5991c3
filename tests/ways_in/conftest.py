"""Fixtures of the installation tests: a wheel, environments with and without it, a Spark home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.test_packaging import run_python
from tests.ways_in import launch


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SPARK_HOME."""
    return launch.spark_home(tmp_path_factory.mktemp("spark") / "home")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv in which the wheel of this checkout is installed."""
    folder = tmp_path_factory.mktemp("installed")
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (wheel,) = folder.glob("*.whl")
    return launch.new_venv(folder / "env", wheel=wheel)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv with Spark and all dependencies, but without txnlog."""
    return launch.new_venv(tmp_path_factory.mktemp("bare") / "env", wheel=None)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Path:
    """The venv with the wheel, packed for `--archives`."""
    return launch.pack(installed.parents[1], tmp_path_factory.mktemp("packed") / "env.tar.gz")


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """txnlog.zip."""
    return launch.zip_of_sources(tmp_path_factory.mktemp("zip") / "txnlog.zip")
