"""Processor time of a peer is that of all its processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.processes import own_process

BURN_S = 0.1
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass\nprint(flush=True)\ninput()"


class Burner:
    def burn(self) -> None:
        """Use the processor here."""
        end_s = time.process_time() + BURN_S
        while time.process_time() < end_s:
            pass

    def burn_below(self) -> None:
        """Use it in a process that lives on, as Spark's workers do."""
        worker = subprocess.Popen(
            [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        self.worker = worker

    def stop(self) -> None:
        self.worker.communicate()


@contextmanager
def burner() -> Iterator[Burner]:
    yield Burner()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in /proc")
def test_processor_time_is_that_of_the_process_and_all_below() -> None:
    """A driver's own time would leave out the JVM and the workers, which do the work."""
    with own_process(burner) as call:
        for method in ("burn", "burn_below", "stop"):
            call(method)
    spent_s = {method[0]: own_s for method, [(own_s, _)] in call.spent_s.items()}
    # The kernel counts in ticks.
    assert spent_s["burn"] > BURN_S / 2
    assert spent_s["burn_below"] > BURN_S / 2
    assert spent_s["stop"] < BURN_S / 2
