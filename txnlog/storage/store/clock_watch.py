"""Whether file ages by a store's clock are reliable enough to delete files by age.

A clock that is set ahead makes every file old at once. So an object records, once per boot of a
machine, what the store's clock and the boot clock showed. If both have advanced alike since then,
for at least an hour, ages are reliable: an old file existed an hour ago, or was written while the
clock ran evenly. It is an object because the processes that delete files may be short-lived.
"""

from __future__ import annotations

import msgspec

from txnlog.errors import ObjectNotFoundError
from txnlog.protocol.vacuum import ClockReading, has_run_evenly
from txnlog.storage.store.objects import ObjectStore

FOLDER = "__cluster/_even"

_DECODER = msgspec.json.Decoder(ClockReading)


def note_clock(store: ObjectStore) -> ClockReading:
    """Record what the clocks show now; they are compared from now on."""
    reading = _reading(store)
    store.make_folder(FOLDER)
    store.put(_path(store), msgspec.json.encode(reading))
    return reading


def may_trust_ages(store: ObjectStore) -> bool:
    """Whether the store's clock has run evenly for long enough; if not, records it again.

    Raises StorageError.
    """
    try:
        since = _DECODER.decode(store.get(_path(store)))
    # Damaged, or of another format: treated as missing.
    except (ObjectNotFoundError, msgspec.MsgspecError, ValueError):
        since = None
    found = None if since is None else has_run_evenly(since, _reading(store))
    if found is None:
        note_clock(store)
    return bool(found)


def _reading(store: ObjectStore) -> ClockReading:
    # A time extrapolated from the boot clock would not show a step.
    store.forget_clock()
    now_ms = store.now_ms()
    return ClockReading(boot_ms=store.clock.boot_ms(), store_ms=now_ms)


def _path(store: ObjectStore) -> str:
    return f"{FOLDER}/{store.clock.boot_id}"
