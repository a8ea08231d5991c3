"""Every benchmark at a tiny scale: checks that it returns its figures, not their values."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import latency, sink, source, sql
from benchmarks.__main__ import GROUPS
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.scale import QUICK
from benchmarks.session import take_turns
from benchmarks.stores.__main__ import GROUPS as STORE_GROUPS
from benchmarks.stores.server import PROGRAM
from benchmarks.suite import merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).resolve().parents[2]
FIELDS = {
    "group", "name", "value", "unit", "goal", "holds", "against",
    "machine", "loop_ns", "python", "versions",
}  # fmt: skip


def test_a_figure_on_its_goal_holds() -> None:
    """A reversed bound would report every failure as a success."""
    assert at_most("f", 2, "ms", 2).holds
    assert not at_most("f", 2.1, "ms", 2).holds
    assert at_least("f", 2, "x", 2).holds
    assert not at_least("f", 1.9, "x", 2).holds
    assert (at_most("f", 1, "ms", 2).goal, at_least("f", 1, "x", 0.5).goal) == ("<= 2", ">= 0.5")


def test_peers_take_turns_and_the_warm_up_does_not_count() -> None:
    """A peer that always runs first pays for the warm-up of the session."""
    order: list[str] = []

    def peer(name: str) -> list[float]:
        order.append(name)
        return [float(len(order))]

    found = take_turns({name: lambda name=name: peer(name) for name in "ab"}, rounds=3)
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"
    assert found == {"a": [3, 6, 7], "b": [4, 5, 8]}

    order.clear()
    peers = {name: lambda name=name: peer(name) for name in "ab"}
    found = take_turns(peers, rounds=1, warm_ups=2, runs=2)
    assert "".join(order) == "aabb" + "bbaa" + "aabb"
    assert found == {"a": [10], "b": [12]}, "the second run of a turn"


def test_results_of_other_groups_stay(tmp_path: Path) -> None:
    """`--only` must keep the figures of other groups; those of removed groups are deleted."""
    path = tmp_path / "results.json"
    assert merged(path, GROUPS, "sink", [{"group": "sink", "name": "new"}]) == [
        {"group": "sink", "name": "new"}
    ]
    old = [{"group": group, "name": group} for group in reversed(GROUPS)]
    path.write_text(json.dumps([*old, {"name": "of no group"}, {"group": "gone", "name": "x"}]))
    found = merged(path, GROUPS, "sink", [{"group": "sink", "name": "new"}])
    assert [entry["group"] for entry in found] == list(GROUPS)
    assert [entry["name"] for entry in found if entry["group"] == "sink"] == ["new"]


def run_command(*arguments: str, module: str = "benchmarks") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "groups",
    [
        "transactions,verify,tables,copies",
        pytest.param("guards,history,staging,clients,aborted,opening", marks=pytest.mark.soak),
        pytest.param("checkpoints", marks=pytest.mark.soak),
    ],
)
def test_command_writes_every_field_of_every_figure(groups: str, tmp_path: Path) -> None:
    """results.json must say what was measured, on which machine and with which versions."""
    output = tmp_path / "results.json"
    arguments = ["--quick", "--only", groups, "--output", str(output)]
    done = run_command(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads(output.read_text())
    assert {entry["group"] for entry in entries} == set(groups.split(","))
    assert all(set(entry) - {"spread"} == FIELDS for entry in entries)
    assert all(entry["name"] in done.stdout for entry in entries)


@pytest.mark.spark
@pytest.mark.soak
def test_cluster_under_housekeeping_is_measured(tmp_path: Path) -> None:
    """Sessions, a writer and a housekeeper, each in its own process."""
    output = tmp_path / "results.json"
    arguments = ["--quick", "--only", "flatness", "--output", str(output)]
    done = run_command(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({entry["name"] for entry in json.loads(output.read_text())}) == 12


@pytest.mark.stores
@pytest.mark.soak
@pytest.mark.skipif(not PROGRAM.exists(), reason="needs versitygw, which is built with Go")
def test_every_benchmark_on_a_store_returns_its_figures(tmp_path: Path) -> None:
    """Each group starts the server, and Spark reads it by conf/spark-s3a.conf."""
    output = tmp_path / "stores.json"
    done = run_command("--quick", "--output", str(output), module="benchmarks.stores")
    assert done.returncode == 0, done.stdout + done.stderr
    entries = json.loads(output.read_text())
    assert {entry["group"] for entry in entries} == set(STORE_GROUPS)


def test_command_refuses_an_unknown_group() -> None:
    """A typo must not look like a run in which every goal holds."""
    done = run_command("--only", "sinks")
    assert done.returncode == 2
    assert "sinks" in done.stderr


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize(
    ("module", "figures"),
    [
        pytest.param(sink, 2, id="sink"),
        pytest.param(source, 2, id="source"),
        pytest.param(sql, 2, id="sql"),
        pytest.param(latency, 16, id="latency"),
    ],
)
def test_spark_benchmarks_return_their_figures(
    spark: SparkSession,
    module: object,
    figures: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A benchmark that no test runs breaks unnoticed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: list[Figure] = module.measure(spark, QUICK)  # type: ignore[attr-defined]
    assert len({figure.name for figure in found}) == figures
    assert all(figure.value > 0 and figure.unit and figure.goal for figure in found)
