"""The table of checkpoints in docs/benchmarks.md is that of results.json."""

from __future__ import annotations

import json

from benchmarks.checkpoint_table import BEGIN, PAGE, RESULTS, with_table

RENEW = "run `python -m benchmarks.checkpoint_table`"


def test_page_has_the_recorded_figures() -> None:
    """A decision that cites figures that no page has cannot be reviewed."""
    page = PAGE.read_text()
    assert BEGIN in page
    assert page == with_table(page, json.loads(RESULTS.read_text())), RENEW


def test_row_has_both_figures_and_their_ratio() -> None:
    """With the peers swapped, the slower one would be the faster."""
    entries = [
        {"name": f"checkpoint of 1,000 files, {what}: {peer}", "value": value, "unit": unit}
        for what, unit in (("processor time", "s"), ("size", "MB"), ("memory", "MB"))
        for peer, value in (("txnlog", 0.0251), ("delta-rs", 0.04))
    ]
    assert "| 1,000 | 0.025 and 0.04 s, 0.63 x |" in with_table(BEGIN, entries)
