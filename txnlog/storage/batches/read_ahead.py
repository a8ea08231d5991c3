"""Data files fetched before their turn, several together: every request waits for the network.

What is fetched is bounded in bytes, and released as it is read. A file that could not be fetched is
left to its reader, which tries again in its turn: so its error comes after the records before it.
On a local disk nothing is fetched, and large files are read by ranges in their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from txnlog.errors import TxnLogError
from txnlog.storage.batches.reader import READ_WHOLE_BELOW_BYTES, FileSpan
from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

AHEAD_BYTES = 8 << 20
"""Maximum size of files that are fetched and not read yet; a file may be fetched alone."""
AHEAD_FILES = 256


def may_fetch(store: ObjectStore, size_bytes: int | None) -> bool:
    """Whether a file of this size is fetched before it is read."""
    return not store.is_local and size_bytes is not None and size_bytes <= READ_WHOLE_BELOW_BYTES


def fetch(store: ObjectStore, paths: Sequence[str]) -> list[bytes | None]:
    """The files' bytes, got together; None for one that could not be read."""
    return store.together([partial(_get, store, path) for path in paths])


def read_ahead(
    store: ObjectStore, items: Iterable[T], file_of: Callable[[T], FileSpan]
) -> Iterator[tuple[T, bytes | None]]:
    """Each item in order, with the bytes of its file, or None for a file to be read in its turn."""
    waiting: deque[T] = deque()
    size_bytes = 0
    for item in items:
        file = file_of(item)
        if not may_fetch(store, file.size_bytes):
            yield from _fetched(store, waiting, file_of)
            size_bytes = 0
            yield item, None
            continue
        size_bytes += file.size_bytes or 0
        if waiting and (size_bytes > AHEAD_BYTES or len(waiting) >= AHEAD_FILES):
            yield from _fetched(store, waiting, file_of)
            size_bytes = file.size_bytes or 0
        waiting.append(item)
    yield from _fetched(store, waiting, file_of)


def _fetched(
    store: ObjectStore, waiting: deque[T], file_of: Callable[[T], FileSpan]
) -> Iterator[tuple[T, bytes | None]]:
    """Fetch the files of the waiting items, and yield these until none is left."""
    found = deque(fetch(store, [file_of(item).path for item in waiting]) if waiting else ())
    while waiting:
        yield waiting.popleft(), found.popleft()


def _get(store: ObjectStore, path: str) -> bytes | None:
    try:
        return store.get(path)
    except TxnLogError:
        return None
