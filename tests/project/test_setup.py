"""conf/setup_env.py changes an environment as intended."""

from __future__ import annotations

import importlib.util
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "conf" / "setup_env.py"


def test_pyspark_is_imported_from_files_instead_of_its_archive(tmp_path: Path) -> None:
    """Spark's path has the archive; importing from it gives the installed package."""
    spec = importlib.util.spec_from_file_location("setup_env", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    setup_env = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup_env)
    package = tmp_path / "site-packages" / "pyspark"
    archive = package / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {package}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    program = "import pyspark, sys; print(pyspark.__file__)"
    for _ in range(2):
        setup_env.unpack_pyspark(str(python))
        found = subprocess.run(
            [sys.executable, "-S", "-c", program],
            env={"PYTHONPATH": str(archive)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        assert Path(found).resolve() == package / "__init__.py"
        assert archive.is_dir()
