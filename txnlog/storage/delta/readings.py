"""When a row was read on which a write to another table depends."""

from __future__ import annotations

from typing import NamedTuple

from txnlog.process.clock import Clock
from txnlog.storage.delta.delta_log import DeltaLog, new_stamp


class Reading(NamedTuple):
    """When the read of a row began: by the boot clock, and in the order of this process's reads.

    A table's trace of an effect (a marker) is forgotten some time after the row is gone. So a
    process that writes because of a row must have read it a short time ago. The boot clock shows
    that, unless it was paused: then the order shows that the table has since forgotten something.
    """

    boot_ms: int
    stamp: int

    @classmethod
    def begin(cls, clock: Clock) -> Reading:
        """Call it before the read."""
        return cls(clock.boot_ms(), new_stamp())

    def counts_for(self, log: DeltaLog) -> bool:
        """Whether a commit to `log`, as last refreshed, may depend on the row."""
        is_young = self.is_young(log.store.clock, log.settings.trust_ms)
        return is_young and log.forgotten_at < self.stamp

    def is_young(self, clock: Clock, trust_ms: int) -> bool:
        """Whether the read began a short time ago."""
        return clock.boot_ms() - self.boot_ms <= trust_ms
