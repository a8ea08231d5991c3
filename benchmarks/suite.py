"""Runs groups of benchmarks, each in its own process; prints one table, writes one file."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.figures import Figure, environment, package_versions
from benchmarks.scale import FULL, QUICK, Scale

PROJECT = Path(__file__).resolve().parent.parent
SHAPES = {
    "cores": "tasks that a Spark session runs at once, local[N]",
    "files": "of a micro-batch's input in sink and source, a task each",
    "partitions": "of the topics of sink and source",
}
# Time limit for a group to stop its processes and remove its files.
STOP_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Groups with figures in one file; `finish` generates further files from it.

    With `shapes` there are options for the numbers of a Scale that SHAPES names, and the file keeps
    figures of each shape and each number of cores of a machine.
    """

    module: str
    description: str
    groups: tuple[str, ...]
    results: Path
    measure: Callable[[str, Scale], list[Figure]]
    versions: Callable[[], dict[str, str]] = package_versions
    finish: Callable[[Path], None] | None = None
    shapes: bool = False


def run(suite: Suite, arguments: list[str] | None = None) -> int:
    """Exit status 1 when a goal does not hold, 2 when a group failed."""
    signal.signal(signal.SIGTERM, _exit)
    options = _options(suite, arguments)
    scale = QUICK if options.quick else FULL
    shape = {name: getattr(options, name) for name in SHAPES} if suite.shapes else {}
    scale = replace(scale, **shape)
    if options.measure:
        figures = suite.measure(options.measure, scale)
        entries = [figure.to_json(suite.versions()) for figure in figures]
        options.output.write_text(json.dumps(entries))
        return 0
    print(f"{environment()}: {', '.join(options.only)}", flush=True)
    measured: list[dict[str, Any]] = []
    failed = []
    with tempfile.TemporaryDirectory(prefix="txnlog-bench-", ignore_cleanup_errors=True) as folder:
        for group in options.only:
            entries = _in_own_process(suite, group, folder, shape, quick=options.quick)
            if entries is None:
                failed.append(group)
                continue
            measured += entries
            if options.output:
                kept = merged(options.output, suite.groups, group, entries)
                options.output.write_text(json.dumps(kept, indent=2) + "\n")
    show(measured)
    if options.output and measured:
        print(f"written to {options.output}")
        if suite.finish:
            suite.finish(options.output)
    if failed:
        print(f"without figures, see the errors above: {', '.join(failed)}", file=sys.stderr)
        return 2
    return 0 if options.quick or all(entry["holds"] for entry in measured) else 1


def merged(
    path: Path, groups: tuple[str, ...], group: str, entries: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The file's entries of the other `groups`, and these, in the order of the groups.

    Entries of other shapes, or of a machine with another number of cores, stay, too.
    """
    found = json.loads(path.read_text()) if path.exists() else []
    new = {_circumstances(entry) for entry in entries}
    kept = [
        entry
        for entry in found
        if entry.get("group") in groups
        and (entry["group"] != group or _circumstances(entry) not in new)
    ]
    return sorted([*kept, *entries], key=lambda entry: groups.index(entry["group"]))


def _circumstances(entry: dict[str, Any]) -> tuple[Any, ...]:
    shape = entry.get("shape")
    return (*shape.values(), entry["machine"].partition(",")[0]) if shape else ()


def show(entries: list[dict[str, Any]]) -> None:
    """Print a table."""
    width = max((len(entry["name"]) for entry in entries), default=0)
    print(f"{'figure':<{width}} {'value':>9} {'unit':<4} {'goal':>7}  holds")
    for entry in entries:
        line = f"{entry['name']:<{width}} {entry['value']:>9.3f} {entry['unit']:<4}"
        line += f" {entry['goal']:>7}  {'yes' if entry['holds'] else 'NO'}"
        print(line + (f"   against {entry['against']}" if entry["against"] else ""))


def _options(suite: Suite, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {suite.module}", description=suite.description
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(suite.groups),
        metavar="GROUP,...",
        help=f"groups to run, of {', '.join(suite.groups)}; the figures of the others stay",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny amounts: checks only that it runs"
    )
    parser.add_argument(
        "--output",
        type=Path,
        help=f"default: {suite.results.relative_to(PROJECT)}, or none if --quick",
    )
    for name, what in SHAPES.items() if suite.shapes else ():
        default = getattr(FULL, name)
        parser.add_argument(
            f"--{name}", type=_count, default=default, help=f"{what} (default {default})"
        )
    parser.add_argument("--measure", choices=suite.groups, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.only) - set(suite.groups))
    if unknown:
        parser.error(f"there is no group {', '.join(unknown)}; there are {', '.join(suite.groups)}")
    if options.output is None and not options.quick:
        options.output = suite.results
    return options


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _in_own_process(
    suite: Suite, group: str, folder: str, shape: dict[str, int], *, quick: bool
) -> list[dict[str, Any]] | None:
    """The entries of a group, None if it failed. Earlier groups do not warm its process up.

    It writes into `folder`, and its processes are in its process group; both are removed however
    it ends.
    """
    print(f"-- {group}", flush=True)
    started = time.monotonic()
    output = Path(folder, f"{group}.json")
    command = [sys.executable, "-m", suite.module, "--measure", group, "--output", str(output)]
    command += [f"--{name}={value}" for name, value in shape.items()]
    process = subprocess.Popen(
        [*command, *(["--quick"] if quick else [])],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "TMPDIR": folder},
        start_new_session=True,
    )
    try:
        status = process.wait()
    except BaseException:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        raise
    finally:
        # A JVM that was starting as its group stopped would keep running.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    print(f"   {time.monotonic() - started:.0f} s", flush=True)
    if status:
        return None
    more = {"shape": shape} if shape else {}
    return [{"group": group, **more, **entry} for entry in json.loads(output.read_text())]


def _exit(number: int, frame: object) -> NoReturn:
    """SIGTERM must also stop a broker and remove folders."""
    raise SystemExit(128 + number)
