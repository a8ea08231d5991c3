"""The example runs as its readers would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txnlog.testing.counts import count

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("orders", "kills"), [(100, 2), pytest.param(250, 5, marks=pytest.mark.soak)]
)
def test_every_order_gets_one_invoice_after_the_workers_were_killed(
    tmp_path: Path, orders: int, kills: int
) -> None:
    """Input counts as read exactly when its output is there, between processes (R45, R48, R50)."""
    ran = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "consume_transform_produce.py"),
            f"--root={tmp_path}",
            f"--orders={orders}",
            f"--kills={kills}",
            "--life-s=0.3",
        ],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{orders} orders, each with one invoice, after {kills} kills" in ran.stdout
    count("kills", "worker of the example", kills)
