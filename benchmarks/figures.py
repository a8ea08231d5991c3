"""What a benchmark gives: a value, its goal, and whether the goal holds."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value; `goal` is text such as "<= 2", `against` what a ratio compares with."""

    name: str
    value: float
    unit: str
    goal: str
    holds: bool
    against: str = ""

    def to_json(self) -> dict[str, object]:
        """The form of results.json, with the machine and the versions it was measured with."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "goal": self.goal,
            "holds": self.holds,
            "against": self.against,
            "machine": environment(),
            "python": platform.python_version(),
        }


def at_most(name: str, value: float, unit: str, goal: float, against: str = "") -> Figure:
    """A figure whose goal is an upper bound."""
    return Figure(
        name=name,
        value=value,
        unit=unit,
        goal=f"<= {goal:g}",
        holds=value <= goal,
        against=against,
    )


def environment() -> str:
    """Processors and system, in a few words."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
