"""RESULTS.md must report what was measured, above all where txnlog loses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import Comparison, Figure, environment, median_of
from benchmarks.peers.report import FIGURES, PAGE, PAGE_BEGIN, render, with_table, write_report
from benchmarks.suite import merged

VERSIONS = {"kafka": "4.3.1"}
CORES = environment().partition(",")[0]


def entries(*figures: Figure) -> list[dict[str, Any]]:
    return [{"group": "sink", **figure.to_json(VERSIONS)} for figure in figures]


def losses(*figures: Figure) -> list[str]:
    """The ratios in bold, and those that miss their goals, which come first."""
    text = render(entries(*figures)).partition("## Ratios")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    lost = [row for row in rows if "**" in row]
    assert rows[: len(lost)] == lost
    return lost


def test_a_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds() -> None:
    """One slow round must show in the spread, and not in the ratio."""
    rates = {"txnlog": [10.0, 2.0, 12.0], "Kafka": [5.0, 5.0, 4.0]}
    found = Comparison("sink", "records/ms", rates).at_least("Kafka", 2)
    assert (found.value, found.holds, found.spread) == (2.0, True, (0.4, 3.0))
    assert found.against == "Kafka: 10.00 to 5.00 records/ms"


def test_a_peer_that_is_faster_is_named_even_if_the_goal_holds() -> None:
    """A report of missed goals only would hide what a peer does better."""
    rates = Comparison("sink", "records/ms", {"txnlog": [4.0], "Kafka": [5.0], "Delta": [2.0]})
    times = Comparison("latency", "ms", {"txnlog": [4.0], "Kafka": [5.0], "Delta": [2.0]})
    assert len(losses(rates.ratio("Kafka"), rates.ratio("Delta"))) == 1
    assert f"txnlog against Kafka | **0.80** | {CORES} |" in losses(rates.ratio("Kafka"))[0]
    assert len(losses(times.ratio("Kafka"), times.ratio("Delta"))) == 1
    assert "txnlog against Delta | **2.00**" in losses(times.at_most("Delta", 3))[0]


def test_a_missed_goal_is_a_loss_and_the_limit_is_none() -> None:
    """1.2 times Kafka is faster but misses its goal; the limit cannot be beaten."""
    rates = Comparison("sink", "records/ms", {"txnlog": [6.0], "Kafka": [5.0], "nothing": [9.0]})
    assert losses(rates.ratio("nothing")) == []
    (line,) = losses(rates.at_least("Kafka", 1.3))
    assert "| 1.20 |" in line
    assert "| >= 1.3 | **no** |" in line


def test_text_written_by_hand_stays_when_the_figures_change(tmp_path: Path) -> None:
    """The profile and the reasons are written by hand; the next run must not remove them."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "peers.json"
    for value in (1.5, 2.5):
        rates = {"txnlog": [value], "Kafka": [1.0]}
        compared = Comparison("sink", "records/ms", rates)
        path.write_text(json.dumps(entries(*compared.each(), compared.ratio("Kafka"))))
        write_report(path)
        results = tmp_path / "RESULTS.md"
        if value == 1.5:
            results.write_text(results.read_text() + "\n## Why\n\nBecause.\n")
    text = results.read_text()
    assert text.count("Because.") == 1
    assert "2.50" in text
    assert "1.50" not in text
    assert (tmp_path / "peers.png").stat().st_size > 1000


def test_phases_of_a_micro_batch_become_one_table() -> None:
    """Sixty lines of phases are unreadable; side by side they can be compared."""
    phases = [
        median_of("phase addBatch: txnlog", [99.0], "ms"),
        median_of("phase addBatch: Kafka", [33.0], "ms"),
        median_of("phase walCommit: Kafka", [5.0], "ms"),
    ]
    text = render(entries(*phases))
    assert "|  | where | unit | txnlog | Kafka |" in text
    assert f"| addBatch | {CORES} |  | 99 | 33 |" in text
    assert f"| walCommit | {CORES} |  |  | 5 |" in text


def test_figures_of_other_shapes_and_machines_stand_beside_one_another(tmp_path: Path) -> None:
    """A ratio of two cores says nothing of sixteen; a run must not replace another shape's."""
    path = tmp_path / "peers.json"
    compared = Comparison("sink", "records/ms", {"txnlog": [1.0], "Kafka": [2.0]})
    shapes = [
        {"cores": 2, "files": 2, "partitions": 4},
        {"cores": 16, "files": 16, "partitions": 16},
    ]
    for shape in [*shapes, shapes[0]]:
        new = [{"shape": shape, **entry} for entry in entries(compared.ratio("Kafka"))]
        path.write_text(json.dumps(merged(path, ("sink",), "sink", new)))
    text = render(json.loads(path.read_text()))
    assert text.count("txnlog against Kafka") == 2
    assert f"| local[2], {CORES}; 2 x 4 |" in text
    assert f"| local[16], {CORES}; 16 x 16 |" in text
    table = with_table(PAGE_BEGIN, json.loads(path.read_text()))
    assert table.count("**0.50**") == 2


def test_page_has_the_recorded_ratios() -> None:
    """Two cores and many are compared on the page; figures of former runs would mislead."""
    page = PAGE.read_text()
    assert PAGE_BEGIN in page
    again = "run `python -m benchmarks.peers.report`"
    assert page == with_table(page, json.loads(FIGURES.read_text())), again
