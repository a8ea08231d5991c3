"""The wheel that users install: its content, and that it works without this checkout."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from txnlog.connector.spark_delta import DELTA_FOR

ROOT = Path(__file__).resolve().parents[2]
CONTENTS = {"txnlog", "spark_source", "spark_sink", "checkpoint", "pyspark_txnlog.py"}
MODULES = ("txnlog", "spark_source", "spark_sink", "checkpoint", "pyspark_txnlog")

# Runs with the unpacked wheel in place of the checkout, whose editable install is on sys.path too.
IN_ISOLATION = """
import importlib, os, pkgutil, sys
wheel, checkout = sys.argv[1:]
sys.path[:] = [wheel] + [p for p in sys.path if os.path.realpath(p or ".") != checkout]
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__.lower()]
for name in {modules!r}:
    module = importlib.import_module(name)
    assert os.path.realpath(module.__file__).startswith(wheel + os.sep), module.__file__
    print(name)
"""

# Like Spark's own look-up: every top-level module named pyspark_*, and its DefaultSource.
AS_SPARK_LOOKS_UP = """
import pkgutil
from importlib import import_module
found = {info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}
assert "pyspark_txnlog" in found, found
print(import_module("pyspark_txnlog").DefaultSource.name())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout by the build backend itself: no network, no isolation."""
    folder = tmp_path_factory.mktemp("dist")
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_four_packages_and_the_module(wheel: Path) -> None:
    """Tests or jobs in a wheel would be top-level packages in every user's environment."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
        (licence,) = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
        assert b"Apache License" in archive.read(licence)
    assert {name.partition("/")[0] for name in files} == CONTENTS
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in sorted(CONTENTS)
        for path in [ROOT / package, *(ROOT / package).rglob("*.py")]
        if path.suffix == ".py"
    }
    pages = (ROOT / "txnlog" / "ui" / "templates").rglob("*.*")
    assert sources | {path.relative_to(ROOT).as_posix() for path in pages} <= set(files)
    assert "txnlog/py.typed" in files


def test_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """A file missing in the wheel is only noticed where there is no checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = IN_ISOLATION.format(modules=MODULES)
    printed = run_python("-I", "-c", code, str(tmp_path.resolve()), str(ROOT), cwd=tmp_path)
    assert printed.split() == list(MODULES)


def test_installed_project_is_found_by_sparks_look_up(tmp_path: Path) -> None:
    """An editable install that hides the module from pkgutil hides the source from Spark."""
    try:
        importlib.metadata.version("txnlog")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("txnlog is not installed in this Python; `make test` installs it")
    assert run_python("-I", "-c", AS_SPARK_LOOKS_UP, cwd=tmp_path).strip() == "txnlog"


def test_delta_jar_and_delta_package_have_the_same_version() -> None:
    """Delta's Python and JVM parts are released and tested together."""
    conf = (ROOT / "conf" / "spark-defaults.conf").read_text()
    jar = re.search(r"io\.delta:delta-spark_([\d.]+)_[\d.]+:([\d.]+)", conf)
    assert jar is not None
    assert jar[2] == importlib.metadata.version("delta-spark")
    assert importlib.metadata.version("pyspark").startswith(f"{jar[1]}.")


def test_each_spark_that_delta_has_a_jar_for_has_it_in_conf() -> None:
    """Of another Spark's jar the session starts, and reads fail with NoSuchMethodError."""
    files = ["spark-defaults.conf", *(f"spark{spark}.conf" for spark in ("4.0", "4.1", "4.3"))]
    texts = [(ROOT / "conf" / file).read_text() for file in files]
    jars = [jar for text in texts for jar in re.findall(r"io\.delta:delta-spark_[\d.:_]+", text)]
    version = importlib.metadata.version("delta-spark")
    assert sorted(jars) == [f"io.delta:delta-spark_{spark}_2.13:{version}" for spark in DELTA_FOR]


def run_python(*arguments: str, cwd: Path = ROOT) -> str:
    """The stdout of this Python with these arguments; its stderr when it fails."""
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout
