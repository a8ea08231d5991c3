"""The installed Spark: its version, and the file of conf/ with the lines that differ for it."""

from __future__ import annotations

import json
import re
import sys
from inspect import signature
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
SPARK = ".".join(pyspark.__version__.split(".")[:2])
OVERLAY = ROOT / "conf" / f"spark{SPARK}.conf"


def submit_args() -> str:
    """PYSPARK_SUBMIT_ARGS for a session with conf/ as this Spark needs it."""
    args = f"--load-spark-defaults --properties-file {OVERLAY} " if OVERLAY.exists() else ""
    return f"{args}pyspark-shell"


def delta_jar() -> str:
    """The coordinates of Delta's jar for this Spark in conf/, "" if there is none."""
    conf = OVERLAY if OVERLAY.exists() else ROOT / "conf" / "spark-defaults.conf"
    found = re.search(r"^spark\.jars\.packages[ \t]+(\S+)", conf.read_text(), re.M)
    return found[1] if found else ""


def described() -> dict[str, object]:
    """Its versions, and what of it differs from other Sparks."""
    from pyspark.sql import datasource
    from pyspark.util import local_connect_and_auth

    from txnlog.connector.spark_versions import HAS_READ_LIMITS

    return {
        "spark": SPARK,
        "pyspark": pyspark.__version__,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "features": {
            "limits": HAS_READ_LIMITS,
            "filters": hasattr(datasource, "Filter"),
            "unix_sockets": "conn_info" in signature(local_connect_and_auth).parameters,
            "delta_jar": delta_jar(),
            "conf": OVERLAY.exists(),
        },
    }


if __name__ == "__main__":
    print(json.dumps(described()))
