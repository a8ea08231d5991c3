"""docs/tutorial.md works, command by command, with the output that it shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Shell, blocks, play
from tests.ways_in.conftest import home, installed  # noqa: F401  fixtures
from txnlog import OFFSET_BEGINNING, Cluster, Consumer, TopicPartition

PAGE = ROOT / "docs" / "tutorial.md"
SPARK = "\n## 7. The same with Spark"


@pytest.mark.soak
def test_tutorial_to_the_killed_and_resumed_pipeline(tmp_path: Path) -> None:
    """A newcomer types this; an order without its invoice, or with two, ends the trust."""
    last = PAGE.read_text().split(SPARK)[0].count("\n")
    with Shell(tmp_path) as shell:
        play(shell, tmp_path, [block for block in blocks(PAGE) if block.line <= last])
    assert keys(tmp_path, "invoices") == keys(tmp_path, "orders")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.ways
def test_tutorial_with_spark_in_a_fresh_environment(
    home: Path,  # noqa: F811
    installed: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """All of it, as after `pip install`: nothing of the checkout is on the path."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TXNLOG_", "PYTHON", "SPARK_", "PYSPARK_", "VIRTUAL_ENV"))
    }
    places = {
        "PATH": f"{installed.parent}{os.pathsep}{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "COLUMNS": "200",
    }
    with Shell(tmp_path, {**inherited, **places}) as shell:
        play(shell, tmp_path, blocks(PAGE))
    orders = keys(tmp_path, "orders")
    assert sorted(keys(tmp_path, "apples") + keys(tmp_path, "pears") + ["o-3"]) == orders


def keys(folder: Path, topic: str) -> list[str]:
    """Of every committed record, sorted."""
    root = str(folder / "lake")
    partitions = len(Cluster.open(root).topic(topic).view.partitions)
    with Consumer({"txnlog.root": root}) as consumer:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
        found: list[str] = []
        while messages := consumer.consume(10_000, timeout=1):
            found += [(message.key() or b"").decode() for message in messages]
    return sorted(found)
