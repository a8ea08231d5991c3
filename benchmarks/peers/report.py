"""RESULTS.md and its plot, and a table in docs/benchmarks.md, from the figures of peers.json.

Text below END in RESULTS.md is written by hand, and stays. `python -m benchmarks.peers.report`
writes them without measuring.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import OURS
from benchmarks.peers.processor import PROCESSOR

BEGIN = "<!-- From peers.json, by `make bench-peers`: edit below the end mark. -->"
END = "<!-- end -->"
PLOT = "peers.png"
FIGURES = Path(__file__).parents[1] / "peers.json"
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
PAGE_BEGIN = "<!-- from peers.json, by benchmarks/peers/report.py -->"
PHASE = "phase "
PANEL_COLUMNS = 2
OURS_COLOR, PEER_COLOR = "#1f77b4", "#b0b0b0"

Entry = Mapping[str, Any]


def write_report(path: Path) -> None:
    """RESULTS.md and the plot beside the figures; the page, if these are the project's own."""
    entries = [entry for entry in json.loads(path.read_text()) if _means_something(entry)]
    results = path.parent / "RESULTS.md"
    written = results.read_text().partition(END)[2] if results.exists() else "\n"
    results.write_text(f"{BEGIN}\n{render(entries)}\n{END}{written}")
    draw(entries, path.parent / PLOT)
    print(f"written to {results} and {path.parent / PLOT}")
    if path.resolve() == FIGURES:
        PAGE.write_text(with_table(PAGE.read_text(), entries))
        print(f"written to {PAGE}")


def _means_something(entry: Entry) -> bool:
    """With more tasks than the machine has cores only processor time and numbers of files do."""
    tasks = entry.get("shape", {}).get("cores", 0)
    fits = entry["group"] == "clients" or tasks <= int(entry["machine"].partition(" ")[0])
    return fits or entry["unit"] == "files" or entry["name"].startswith(PROCESSOR)


def with_table(page: str, entries: Iterable[Entry]) -> str:
    """The page with its table of ratios: a column for each number of a machine's cores."""
    head, _, rest = page.partition(PAGE_BEGIN)
    found: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        if entry["unit"] == "x":
            cores, shape = _cores(entry), ""
            if entry["group"] in ("sink", "source"):
                shape = "{files} x {partitions}".format(**entry["shape"])
            value = f"{entry['value']:.2f}" if _wins(entry) else f"**{entry['value']:.2f}**"
            found.setdefault((entry["name"], shape), {})[cores] = value
    machines = sorted(
        {cores for row in found.values() for cores in row},
        key=lambda cores: (int(cores.split()[0]), cores),
    )
    rows = (
        (name, shape, *(row.get(cores, "") for cores in machines))
        # Losses first.
        for (name, shape), row in sorted(
            found.items(), key=lambda item: not any("**" in value for value in item[1].values())
        )
    )
    table = _table(("", "files x partitions", *machines), rows)
    return f"{head}{PAGE_BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def _cores(entry: Entry) -> str:
    """Of the machine; and of the session, if it used another number."""
    cores = entry["machine"].partition(",")[0]
    used = entry.get("shape", {}).get("cores")
    is_all = entry["group"] == "clients" or used is None or cores == f"{used} cores"
    return cores if is_all else f"{cores}, local[{used}]"


