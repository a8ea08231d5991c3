"""A store that is only read: every write is refused before it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from txnlog.errors import StorePermissionError
from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")


class ReadOnlyStore(ObjectStore):
    """What is in another store; `requests` counts the calls. Writes raise StorePermissionError."""

    takes_writes = False

    def __init__(self, base: ObjectStore) -> None:
        super().__init__(base._store, base.url, clock=base.clock, makes_folders=False)
        self.requests = 0
        self._base = base
        self._at_once = base._at_once

    def at(self, url: str) -> ObjectStore:
        """As ObjectStore's, and only read."""
        return ReadOnlyStore(self._base.at(url))

    def watch_folder(self, path: str, check: Callable[[], None]) -> None:
        """The other store does it."""

    def rely_on(self, paths: Sequence[str]) -> None:
        """Nothing that is written depends on what is read here."""

    def now_ms(self) -> int:
        """By this machine's clock: to ask for the store's takes a write."""
        return self.clock.now_ms()

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb in ("put", "delete"):
            raise StorePermissionError(
                f"{self.url}/{path}: nothing is written here: this root is opened to be read.",
                path=path,
            )
        self.requests += 1
        return self._base._call(verb, path, call)
