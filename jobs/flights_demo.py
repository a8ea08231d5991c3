"""The demo: split the flights while the driver is killed repeatedly, run housekeeping, check."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from flights_check import Report
from flights_classes import Starter
from flights_data import FlightsDataError, read_flights
from flights_display import Display, print_table
from flights_driver import (
    DriverError,
    DriverProcess,
    driver_environment,
    txnlog_command,
)
from flights_kills import KillKind, plan_kills
from flights_pipeline import INPUT_TOPIC, OUTPUT_TOPICS
from flights_supervisor import ROOT, Supervisor, Tally
from spark_session import PROJECT

from txnlog.cluster import Cluster

PARTITIONS = 4
CLASSES = Path(sys.prefix) / ".classes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The arguments of the command line; None means the default."""

    data_dir: Path | None
    seed: int | None
    months: Sequence[int] | None
    kills: Sequence[KillKind]
    max_offsets_per_trigger: int


def run_demo(options: DemoOptions) -> int:
    """Run the demo; returns the exit code: 0 only if the check finds no problem."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    plan = plan_kills(options.kills, seed)
    total = read_flights(months=options.months).num_rows
    data_dir = fresh_folder(options.data_dir)
    with scratch_folder() as scratch, terminable(), Display(total) as display:
        display.event(f"{total:,} flights, {len(plan)} kills, --seed {seed}, in {data_dir}")
        starter = Starter(CLASSES, scratch)
        if not starter.has_archive:
            display.event("making an archive of Spark's classes for faster starts (once)")
            starter.make_archive()

        def start_txnlog(arguments: Sequence[str], log: Path) -> DriverProcess:
            return DriverProcess(txnlog_command(arguments), driver_environment(scratch, {}), log)

        supervisor = Supervisor(
            data_dir,
            total,
            display,
            starter.start,
            start_txnlog,
            _row_counter(data_dir),
            options.max_offsets_per_trigger,
        )
        try:
            supervisor.feed(options.months)
            tally = supervisor.run(plan)
            supervisor.run_housekeeping()
            report = supervisor.check(options.months)
        except DriverError as error:
            display.event(f"error: {error}")
            return 1
        finally:
            supervisor.close()
    return _print_outcome(display, data_dir, tally, report)


def fresh_folder(folder: Path | None) -> Path:
    """The folder for this run's data: the given one, or a new one below .demo/.

    Raises: FlightsDataError if the given one is not empty.
    """
    if folder is None:
        now = datetime.now(timezone.utc)
        folder = PROJECT / ".demo" / now.strftime("%Y%m%dT%H%M%S.%f")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FlightsDataError(f"{folder} is not empty. Give --data-dir a new or an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _row_counter(data_dir: Path) -> Callable[[], int]:
    """Create the cluster and its topics; returns a function that counts the committed output."""
    cluster = Cluster.open(str(data_dir / ROOT), create=True)
    for topic in (INPUT_TOPIC, *OUTPUT_TOPICS):
        cluster.create_topic(topic, partitions=PARTITIONS)
    output = [cluster.topic(topic) for topic in OUTPUT_TOPICS]

    def count_rows() -> int:
        rows = 0
        for topic in output:
            topic.refresh()
            rows += sum(topic.view.last_stable_offset(p) for p in range(PARTITIONS))
        return rows

    return count_rows


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the temporary files of killed drivers; removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="txnlog-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM end the demo as Ctrl-C does, so that no driver keeps running."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_outcome(display: Display, data_dir: Path, tally: Tally, report: Report) -> int:
    output = report.delivery("txnlog")
    by_topic = [(f"  {topic}", f"{rows:,}") for topic, rows in report.rows_by_topic.items()]
    print_table(
        display.console,
        [
            ("rows", f"{output.rows:,}"),
            *by_topic,
            ("transactions", f"{report.transactions:,}"),
            ("kills survived", f"{tally.kills}"),
            ("small files compacted before the check", f"{tally.files_compacted:,}"),
            ("duplicates", f"{output.duplicates:,}"),
            ("missing", f"{output.missing:,}"),
            ("out of order", f"{output.out_of_order:,}"),
            ("records/s, starts and kills included", f"{output.rows / tally.stream_s:,.0f}"),
            ("records/s while a driver runs", f"{tally.rows_per_busy_s:,.0f}"),
            ("seconds from a start to its first transaction", f"{tally.restart_s_median:.1f}"),
        ],
    )
    for problem in report.problems:
        display.event(f"WRONG: {problem}")
    if report.ok:
        display.event("every flight is in exactly one topic, once, in order: two readers agree")
    display.console.print(f"The data is in {data_dir}", markup=False, soft_wrap=True)
    return 0 if report.ok else 1
