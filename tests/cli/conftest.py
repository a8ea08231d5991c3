"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.runner import Command


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The command, on an empty cluster."""
    found = Command(tmp_path)
    found.cluster()
    return found
