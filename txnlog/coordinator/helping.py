"""Reading what others have decided for a topic, to publish it with one's own (D149).

Only where commits to the topic's log meet, in an object store: whoever writes alone reads nothing.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from functools import partial

from txnlog.process.failpoint import reach
from txnlog.process.failures import Failures, caught
from txnlog.protocol.helping import helps, unmarked, wait_for_helper_ms
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.row_log import TransactionLog
from txnlog.storage.tables.topic_log import TopicLog

_CONTENDED_PUTS = 100
"""For so many puts after a lost race others are expected to publish in the topic."""
_LOOK_MS = 1_000
"""How often all shards are read, to find those of new producers."""
_RECENT_MS = 600_000
"""Producers with a marker this young may publish again."""
_AHEAD = 3
"""Commits of a log that others write which are read in one round."""


class Helping:
    """What this process knows of those who publish in one topic."""

    def __init__(
        self,
        log: TopicLog,
        tail_shards: Callable[[Failures], list[TransactionLog]],
        is_reading: threading.RLock,
    ) -> None:
        """All topics of a process have one lock, held while the shards are read."""
        self._log, self._tail_shards, self._is_reading = log, tail_shards, is_reading
        self._clock = log.store.clock
        self._until_ms = -1.0
        self._looked_ms: int | None = None
        self._all: list[TransactionLog] = []
        self._shards: list[TransactionLog] = []
        self._old: set[ProducerIdAndEpoch] = set()
        """Decided before this process read the shard: only who looks for their files helps them.
        And what was left to its owners."""
        self._waiting = 1.0
        self.rows: list[TransactionMetadata] = []
        """What others have decided and not published, as of `reading`."""
        self.reading = Reading.begin(self._clock)

    @property
    def is_contended(self) -> bool:
        """Whether another process has published here lately what this one was about to."""
        return self._clock.boot_ms() < self._until_ms

    def refresh(self, is_published: Callable[[], bool]) -> None:
        """Tail the topic, until the own transaction is in it, or this process is to publish for
        all: then `rows` are read, too.
        """
        latency_ms = self._log.store.latency.ms
        self.rows, waits = [], 0
        self._refresh_topic()
        while not is_published():
            if helps(waits=waits, waiting=self._waiting, jitter=random.random()):
                self._read_rows()
                return
            waits += 1
            wait_ms = wait_for_helper_ms(latency_ms=latency_ms, jitter=random.random())
            self._clock.sleep_ms(wait_ms)
            self._refresh_topic()

    def leave_rows(self) -> None:
        """To their owners: among them is one that no topic can take, which costs its own id only
        (D57).
        """
        self._old |= {row.transaction for row in self.rows}
        self.rows = []

    def _refresh_topic(self) -> None:
        before = self._log.log.version
        self._log.log.read_ahead(_AHEAD)
        self._log.refresh()
        if self._log.log.version > before:
            since_ms, latency_ms = self._clock.boot_ms(), self._log.store.latency.ms
            self._until_ms = since_ms + _CONTENDED_PUTS * latency_ms

    def _read_rows(self) -> None:
        """Read the shards, then the topic: what it lacks then is decided, and is left to do."""
        # Of several topics that are published together, one reads the shards.
        if not self._is_reading.acquire(blocking=False):
            return
        try:
            reading = Reading.begin(self._clock)
            self._read_shards()
            rows = [row for shard in self._shards for row in shard.view.rows.active.values()]
        finally:
            self._is_reading.release()
        self._refresh_topic()
        found = unmarked(self._log.view, self._log.name, rows)
        self.rows = [row for row in found if row.transaction not in self._old]
        self.reading = reading
        self._waiting = max(1.0, len(self.rows), 0.7 * self._waiting)
        if self.rows:
            reach("helping.rows")

    def _read_shards(self) -> None:
        """A shard that cannot be read is left out: its owners publish for themselves."""
        followed = {shard.number for shard in self._all if shard.log.is_recent}
        for shard in self._all:
            shard.log.read_ahead(_AHEAD)
        now_ms = self._clock.boot_ms()
        if self._looked_ms is None or now_ms - self._looked_ms > _LOOK_MS:
            self._looked_ms = now_ms
            self._all = self._tail_shards(Failures("Reading what others decide", logging.DEBUG))
            since_ms = self._log.store.now_ms() - _RECENT_MS
            updated_ms = self._log.view.markers.updated_ms
            self._shards = [
                shard
                for shard in self._all
                if any(
                    updated_ms.get(row.producer_id, -1) > since_ms
                    for row in shard.view.rows.active.values()
                )
            ]
        else:
            reads = [partial(caught, shard.refresh) for shard in self._shards]
            errors = self._log.store.together(reads)
            self._shards = [
                shard for shard, error in zip(self._shards, errors, strict=True) if error is None
            ]
        self._old = {
            row.transaction
            for shard in self._all
            for row in shard.view.rows.active.values()
            if row.state.is_prepared
            and (shard.number not in followed or row.transaction in self._old)
        }