def render(entries: list[Entry]) -> str:
    """The generated part, Markdown."""
    ratios = [entry for entry in entries if entry["unit"] == "x"]
    limits = [entry for entry in ratios if _is_limit(entry)]
    others = [entry for entry in ratios if entry not in limits]
    spent = {
        (entry["name"].removeprefix(PROCESSOR), _where(entry)): entry
        for entry in entries
        if entry["name"].startswith(PROCESSOR)
    }
    sections = [
        "# txnlog beside its peers",
        "\n".join(_versions(entries)),
        "## Ratios, losses first",
        "Medians of txnlog to medians of the peer; the spread is that of the rounds. `local[n]` "
        "runs n tasks at once; then come the files of a micro-batch and the partitions of its "
        "topic. Processor time is that of txnlog's processes and of the peer's, without a Kafka "
        "broker. What is behind the peer is in bold.",
        _table(
            ("", "ratio", "where", "goal", "holds", "spread", "against", "processor time"),
            (
                (
                    entry["name"],
                    f"{entry['value']:.2f}" if _wins(entry) else f"**{entry['value']:.2f}**",
                    _where(entry),
                    entry["goal"],
                    ("yes" if entry["holds"] else "**no**") if entry["goal"] else "",
                    _spread(entry, 2),
                    entry["against"],
                    _processor(entry, spent),
                )
                for entry in sorted(others, key=lambda entry: (_wins(entry), entry["holds"]))
            ),
        ),
        "## Against the limit",
        "Spark and Arrow transfer alone: a Python source of equal rows, a Python sink that drops "
        "its rows, with everything that makes txnlog's fast. Above 1, or for ms below, is noise.",
        _table(
            ("", "share of the limit", "where", "spread", "", "processor time"),
            (
                (
                    entry["name"],
                    f"{entry['value']:.2f}",
                    _where(entry),
                    _spread(entry, 2),
                    entry["against"],
                    _processor(entry, spent),
                )
                for entry in limits
            ),
        ),
        *_side_by_side(
            "## Processor time",
            "User and system time of a peer's processes: the driver, its JVM, its Python workers, "
            "or the client; of a Kafka broker its own. It does not depend on the number of cores.",
            PROCESSOR,
            "{:.3g}",
            entries,
        ),
        f"![medians and spread of what was measured]({PLOT})",
        "## What was measured",
        _table(
            ("", "median", "where", "spread", "unit"),
            (
                (
                    entry["name"],
                    f"{entry['value']:,.4g}",
                    _where(entry),
                    _spread(entry, 1),
                    entry["unit"],
                )
                for entry in entries
                if entry["unit"] != "x" and not entry["name"].startswith((PHASE, PROCESSOR))
            ),
        ),
        *_side_by_side(
            "## Phases of a micro-batch of 100 records, ms", "", PHASE, "{:.0f}", entries
        ),
    ]
    return "\n\n".join(filter(None, sections))


def _processor(ratio: Entry, spent: Mapping[tuple[str, str], Entry]) -> str:
    """Ours and the peer's of a ratio, "<work>, <ours> against <peer>"."""
    work, _, peers = ratio["name"].rpartition(", ")
    ours, _, theirs = peers.partition(" against ")
    for name in (work, work.rpartition(": ")[0]):
        mine = spent.get((f"{name}: {ours}", _where(ratio)))
        other = spent.get((f"{name}: {theirs}", _where(ratio)))
        if mine and other:
            return f"{mine['value']:.3g} to {other['value']:.3g} {mine['unit']}"
    return ""


def _where(entry: Entry) -> str:
    """The machine's cores, and the shape as far as it matters."""
    cores = entry["machine"].partition(",")[0]
    shape = entry.get("shape", {})
    if entry["group"] == "clients" or not shape:
        return cores
    where = f"local[{shape['cores']}], {cores}"
    if entry["group"] == "latency":
        return where
    return f"{where}; {shape['files']} x {shape['partitions']}"


def _versions(entries: list[Entry]) -> Iterator[str]:
    for machine in dict.fromkeys(entry["machine"] for entry in entries):
        yield f"Machine: {machine}."
    versions: dict[str, str] = {}
    for entry in entries:
        # Figures that were carried over say theirs in the machine's name.
        if "versions" in entry:
            versions |= {"python": entry["python"], **entry["versions"]}
    yield "Versions: " + ", ".join(f"{name} {value}" for name, value in versions.items()) + "."


def _wins(entry: Entry) -> bool:
    """Whether a ratio is better than the peer's own."""
    less_is_better = entry["against"].endswith(" ms")
    return bool(entry["value"] <= 1 if less_is_better else entry["value"] >= 1)


def _is_limit(entry: Entry) -> bool:
    """A ratio to an upper limit; with a goal, it counts as any other ratio."""
    return entry["name"].endswith(" against nothing") and not entry["goal"]


def _side_by_side(title: str, text: str, prefix: str, form: str, entries: list[Entry]) -> list[str]:
    """Figures named "<prefix><what>: <peer>" as a table with a column for each peer."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for entry in entries:
        if entry["name"].startswith(prefix):
            what, _, peer = entry["name"].removeprefix(prefix).rpartition(": ")
            unit = "" if entry["unit"] in title else entry["unit"]
            found.setdefault((what, _where(entry), unit), {})[peer] = entry["value"]
    if not found:
        return []
    peers = list(dict.fromkeys(peer for values in found.values() for peer in values))
    rows = (
        (*key, *(form.format(values[peer]) if peer in values else "" for peer in peers))
        for key, values in found.items()
    )
    return [title, text, _table(("", "where", "unit", *peers), rows)]


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
        is_part = what.startswith((PHASE, PROCESSOR)) or "p50" in what
        if colon and entry.get("spread") and not is_part:
            found.setdefault(f"{what}, {_where(entry)}", []).append((peer, entry))
    return {what: bars for what, bars in found.items() if len(bars) > 1}


if __name__ == "__main__":
    write_report(FIGURES)
