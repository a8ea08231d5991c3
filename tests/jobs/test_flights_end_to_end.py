"""The demo, scaled down: its jobs in one session; all of it, killed and without a checkpoint."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import flights_check
import flights_pipeline
import pytest
from flights_check import Report, check_root
from flights_data import read_flights
from flights_pipeline import feed, start_stream
from spark_session import PROJECT

from txnlog.testing.counts import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FLIGHTS_OF_JANUARY = 27_004
CANCELLED_IN_JANUARY = 521


def test_jobs_deliver_the_first_flights_exactly_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the demo's three commands do; the check reads with both readers (R45)."""
    flights = read_flights(months=[1])[:1_000]
    for module in (flights_check, flights_pipeline):
        monkeypatch.setattr(module, "read_flights", lambda months: flights)
    root = str(tmp_path / "lake")
    assert feed(spark, root, [1]) == len(flights)
    checkpoint = str(tmp_path / "checkpoint")
    start_stream(
        spark, root, checkpoint, max_offsets_per_trigger=600, available_now=True
    ).awaitTermination()
    report = check_root(spark, root, [1])
    assert report.problems == ()
    assert report.transactions == 2
    cancelled = flights["dep_time"].null_count
    assert cancelled
    assert report.rows_by_topic == {
        "departures": len(flights) - cancelled,
        "cancellations": cancelled,
    }


@pytest.mark.soak
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
