"""Threads that do work for others: how many, when they end, and what failures do to them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import pytest

from txnlog.process import threads as module
from txnlog.process.threads import Threads

WAIT_S = 600


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("test", 2)
    yield made
    made.end()


def wait_for(threads: Threads) -> None:
    done = threading.Event()
    assert threads.submit(done.set)
    assert done.wait(WAIT_S)


def refused(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def test_one_thread_does_its_work_in_order() -> None:
    one = Threads("test", 1)
    done: list[int] = []
    for number in range(1000):
        assert one.submit(partial(done.append, number))
    one.end()
    assert done == list(range(1000))


def test_threads_are_at_most_so_many(threads: Threads) -> None:
    idents: SimpleQueue[int] = SimpleQueue()
    for _ in range(1000):
        assert threads.submit(lambda: idents.put(threading.get_ident()))
    assert len({idents.get(timeout=WAIT_S) for _ in range(1000)}) <= 2


def test_free_thread_is_used_again() -> None:
    many = Threads("test", 64)
    for _ in range(100):
        wait_for(many)
        while not many._free:
            pass
    assert many._running == 1
    many.end()


def test_end_waits_for_all_work_and_takes_no_more(threads: Threads) -> None:
    done: list[int] = []
    may_end = threading.Event()
    for number in range(10):
        threads.submit(lambda number=number: (may_end.wait(WAIT_S), done.append(number)))
    threading.Timer(0.05, may_end.set).start()
    threads.end()
    assert sorted(done) == list(range(10))
    assert not threads.submit(done.clear)
    threads.end()
    assert len(done) == 10


def test_end_does_the_work_of_a_thread_that_has_not_begun(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit just before the exit: its checkpoint is written."""
    late: list[object] = []
    monkeypatch.setattr(module, "start_new_thread", lambda run, _: late.append(run))
    done: list[int] = []
    assert threads.submit(partial(done.append, 1))
    assert not done
    threads.end()
    assert done == [1]
    late[0]()  # type: ignore[operator]
    assert threads._running == 0


def test_work_is_refused_only_without_any_thread(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "start_new_thread", refused)
        assert not threads.submit(int)
        assert threads._queue.empty()
    wait_for(threads)
    monkeypatch.setattr(module, "start_new_thread", refused)
    for _ in range(10):
        wait_for(threads)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_work_that_fails_does_not_end_its_thread(
    threads: Threads, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error("why")

    for _ in range(5):
        assert threads.submit(fail)
    wait_for(threads)
    threads.end()
    assert caplog.text.count("Work of thread test failed") == 5


def test_done_work_is_not_kept(threads: Threads) -> None:
    """The calls of `together` hold logs and results."""

    class Work:
        def __call__(self) -> None:
            pass

    work = Work()
    found = weakref.ref(work)
    threads.submit(work)
    del work
    wait_for(threads)
    threads.end()
    assert found() is None


def test_child_of_a_fork_has_its_own(threads: Threads) -> None:
    wait_for(threads)
    child = os.fork()
    if child == 0:
        wait_for(threads)
        threads.end()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    wait_for(threads)
