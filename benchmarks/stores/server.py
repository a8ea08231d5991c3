"""An S3 server on loopback, with and without the latency of a real one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.folders import memory_folder
from benchmarks.places import Place
from benchmarks.stores.delay import HOST, delayed

# Built by `conf/setup_env.py stores`.
PROGRAM = Path(os.environ.get("TXNLOG_STORES") or Path(sys.prefix, ".stores")) / "bin/versitygw"
CONF = Path(__file__).parents[2] / "conf/spark-s3a.conf"
ROUND_TRIP_MS = 25.0
BUCKET = "bench"
KEY, SECRET = "key-of-the-benchmarks", "secret-of-the-benchmarks"
START_S = 60
STOP_S = 30


@dataclass(frozen=True)
class S3:
    """A bucket: the endpoint, and how txnlog and Spark's Hadoop open it."""

    endpoint: str
    storage: Mapping[str, str] = field(repr=False)

    def root(self, name: str) -> str:
        """The url of a folder."""
        return f"s3://{BUCKET}/{name}"

    def place(self, name: str) -> Place:
        """A folder for topics and Delta tables."""
        root = self.root(name)
        return Place(root, root.replace("s3://", "s3a://"), self.storage)

    def settings(self, name: str) -> dict[str, str]:
        """The settings of a Python client."""
        storage = {f"storage.{key}": value for key, value in self.storage.items()}
        return {"txnlog.root": self.root(name), **storage}

    def hadoop(self) -> dict[str, str]:
        """The settings of a Spark session: conf/spark-s3a.conf, and where the server is."""
        return {
            **_lines(CONF),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.access.key": KEY,
            "spark.hadoop.fs.s3a.secret.key": SECRET,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        }


@dataclass(frozen=True)
class Server:
    """One bucket, `far` away (each request takes ROUND_TRIP_MS more) and `near`, to fill it."""

    far: S3
    near: S3


@contextmanager
def s3_server() -> Iterator[Server]:
    """versitygw with an empty bucket in memory, so that no disk is measured.

    Raises RuntimeError with the end of its output when it does not start.
    """
    if not PROGRAM.exists():
        raise RuntimeError(f"There is no {PROGRAM}: `make bench-stores` installs it, with Go.")
    folder = Path(tempfile.mkdtemp(prefix="s3-", dir=memory_folder()))
    port = _free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "--port", f"{HOST}:{port}", "--access", KEY, "--secret", SECRET,
             "--keep-alive", "--quiet", "posix", str(folder / "root")],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _wait_for(process, port, log)
        with delayed(port, ROUND_TRIP_MS) as late_port:
            near, far = (f"http://{HOST}:{one}" for one in (port, late_port))
            yield Server(far=S3(far, _storage(far)), near=S3(near, _storage(near)))
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _lines(conf: Path) -> dict[str, str]:
    """The settings of a file for spark-submit."""
    lines = (line.split(None, 1) for line in conf.read_text().splitlines())
    return {line[0]: line[1].strip() for line in lines if line and not line[0].startswith("#")}


def _storage(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "allow_http": "true",
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until it listens. Raises RuntimeError."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"versitygw did not start:\n{log.read_text()[-2000:]}")
