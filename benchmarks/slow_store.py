"""A store in memory in which each call takes as long as a request to an object store."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from obstore.store import MemoryStore

from txnlog.storage.store.objects import ObjectStore

T = TypeVar("T")

REQUEST_S = 0.025


class SlowStore(ObjectStore):
    """Sleeps in every call, so calls made together take as long as one; counts them by verb."""

    def __init__(self, request_s: float = REQUEST_S) -> None:
        super().__init__(MemoryStore(), "memory://")
        self.request_s = request_s
        self.calls: Counter[str] = Counter()
        self._counting = threading.Lock()
        # As for a store in a network.
        self._at_once = 64

    def _call(self, verb: str, path: str, call: Callable[[], T]) -> T:
        with self._counting:
            self.calls[verb] += 1
        time.sleep(self.request_s)
        return super()._call(verb, path, call)
