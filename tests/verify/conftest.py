"""One root for all tests of verify, and a copy of it for each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.verify.roots import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never changed."""
    root = tmp_path_factory.mktemp("verify") / "root"
    build(str(root))
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> str:
    """A copy to damage."""
    copy = tmp_path / "root"
    shutil.copytree(built, copy)
    return str(copy)
