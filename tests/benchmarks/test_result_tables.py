"""The tables of docs/benchmarks.md are those of results.json."""

from __future__ import annotations

import json

from benchmarks.figures import Comparison
from benchmarks.result_tables import BEGIN, PAGE, RESULTS, TABLES, with_tables

RENEW = "run `python -m benchmarks.result_tables`"


def test_page_has_the_recorded_figures() -> None:
    """A decision that cites figures that no page has cannot be reviewed."""
    page = PAGE.read_text()
    assert all(BEGIN.format(group) in page for group in TABLES)
    assert page == with_tables(page, json.loads(RESULTS.read_text())), RENEW


def test_row_has_both_figures_and_their_ratio() -> None:
    """With the peers swapped, the slower one would be the faster."""
    entries = [
        {
            "group": "checkpoints",
            "name": f"checkpoint of 1,000 files, {what}: {peer}",
            "value": value,
            "unit": unit,
        }
        for what, unit in (("processor time", "s"), ("size", "MB"), ("memory", "MB"))
        for peer, value in (("txnlog", 0.0251), ("delta-rs", 0.04))
    ]
    page = with_tables(BEGIN.format("checkpoints"), entries)
    assert "| 1,000 | 0.025 and 0.04 s, 0.63 x |" in page


def test_figures_of_a_group_are_listed_with_both_medians() -> None:
    """A ratio without them says little, and those of other groups nothing."""
    runs = {"both": [6.0], "delta-rs": [4.0]}
    given = Comparison("transaction of 100 rows, p50", "ms", runs, "both")
    figures = [*given.each(), given.ratio("delta-rs")]
    entries = [{"group": "tables", **figure.to_json({})} for figure in figures]
    entries.append({**entries[0], "group": "others", "value": 9.0})
    page = with_tables(BEGIN.format("tables"), entries)
    assert "| p50: both | 6 ms |\n| p50: delta-rs | 4 ms |\n" in page
    assert "| p50, both against delta-rs (6.00 to 4.00 ms) | 1.5 x |\n" in page
    assert "9" not in page
