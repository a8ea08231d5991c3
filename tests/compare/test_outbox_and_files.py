"""Databases and files without a second phase: the topic's transaction has their position, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compare.running import RUNS, number_of, run_example
from txnlog.testing.counts import count

ALL = pytest.mark.parametrize(
    ("example", "what", "worker"),
    [
        ("sqlite_outbox.py", "orders", "shop with an SQLite outbox"),
        ("csv_files.py", "files", "loader of CSV files"),
    ],
)


def killed(folder: Path, example: str, what: str, worker: str, kills: int, zombies: int) -> None:
    line = run_example(example, folder, f"--kills={kills}", f"--zombies={zombies}")
    assert number_of("differences", line) == 0
    assert number_of(what, line) > 0
    # The successor of a zombie is killed, too.
    assert number_of("kills", line) == kills + zombies
    count("kills", worker, kills + 2 * zombies)


@ALL
def test_topic_agrees_after_a_kill_at_each_step(
    example: str, what: str, worker: str, tmp_path: Path
) -> None:
    """No row or line is missing in the topic, none is there twice, no zombie adds one."""
    killed(tmp_path, example, what, worker, kills=7, zombies=1)


@pytest.mark.soak
@pytest.mark.parametrize("run", range(RUNS))
@ALL
def test_topic_agrees_after_200_kills_at_each_step(
    example: str, what: str, worker: str, run: int, tmp_path: Path
) -> None:
    """All runs together. Also at random moments, and with the state of all the lives before."""
    killed(tmp_path, example, what, worker, kills=250, zombies=6)
