"""Probes of a store, by small objects: its time, and whether conditional puts work."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from typing import Any, Protocol

from txnlog.errors import (
    FolderNotFoundError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedStoreError,
)
from txnlog.process.clock import Clock
from txnlog.process.forking import watch

FOLDER = "__cluster/_clock"
_VALID_MS = 3_600_000
_REQUEST_MS_MAX = 10_000
_REQUESTS_MAX = 3
_PROBE_PUTS_MAX = 3


class _Store(Protocol):
    url: str

    def put(self, path: str, data: Any) -> None: ...

    def put_if_absent(self, path: str, data: bytes) -> bool: ...

    def get(self, path: str) -> bytes: ...

    def head(self, path: str) -> Any: ...

    def delete(self, paths: list[str]) -> None: ...

    def make_folder(self, path: str) -> None: ...


class StoreClock:
    """The store's time: read from a small new object once an hour, else from the boot clock.

    All ages of files are by it, as clocks of clients differ by hours (D14).

    Any thread may ask; one of them measures while the others wait.
    """

    def __init__(self, store: _Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset: tuple[int, int] | None = None
        self.forked()
        watch(self)

    def forked(self) -> None:
        """A thread of the parent may hold the lock for ever."""
        self._measuring = threading.Lock()

    def now_ms(self) -> int:
        """The store's time, within its resolution."""
        measured = self._valid()
        if measured is None:
            with self._measuring:
                measured = self._valid()
                if measured is None:
                    measured = self._offset = self._measure()
        return self._clock.boot_ms() + measured[0]

    def _valid(self) -> tuple[int, int] | None:
        measured = self._offset
        is_old = measured is not None and self._clock.boot_ms() - measured[1] > _VALID_MS
        return None if is_old else measured

    def forget(self) -> None:
        """Measure again at the next `now_ms`."""
        self._offset = None

    def _measure(self) -> tuple[int, int]:
        """(store's time minus boot time, boot time), from a request that did not take long.

        If the machine is suspended during the request, the offset is wrong by that time.
        """
        for _ in range(_REQUESTS_MAX):
            path = f"{FOLDER}/{uuid.uuid4()}"
            sent_ms = self._clock.boot_ms()
            self._put(path)
            answered_ms = self._clock.boot_ms()
            modified_ms = self._store.head(path).last_modified_ms
            self._store.delete([path])
            if answered_ms - sent_ms <= _REQUEST_MS_MAX:
                return modified_ms - answered_ms, answered_ms
        raise StorageError(
            f"{self._store.url}: a small write took longer than {_REQUEST_MS_MAX // 1000} s "
            f"{_REQUESTS_MAX} times, so the store's clock cannot be read; try again."
        )

    def _put(self, path: str) -> None:
        try:
            self._store.put(path, b"txnlog")
        except FolderNotFoundError:
            # A new cluster does not have the folder yet.
            self._store.make_folder(FOLDER)
            self._store.put(path, b"txnlog")


def check_conditional_puts(store: _Store, prefix: str) -> None:
    """Raise UnsupportedStoreError unless put-if-absent keeps the first object (R69)."""
    path = f"{prefix}/_probe/{uuid.uuid4()}"
    store.make_folder(f"{prefix}/_probe")
    kept = b""
    for _ in range(_PROBE_PUTS_MAX):
        # The reply "already exists" proves nothing: only reading the object does.
        store.put_if_absent(path, b"first")
        with suppress(ObjectNotFoundError):
            kept = store.get(path)
            break
    second = store.put_if_absent(path, b"second")
    with suppress(ObjectNotFoundError):
        kept = store.get(path)
    store.delete([path])
    if second or kept != b"first":
        raise UnsupportedStoreError(
            f"{store.url}: a conditional put did not keep the first object, so commits could be "
            "lost. Use a store with working 'If-None-Match: *' (for S3-compatible stores, a newer "
            "version), or a local file system.",
            url=store.url,
        )
