"""When a row was read that a write to another table rests on."""

from __future__ import annotations

from typing import NamedTuple

from txnlog.process.clock import Clock
from txnlog.storage.delta.delta_log import DeltaLog, new_stamp


class Reading(NamedTuple):
    """When the read of a row began: by the boot clock, and in the order of this process's reads.

    What a table shows of an effect (a marker) is forgotten after a while, once the row is gone. So
    whoever writes because of a row must have read it a short time ago. The boot clock tells that,
    unless it stood still: then the order tells that the table has forgotten something since.
    """

    boot_ms: int
    stamp: int

    @classmethod
    def begin(cls, clock: Clock) -> Reading:
        """To be called before the read."""
        return cls(clock.boot_ms(), new_stamp())

    def counts_for(self, log: DeltaLog) -> bool:
        """Whether a commit to `log`, as it was last refreshed, may rest on the row."""
        age_ms = log.store.clock.boot_ms() - self.boot_ms
        return age_ms <= log.settings.trust_ms and log.forgotten_at < self.stamp
