"""Two threads of a writing Spark task: one receives Arrow batches, the other works on them (D120).

Spark's JVM prepares the next batch only when the last one has left its buffer, and a task with one
thread receives the next one only when it has finished with the last one. So each would wait for
the other, above all on a machine with other work. pyarrow and numpy release the interpreter's lock
while they encode, compress, copy and write; so does zlib while it computes a checksum.

The task's own thread is the one that works: memory that it frees is there for the worker's next
task, while Arrow's allocator gives each new thread 32 MiB of its own. What waits between the
threads is bounded in bytes. When one of them fails, the other one ends at its next batch and is
waited for, and the error is raised in the task's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import pyarrow as pa

R = TypeVar("R")

WAITING_BYTES = 4 << 20
"""Upper bound of the batches that wait between the threads; a larger one waits alone."""


class _Handover:
    """Batches from the thread that calls `give` and `end` to the one that iterates, in order."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting_bytes = 0
        self._batches: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()
        self._taken: SimpleQueue[int] = SimpleQueue()
        self._error: BaseException | None = None
        self._is_over = False

    def give(self, batch: pa.RecordBatch) -> bool:
        """Hand a batch over when there is room for it. False: no further one is taken."""
        size_bytes = max(1, batch.nbytes)
        while (
            self._waiting_bytes
            and self._waiting_bytes + size_bytes > self._bytes_max
            and not self._is_over
        ):
            self._waiting_bytes -= self._taken.get()
        if self._is_over:
            return False
        self._waiting_bytes += size_bytes
        self._batches.put(batch)
        return True

    def end(self, error: BaseException | None = None) -> None:
        """There is no further batch; with an error the iteration raises it."""
        self._error = error
        self._batches.put(None)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._batches.get()) is not None:
            self._taken.put(max(1, batch.nbytes))
            yield batch
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Take no further batch: `give` returns False, also where it waits for room."""
        self._is_over = True
        self._taken.put(0)


def consume_beside(
    batches: Iterable[pa.RecordBatch],
    consume: Callable[[Iterable[pa.RecordBatch]], R],
    *,
    waiting_bytes: int = WAITING_BYTES,
) -> R:
    """`consume(batches)`, while a thread of its own receives the next batches.

    Without a second batch all happens in this thread. Raises what either raises, an error of
    `consume` when the next batch comes, which is then dropped.
    """
    received = iter(batches)
    first = list(islice(received, 2))
    if len(first) < 2:
        return consume(first)
    handover = _Handover(waiting_bytes)

    def receive() -> None:
        try:
            for batch in chain(first, received):
                if not handover.give(batch):
                    return
        except BaseException as error:
            handover.end(error)
        else:
            handover.end()

    thread = Thread(target=receive, name="txnlog-receive", daemon=True)
    if not _started(thread):
        return consume(chain(first, received))
    try:
        return consume(handover)
    finally:
        handover.stop()
        thread.join()


def _started(thread: Thread) -> bool:
    """Start a thread; False where the process may have no further one."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True
