"""The last runs of housekeeping's duties, as the commits of its lease tell them.

They are in commitInfo, not in the lease: nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from txnlog.protocol.decoding import Codec, Int64

HELD_MS = "heldMs"
DUTIES = "duties"
DAY_MS = 86_400_000
ERROR_CHARS_MAX = 300


class DutyRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """When a duty ended, when it is due again, how much it did, and its error.

    Times are ms: by the holder's boot clock; in a commit, from its time on; where it was read, by
    the store's clock. So no clock of a machine is trusted.
    """

    at_ms: Int64
    due_ms: Int64
    count: Int64 = 0
    error: str = ""

    def moved(self, by_ms: int) -> DutyRun:
        """The same by another clock."""
        return replace(self, at_ms=self.at_ms + by_ms, due_ms=self.due_ms + by_ms)

    def is_overdue(self, *, now_ms: int, slack_ms: int) -> bool:
        """Whether it should have run by now; news of it may be `slack_ms` old."""
        return now_ms - self.due_ms > slack_ms


def told_parameters(runs: Mapping[str, DutyRun], *, held_ms: int, now_ms: int) -> dict[str, str]:
    """For commitInfo: how long the lease has been held, and the last run of each duty."""
    if not runs:
        return {}
    told = {name: run.moved(-now_ms) for name, run in runs.items()}
    return {HELD_MS: str(held_ms), DUTIES: _CODEC.encode(told)}


def told_runs(parameters: Mapping[str, str], *, at_ms: int) -> tuple[int, dict[str, DutyRun]]:
    """Since when the lease was held, -1 if that is unknown, and the runs; from a commit."""
    try:
        runs = _CODEC.decode(parameters[DUTIES])
        held_ms = int(parameters[HELD_MS])
    except (KeyError, ValueError, TypeError, msgspec.MsgspecError):
        # Another writer's, or none.
        return -1, {}
    return at_ms - held_ms, {name: run.moved(at_ms) for name, run in runs.items()}


_CODEC: Codec[dict[str, DutyRun]] = Codec(dict[str, DutyRun])
