"""Fixtures of the storage tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.foreign_table import ForeignTable
from tests.storage.power_cut import PowerCut
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to see what is synced")
    return PowerCut(monkeypatch)


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests."""
    monkeypatch.delenv("TXNLOG_FSYNC")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url = "memory://" if request.param == "memory" else str(tmp_path / "root")
    return ObjectStore.from_url(url)


@pytest.fixture
def shared() -> SharedMemory:
    """A store without objects."""
    return SharedMemory()


@pytest.fixture
def foreign(shared: SharedMemory) -> ForeignTable:
    """An empty Delta table of others in that store."""
    table = ForeignTable(shared.open())
    table.create()
    return table
