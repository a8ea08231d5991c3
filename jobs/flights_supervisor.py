"""Feeds, streams, kills, restarts and runs housekeeping as planned, and collects figures."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flights_autopsy import autopsy, unsettled_transactions
from flights_check import Report
from flights_display import Display
from flights_driver import POLL_S, DriverProcess
from flights_kills import RANDOM, Kill
from flights_pipeline import INPUT_TOPIC, OUTPUT_TOPICS

ROOT = "txnlog"
# A driver on a loaded machine may start slowly; without progress for this long it hangs.
STALL_S_MAX = 150.0


@dataclass(slots=True)
class Tally:
    """Figures of the run."""

    kills: int = 0
    stream_s: float = 0.0
    busy_s: float = 0.0
    busy_rows: int = 0
    restart_s: list[float] = field(default_factory=list)
    files_compacted: int = 0

    @property
    def rows_per_busy_s(self) -> float:
        """Rows/s between a driver's first and last transaction: without starts and kills."""
        return self.busy_rows / self.busy_s if self.busy_s else 0.0

    @property
    def restart_s_median(self) -> float:
        """Seconds from a driver's start to its first visible rows."""
        return statistics.median(self.restart_s) if self.restart_s else 0.0


class Supervisor:
    """Starts the streaming driver, kills it as planned and restarts it until all rows are written.

    start_driver takes the driver's arguments and environment, start_txnlog those of the command
    line; count_rows returns the number of rows a read_committed reader sees in the output topics.
    """

    def __init__(
        self,
        data_dir: Path,
        total: int,
        display: Display,
        start_driver: Callable[[Sequence[str], dict[str, str], Path], DriverProcess],
        start_txnlog: Callable[[Sequence[str], Path], DriverProcess],
        count_rows: Callable[[], int],
        max_offsets_per_trigger: int,
    ) -> None:
        self.root = data_dir / ROOT
        self.tally = Tally()
        self._data_dir = data_dir
        self._total = total
        self._display = display
        self._start_driver = start_driver
        self._start_txnlog = start_txnlog
        self._count_rows = count_rows
        self._max_offsets_per_trigger = max_offsets_per_trigger
        self._running: list[DriverProcess] = []
        self._feeder: DriverProcess | None = None
        self._query = self._driver = 1

    def feed(self, months: Sequence[int] | None) -> None:
        """Start the feeder, which runs in the background during `run`."""
        command = ["feed", "--root", str(self.root), *_months(months)]
        self._feeder = self._start_driver(command, {}, self._log("feeder"))
        self._running.append(self._feeder)

    def run(self, plan: Sequence[Kill]) -> Tally:
        """Execute the plan, then let a last driver process the remaining rows.

        Raises: DriverError if a driver or the feeder fails, hangs, or is not killed as planned.
        """
        started_s = time.monotonic()
        for kill in plan:
            self._run_and_kill(kill)
            self._driver += 1
        while self._feeder_runs():
            self._display.status("waiting for the feeder")
            time.sleep(POLL_S)
        self._watch_to_end(self._stream("--available-now"), "the last driver")
        self.tally.stream_s = time.monotonic() - started_s
        return self.tally

    def run_housekeeping(self) -> None:
        """Run `txnlog housekeeping` to compact the small files of the many transactions.

        Raises: DriverError if it fails.
        """
        command = ["--root", str(self.root), "--output", "json", "housekeeping", "--once"]
        keeper = self._start_txnlog(command, self._log("housekeeping"))
        self._running.append(keeper)
        while keeper.exit_code() is None:
            self._display.status("housekeeping", self._total)
            time.sleep(POLL_S)
        if keeper.exit_code() != 0:
            raise keeper.failure(f"Housekeeping failed with exit code {keeper.exit_code()}.")
        done = {duty["DUTY"]: duty["COUNT"] for duty in json.loads(keeper.log_tail(lines=1))}
        self.tally.files_compacted = done["files compacted"]
        self._display.event(f"housekeeping: {self.tally.files_compacted} small files compacted")

    def check(self, months: Sequence[int] | None) -> Report:
        """Check the output in a separate process.

        Raises: DriverError if the check cannot run; problems are in the report.
        """
        file = self._data_dir / "report.json"
        command = ["check", "--root", str(self.root), "--report", str(file), *_months(months)]
        self._display.event(f"checking {INPUT_TOPIC}, {', '.join(OUTPUT_TOPICS)} with two readers")
        checker = self._start_driver(command, {}, self._log("check"))
        self._running.append(checker)
        while checker.exit_code() is None:
            self._display.status("checking", self._total)
            time.sleep(POLL_S)
        if not file.exists():
            raise checker.failure(f"The check failed with exit code {checker.exit_code()}.")
        report = Report.from_json(file.read_text(encoding="utf-8"))
        if open_ones := unsettled_transactions(self.root):
            problem = f"transaction state: {open_ones} transactions are open"
            report = replace(report, problems=(*report.problems, problem))
        return report

    def close(self) -> None:
        """Kill all remaining processes that this supervisor started."""
        for process in self._running:
            process.kill()

    @property
    def _checkpoint(self) -> Path:
        return self._data_dir / f"checkpoint-{self._query}"

    def _log(self, name: str) -> Path:
        folder = self._data_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def _stream(self, *arguments: str, failpoint: str | None = None) -> DriverProcess:
        extra = {}
        if failpoint is not None:
            # The count spans processes: every worker that the daemon forks adds to the same file.
            extra = {"TXNLOG_FAILPOINT": failpoint, "TXNLOG_FAILPOINT_STATE": str(self._hits)}
        command = [
            *("stream", "--root", str(self.root), "--checkpoint", str(self._checkpoint)),
            *("--max-offsets-per-trigger", str(self._max_offsets_per_trigger)),
            *arguments,
        ]
        driver = self._start_driver(command, extra, self._log(f"driver-{self._driver}"))
        self._running.append(driver)
        return driver

    @property
    def _hits(self) -> Path:
        return self._data_dir / "logs" / f"failpoint-{self._driver}.hits"

    def _run_and_kill(self, kill: Kill) -> None:
        driver = self._stream(failpoint=kill.failpoint)
        if kill.place == RANDOM:
            self._watch(driver, until=lambda seen: seen >= kill.transactions)
            time.sleep(kill.delay_ms / 1_000)
            if driver.exit_code() is not None:
                raise driver.failure(f"Driver {self._driver} ended before it was killed.")
        else:
            self._watch(driver, until=lambda _: driver.exit_code() is not None)
            hits = self._hits.stat().st_size if self._hits.exists() else 0
            if hits < kill.hits:
                raise driver.failure(
                    f"Driver {self._driver} ended by itself, not at {kill.failpoint}."
                )
        driver.kill()
        found = autopsy(self.root, self._checkpoint)
        if found.contradicts(kill.place):
            raise driver.failure(f"Killed at {kill.place}, but on disk: {found.describe()}.")
        if kill.loses_checkpoint:
            shutil.rmtree(self._checkpoint)
            self._query += 1
        self.tally.kills += 1
        self._display.event(
            f"kill {self.tally.kills}: SIGKILL {kill.describe()} (found: {found.describe()})"
        )

    def _watch_to_end(self, driver: DriverProcess, name: str) -> None:
        self._watch(driver, until=lambda _: driver.exit_code() is not None)
        if driver.exit_code() != 0:
            raise driver.failure(f"{name} failed with exit code {driver.exit_code()}.")

    def _watch(self, driver: DriverProcess, until: Callable[[int], bool]) -> None:
        """Poll the visible rows; `until` is called with the number of transactions seen."""
        rows = first_rows = self._count_rows()
        seen = 0
        first_s = last_s = time.monotonic()
        while not until(seen):
            now_rows, now_s = self._count_rows(), time.monotonic()
            if now_rows != rows:
                if seen == 0:
                    first_s, first_rows = now_s, now_rows
                    self.tally.restart_s.append(now_s - driver.started_s)
                seen, rows, last_s = seen + 1, now_rows, now_s
            elif driver.exit_code() is not None and not until(seen):
                raise driver.failure(f"Driver {self._driver} ended by itself.")
            elif now_s - last_s > STALL_S_MAX:
                raise driver.failure(
                    f"Driver {self._driver} published no rows for {STALL_S_MAX:.0f} s, at "
                    f"{rows:,} of {self._total:,} flights. If these are all flights, there are "
                    "more kills than work: lower --max-offsets-per-trigger."
                )
            self._feeder_runs()
            verb = "splitting" if seen else "starting"
            self._display.status(f"driver {self._driver} {verb}", rows)
            time.sleep(POLL_S)
        self.tally.busy_s += last_s - first_s if seen else 0.0
        self.tally.busy_rows += rows - first_rows if seen else 0

    def _feeder_runs(self) -> bool:
        if self._feeder is None:
            return False
        code = self._feeder.exit_code()
        if code not in (None, 0):
            raise self._feeder.failure(f"The feeder failed with exit code {code}.")
        return code is None


def _months(months: Sequence[int] | None) -> list[str]:
    return ["--months", ",".join(map(str, months))] if months else []
