"""The tables of docs/benchmarks.md that are made from results.json.

`make bench` writes them; `python -m benchmarks.result_tables` writes them without measuring.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- from results.json, group {}, by benchmarks/result_tables.py -->"
END = "<!-- end -->"
OURS, PEER = "txnlog", "delta-rs"
QUANTITIES = ("processor time", "size", "memory")

_NAME = re.compile(r"checkpoint of ([\d,]+) files, ([a-z ]+): (\S+)")


def write_page(results: Path) -> None:
    """Write the tables, unless these are figures of another file."""
    if results.resolve() == RESULTS.resolve():
        PAGE.write_text(with_tables(PAGE.read_text(), json.loads(results.read_text())))
        print(f"written to {PAGE}")


def with_tables(page: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """The page with its tables made from these entries of results.json."""
    kept = list(entries)
    for group, make in TABLES.items():
        head, begin, rest = page.partition(BEGIN.format(group))
        if begin:
            _, _, tail = rest.partition(END)
            made = make([entry for entry in kept if entry["group"] == group])
            page = f"{head}{begin}\n\n{made}\n\n{END}{tail}"
    return page


def _figures(name: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """Each figure, and for a ratio both medians."""
    lines = [f"| {name} | |", "|---|--:|"]
    for entry in entries:
        what = entry["name"].removeprefix(name).lstrip(",: ")
        medians = entry["against"].rpartition(": ")[2]
        beside = f" ({medians})" if medians else ""
        lines.append(f"| {what}{beside} | {_number(entry['value'])} {entry['unit']} |")
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet."


def _checkpoints(entries: Iterable[Mapping[str, Any]]) -> str:
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


TABLES: Mapping[str, Callable[[Iterable[Mapping[str, Any]]], str]] = {
    "tables": partial(_figures, "transaction of 100 rows"),
    "table_batches": partial(_figures, "micro-batch of 100 records from a topic"),
    "copies": partial(_figures, "backup and clone"),
    "checkpoints": _checkpoints,
}


if __name__ == "__main__":
    write_page(RESULTS)
