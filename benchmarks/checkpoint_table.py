"""The table of checkpoints in docs/benchmarks.md, from results.json.

`make bench` writes it; `python -m benchmarks.checkpoint_table` writes it without measuring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- from results.json, by benchmarks/checkpoint_table.py -->"
END = "<!-- end -->"
OURS, PEER = "txnlog", "delta-rs"
QUANTITIES = ("processor time", "size", "memory")

_NAME = re.compile(r"checkpoint of ([\d,]+) files, ([a-z ]+): (\S+)")


def write_page(results: Path) -> None:
    """Write the table, unless these are figures of another file."""
    if results.resolve() == RESULTS.resolve():
        PAGE.write_text(with_table(PAGE.read_text(), json.loads(results.read_text())))
        print(f"written to {PAGE}")


def with_table(page: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """The page with its table made from these entries of results.json."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{_table(entries)}\n\n{END}{tail}"


def _table(entries: Iterable[Mapping[str, Any]]) -> str:
    rows: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for entry in entries:
        if found := _NAME.fullmatch(entry["name"]):
            rows.setdefault(found[1], {})[found[2], found[3]] = entry
    lines = [f"| live files | {' | '.join(QUANTITIES)} |", "|--:|" + "---|" * len(QUANTITIES)]
    for files, values in rows.items():
        cells = [_cell(values[what, OURS], values[what, PEER]) for what in QUANTITIES]
        lines.append(f"| {files} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    share = _number(ours["value"] / peer["value"])
    return f"{_number(ours['value'])} and {_number(peer['value'])} {ours['unit']}, {share} x"


def _number(value: float) -> str:
    """Two significant digits, with thousands' commas."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


if __name__ == "__main__":
    write_page(RESULTS)
