"""Spark drivers as processes of their own: started, watched, killed with everything they started.

A driver gets its own session, so the JVM, the Python daemon (which has its own process group) and
the workers it forks can all be found again, and nothing else is ever killed.
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
# It fails at the first task error: the demo is about drivers that die, not about retried tasks.
MASTER = "local[2]"
# A driver that lives for seconds has no use for the optimising compiler: without it a start and
# five micro-batches take 16.5 s of processor time in place of 25.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1",)
# Of a Spark driver above us (spark-submit jobs/flights.py): a child must get its own JVM.
INHERITED = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    # A driver dies where its supervisor says, not where the supervisor itself was told to.
    "TXNLOG_FAILPOINT",
    "TXNLOG_FAILPOINT_STATE",
)


class DriverError(Exception):
    """A driver process that did not do what it was started for; holds the end of its log."""


def spark_submit_command(arguments: Sequence[str]) -> list[str]:
    """`spark-submit jobs/flights.py <arguments>` with the Spark this Python would use."""
    settings = {**LOCAL_SETTINGS, "spark.ui.enabled": "false"}
    return [
        str(Path(_spark_home()) / "bin" / "spark-submit"),
        *("--master", MASTER),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("jobs/flights.py", *arguments),
    ]


def txnlog_command(arguments: Sequence[str]) -> list[str]:
    """`txnlog <arguments>` with this Python."""
    return [sys.executable, "-c", "from txnlog.cli.main import run; run()", *arguments]


def driver_environment(scratch: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, for a driver with a JVM and a scratch folder of its own.

    scratch: where Spark puts its temporary files, since a killed JVM does not remove them. The
    path must be short: Spark's unix domain sockets lie there, and theirs hold about 100 bytes.
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
    """A started driver; its output goes to a log file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it. Raises: OSError when the command cannot be run."""
        self.log = log
        self.started_s = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(command),
                cwd=PROJECT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id, and session id of all it starts."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs, else the exit code (-9 after SIGKILL)."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL the driver and all it started: workers, then their daemon, then the JVM.

        Returns when none of them is left. Nothing happens when it is gone already, but a survivor
        of a driver that died by itself goes too.
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
        """An error that says what happened, where the log is, and how it ends."""
        return DriverError(f"{what} Its log is {self.log} and ends:\n{self.log_tail()}")


def session_members(session_id: int) -> list[int]:
    """The living processes of a session (not the zombies that wait for their parent)."""
    return [pid for pid in _living_pids() if _session_of(pid) == session_id]


def _living_pids() -> list[int]:
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
        return ""  # gone since it was listed
    return stat.rpartition(")")[2].split()[0]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _kill(pid: int) -> None:
    # It may have ended between the look and the shot.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _spark_home() -> str:
    import pyspark

    package = Path(pyspark.__file__).parent
    if (package / "bin" / "spark-submit").exists():
        return str(package)
    if "SPARK_HOME" in os.environ:
        return os.environ["SPARK_HOME"]
    raise DriverError(f"No spark-submit beside {package}, and SPARK_HOME is not set.")
