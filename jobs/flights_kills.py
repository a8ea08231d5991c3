"""When the demo kills its streaming driver: parses the list of kills, and plans them by a seed."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass

from flights_pipeline import OUTPUT_TOPICS

RANDOM = "random"
LOST_CHECKPOINT = "lost-checkpoint"
# Fail points between two writes of a commit, and a description of a kill at each.
FAILPOINTS = {
    "prepare_commit.before": "before PREPARE_COMMIT",
    "prepare_commit.after": "after PREPARE_COMMIT, before any marker",
    "marker.after": "between the first topic's marker and the last",
    "offsets.after": "after the group's offsets",
    "sink_commit.after": "between the sink's commit and Spark's commits/<n>",
}
DEFAULT_KILLS = (
    "random,marker.after,random,sink_commit.after,random,prepare_commit.after+lost-checkpoint"
)
# At least two: the first may be one that the previous driver left incomplete. Not many more:
# every driver must leave some work for the next ones.
TRANSACTIONS_MIN, TRANSACTIONS_MAX = 2, 5
DELAY_MS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KillKind:
    """One item of the list: a fail point or RANDOM, and whether to delete the checkpoint."""

    place: str
    loses_checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill of the driver, counted from its start.

    At a fail point: in its `transactions`-th commit. At random: `delay_ms` after that many
    transactions have been seen.
    """

    place: str
    transactions: int
    delay_ms: int = 0
    loses_checkpoint: bool = False

    @property
    def hits(self) -> int:
        """How often the fail point is reached before the kill; a marker's, once per topic."""
        if self.place == "marker.after":
            return (self.transactions - 1) * len(OUTPUT_TOPICS) + 1
        return self.transactions

    @property
    def failpoint(self) -> str | None:
        """The value of TXNLOG_FAILPOINT, or None if the supervisor sends the signal."""
        return None if self.place == RANDOM else f"{self.place}@{self.hits}:driver"

    def describe(self) -> str:
        """The kill as text, for the line printed after it."""
        if self.place == RANDOM:
            return f"at a random moment, {self.delay_ms} ms after a transaction"
        lost = ", and the checkpoint deleted" if self.loses_checkpoint else ""
        return FAILPOINTS[self.place] + lost


def parse_kills(text: str) -> tuple[KillKind, ...]:
    """Parse a list such as `random,marker.after,prepare_commit.after+lost-checkpoint`.

    Raises: argparse.ArgumentTypeError that names the unknown item.
    """
    kinds = []
    for word in filter(None, text.split(",")):
        place, _, loss = word.partition("+")
        if (place != RANDOM and place not in FAILPOINTS) or loss not in ("", LOST_CHECKPOINT):
            valid = ", ".join([RANDOM, *FAILPOINTS])
            raise argparse.ArgumentTypeError(
                f"unknown kill {word!r}: use {valid}, optionally followed by +{LOST_CHECKPOINT}"
            )
        kinds.append(KillKind(place=place, loses_checkpoint=bool(loss)))
    return tuple(kinds)


def plan_kills(kinds: Sequence[KillKind], seed: int) -> list[Kill]:
    """The exact moment of every kill; the same seed gives the same plan."""
    moments = random.Random(seed)
    return [
        Kill(
            place=kind.place,
            transactions=moments.randint(TRANSACTIONS_MIN, TRANSACTIONS_MAX),
            delay_ms=moments.randint(0, DELAY_MS_MAX) if kind.place == RANDOM else 0,
            loses_checkpoint=kind.loses_checkpoint,
        )
        for kind in kinds
    ]
