"""What there is beside the store where Spark runs: queries, their runs and their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.model.recovery import Pc
from tests.model.values import Stored

Step = tuple[str, Stored, "tuple[Checkpoint, ...]", Pc]


class Checkpoint(NamedTuple):
    """A Spark checkpoint: (start, end, generation) per offsets file, and how many are committed."""

    offsets: tuple[tuple[int, int, int], ...] = ()
    commits: int = 0


class State(NamedTuple):
    """Everything there is."""

    stored: Stored
    checkpoints: tuple[Checkpoint, ...]
    places: tuple[Pc, ...]


@dataclass(frozen=True, slots=True)
class Actor:
    """One process: a run of a query, whose id is the transactional.id of that number."""

    name: str
    query: int = 0
