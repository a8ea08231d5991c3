"""Workers that are killed at a step or at a random moment, or are stopped, replaced and woken.

The examples that write to a topic and to another system share it. A worker is a function that ends
what its predecessor has left, says `opened`, and works on; it names each step that it has passed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from txnlog import OFFSET_BEGINNING, Consumer, TopicPartition

FORKS = multiprocessing.get_context("forkserver")
ENDLESS = 1_000_000
WAIT_S = 600
ANYWHERE, STOPPED = "at any moment", "stopped and woken"


@dataclass
class Life:
    """What a worker tells, and where it ends: when it has passed a step so many times."""

    told: Connection
    step: str | None = None
    times: int = 1
    end: signal.Signals = signal.SIGKILL

    def opened(self) -> None:
        """What the predecessor has left is ended."""
        self.told.send("opened")

    def passed(self, step: str) -> None:
        """A step is done. The process may end here."""
        if step == self.step:
            self.times -= 1
            if self.times == 0:
                self.told.send("ended")
                os.kill(os.getpid(), self.end)


Worker = Callable[[Life, int], None]
"""A worker, called with its life and how much to do in all; picklable."""
Counts = Callable[[], "Counter[int]"]


class Killer:
    """Starts workers one after the other, ends them early, and compares topic and other system.

    `records` and `rows` count each number that the workers have written, in the topic and in the
    other system. Rows are committed first.
    """

    def __init__(self, worker: Worker, records: Counts, rows: Counts) -> None:
        self.worker, self.records, self.rows = worker, records, rows
        self.kills = self.zombies = 0
        # The others are forked from a process that has imported these.
        FORKS.set_forkserver_preload(["txnlog.producer", "txnlog.consumer", "psycopg"])

    def kill_at(self, step: str, times: int = 1) -> None:
        """A worker that is killed when it has passed this step so many times."""
        process, _ = self.start(step, times)
        process.join(WAIT_S)
        assert process.exitcode == -signal.SIGKILL, f"The worker ended with {process.exitcode}."
        self.kills += 1
        self.check()

    def kill_after(self, life_s: float) -> None:
        """A worker that is killed so long after it has opened."""
        process, told = self.start()
        told.recv()
        time.sleep(life_s)
        process.kill()
        process.join()
        self.kills += 1
        self.check()

    def fail_after(self, life_s: float, fail: Callable[[], None]) -> None:
        """A worker whose other system fails so long after it has opened: it ends with an error."""
        process, told = self.start()
        told.recv()
        time.sleep(life_s)
        fail()
        process.join(WAIT_S)
        assert process.exitcode not in (None, 0), "The worker has not noticed the failure."
        self.check()

    def stop_at(self, step: str, successor_step: str) -> None:
        """A worker that is stopped, replaced, and woken: it must end with an error."""
        zombie, told = self.start(step, end=signal.SIGSTOP)
        while told.recv() != "ended":
            pass
        self.kill_at(successor_step, times=2)
        assert zombie.pid is not None
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.join(WAIT_S)
        assert zombie.exitcode not in (None, 0), "The former worker was not fenced."
        self.zombies += 1
        self.check()

    def finish(self, amount: int = 0) -> None:
        """A last worker that ends what is left, and works until `amount` is done in all."""
        process, _ = self.start(amount=amount)
        process.join(WAIT_S)
        assert process.exitcode == 0, f"The worker ended with {process.exitcode}."

    def differences(self) -> int:
        """Numbers in one system and not in the other, twice in one, or missing between two."""
        records, rows = self.records(), self.rows()
        numbers = {*records, *rows}
        if numbers:
            numbers.update(range(min(numbers), max(numbers)))
        return sum((records[number], rows[number]) != (1, 1) for number in numbers)

    def start(
        self,
        step: str | None = None,
        times: int = 1,
        end: signal.Signals = signal.SIGKILL,
        amount: int = ENDLESS,
    ) -> tuple[ForkServerProcess, Connection]:
        """A worker, and the end of the pipe on which it tells."""
        told, tells = FORKS.Pipe(duplex=False)
        life = Life(tells, step, times, end)
        process = FORKS.Process(target=_work, args=(self.worker, life, amount))
        process.start()
        tells.close()
        return process, told

    def check(self) -> None:
        """Also before the successor has ended what was left."""
        records, rows = self.records(), self.rows()
        assert not records - rows, f"Records without a row: {records - rows}"


def _work(worker: Worker, life: Life, amount: int) -> None:
    """In the worker's process: one line for an error, since zombies and crashes make them."""
    try:
        worker(life, amount)
    except Exception as error:
        raise SystemExit("".join(traceback.format_exception_only(error)).rstrip()) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that all these examples have."""
    parser.add_argument("--folder", help="for all that is written; a temporary one by default")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--zombies", type=int, default=0, help="workers stopped and woken")
    parser.add_argument("--life-s", type=float, default=0.1, help="mean time to a random kill")


def folder_of(arguments: argparse.Namespace) -> Path:
    """The folder of --folder."""
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="txnlog-example-"))
    print(f"All files are in {folder.resolve()}")
    return folder.resolve()


def run(
    killer: Killer,
    arguments: argparse.Namespace,
    steps: Sequence[str],
    *,
    once: Sequence[str] = (),
    stops: Sequence[str] = (),
) -> None:
    """Kill at every step in turn; `once` are steps of the opening, `stops` those for zombies."""
    places = (*steps, *once, ANYWHERE)
    for number in range(arguments.kills):
        place = places[number % len(places)]
        if place == ANYWHERE:
            killer.kill_after(random.uniform(0, 2) * arguments.life_s)
        else:
            killer.kill_at(place, 1 if place in once else random.randint(1, 3))
        print(f"killed: {place}", flush=True)
    for number in range(arguments.zombies):
        stop = stops[number % len(stops)]
        killer.stop_at(stop, steps[-1])
        print(f"{STOPPED}: {stop}", flush=True)


def records_of(root: str, topic: str) -> Counter[int]:
    """How many records a read_committed reader sees with each key, of a topic of one partition."""
    with Consumer({"txnlog.root": root}) as consumer:
        partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        consumer.assign([partition])
        _, end = consumer.get_watermark_offsets(partition)
        return Counter(int(message.key() or b"") for message in consumer.consume(end, timeout=60))
