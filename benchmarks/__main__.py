"""Run the benchmarks, each group in a process of its own; show one table, keep results.json."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, environment
from benchmarks.scale import FULL, QUICK, Scale

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results.json"
SPARK_GROUPS = ("sink", "source", "latency")
GROUPS = ("transactions", "clients", "opening", "staging", *SPARK_GROUPS)


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 when a goal does not hold, 2 when a group failed."""
    options = _options(arguments)
    scale = QUICK if options.quick else FULL
    if options.measure:
        figures = measure(options.measure, scale)
        options.output.write_text(json.dumps([figure.to_json() for figure in figures]))
        return 0
    print(f"{environment()}: {', '.join(options.only)}", flush=True)
    measured: list[dict[str, Any]] = []
    failed = []
    for group in options.only:
        entries = _in_own_process(group, quick=options.quick)
        if entries is None:
            failed.append(group)
            continue
        measured += entries
        if options.output:
            text = json.dumps(merged(options.output, group, entries), indent=2)
            options.output.write_text(text + "\n")
    show(measured)
    if options.output and measured:
        print(f"written to {options.output}")
    if failed:
        print(f"without figures, see the errors above: {', '.join(failed)}", file=sys.stderr)
        return 2
    return 0 if options.quick or all(entry["holds"] for entry in measured) else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(GROUPS),
        metavar="GROUP,...",
        help=f"groups to run, of {', '.join(GROUPS)}; the figures of the others stay",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny amounts: that it runs; its figures say nothing"
    )
    parser.add_argument(
        "--output", type=Path, help=f"default: {RESULTS.relative_to(PROJECT)}, or none if --quick"
    )
    parser.add_argument("--measure", choices=GROUPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.only) - set(GROUPS))
    if unknown:
        parser.error(f"there is no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.output is None and not options.quick:
        options.output = RESULTS
    return options


def measure(group: str, scale: Scale) -> list[Figure]:
    """The figures of one group, measured in this process."""
    if group in SPARK_GROUPS:
        from benchmarks import latency, session, sink, source

        modules = {"sink": sink, "source": source, "latency": latency}
        with session.bench_session() as spark:
            return modules[group].measure(spark, scale)
    from benchmarks import clients, opening, staging, transactions

    others = {
        "transactions": transactions,
        "clients": clients,
        "opening": opening,
        "staging": staging,
    }
    return others[group].measure(scale)


def _in_own_process(group: str, *, quick: bool) -> list[dict[str, Any]] | None:
    """The entries of a group, None when it failed: what runs before must not warm it up."""
    print(f"-- {group}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-") as folder:
        output = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks", "--measure", group, "--output", str(output)]
        environment_variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
        done = subprocess.run(
            [*command, *(["--quick"] if quick else [])],
            cwd=PROJECT,
            env=environment_variables,
            check=False,
        )
        print(f"   {time.monotonic() - started:.0f} s", flush=True)
        if done.returncode:
            return None
        return [{"group": group, **entry} for entry in json.loads(output.read_text())]


def merged(path: Path, group: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the file holds of other groups, and these entries, in the order of GROUPS."""
    found = json.loads(path.read_text()) if path.exists() else []
    kept = [entry for entry in found if entry.get("group") in GROUPS and entry["group"] != group]
    return sorted([*kept, *entries], key=lambda entry: GROUPS.index(entry["group"]))


def show(entries: list[dict[str, Any]]) -> None:
    """A table for people."""
    width = max((len(entry["name"]) for entry in entries), default=0)
    print(f"{'figure':<{width}} {'value':>9} {'unit':<4} {'goal':>7}  holds")
    for entry in entries:
        line = f"{entry['name']:<{width}} {entry['value']:>9.3f} {entry['unit']:<4}"
        line += f" {entry['goal']:>7}  {'yes' if entry['holds'] else 'NO'}"
        print(line + (f"   against {entry['against']}" if entry["against"] else ""))


if __name__ == "__main__":
    sys.exit(main())
