"""Whether this Spark has what source and sink are built on."""

from __future__ import annotations

import pyspark


def check_pyspark() -> None:
    """Raise ImportError that names the version of a Spark that is too old.

    Looks for what the source needs, not at the version: platforms bring features to older ones.
    """
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow  # noqa: F401
    except ImportError:
        raise ImportError(f"txnlog needs pyspark 4.2, found {pyspark.__version__}.") from None
