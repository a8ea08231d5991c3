"""What a benchmark gives: a value, its goal, and whether the goal holds."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "obstore")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value; `goal` is text such as "<= 2", `against` what a ratio compares with."""

    name: str
    value: float
    unit: str
    goal: str
    holds: bool
    against: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form of results.json, with the machine and the versions it was measured with."""
        return {
            **asdict(self),
            "value": round(self.value, 4),
            "machine": environment(),
            "python": platform.python_version(),
            "versions": {package: version(package) for package in PACKAGES},
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


def at_least(name: str, value: float, unit: str, goal: float, against: str = "") -> Figure:
    """A figure whose goal is a lower bound."""
    return Figure(
        name=name,
        value=value,
        unit=unit,
        goal=f">= {goal:g}",
        holds=value >= goal,
        against=against,
    )


def reported(name: str, value: float, unit: str, against: str = "") -> Figure:
    """A figure without a goal."""
    return Figure(name=name, value=value, unit=unit, goal="", holds=True, against=against)


def environment() -> str:
    """Processors and system, in a few words."""
    release = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores, {platform.system()} {release}"
