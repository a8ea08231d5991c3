"""The Python environment that executors unpack: txnlog's wheel in a venv, as a .tar.gz."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pyspark
from spark_session import PROJECT


class PackingError(Exception):
    """The environment could not be made; the message says why."""


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built into `folder`. Raises: PackingError."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def new_venv(folder: Path, *, wheel: Path | None) -> Path:
    """The Python of a new venv; with the wheel, if given, installed by pip as users do.

    It needs no network: the dependencies, and pyspark, are those of the Python that runs this, by a
    .pth file. It brings the folder only, not what another .pth there brings, so that an editable
    txnlog of this checkout stays out. Raises: PackingError.
    """
    create = [sys.executable, "-m", "venv", str(folder)]
    _run(create if wheel else [*create, "--without-pip"])
    python = folder / "bin" / "python"
    if wheel is not None:
        install = [str(python), "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
        _run([*install, "--disable-pip-version-check", str(wheel)])
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if any((Path(path) / "pyspark_txnlog.py").exists() for path in packages):
        raise PackingError(
            f"{packages} holds a copy of txnlog, which the new environment would see. Install the "
            "checkout in editable mode, as `make venv` does."
        )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = folder / "lib" / version / "site-packages"
    (own / "dependencies.pth").write_text("\n".join(sorted(packages)) + "\n")
    return python


def pack(venv: Path, archive: Path) -> Path:
    """The venv as venv-pack packs it: a .tar.gz whose root is the venv's own."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(venv, arcname=".")
    return archive


def spark_home(folder: Path) -> Path:
    """pip's Spark under another name: a standalone worker writes to <SPARK_HOME>/work."""
    installed = Path(pyspark.__file__).parent
    folder.mkdir()
    for name in ("bin", "jars", "python"):
        (folder / name).symlink_to(installed / name)
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        raise PackingError(f"{' '.join(command)} failed:\n{done.stdout[-2_000:]}")
