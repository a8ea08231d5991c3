"""Runs each mutant of the table against the tests that belong to it: `make mutants`.

A mutant is killed when its tests fail, or run out of time; on the code as it is all of them pass,
in less time than a mutant gets. Each of the workers has a copy of the checkout in a temporary
folder. Exit code 1: a mutant survived that is not listed as harmless, or could not be run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.child import PRELOAD, run_tests
from tests.mutants.table import ROOT, Mutant, read_table

KILLED, SURVIVED, HARMLESS, ERROR = "killed", "SURVIVED", "harmless", "ERROR"
PASSED, FAILED = 0, 1  # exit codes of pytest
TIMEOUT_S_MIN = 300
BASELINE_S_MAX = 3_600
LEFT_OUT = (".git", ".venv", ".hypothesis", "__pycache__", "demo-data", "bench-data")

FORKS = multiprocessing.get_context("forkserver")


class Runner:
    """Copies of the checkout, one for each worker."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.jobs = jobs
        self._copies: SimpleQueue[Path] = SimpleQueue()
        self._changes = threading.Lock()
        self._changed_s = 1_000_000_000
        self._timeout_s: float = BASELINE_S_MAX
        FORKS.set_forkserver_preload(PRELOAD)
        for number in range(jobs):
            copy = folder / f"copy-{number}"
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
            self._copies.put(copy)

    def check_tests(self, mutants: Sequence[Mutant]) -> str:
        """Run all tests on the code as it is; what fails, "" for nothing."""
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        parts = [part for n in range(self.jobs) if (part := tuple(tests[n :: self.jobs]))]
        started_s = time.monotonic()
        with ThreadPoolExecutor(self.jobs) as pool:
            runs = list(pool.map(lambda part: self._run_tests(part, None), parts))
        self._timeout_s = max(TIMEOUT_S_MIN, time.monotonic() - started_s)
        return "\n".join(output[-4000:] for code, output in runs if code != PASSED)

    def run(self, mutant: Mutant) -> tuple[str, str]:
        """What became of it, and what pytest has printed."""
        try:
            code, output = self._run_tests(mutant.tests, mutant)
        except ValueError as error:
            return ERROR, str(error)
        if code in (FAILED, None):
            return KILLED, output
        if code == PASSED:
            return (HARMLESS if mutant.harmless else SURVIVED), ""
        return ERROR, f"pytest ended with {code}:\n{output[-2000:]}"

    def _run_tests(self, tests: tuple[str, ...], mutant: Mutant | None) -> tuple[int | None, str]:
        """Exit code of pytest, None for a run out of time; and its output."""
        with self._copy() as copy, self._applied(mutant, copy):
            output = copy.with_suffix(".txt")
            arguments = (str(ROOT), str(copy), tests, str(output))
            process = FORKS.Process(target=run_tests, args=arguments)
            process.start()
            process.join(self._timeout_s)
            code = process.exitcode
            if code is None:
                assert process.pid is not None
                os.killpg(process.pid, signal.SIGKILL)
                process.join()
            return code, output.read_text(errors="replace")

    @contextmanager
    def _copy(self) -> Iterator[Path]:
        copy = self._copies.get()
        try:
            yield copy
        finally:
            self._copies.put(copy)

    @contextmanager
    def _applied(self, mutant: Mutant | None, copy: Path) -> Iterator[None]:
        if mutant is None:
            yield
            return
        path = copy / mutant.file
        before, changed = path.read_text(), mutant.apply(copy)
        try:
            self._write(path, changed)
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """A byte code cache is trusted by time, in seconds, and size: each text gets its own."""
        path.write_text(text)
        with self._changes:
            self._changed_s += 1
            changed_s = self._changed_s
        os.utime(path, (changed_s, changed_s))


def _first_failed(output: str) -> str:
    failed = [line.split()[1] for line in output.splitlines() if line.startswith("FAILED ")]
    return failed[0].rpartition("/")[2] if failed else "out of time"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("--only", action="append", default=[], help="an id, or how ids begin")
    parser.add_argument("--area", help="one file of the table, such as groups")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--unchecked", action="store_true", help="do not run their tests first")
    parser.add_argument("--record-counts", action="store_true", help="into docs/reliability.json")
    given = parser.parse_args()
    is_whole = not given.only and given.area is None
    mutants = [m for m in read_table() if m.id.startswith(tuple(given.only) or "")]
    mutants = [m for m in mutants if given.area in (None, m.area)]
    verdicts: Counter[tuple[str, str]] = Counter()
    failed = []
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="txnlog-mutants-") as folder:
        runner = Runner(Path(folder), given.jobs)
        if not given.unchecked:
            if broken := runner.check_tests(mutants):
                print(f"{broken}\nThese tests fail on the code as it is; mend them first.")
                return 1
            print(
                f"their tests pass without them, {time.monotonic() - started_s:.0f} s", flush=True
            )
        with ThreadPoolExecutor(given.jobs) as pool:
            running = {pool.submit(runner.run, mutant): mutant for mutant in mutants}
            for number, done in enumerate(as_completed(running), 1):
                mutant, (verdict, output) = running[done], done.result()
                verdicts[mutant.area, verdict] += 1
                by = f"by {_first_failed(output)}" if verdict == KILLED else ""
                print(f"{number:>3}/{len(mutants)} {verdict:8} {mutant.id} {by}", flush=True)
                if verdict in (SURVIVED, ERROR):
                    failed.append(f"{mutant.id} {verdict}: {mutant.breaks}\n{output}".rstrip())
    _summarise(verdicts, time.monotonic() - started_s)
    print("\n".join(failed))
    if given.record_counts and is_whole and not given.unchecked and not failed:
        _record(verdicts)
    return 1 if failed or not mutants else 0


def _summarise(verdicts: Counter[tuple[str, str]], duration_s: float) -> None:
    names = (KILLED, HARMLESS, SURVIVED, ERROR)
    print(f"\n{'area':14}" + "".join(f"{name:>10}" for name in names))
    for area in sorted({area for area, _ in verdicts}):
        print(f"{area:14}" + "".join(f"{verdicts[area, name]:>10}" for name in names))
    print(f"{verdicts.total()} mutants in {duration_s:.0f} s")


def _record(verdicts: Counter[tuple[str, str]]) -> None:
    from tests import counts

    sums = {f"{area}, {verdict}": n for (area, verdict), n in sorted(verdicts.items())}
    counts.record("mutants", {"mutants": sums})


if __name__ == "__main__":
    sys.exit(main())
