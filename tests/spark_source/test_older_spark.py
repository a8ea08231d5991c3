"""A Spark that lacks what the format is built on is named, before anything of it is imported."""

from __future__ import annotations

import sys

import pyspark
import pyspark.sql.streaming.datasource as found
import pytest

from pyspark_txnlog import DefaultSource


@pytest.mark.parametrize("has_module", [True, False])
def test_pyspark_that_is_too_old_is_named_with_its_version(
    monkeypatch: pytest.MonkeyPatch, has_module: bool
) -> None:
    """An ImportError deep in a worker names a class of Spark, and not what to install."""
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    if has_module:
        monkeypatch.delattr(found, "SupportsTriggerAvailableNow")
    else:
        monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(ImportError, match=r"txnlog needs pyspark 4\.2, found 4\.1\.4"):
        DefaultSource({"path": "/lake", "subscribe": "t"})
