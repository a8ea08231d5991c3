"""SIGKILL and faults of the store at once; see tests.stores.bounces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.bounces import bounce_on, duration_s
from tests.stores.servers import Server


@pytest.mark.parametrize(
    "is_long",
    [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)],
)
def test_clients_killed_amid_faults_leave_each_transaction_once_or_never(
    server: Server, tmp_path: Path, seed: int, is_long: bool
) -> None:
    """The claims of tests/soak/test_bounces.py on servers of stores: requests refused, replies
    lost, "exists" for what has just been written, puts that land 9 s late, outages of 4 s
    (R2, R28, R44, R48, R49, R50, R51, R53).
    """
    how_long = duration_s() if is_long else 20
    print(bounce_on(server, tmp_path, seed, for_s=how_long, producers=3, copiers=2))
