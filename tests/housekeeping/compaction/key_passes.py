"""A compacted topic, passes over it, and the remaining records."""

from __future__ import annotations

from collections import deque
from itertools import islice

from tests.housekeeping.compaction.logs import (
    TOPIC,
    Record,
    Seen,
    records_of,
)
from txnlog.cluster import Cluster
from txnlog.housekeeping.compaction import key_compaction
from txnlog.housekeeping.compaction.segments import key_compaction_settings_of
from txnlog.protocol.compaction import CompactionSettings
from txnlog.protocol.key_compaction import KeyCompactionPass, plan_pass

RETENTION_MS = 1_000
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(RETENTION_MS),
}
SMALL = CompactionSettings(segment_bytes=4_000, inputs_min=3, inputs_max=4)


def keyed(key: str, value: str | None, *, at_ms: int = 0) -> Record:
    return Record(key.encode(), None if value is None else value.encode(), at_ms * 1000)


def due(cluster: Cluster) -> KeyCompactionPass | None:
    """The pass that is due in partition 0."""
    log = cluster.topic(TOPIC)
    return plan_pass(
        log.view, TOPIC, 0, key_compaction_settings_of(log.config), now_ms=cluster.store.now_ms()
    )


def key_compact(cluster: Cluster, *, steps: int | None = None, buffer_bytes: int = 1 << 20) -> bool:
    """A whole pass if one is due, or the first steps of one that is killed then."""
    key_pass = due(cluster)
    if key_pass is None:
        return False
    steps_done = key_compaction.key_compact(
        cluster, key_pass, SMALL, dedupe_buffer_bytes=buffer_bytes
    )
    deque(islice(steps_done, steps), maxlen=0)
    return True


def values(records: list[Seen]) -> dict[bytes, bytes]:
    """The newest value of each key of these records, read in order."""
    known: dict[bytes, bytes | None] = {}
    for _, record in records:
        if record.key is not None:
            known[record.key] = record.value
    return {key: value for key, value in known.items() if value is not None}


def shown(cluster: Cluster) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of all that a reader gets."""
    return [
        (
            offset,
            "" if record.key is None else record.key.decode(),
            None if record.value is None else record.value.decode(),
        )
        for offset, record in records_of(cluster.topic(TOPIC))
    ]
