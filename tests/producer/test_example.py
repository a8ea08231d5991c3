"""The example runs as its readers would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from txnlog.testing.counts import count

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("publish", ["eager", pytest.param("deferred", marks=pytest.mark.soak)])
def test_orders_and_inventory_agree_after_the_shop_was_killed(publish: str, tmp_path: Path) -> None:
    """Both records of each purchase or neither, whenever the shop was killed (R53)."""
    ran = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "orders_inventory.py"),
            f"--root={tmp_path}",
            "--purchases=300",
            f"--publish={publish}",
            "--life-s=0.2",
            "--kills=3",
        ],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=1_200,
    )
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"300 orders, each with its stock movements, after (\d+) kills", ran.stdout)
    assert found, ran.stdout
    assert 0 < int(found[1]) <= 3
    count("kills", "shop of the example", int(found[1]))
