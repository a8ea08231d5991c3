"""The flights on a cluster: S3, a Master, two Workers, a packed environment, and two kills.

    python jobs/flights_cluster.py                    or: make cluster-demo

It starts versitygw (an S3 server) and a standalone Spark cluster of pip's pyspark on this machine,
feeds and streams the flights with spark-submit and the packed environment, kills an executor and
then the driver with SIGKILL, starts a new driver from the checkpoint on s3a://, and checks that
each flight is in exactly one topic, once, in order. Everything is stopped at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flights import parse_months
from flights_check import Report
from flights_data import FlightsDataError, read_flights
from flights_demo import PARTITIONS, fresh_folder, scratch_folder, terminable
from flights_display import Display, print_table
from flights_driver import POLL_S, DriverError, DriverProcess, txnlog_command
from flights_pipeline import INPUT_TOPIC, OUTPUT_TOPICS
from packed_environment import PackingError, build_wheel, new_venv, pack, spark_home
from spark_session import CONF_DIR, LOCAL_SETTINGS, PROJECT
from standalone_cluster import BUCKET, StandaloneCluster, hadoop_settings, storage_options

from txnlog.cluster import Cluster

ROOT = f"s3a://{BUCKET}/flights"
CHECKPOINT = f"s3a://{BUCKET}/checkpoints/flights-by-outcome"
OFFSETS_PER_TRIGGER = 20_000
WORKERS, CORES, WORKER_MEMORY, EXECUTOR_MEMORY = 2, 1, "1g", "768m"
# Far above what any step takes: without progress for this long, something hangs.
STALL_S_MAX = 600.0


class ClusterDemo:
    """One run on a started cluster; folder: where jobs are submitted from, with ./env."""

    def __init__(
        self, cluster: StandaloneCluster, home: Path, folder: Path, logs: Path, display: Display
    ) -> None:
        self._cluster = cluster
        self._home = home
        self._folder = folder
        self._logs = logs
        self._display = display
        self._jobs: list[DriverProcess] = []
        self._count_input, self._count_rows = _row_counters(storage_options(cluster.store_port))

    def feed(self, months: Sequence[int] | None) -> None:
        """Write the input: a transaction per month, from tasks on both executors."""
        feeder = self._submit("feed", "feed", "--root", ROOT, *_months(months))
        self._finish(feeder, "feeding", self._count_input)

    def stream(self, offsets_per_trigger: int) -> int:
        """Split the flights; kill an executor, then the driver. Returns the number of executors."""
        command = ["stream", "--root", ROOT, "--checkpoint", CHECKPOINT]
        command += ["--max-offsets-per-trigger", str(offsets_per_trigger)]
        driver = self._submit("driver-1", *command)
        rows = self._await_rows(driver, above=0)
        executors = self._cluster.executors()
        if not executors:
            raise driver.failure("There are rows, but no executor.")
        os.kill(executors[0], signal.SIGKILL)
        self._display.event(f"SIGKILL of executor {executors[0]}, one of {len(executors)}")
        rows = self._await_rows(driver, above=rows)
        driver.kill()
        self._display.event(f"SIGKILL of driver {driver.pid}; {rows:,} flights are committed")
        again = self._submit("driver-2", *command, "--available-now")
        self._finish(again, "a new driver, from the checkpoint")
        return len(executors)

    def check(self, months: Sequence[int] | None) -> Report:
        """The existing check, with two readers, as a job on the cluster; then `txnlog verify`."""
        file = self._folder / "report.json"
        command = ["check", "--root", ROOT, "--report", str(file), *_months(months)]
        checker = self._submit("check", *command)
        self._wait(checker, "checking with two readers", self._count_rows)
        if not file.exists():
            raise checker.failure(f"The check failed with exit code {checker.exit_code()}.")
        environment = {**self._cluster.environment(), "PYTHONPATH": str(PROJECT)}
        verify = txnlog_command(["--root", ROOT, "verify"])
        self._finish(self._start("verify", verify, environment), "txnlog verify")
        return Report.from_json(file.read_text(encoding="utf-8"))

    def close(self) -> None:
        """Kill the jobs that still run."""
        for job in self._jobs:
            job.kill()

    def _submit(self, name: str, *arguments: str) -> DriverProcess:
        settings = {
            **LOCAL_SETTINGS,
            **hadoop_settings(self._cluster.store_port),
            "spark.driver.memory": "768m",
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.ui.enabled": "false",
        }
        command = [
            str(self._home / "bin" / "spark-submit"),
            *("--master", self._cluster.master_url, "--load-spark-defaults"),
            *("--properties-file", str(CONF_DIR / "spark-s3a.conf")),
            *("--archives", "env.tar.gz#env"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *(str(PROJECT / "jobs" / "flights.py"), *arguments),
        ]
        environment = {
            **self._cluster.environment(),
            "SPARK_CONF_DIR": str(CONF_DIR),
            # Relative: executors find it where the archive is unpacked, the driver in its folder.
            "PYSPARK_PYTHON": "./env/bin/python",
            "PYSPARK_DRIVER_PYTHON": "./env/bin/python",
        }
        return self._start(name, command, environment)

    def _start(
        self, name: str, command: Sequence[str], environment: dict[str, str]
    ) -> DriverProcess:
        job = DriverProcess(command, environment, self._logs / f"{name}.log", self._folder)
        self._jobs.append(job)
        return job

    def _finish(
        self, job: DriverProcess, step: str, count_rows: Callable[[], int] | None = None
    ) -> None:
        self._wait(job, step, count_rows or self._count_rows)
        if job.exit_code() != 0:
            raise job.failure(f"{step} failed with exit code {job.exit_code()}.")

    def _wait(self, job: DriverProcess, step: str, count_rows: Callable[[], int]) -> None:
        rows, since_s = -1, time.monotonic()
        while job.exit_code() is None:
            now_rows = count_rows()
            if now_rows != rows:
                rows, since_s = now_rows, time.monotonic()
            if time.monotonic() - since_s > STALL_S_MAX:
                raise job.failure(f"{step} made no progress for {STALL_S_MAX:.0f} s.")
            self._display.status(step, rows)
            time.sleep(10 * POLL_S)
        self._display.event(f"{step}: done")

    def _await_rows(self, driver: DriverProcess, *, above: int) -> int:
        """Wait until readers see more flights than so many; returns their number."""
        started_s = time.monotonic()
        while (rows := self._count_rows()) <= above:
            if driver.exit_code() is not None:
                raise driver.failure(f"The driver ended with {driver.exit_code()} before a kill.")
            if time.monotonic() - started_s > STALL_S_MAX:
                raise driver.failure(f"No rows were committed for {STALL_S_MAX:.0f} s.")
            self._display.status("streaming", rows)
            time.sleep(2 * POLL_S)
        return rows


def run_cluster_demo(
    *, months: Sequence[int] | None, data_dir: Path | None, offsets_per_trigger: int
) -> int:
    """Run it; returns the exit code: 0 only if the check finds no problem."""
    total = read_flights(months=months).num_rows
    folder = fresh_folder(data_dir)
    logs = folder / "logs"
    logs.mkdir()
    with scratch_folder() as scratch, terminable(), Display(total) as display:
        display.event(f"{total:,} flights, an S3 server, {WORKERS} workers, logs in {logs}")
        home = spark_home(scratch / "spark")
        cluster = StandaloneCluster(scratch, home, logs)
        demo: ClusterDemo | None = None
        try:
            submit = _packed(scratch, display)
            cluster.start_store()
            cluster.start_spark(workers=WORKERS, cores=CORES, memory=WORKER_MEMORY)
            display.event(f"the cluster runs: {cluster.master_url}, {ROOT}")
            demo = ClusterDemo(cluster, home, submit, logs, display)
            demo.feed(months)
            executors = demo.stream(offsets_per_trigger)
            report = demo.check(months)
        except (DriverError, PackingError) as error:
            display.event(f"error: {error}")
            return 1
        finally:
            if demo is not None:
                demo.close()
            cluster.close()
    return _print_outcome(display, report, executors)


def _packed(scratch: Path, display: Display) -> Path:
    """The folder to submit from: env.tar.gz for the executors, ./env for the driver."""
    submit = scratch / "submit"
    submit.mkdir()
    python = new_venv(submit / "env", wheel=build_wheel(scratch))
    archive = pack(python.parents[1], submit / "env.tar.gz")
    size_mib = archive.stat().st_size / (1 << 20)
    display.event(f"packed environment for the executors: {size_mib:.0f} MiB")
    return submit


def _row_counters(options: dict[str, str]) -> tuple[Callable[[], int], Callable[[], int]]:
    """Create the root and its topics; returns what counts the committed input and output."""
    cluster = Cluster.open(ROOT, options, create=True)
    topics = {
        name: cluster.create_topic(name, partitions=PARTITIONS)
        for name in (INPUT_TOPIC, *OUTPUT_TOPICS)
    }

    def count(names: Sequence[str]) -> int:
        rows = 0
        for name in names:
            topics[name].refresh()
            view = topics[name].view
            rows += sum(view.last_stable_offset(p) for p in range(PARTITIONS))
        return rows

    return lambda: count([INPUT_TOPIC]), lambda: count(OUTPUT_TOPICS)


def _months(months: Sequence[int] | None) -> list[str]:
    return ["--months", ",".join(map(str, months))] if months else []


def _print_outcome(display: Display, report: Report, executors: int) -> int:
    output = report.delivery("txnlog")
    print_table(
        display.console,
        [
            ("rows", f"{output.rows:,}"),
            *((f"  {topic}", f"{rows:,}") for topic, rows in report.rows_by_topic.items()),
            ("transactions", f"{report.transactions:,}"),
            ("executors", f"{executors}"),
            ("kills: executor, driver", "2"),
            ("duplicates", f"{output.duplicates:,}"),
            ("missing", f"{output.missing:,}"),
            ("out of order", f"{output.out_of_order:,}"),
        ],
    )
    for problem in report.problems:
        display.event(f"WRONG: {problem}")
    if report.ok:
        display.event("every flight is in exactly one topic, once, in order: two readers agree")
    return 0 if report.ok else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="flights_cluster.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--months", type=parse_months, help="as 1,2 (default: all)")
    parser.add_argument("--data-dir", type=Path, help="an empty or new folder, for the logs")
    parser.add_argument("--max-offsets-per-trigger", type=int, default=OFFSETS_PER_TRIGGER)
    asked = parser.parse_args(argv)
    try:
        return run_cluster_demo(
            months=asked.months,
            data_dir=asked.data_dir,
            offsets_per_trigger=asked.max_offsets_per_trigger,
        )
    except FlightsDataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
