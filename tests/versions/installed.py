"""The installed Spark: its version, and the file of conf/ with the lines that differ for it."""

from __future__ import annotations

from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
SPARK = ".".join(pyspark.__version__.split(".")[:2])
OVERLAY = ROOT / "conf" / f"spark{SPARK}.conf"


def submit_args() -> str:
    """PYSPARK_SUBMIT_ARGS for a session with conf/ as this Spark needs it."""
    args = f"--load-spark-defaults --properties-file {OVERLAY} " if OVERLAY.exists() else ""
    return f"{args}pyspark-shell"
