"""What a store is asked by writing small objects: its time, and whether puts are conditional."""

from __future__ import annotations

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

FOLDER = "__cluster/_clock"
_TTL_MS = 3_600_000
_ANSWER_MS_MAX = 10_000
_ANSWERS_MAX = 3
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
    """Asks by writing a small object, at most once an hour; the boot clock carries on."""

    def __init__(self, store: _Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset: tuple[int, int] | None = None

    def now_ms(self) -> int:
        """The store's time, within its resolution."""
        known = self._offset
        if known is None or self._clock.boot_ms() - known[1] > _TTL_MS:
            known = self._offset = self._ask()
        return self._clock.boot_ms() + known[0]

    def forget(self) -> None:
        """Ask again next time."""
        self._offset = None

    def _ask(self) -> tuple[int, int]:
        """(store's time minus boot time, boot time), from an answer that did not take long.

        A machine suspended while it asks would take the length of its sleep for an offset.
        """
        for _ in range(_ANSWERS_MAX):
            path = f"{FOLDER}/{uuid.uuid4()}"
            asked_ms = self._clock.boot_ms()
            self._put(path)
            answered_ms = self._clock.boot_ms()
            modified_ms = self._store.head(path).last_modified_ms
            self._store.delete([path])
            if answered_ms - asked_ms <= _ANSWER_MS_MAX:
                return modified_ms - answered_ms, answered_ms
        raise StorageError(
            f"{self._store.url}: a small write took longer than {_ANSWER_MS_MAX // 1000} s "
            f"{_ANSWERS_MAX} times, so the store's clock cannot be read; try again."
        )

    def _put(self, path: str) -> None:
        try:
            self._store.put(path, b"txnlog")
        except FolderNotFoundError:
            # A cluster has none before its first question.
            self._store.make_folder(FOLDER)
            self._store.put(path, b"txnlog")


def check_conditional_puts(store: _Store, prefix: str) -> None:
    """Raise UnsupportedStoreError unless put-if-absent keeps the first object (R69)."""
    path = f"{prefix}/_probe/{uuid.uuid4()}"
    store.make_folder(f"{prefix}/_probe")
    kept = b""
    for _ in range(_PROBE_PUTS_MAX):
        # "Exists" is no proof of anything: what is there is.
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
