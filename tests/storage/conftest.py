"""Fixtures of the storage tests."""

from __future__ import annotations

import os

import pytest

from tests.storage.power_cut import PowerCut


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to see what is synced")
    return PowerCut(monkeypatch)


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests."""
    monkeypatch.delenv("TXNLOG_FSYNC")
