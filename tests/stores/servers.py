"""Servers of object stores on this machine: started on free ports of 127.0.0.1, and stopped.

`start("versitygw", folder)` gives a server with one bucket; its `place(...)` is a url for txnlog
with the options to open it. moto comes with pip; versitygw and Azurite are installed by
`make stores` (conf/setup_env.py); the fake of GCS is part of these tests.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.stores import fake_gcs
from tests.stores.azure_key import signed
from txnlog.cluster import Cluster
from txnlog.storage.store.objects import ObjectStore

HOST = "127.0.0.1"
BUCKET = "txnlog-tests"
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("TXNLOG_STORES") or Path(sys.prefix) / ".stores")
OWN = ("allow_http",)
"""Options that other programs do not know by this name."""
START_S_MAX = 120
STOP_S_MAX = 20
S3_KEY, S3_SECRET = "key-of-the-tests", "secret-of-the-tests"
# Azurite's own account, which is in its documentation; it opens nothing but emulators.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_LISTENS = re.compile(r"127\.0\.0\.1:([1-9]\d*)")


class NotInstalledError(Exception):
    """A server is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Place:
    """A root in a bucket: its url and the options (`storage.*` without the prefix) to open it."""

    url: str
    options: Mapping[str, str]

    def open(self, **more: str) -> ObjectStore:
        """The store, with more options."""
        return ObjectStore.from_url(self.url, {**self.options, **more})

    def open_cluster(self, *, create: bool = False, shards: int = 2, **more: str) -> Cluster:
        """The cluster, with more options of the store."""
        options = {**self.options, **more}
        return Cluster.open(self.url, options, create=create, shards=shards)

    @property
    def environment(self) -> dict[str, str]:
        """The same options as environment variables, for programs that get no settings."""
        known = {name: value for name, value in self.options.items() if name not in OWN}
        prefix = next(iter(known)).partition("_")[0]
        known[f"{prefix}_allow_http"] = self.options["allow_http"]
        return {name.upper(): value for name, value in known.items()}

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a Python client."""
        options = {f"storage.{name}": value for name, value in self.options.items()}
        return {"txnlog.root": self.url, **options}


@dataclass
class Server:
    """A server that runs, with one empty bucket. `kind` is a key of KINDS."""

    kind: str
    port: int
    process: subprocess.Popen[str]
    folder: Path
    _roots: int = field(default=0)

    def place(self, root: str = "", *, port: int | None = None) -> Place:
        """A root, new unless named; `port` is that of a proxy in front."""
        if not root:
            self._roots += 1
            root = f"root-{self._roots}"
        return KINDS[self.kind].place(root, port or self.port)

    def stop(self) -> None:
        """Ask the process to end, then kill it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S_MAX)
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class Kind:
    """How one sort of server is started, how a root on it is opened, how its bucket is made."""

    command: Callable[[Path], list[str]]
    place: Callable[[str, int], Place]
    make_bucket: Callable[[int, Path], None]


@contextmanager
def running(kind: str) -> Iterator[Server]:
    """A server with an empty bucket, stopped at the end. Raises NotInstalledError."""
    server = start(kind)
    try:
        yield server
    finally:
        server.stop()


def start(kind: str) -> Server:
    """Start a server and make its bucket. Raises NotInstalledError."""
    folder = Path(tempfile.mkdtemp(prefix=f"txnlog-{kind}-"))
    try:
        log = folder / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                KINDS[kind].command(folder),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    server = Server(kind, 0, process, folder)
    try:
        server.port = _await_port(process, log)
        KINDS[kind].make_bucket(server.port, folder)
    except BaseException:
        server.stop()
        raise
    return server


def _await_port(process: subprocess.Popen[str], log: Path) -> int:
    """The port that the server reports and answers on."""
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        output = log.read_text(errors="replace")
        found = _LISTENS.search(output)
        if found is not None and _answers(int(found.group(1))):
            return int(found.group(1))
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{output}")
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start in {START_S_MAX} s:\n{log.read_text()}")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


# --- S3 -------------------------------------------------------------------------------------------


def _s3(root: str, port: int) -> Place:
    options = {
        "allow_http": "true",
        "aws_endpoint": f"http://{HOST}:{port}",
        "aws_access_key_id": S3_KEY,
        "aws_secret_access_key": S3_SECRET,
        "aws_region": "us-east-1",
    }
    return Place(f"s3://{BUCKET}/{root}", options)


def _moto(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.stores.moto_server"]


def _make_s3_bucket(port: int, folder: Path) -> None:
    # moto does not check signatures.
    request = urllib.request.Request(f"http://{HOST}:{port}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=START_S_MAX).close()


def _versitygw(folder: Path) -> list[str]:
    program = _program("versitygw", PROGRAMS / "bin" / "versitygw", "Go")
    (folder / "buckets").mkdir()
    address = f"{HOST}:{_free_port()}"
    command = [program, "--access", S3_KEY, "--secret", S3_SECRET, "--port", address]
    # Without it each request opens a connection.
    return [*command, "--keep-alive", "posix", str(folder / "buckets")]


def _make_folder(port: int, folder: Path) -> None:
    # To versitygw's posix backend a folder is a bucket, of the root account.
    (folder / "buckets" / BUCKET).mkdir()


def _free_port() -> int:
    """A port that was free a moment ago, for a server that cannot choose one itself."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


# --- Azure and Google -----------------------------------------------------------------------------


def _azure(root: str, port: int) -> Place:
    options = {
        "allow_http": "true",
        "azure_endpoint": f"http://{HOST}:{port}/{AZURE_ACCOUNT}",
        "azure_storage_account_name": AZURE_ACCOUNT,
        "azure_storage_account_key": AZURE_KEY,
    }
    return Place(f"az://{BUCKET}/{root}", options)


def _azurite(folder: Path) -> list[str]:
    program = _program("azurite", PROGRAMS / "node_modules" / ".bin" / "azurite-blob", "npm")
    return [
        *(program, "--blobHost", HOST, "--blobPort", "0", "--location", str(folder / "blobs")),
        *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]


def _make_container(port: int, folder: Path) -> None:
    """Put the container with the account's key (Azure's Shared Key)."""
    url = f"http://{HOST}:{port}/{AZURE_ACCOUNT}/{BUCKET}?restype=container"
    urllib.request.urlopen(signed("PUT", url, AZURE_ACCOUNT, AZURE_KEY), timeout=60).close()


def _gcs(root: str, port: int) -> Place:
    options = {
        "allow_http": "true",
        "google_base_url": f"http://{HOST}:{port}",
        "google_bearer_token": fake_gcs.TOKEN,
    }
    return Place(f"gs://{BUCKET}/{root}", options)


def _fake_gcs(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.stores.fake_gcs"]


def _nothing(port: int, folder: Path) -> None:
    """The fake has its bucket from the start."""


def _program(name: str, path: Path, tool: str) -> str:
    found = shutil.which(name) if not path.exists() else str(path)
    if found is None:
        raise NotInstalledError(
            f"{name} is not in {path.parent}: `make stores` installs it where {tool} is on PATH."
        )
    return found


KINDS = {
    "moto": Kind(_moto, _s3, _make_s3_bucket),
    "versitygw": Kind(_versitygw, _s3, _make_folder),
    "azurite": Kind(_azurite, _azure, _make_container),
    "gcs": Kind(_fake_gcs, _gcs, _nothing),
}
STORES = ("versitygw", "azurite", "gcs")
"""The stores of `make stores`: one for each client of the library."""
