"""Fixtures of the installation tests: a wheel, environments with and without it, a Spark home."""

from __future__ import annotations

from pathlib import Path

import packed_environment
import pytest

from tests.ways_in import launch


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SPARK_HOME."""
    return packed_environment.spark_home(tmp_path_factory.mktemp("spark") / "home")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv in which the wheel of this checkout is installed."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = packed_environment.build_wheel(folder)
    return packed_environment.new_venv(folder / "env", wheel=wheel)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv with Spark and all dependencies, but without txnlog."""
    return packed_environment.new_venv(tmp_path_factory.mktemp("bare") / "env", wheel=None)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory, installed: Path) -> Path:
    """The venv with the wheel, packed for `--archives`."""
    return packed_environment.pack(
        installed.parents[1], tmp_path_factory.mktemp("packed") / "env.tar.gz"
    )


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """txnlog.zip."""
    return launch.zip_of_sources(tmp_path_factory.mktemp("zip") / "txnlog.zip")
