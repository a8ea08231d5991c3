"""Clients in real processes that are killed repeatedly, as in Kafka's TransactionsBounceTest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.bounce import Bounce
from tests.soak.clients import Home
from txnlog.testing.counts import count


@pytest.mark.parametrize(
    ("producers", "copiers", "duration_s"),
    [
        pytest.param(3, 2, 6, marks=pytest.mark.soak, id="short"),
        pytest.param(8, 4, 120, marks=pytest.mark.soak, id="long"),
        pytest.param(2, 3, 1_700, marks=pytest.mark.soak, id="rebalances"),
    ],
)
def test_killed_and_suspended_clients_leave_each_transaction_once_or_never(
    tmp_path: Path, seed: int, producers: int, copiers: int, duration_s: int
) -> None:
    """SIGKILL every second, and zombies whose successors have continued.

    Every acknowledged transaction is read once, nothing else is but whole ones whose reply the
    kill has cut off; aborted ones never; copies equal their input, in order, and a reader that
    runs all the while sees nothing else either (R44, R48, R49, R50, R51, R53). The case
    `rebalances` kills more than a thousand times, in a group that has a generation for most kills.
    """
    home = Home(tmp_path, str(tmp_path / "cluster"))
    bounce = Bounce(home, producers=producers, copiers=copiers, seed=seed)
    try:
        bounce.run(duration_s)
        bounce.finish()
    finally:
        bounce.close()
    print(bounce.verdict())
    assert bounce.kills + bounce.sleeps == duration_s
    assert bounce.kills
    assert bounce.sleeps
    assert bounce.generations() > duration_s // 10
    count("kills", "client in a bounce", bounce.kills)
    count("kills", "zombie: stopped while its successor took over", bounce.sleeps)
