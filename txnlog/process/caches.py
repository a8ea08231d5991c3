"""Objects that a process opens once and keeps: clusters and object stores (D17).

One rule for all keys: a keyed digest of the normalised url and the options. Options hold
credentials, and a url may, so neither is in a key or a repr (R67).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Generic, TypeVar

from txnlog.process import forking

T = TypeVar("T")

Key = tuple[bytes, int]
"""(digest of url and options, thread id; 0 if the threads of the process share the object)"""


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILE = re.compile(r"file:(?://(?:localhost)?(?=/|\Z)|(?!//))", re.IGNORECASE)


def local_path(url: str) -> str | None:
    """The path of a folder on a local disk, given as a path or a file: URL; None for other URLs.

    The path in a URL is taken literally, as Hadoop takes it, with each #, ? and %: so the URL of
    any folder leads back to this folder.
    """
    if _SCHEME.match(url) is None:
        return url
    found = _FILE.match(url)
    return None if found is None else url[found.end() :]


def normal_url(url: str) -> str:
    """The same text for each spelling of a folder: its absolute path, or a URL without '/' at its
    end.
    """
    path = local_path(url)
    if path is None:
        return url.rstrip("/")
    # Two slashes at the start stay in POSIX paths, and mean one on our systems.
    return re.sub(r"\A//+", "/", os.path.abspath(path))


class _Entry(Generic[T]):
    """A place in the cache; its lock is held while the object is opened."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opened: list[T] = []


class ProcessCache(Generic[T]):
    """Maximum `size_max` objects, by url and options; the least recently used one is dropped.

    `per_thread` gives each thread its own object. Thread-safe. A child of os.fork() starts empty:
    an object that its parent opened has threads and connections that are not in the child.
    """

    def __init__(self, *, size_max: int, per_thread: bool = False) -> None:
        self._size_max = size_max
        self._per_thread = per_thread
        self._digest_key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry[T]] = OrderedDict()
        self._inherited: list[object] = []
        forking.watch(self)

    def get(self, url: str, options: Mapping[str, str] | None, open_object: Callable[[], T]) -> T:
        """The object for this url and these options; opened at the first call.

        Raises what `open_object` raises; the next call tries again.
        """
        key = self._key(url, options)
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > self._size_max:
                self._entries.popitem(last=False)
        with entry.lock:
            if not entry.opened:
                entry.opened.append(open_object())
            return entry.opened[0]

    def drop(self, url: str, options: Mapping[str, str] | None) -> None:
        """Open the object again at the next `get`."""
        with self._lock:
            self._entries.pop(self._key(url, options), None)

    def clear(self) -> None:
        """Drop every object; for tests that stand for a new process."""
        with self._lock:
            self._entries.clear()

    def forked(self) -> None:
        """Start empty in a child of os.fork(); another thread may have held a lock."""
        self._lock = threading.Lock()
        # Not destroyed: a destructor may wait for a thread that is not in this process.
        self._inherited.append(self._entries)
        self._entries = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"ProcessCache({len(self)} of {self._size_max} objects)"

    def _key(self, url: str, options: Mapping[str, str] | None) -> Key:
        text = json.dumps([normal_url(url), sorted((options or {}).items())], default=repr)
        digest = blake2b(text.encode(), key=self._digest_key).digest()
        return digest, threading.get_ident() if self._per_thread else 0
