"""pyspark is imported from files once its archive was replaced, by `make` or a user's command."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from txnlog.process.worker_files import unpack_pyspark

SCRIPT = Path(__file__).resolve().parents[2] / "conf" / "setup_env.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A pyspark as pip installs it."""
    found = tmp_path / "site-packages" / "pyspark"
    archive = found / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    (found / "__init__.py").write_text("")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    return found


def imported_from(package: Path) -> Path:
    """Where a worker finds pyspark, with Spark's path."""
    archive = package / "python" / "lib" / "pyspark.zip"
    program = "import pyspark; print(pyspark.__file__)"
    command = [sys.executable, "-S", "-c", program]
    path = {"PYTHONPATH": str(archive)}
    return Path(subprocess.run(command, env=path, capture_output=True, check=True, text=True)
                .stdout.strip()).resolve()  # fmt: skip


def test_pyspark_is_imported_from_files_instead_of_its_archive(package: Path) -> None:
    """Spark's path has the archive; importing from it gives the installed package."""
    assert "pyspark.zip" in str(imported_from(package))
    assert unpack_pyspark(package)
    assert imported_from(package) == package / "__init__.py"
    assert not unpack_pyspark(package), "done once, it is left alone"
    assert [path.name for path in (package / "python" / "lib").iterdir()] == ["pyspark.zip"]


@pytest.mark.parametrize("module", ["txnlog.process.worker_files", "txnlog.cli.main"])
def test_command_changes_the_pyspark_of_its_own_environment(package: Path, module: str) -> None:
    """`make` runs the module, a user the command."""
    command = [sys.executable, "-m", module]
    command += ["unpack-pyspark"] if module == "txnlog.cli.main" else []
    paths = os.pathsep.join([str(package.parent), str(SCRIPT.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths}
    for _ in range(2):
        subprocess.run(command, env=environment, check=True, capture_output=True)
        assert imported_from(package) == package / "__init__.py"
    assert "txnlog.process.worker_files" in SCRIPT.read_text()
