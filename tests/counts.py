"""Sums of what a test run did; written into docs/reliability.json on request.

The hooks are part of tests/conftest.py. Every run prints its sums. `--record-counts=test` writes
them under the name `test`, when the whole run has passed, and renews the tables of
docs/reliability.md. A test adds to the sums with `txnlog.testing.counts.count`. Events in other
processes than pytest's are counted when the test observes them: a kill by the test that waits for
the process, a fail point when the test finds that the process has died.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from txnlog.testing.counts import GROUPS, count, counted

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
RUNS = {
    "test": "make test",
    "soak-spark": "make soak-spark",
    "soak-histories": "make soak-histories",
    "stores": "make stores",
    "soak-stores": "make soak-stores",
    "mutants": "make mutants",
}
BEGIN, END = "<!-- made from reliability.json -->", "<!-- end -->"

Sums = dict[str, dict[str, int]]

_EXAMPLES = re.compile(r"(\d+) passing")
_key = pytest.StashKey[list[Sums]]()


# -- hooks of tests/conftest.py --------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-counts",
        choices=sorted(RUNS),
        help="write the sums of a whole run that has passed into docs/reliability.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_key] = []


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Counts Hypothesis' examples of a test that were valid and passed."""
    examples = _EXAMPLES.findall(getattr(item, "hypothesis_statistics", ""))
    if examples:
        count("histories", "examples of Hypothesis", sum(map(int, examples)))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["counts"] = counted()
        return
    sums = added([*config.stash[_key], counted()])
    config.stash[_key] = [sums]
    name = config.getoption("record_counts")
    if name and exitstatus == pytest.ExitCode.OK:
        record(name, sums, tests=session.testscollected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The sums of one worker of pytest-xdist."""
    sums = getattr(node, "workeroutput", {}).get("counts")
    if sums:
        node.config.stash[_key].append(sums)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for group, kinds in (sums for sums in config.stash[_key] for sums in sums.items()):
        details = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
        terminalreporter.write_line(f"counted {group}: {details}")


# -- figures and page ------------------------------------------------------------------------------


def added(parts: list[Sums]) -> Sums:
    """The sums of several processes in one, in the order of GROUPS."""
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for part in parts:
        for group, kinds in part.items():
            total[group].update(kinds)
    return {group: dict(sorted(total[group].items())) for group in GROUPS if group in total}


def record(run: str, sums: Sums, **figures: int) -> None:
    """Replace the figures of one run, and renew the page."""
    recorded = figures_of_runs()
    recorded[run] = {**figures, "counts": sums}
    recorded = {name: recorded[name] for name in RUNS if name in recorded}
    FIGURES.write_text(json.dumps(recorded, indent=1) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), recorded))


def figures_of_runs() -> dict[str, dict[str, Any]]:
    """Run -> {"tests": n, "counts": sums}, as recorded last."""
    found: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return found


def with_tables(page: str, figures: dict[str, dict[str, Any]]) -> str:
    """The page, with new tables between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(figures)}\n{END}{after}"


def tables(figures: dict[str, dict[str, Any]]) -> str:
    """A table of sums by run, and below it one of the kinds of each group."""
    if not figures:
        return "No run has been recorded yet.\n"
    runs = [run for run in RUNS if run in figures]
    head = ["what", *(f"`{RUNS[run]}`" for run in runs)]
    sums = [["tests", *(number(figures[run].get("tests", 0)) for run in runs)]]
    kinds = []
    for group, meaning in GROUPS.items():
        of_runs = [figures[run]["counts"].get(group, {}) for run in runs]
        if any(of_runs):
            sums.append(
                [f"{group}: {meaning}", *(number(sum(found.values())) for found in of_runs)]
            )
        for kind in sorted({kind for found in of_runs for kind in found}):
            kinds.append([group, kind, *(number(found.get(kind, 0)) for found in of_runs)])
    return table(head, sums) + "\n" + table(["group", "kind", *head[1:]], kinds)


def number(n: int) -> str:
    return f"{n:,}" if n else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown; columns of numbers are aligned to the right."""
    words = sum(not cell.startswith("`") for cell in head)
    line = ["---"] * words + ["---:"] * (len(head) - words)
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, line, *rows))
