"""Fetches the example programs of confluent-kafka-python, once, into the environment's folder.

Tests run this in a process of its own, as they use no network themselves. The last line that it
prints is the folder, or with exit status 1 why there is none. Each file is checked by its digest.
Without a way to GitHub TXNLOG_CONFLUENT_EXAMPLES may name the folder examples of a checkout.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(sys.prefix) / ".confluent"
TAG = "v2.15.0"
COMMIT = "8b1c7a613434eee3d0e1287d624d7af04932f410"
URL = f"https://raw.githubusercontent.com/confluentinc/confluent-kafka-python/{COMMIT}/examples"
EXAMPLES_SHA256 = {
    "adminapi.py": "89e2e974f244719c6645d04546724d729cf75e9bc32b1ecf72aa51e559277356",
    "asyncio_avro_producer.py": "e44d597fccf984c3955298f58424a4f845c1483ec9ba34977b2daa191104173a",
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
TIMEOUT_S = 10


class Unreachable(Exception):  # noqa: N818
    """What says why the programs cannot be had here."""


def examples() -> Path:
    """The folder of the example programs. Raises Unreachable."""
    given = os.environ.get("TXNLOG_CONFLUENT_EXAMPLES")
    folder = Path(given) if given else FOLDER / COMMIT[:12]
    for name, digest in EXAMPLES_SHA256.items():
        path = folder / name
        if not path.exists():
            if given:
                raise Unreachable(f"TXNLOG_CONFLUENT_EXAMPLES={given} does not hold {name}")
            data = _checked(_get(f"{URL}/{name}"), digest, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
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


@contextmanager
def _lock() -> Iterator[None]:
    """One process at a time downloads."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Print the folder of what is asked for; the exit status."""
    try:
        with _lock():
            print(examples())
    except Unreachable as why:
        print(why)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
