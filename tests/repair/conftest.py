"""One root with everything that a root may hold, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.verify.roots import build


@pytest.fixture(scope="session")
def built_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed."""
    root = tmp_path_factory.mktemp("repair") / "root"
    build(str(root))
    return root


@pytest.fixture
def root(built_root: Path, tmp_path: Path) -> str:
    """A copy to damage."""
    copy = tmp_path / "root"
    shutil.copytree(built_root, copy)
    return str(copy)
