"""The time by which operators are shown ages."""

from __future__ import annotations

from txnlog.errors import StorageError
from txnlog.storage.store.objects import ObjectStore


def shown_now_ms(store: ObjectStore) -> int:
    """The store's time; by this machine's clock where the store takes no writes of this process."""
    try:
        return store.now_ms()
    except StorageError:
        return store.clock.now_ms()
