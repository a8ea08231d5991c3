"""RESULTS.md and its plot, from the figures of peers.json.

Text below END in RESULTS.md is written by hand, and stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS

BEGIN = "<!-- From peers.json, by `make bench-peers`: edit below the end mark. -->"
END = "<!-- end -->"
PLOT = "peers.png"
PHASE = "phase "
PANEL_COLUMNS = 2
OURS_COLOR, PEER_COLOR = "#1f77b4", "#b0b0b0"

Entry = Mapping[str, Any]


def write_report(path: Path) -> None:
    """RESULTS.md and the plot beside the figures."""
    entries = json.loads(path.read_text())
    results = path.parent / "RESULTS.md"
    written = results.read_text().partition(END)[2] if results.exists() else "\n"
    results.write_text(f"{BEGIN}\n{render(entries)}\n{END}{written}")
    draw(entries, path.parent / PLOT)
    print(f"written to {results} and {path.parent / PLOT}")


def render(entries: list[Entry]) -> str:
    """The generated part, Markdown."""
    ratios = [entry for entry in entries if entry["unit"] == "x"]
    limits = [entry for entry in ratios if _is_limit(entry)]
    sections = [
        "# txnlog beside its peers",
        "\n".join(_machines(entries)),
        f"![medians and spread of what was measured]({PLOT})",
        "## Ratios",
        "Medians of txnlog to medians of the peer; the spread is that of the rounds.",
        _table(
            ("", "ratio", "goal", "holds", "spread", "against"),
            (
                (
                    entry["name"],
                    f"{entry['value']:.2f}",
                    entry["goal"],
                    ("yes" if entry["holds"] else "**no**") if entry["goal"] else "",
                    _spread(entry, 2),
                    entry["against"],
                )
                for entry in ratios
                if entry not in limits
            ),
        ),
        "## Where txnlog loses",
        "\n".join(_losses(entries)) or "Nowhere in these figures.",
        "## Against the limit",
        "Spark and Arrow transfer alone: a Python source of equal rows, a Python sink that drops "
        "its rows, with everything that makes txnlog's fast. Above 1, or for ms below, is noise.",
        _table(
            ("", "share of the limit", "spread", ""),
            (
                (entry["name"], f"{entry['value']:.2f}", _spread(entry, 2), entry["against"])
                for entry in limits
            ),
        ),
        "## What was measured",
        _table(
            ("", "median", "spread", "unit"),
            (
                (entry["name"], f"{entry['value']:,.4g}", _spread(entry, 1), entry["unit"])
                for entry in entries
                if entry["unit"] != "x" and not entry["name"].startswith(PHASE)
            ),
        ),
        *_phases(entries),
    ]
    return "\n\n".join(sections)


def _machines(entries: list[Entry]) -> Iterator[str]:
    for machine in dict.fromkeys(entry["machine"] for entry in entries):
        yield f"Machine: {machine}."
    versions: dict[str, str] = {}
    for entry in entries:
        versions |= {"python": entry["python"], **entry["versions"]}
    yield "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."


def _losses(entries: Iterable[Entry]) -> Iterator[str]:
    """Ratios that are worse than the peer's own, and goals that are missed."""
    for entry in entries:
        what = f"{entry['value']:.3g} {entry['unit']} ({entry['against']})"
        if not entry["holds"]:
            yield f"- {entry['name']}: {what}; the goal is {entry['goal']}."
        elif entry["unit"] == "x" and not _is_limit(entry):
            less_is_better = entry["against"].endswith(" ms")
            if entry["value"] > 1 if less_is_better else entry["value"] < 1:
                yield f"- {entry['name']}: {what}."


def _is_limit(entry: Entry) -> bool:
    """A ratio to an upper limit; with a goal, it counts as any other ratio."""
    return entry["name"].endswith(" against nothing") and not entry["goal"]


def _phases(entries: list[Entry]) -> list[str]:
    """Spark's durations of the parts of a small micro-batch; a column for each peer."""
    found: dict[str, dict[str, float]] = {}
    for entry in entries:
        if entry["name"].startswith(PHASE):
            phase, _, peer = entry["name"].removeprefix(PHASE).partition(": ")
            found.setdefault(phase, {})[peer] = entry["value"]
    if not found:
        return []
    peers = list(dict.fromkeys(peer for values in found.values() for peer in values))
    rows = (
        (phase, *(f"{values[peer]:.0f}" if peer in values else "" for peer in peers))
        for phase, values in found.items()
    )
    title = "## Phases of a micro-batch of 100 records, ms"
    return [title, _table(("", *peers), rows)]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(entry: Entry, digits: int) -> str:
    low_high = entry.get("spread")
    return " to ".join(f"{value:,.{digits}f}" for value in low_high) if low_high else ""


def draw(entries: list[Entry], path: Path) -> None:
    """A panel for each comparison, a bar for each peer."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    panels = _panels(entries)
    if not panels:
        return
    mpl.rcParams.update({"font.size": 7})
    lines = -(-len(panels) // PANEL_COLUMNS)
    figure, axes = pyplot.subplots(
        lines, PANEL_COLUMNS, figsize=(9, 1.5 * lines), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, bars) in zip(axes.flat, panels.items(), strict=False):
        names = [name for name, _ in bars][::-1]
        shown = [entry for _, entry in bars][::-1]
        values = [entry["value"] for entry in shown]
        errors = [
            [max(0.0, entry["value"] - entry["spread"][0]) for entry in shown],
            [max(0.0, entry["spread"][1] - entry["value"]) for entry in shown],
        ]
        colors = [OURS_COLOR if name.startswith((OURS, "read_")) else PEER_COLOR for name in names]
        axis.barh(names, values, xerr=errors, color=colors, ecolor="#404040", height=0.7)
        axis.set_title(f"{title}, {shown[0]['unit']}", fontsize=7, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _panels(entries: Iterable[Entry]) -> dict[str, list[tuple[str, Entry]]]:
    """Entries named "<what>: <peer>", by what; without parts of others, and without single ones."""
    found: dict[str, list[tuple[str, Entry]]] = {}
    for entry in entries:
        what, colon, peer = entry["name"].rpartition(": ")
        if colon and entry.get("spread") and not (what.startswith(PHASE) or "p50" in what):
            found.setdefault(what, []).append((peer, entry))
    return {what: bars for what, bars in found.items() if len(bars) > 1}
