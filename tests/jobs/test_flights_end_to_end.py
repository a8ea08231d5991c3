"""The demo itself, scaled down: a month of flights, one kill, and a deleted checkpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from flights_check import Report
from spark_session import PROJECT

from txnlog.testing.counts import count

FLIGHTS_OF_JANUARY = 27_004
CANCELLED_IN_JANUARY = 521


@pytest.mark.spark
@pytest.mark.slow
def test_demo_of_one_month_survives_a_half_published_transaction(tmp_path: Path) -> None:
    """Killed between two markers, with no checkpoint to come back to (R36, R50, R59)."""
    data_dir = tmp_path / "demo"
    options = {
        "--months": "1",
        "--kills": "marker.after+lost-checkpoint",
        "--max-offsets-per-trigger": "3000",
        "--seed": "1",
        "--data-dir": str(data_dir),
    }
    words = [word for option in options.items() for word in option]
    demo = subprocess.run(
        [sys.executable, "jobs/flights.py", "demo", *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    print(demo.stdout, demo.stderr)
    assert demo.returncode == 0
    assert "PREPARE_COMMIT, 1 of 2 topics marked" in demo.stdout
    count("kills", "driver of the demo", demo.stdout.count("SIGKILL"))
    compacted = re.search(r"housekeeping: (\d+) small files compacted", demo.stdout)
    assert compacted is not None
    assert int(compacted[1]) > 0
    report = Report.from_json((data_dir / "report.json").read_text(encoding="utf-8"))
    assert report.ok
    assert report.rows_by_topic == {
        "departures": FLIGHTS_OF_JANUARY - CANCELLED_IN_JANUARY,
        "cancellations": CANCELLED_IN_JANUARY,
    }
    assert not list(data_dir.glob("checkpoint-1"))
