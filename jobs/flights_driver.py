"""Starts Spark drivers as separate processes, and kills them with all their child processes.

A driver has its own session, which identifies the JVM, the Python daemon (which has its own process
group) and the workers it forks; no other process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_session import LOCAL_SETTINGS, PROJECT, spark_environment

POLL_S = 0.05
# It fails at the first task error: the demo is about driver failures, not about task retries.
MASTER = "local[2]"
# A driver that runs for seconds does not benefit from the optimising compiler: without it a start
# and five micro-batches take 16.5 s of processor time instead of 25.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1",)
# Variables of a parent Spark driver (spark-submit jobs/flights.py): a child needs its own JVM.
INHERITED = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    # The supervisor sets the fail point of a driver; its own must not be inherited.
    "TXNLOG_FAILPOINT",
    "TXNLOG_FAILPOINT_STATE",
)


class DriverError(Exception):
    """A driver process that failed; the message includes the end of its log."""


def spark_submit_command(
    arguments: Sequence[str], more: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> list[str]:
    """`spark-submit <options> jobs/flights.py <arguments>` with the Spark of this Python.

    more: settings beside those of every driver.
    """
    settings = {**LOCAL_SETTINGS, "spark.ui.enabled": "false", **(more or {})}
    return [
        str(Path(_spark_home()) / "bin" / "spark-submit"),
        *("--master", MASTER),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *options,
        *("jobs/flights.py", *arguments),
    ]


def txnlog_command(arguments: Sequence[str]) -> list[str]:
    """`txnlog <arguments>` with this Python."""
    return [sys.executable, "-c", "from txnlog.cli.main import run; run()", *arguments]


def driver_environment(scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, for a driver with its own JVM and scratch folder.

    scratch: the folder of Spark's temporary files, which a killed JVM does not remove. The path
    must be short: it has Spark's Unix domain sockets, whose paths are limited to about 100 bytes.
    """
    own = {name: value for name, value in os.environ.items() if name not in INHERITED}
    environment = spark_environment(own)
    temporary = f"-Djava.io.tmpdir={scratch}"
    environment.update(
        SPARK_HOME=_spark_home(),
        SPARK_LOCAL_DIRS=str(scratch),
        JDK_JAVA_OPTIONS=" ".join([own.get("JDK_JAVA_OPTIONS", ""), *JVM_OPTIONS, temporary]),
        PYTHONUNBUFFERED="1",
        **extra,
    )
    return environment


class DriverProcess:
    """A running driver; its output goes to a log file."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        folder: Path = PROJECT,
    ) -> None:
        """Start it in a folder. Raises: OSError if the command cannot be run."""
        self.log = log
        self.started_s = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the session id of its child processes."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs, else the exit code (-9 after SIGKILL)."""
        return self._process.poll()

    def wait(self) -> int:
        """Until it ends; its exit code."""
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL the driver and its child processes: workers, then their daemon, then the JVM.

        Returns when none of them is alive. Also kills remaining children of a driver that has
        already ended.
        """
        while members := session_members(self.pid):
            for pid in sorted(members, reverse=True):
                _kill(pid)
            self._process.poll()
            time.sleep(POLL_S)
        self._process.wait()

    def log_tail(self, lines: int = 30) -> str:
        """The last lines of its output."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            return "".join(deque(file, maxlen=lines))

    def failure(self, what: str) -> DriverError:
        """An error with what happened, the path of the log, and its last lines."""
        return DriverError(f"{what} Its log is {self.log} and ends:\n{self.log_tail()}")


def session_members(session_id: int) -> list[int]:
    """The live processes of a session, without zombies that wait for their parent."""
    return [pid for pid in _live_pids() if _session_of(pid) == session_id]


def _live_pids() -> list[int]:
    if Path("/proc/self/stat").exists():
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        return [pid for pid in pids if _state_of(pid) not in ("Z", "X", "")]
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,stat="], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, state in rows if not state.startswith("Z")]


def _state_of(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # It has ended since it was listed.
    return stat.rpartition(")")[2].split()[0]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _kill(pid: int) -> None:
    # It may have ended since it was listed.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _spark_home() -> str:
    import pyspark

    package = Path(pyspark.__file__).parent
    if (package / "bin" / "spark-submit").exists():
        return str(package)
    if "SPARK_HOME" in os.environ:
        return os.environ["SPARK_HOME"]
    raise DriverError(f"No spark-submit in {package}, and SPARK_HOME is not set.")
