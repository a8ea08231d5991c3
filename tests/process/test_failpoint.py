"""Fail points: each hit has a number of its own, or a test waits for a death that never comes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from txnlog.process import failpoint

THREADS, HITS = 8, 200


@pytest.mark.parametrize("place", ["memory", "file"])
def test_hits_of_many_threads_are_counted_one_by_one(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Markers of two topics are written at once: neither may take the other's hit for its own."""
    setting = "marker.after" if place == "memory" else f"file:{tmp_path / 'point'}"
    monkeypatch.delenv("TXNLOG_FAILPOINT_STATE", raising=False)
    monkeypatch.setattr(failpoint, "_hits", 0)
    numbers: list[int] = []

    def hit() -> None:
        for _ in range(HITS):
            numbers.append(failpoint._count_hit(setting))

    threads = [threading.Thread(target=hit) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, THREADS * HITS + 1))
