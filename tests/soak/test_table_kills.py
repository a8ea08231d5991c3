"""Delta tables of others in the transactions of a process that is killed repeatedly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.table_kills import Copy
from txnlog.testing.counts import count


@pytest.mark.parametrize(
    "kills", [6, pytest.param(1_000, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_killed_copy_leaves_each_number_once_in_topic_and_tables(
    tmp_path: Path, seed: int, kills: int
) -> None:
    """SIGKILL at any moment, zombies, and delta-rs in the same tables: nothing is lost, twice or
    half there after recovery (R36, R44, R50, R74).
    """
    copied = Copy(tmp_path, seed)
    try:
        copied.run(kills)
        end = copied.finish()
    finally:
        copied.close()
    copied.check(end)
    assert end >= 3 * kills
    count("kills", "copy into tables", copied.kills)
    count("kills", "zombie beside tables", copied.zombies)
    print(f"{end // 3} transactions, {copied.kills} kills, {copied.zombies} zombies")
