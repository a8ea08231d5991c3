"""Shared by all tests: one Spark session, a seed that failures print, and no network."""

from __future__ import annotations

import ipaddress
import logging
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from spark_session import build_session

from tests.cases import Some, choose
from tests.counts import (  # noqa: F401  hooks of pytest
    pytest_addoption,
    pytest_configure,
    pytest_runtest_teardown,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from txnlog.process.log_forwarding import LOGGER
from txnlog.testing.counts import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED_VARIABLE = "TXNLOG_SEED"

# Roots of tests, and of the processes that tests start, are not synced: no power is cut, and a
# transaction would take four times as long.
os.environ["TXNLOG_FSYNC"] = "false"

# print_blob: a failure prints @reproduce_failure(...), which replays it on any machine. The same
# examples in every run of CI; new ones everywhere else.
settings.register_profile(
    "txnlog",
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    settings.get_profile("txnlog"),
    max_examples=200,
    stateful_step_count=50,
    derandomize=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.load_profile("txnlog")


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder with a short path for Spark: paths of its sockets have 100 bytes or fewer."""
    folder = Path(tempfile.mkdtemp(prefix="txnlog-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(scratch: Path) -> Iterator[SparkSession]:
    """One local[2] session with the settings of conf/.

    `local[2]` fails a job at its first task error. A test that needs retries, other settings or a
    driver to kill starts its own, in its own process.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "200",
    }
    # Not spark.local.dir: Spark warns at every start that this variable overrides it.
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch / "local")
    session = build_session("txnlog tests", settings=settings)
    yield session
    session.stop()


@pytest.fixture
def seed() -> int:
    """A seed for `random.Random`; pytest shows the printed line when the test fails."""
    count("histories", "random tests with a printed seed")
    return printed_seed()


def printed_seed() -> int:
    chosen = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(2**32))
    print(f"replay with {SEED_VARIABLE}={chosen}")
    return chosen


@pytest.fixture
def some() -> Some[Any]:
    """Of a loop's cases a sixth in `make test`, all in `make soak-histories`."""
    return partial(choose, seed=printed_seed())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that try a part of their cases are run again, with all, by `make soak-histories`.

    Tests with the session come first: of several workers, which take from the end of what another
    has left, only the first one starts it.
    """
    for item in items:
        if "some" in getattr(item, "fixturenames", ()):
            item.add_marker("sampled")
    items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


# A shell starts so what it puts into the background; but programs under test are interrupted.
_IS_IGNORED = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
if _IS_IGNORED and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logger_of_each_test() -> None:
    """The settings `logger` and `debug` of a client change the logger of the whole process."""
    LOGGER.setLevel(logging.NOTSET)
    # Completion of the command line says nothing, until its process ends.
    logging.disable(logging.NOTSET)
    LOGGER.handlers.clear()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Every thread that the test has started must have ended.

    A thread of a library that has called Python once is listed, too; nobody here has started it.
    """
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    assert not [one for one in left if not isinstance(one, threading._DummyThread)]


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A test that connects to another machine fails with its address.

    For Python's own sockets in this process; object stores under test are local or in memory.
    """
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise AssertionError(f"A test tried to reach {address!r}; tests need no network.")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect_here)
        yield


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
