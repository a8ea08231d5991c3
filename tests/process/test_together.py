"""Independent calls made at the same time: order, errors, nesting, forks and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from tests.interrupting import interrupted_at
from txnlog.process import together as module
from txnlog.process.threads import Threads
from txnlog.process.together import THREADS_MAX, together

WAIT_S = 600
OURS = str(Path(module.__file__).parent)
PYTHONS = str(Path(threading.__file__).parent)


def test_results_are_in_the_order_of_the_calls() -> None:
    assert together([partial(int, str(n)) for n in range(500)], at_once=8) == list(range(500))


def test_no_calls_give_no_results() -> None:
    assert together([], at_once=8) == []


def test_calls_are_made_at_the_same_time() -> None:
    """Each call waits for all others, which would never end if they were made in turn."""
    at_once = 8
    barrier = threading.Barrier(at_once)
    together([partial(barrier.wait, WAIT_S)] * at_once, at_once=at_once)


@pytest.mark.parametrize("at_once", [0, 1])
def test_one_at_a_time_is_this_thread(at_once: int) -> None:
    found = together([threading.get_ident] * 4, at_once=at_once)
    assert found == [threading.get_ident()] * 4


def test_calls_inside_calls_end_when_all_threads_are_busy() -> None:
    """More calls than threads, each of which makes calls: none may wait for a free thread."""
    barrier = threading.Barrier(THREADS_MAX + 1)

    def inner(number: int) -> list[int]:
        barrier.wait(WAIT_S)
        return together([partial(int, number)] * 4, at_once=4)

    numbers = range(THREADS_MAX + 1)
    found = together([partial(inner, number) for number in numbers], at_once=len(numbers))
    assert found == [[number] * 4 for number in numbers]


@pytest.mark.parametrize("at_once", [1, 4])
def test_all_calls_are_made_and_the_first_error_is_raised(at_once: int) -> None:
    made = []

    def call(number: int) -> None:
        made.append(number)
        if number in (3, 5):
            raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        together([partial(call, number) for number in range(9)], at_once=at_once)
    assert sorted(made) == list(range(9))


@pytest.mark.parametrize("at_once", [1, 4])
def test_interrupt_stops_the_calls_that_have_not_begun(at_once: int) -> None:
    made = []

    def call(number: int) -> None:
        made.append(number)
        if number == 0:
            raise ValueError(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        together([partial(call, number) for number in range(100)], at_once=at_once)
    assert len(made) <= 1 + at_once


@pytest.mark.parametrize("warm", [False, True])
def test_interrupt_at_any_place_waits_for_the_calls_under_way(
    monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    """Ctrl-C while others work: when it arrives, no thread uses the logs and the store.

    Also inside Python's own library: it leaves no lock behind, so the next call and the exit end.
    """
    number, place = 0, ""
    while place is not None:
        number += 1
        under_way: set[int] = set()

        def call(number: int, under_way: set[int] = under_way) -> None:
            under_way.add(number)
            time.sleep(0.001)
            under_way.remove(number)

        threads = Threads("test", THREADS_MAX)
        monkeypatch.setattr(module, "_THREADS", threads)
        calls = [partial(call, number) for number in range(6)]
        if warm:
            together(calls, at_once=3)
        place = interrupted_at(number, partial(together, calls, at_once=3), (OURS, PYTHONS))
        assert not under_way, place
        assert ends(partial(together, [int] * 6, at_once=3)), place
        assert ends(threads.end), place
    assert number > 20, "hardly anything was interrupted"


def ends(call: Callable[[], object]) -> bool:
    """Whether a call returns; made by a thread of its own, as one that waits for ever cannot be
    stopped.
    """
    done: SimpleQueue[object] = SimpleQueue()
    start_new_thread(lambda: done.put(call()), ())
    try:
        done.get(timeout=WAIT_S)
    except Empty:
        return False
    return True


SIGNALS = """
import random, signal, sys
from functools import partial
from txnlog.process.together import together

def interrupt(*_):
    global is_armed
    if is_armed:
        is_armed = False
        raise KeyboardInterrupt

is_armed = False
signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(int(sys.argv[1]))
interrupts = 0
while interrupts < 2000:
    try:
        is_armed = True
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 150e-6))
        together([partial(int, 1)] * 4, at_once=3)
        is_armed = False
    except KeyboardInterrupt:
        interrupts += 1
assert together([partial(int, 1)] * 4, at_once=3) == [1] * 4
print("usable")
"""


def test_signals_leave_nothing_locked(seed: int) -> None:
    """Thousands of Ctrl-C at any moment; then a call, and the exit of the process."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS, str(seed)],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "usable\n"), done.stderr


def test_without_a_thread_calls_are_made_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is ending, or the process may start no more threads."""
    monkeypatch.setattr(module._THREADS, "submit", lambda work: None)
    assert together([partial(int, n) for n in range(9)], at_once=4) == list(range(9))


def test_child_of_a_fork_starts_threads_of_its_own() -> None:
    together([partial(int, 1)] * 9, at_once=9)
    child = os.fork()
    if child == 0:
        barrier = threading.Barrier(4)
        together([partial(barrier.wait, WAIT_S)] * 4, at_once=4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
