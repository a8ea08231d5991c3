"""Lets Spark's Python workers import pyspark from files, which are compiled once.

Spark puts python/lib/pyspark.zip first on their path, and every process compiles again the modules
that it imports from an archive: 1.4 of the 1.9 s of its start, and a query starts nine processes. A
busy machine may exceed Spark's time-out of 10 s: "Python worker failed to connect back". A folder
of the same name works in place of the archive. Without dependencies: `make` runs this module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def unpack_pyspark(package: Path) -> bool:
    """Put a folder with a link to the package in place of its archive; False if there is none.

    Raises: OSError; a process that dies in between leaves `pyspark.zip.old`, which may be renamed.
    """
    archive = package / "python" / "lib" / "pyspark.zip"
    if not archive.is_file():
        return False
    folder, old = archive.with_suffix(f".{os.getpid()}"), archive.with_suffix(".zip.old")
    folder.mkdir()
    (folder / "pyspark").symlink_to(os.path.relpath(package, archive))
    archive.rename(old)
    folder.rename(archive)
    old.unlink()
    return True


def installed_pyspark() -> Path | None:
    """The folder of the pyspark of this Python, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) if places else None


if __name__ == "__main__":
    found = installed_pyspark()
    if found is None:
        sys.exit("pyspark is not installed in this Python.")
    unpack_pyspark(found)
