"""The code of README.md, run unchanged, as a new user does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Lab
from txnlog.cluster import Cluster

pytestmark = pytest.mark.spark

README = Path(__file__).resolve().parents[2] / "README.md"
PLACES = ('"/tmp/lake"', '"/tmp/checkpoints/router"')


def first_lines(root: Path, checkpoint: Path) -> str:
    """The code under "Ten lines", with folders of the test in place of its two."""
    found = re.search(r"^## Ten lines\n+```python\n(.*?)^```", README.read_text(), re.S | re.M)
    assert found is not None
    code = found[1]
    for place, folder in zip(PLACES, (root, checkpoint), strict=True):
        assert code.count(place) == 1
        code = code.replace(place, repr(str(folder)))
    return code


def run(spark: SparkSession, lab: Lab) -> dict[str, int]:
    """Run them on all available input; returns the number of records of each topic."""
    names: dict[str, Any] = {"spark": spark}
    exec(compile(first_lines(lab.root, lab.checkpoint), str(README), "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    cluster = Cluster.open(str(lab.root))
    views = {topic: cluster.topic(topic).view for topic in cluster.list_topics()}
    return {
        topic: sum(partition.end_offset for partition in view.partitions)
        for topic, view in views.items()
    }


def test_first_lines_of_the_readme_run_from_an_empty_folder(spark: SparkSession, lab: Lab) -> None:
    """They would lose records from before their first start, or fail on an empty root (R59)."""
    assert run(spark, lab) == {"flights": 300, "departures": 240, "cancellations": 60}
    # Run again: the query continues where it was, with the records added in between.
    assert run(spark, lab) == {"flights": 600, "departures": 480, "cancellations": 120}
