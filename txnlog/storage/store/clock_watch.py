"""Whether ages by a store's clock may be believed by those who delete files for their age.

A clock that was set ahead makes every file old at once. So this notes once per boot of a machine
what the store's clock and the boot clock showed; as long as both have run alike since then, for an
hour at least, a file that looks old is: it was there an hour ago, or was written by an even clock.
The note is an object, because the processes that delete files may be short-lived.
"""

from __future__ import annotations

import msgspec

from txnlog.errors import ObjectNotFoundError
from txnlog.protocol.vacuum import ClockReading, has_run_evenly
from txnlog.storage.store.objects import ObjectStore

FOLDER = "__cluster/_even"

_DECODER = msgspec.json.Decoder(ClockReading)


def note_clock(store: ObjectStore) -> ClockReading:
    """Note what the clocks show now, from when on they are compared."""
    reading = _reading(store)
    store.make_folder(FOLDER)
    store.put(_path(store), msgspec.json.encode(reading))
    return reading


def may_believe_ages(store: ObjectStore) -> bool:
    """Whether the store's clock has run evenly for long enough; begins to watch it if not.

    Raises StorageError.
    """
    try:
        since = _DECODER.decode(store.get(_path(store)))
    # Damaged, or of another format: as if there were none.
    except (ObjectNotFoundError, msgspec.MsgspecError, ValueError):
        since = None
    found = None if since is None else has_run_evenly(since, _reading(store))
    if found is None:
        note_clock(store)
    return bool(found)


def _reading(store: ObjectStore) -> ClockReading:
    # Carried on by the boot clock it would say nothing of a step.
    store.forget_clock()
    now_ms = store.now_ms()
    return ClockReading(boot_ms=store.clock.boot_ms(), store_ms=now_ms)


def _path(store: ObjectStore) -> str:
    return f"{FOLDER}/{store.clock.boot_id}"
