"""A standalone Spark cluster and an S3 server on this machine: every port on 127.0.0.1 only.

A Master and Workers of pip's pyspark, as on any cluster of machines, and versitygw, an S3 server in
front of a folder. Each is a process of its own session; only processes that were started here, and
their children, are ever killed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from flights_driver import POLL_S, DriverError, DriverProcess, session_members

HOST = "127.0.0.1"
BUCKET = "txnlog-demo"
START_S_MAX = 300.0
# Of a server that listens on the loopback of this machine, for as long as the demo runs.
ACCESS_KEY, SECRET_KEY = "key-of-the-demo", "secret-of-the-demo"
EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
DAEMON_MEMORY = "512m"

_MASTER = re.compile(rf"Starting Spark master at (spark://{re.escape(HOST)}:[1-9]\d*)")
_REGISTERED = "Successfully registered with master"


def find_versitygw() -> str:
    """The program: of `make stores`, or on PATH. Raises: DriverError."""
    programs = Path(os.environ.get("TXNLOG_STORES") or Path(sys.prefix) / ".stores") / "bin"
    found = shutil.which("versitygw", path=f"{programs}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise DriverError(
            f"versitygw, the S3 server of the demo, is not in {programs} nor on PATH. Install Go "
            "and run `make cluster-demo`, which builds it; or `go install "
            "github.com/versity/versitygw/cmd/versitygw@v1.8.0`."
        )
    return found


CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_REGION": "us-east-1",
}
"""As a role or a profile gives them to each process of a cluster: no option and no plan has a key.
txnlog and Spark's S3A read them, on driver and executors."""


def storage_environment(port: int) -> dict[str, str]:
    """The variables of txnlog for a store on this machine."""
    endpoint = {"AWS_ENDPOINT": f"http://{HOST}:{port}", "AWS_ALLOW_HTTP": "true"}
    return {**CREDENTIALS, **endpoint}


def storage_options(port: int) -> dict[str, str]:
    """The same as options of a store, for a client in this process."""
    return {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://{HOST}:{port}",
        "allow_http": "true",
    }


def hadoop_settings(port: int) -> dict[str, str]:
    """The settings of Spark's S3A for that store; a role needs none of them on AWS."""
    s3a = {
        "endpoint": f"http://{HOST}:{port}",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}


class StandaloneCluster:
    """A store, a Master and Workers; `close` ends all that `start_*` started."""

    def __init__(self, folder: Path, home: Path, logs: Path) -> None:
        """folder: short, for temporary files; home: SPARK_HOME; logs: an existing folder."""
        self._folder = folder
        self._home = home
        self._logs = logs
        self._daemons: list[DriverProcess] = []
        self._workers: list[DriverProcess] = []
        self.master_url = ""
        self.store_port = 0

    def start_store(self) -> None:
        """Start versitygw with an empty bucket. Raises: DriverError."""
        buckets = self._folder / "buckets"
        (buckets / BUCKET).mkdir(parents=True)
        port = _free_port()
        command = [find_versitygw(), "--access", ACCESS_KEY, "--secret", SECRET_KEY]
        command += ["--port", f"{HOST}:{port}", "--keep-alive", "posix", str(buckets)]
        store = self._start(command, dict(os.environ), "store")
        self._await(store, lambda: _listens(port), "the store does not listen")
        self.store_port = port

    def start_spark(self, *, workers: int, cores: int, memory: str) -> None:
        """Start the Master and its Workers, and wait until they are registered.

        Workers have the credentials of the store in their environment, and executors inherit it:
        as on machines with a role. Raises: DriverError.
        """
        deploy = "org.apache.spark.deploy"
        ports = ["--host", HOST, "--port", "0", "--webui-port", "0"]
        master = self._spark_class("master", f"{deploy}.master.Master", *ports)
        self._await(master, lambda: self._found_master(master), "the Master does not start")
        for number in range(1, workers + 1):
            name = f"worker-{number}"
            size = ["--cores", str(cores), "--memory", memory]
            folder = ["--work-dir", str(self._folder / name)]
            words = [*ports, *size, *folder, self.master_url]
            worker = self._spark_class(name, f"{deploy}.worker.Worker", *words)
            self._workers.append(worker)
        for worker in self._workers:
            self._await(worker, partial(_is_registered, worker.log), "no registration")

    def environment(self) -> dict[str, str]:
        """Of a process of the cluster: this one's, its Spark, the store."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON", "VIRTUAL_ENV", "AWS_"))
        }
        temporary = f"-Djava.io.tmpdir={self._folder}"
        return {
            **inherited,
            **storage_environment(self.store_port),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._folder),
            "JDK_JAVA_OPTIONS": f"-XX:TieredStopAtLevel=1 {temporary}",
            "PYTHONUNBUFFERED": "1",
        }

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs, which are children of our Workers."""
        ours = [pid for worker in self._workers for pid in session_members(worker.pid)]
        return [pid for pid in ours if EXECUTOR_CLASS in _command_line(pid)]

    def close(self) -> None:
        """Kill all daemons, the newest first, with their executors."""
        for daemon in reversed(self._daemons):
            daemon.kill()

    def _spark_class(self, name: str, *words: str) -> DriverProcess:
        command = [str(self._home / "bin" / "spark-class"), *words]
        # Daemons read no settings of conf/: its log levels would hide the lines that are awaited.
        conf = self._folder / "conf"
        conf.mkdir(exist_ok=True)
        environment = {
            **self.environment(),
            "SPARK_CONF_DIR": str(conf),
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
        }
        return self._start(command, environment, name)

    def _start(
        self, command: list[str], environment: Mapping[str, str], name: str
    ) -> DriverProcess:
        daemon = DriverProcess(command, environment, self._logs / f"{name}.log")
        self._daemons.append(daemon)
        return daemon

    def _found_master(self, master: DriverProcess) -> bool:
        found = _MASTER.search(_text(master.log))
        self.master_url = found[1] if found else ""
        return found is not None

    def _await(self, daemon: DriverProcess, ready: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + START_S_MAX
        while not ready():
            if daemon.exit_code() is not None or time.monotonic() > deadline_s:
                raise daemon.failure(f"The cluster does not start: {what}.")
            time.sleep(POLL_S)


def _is_registered(log: Path) -> bool:
    return _REGISTERED in _text(log)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _command_line(pid: int) -> str:
    """ "" for a process that has ended since it was listed."""
    ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    return subprocess.run(ps, capture_output=True, text=True, check=False).stdout


def _free_port() -> int:
    """A port that was free a moment ago: versitygw cannot choose one."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
