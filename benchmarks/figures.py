"""The result of a benchmark: a value, its goal, and whether the goal holds."""

from __future__ import annotations

import os
import platform
import timeit
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from statistics import median
from typing import Any

_TURNS = 100_000
PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "obstore")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value; `goal` is text such as "<= 2", `against` the peer of a ratio.

    `spread` is the minimum and maximum of the runs whose median is `value`.
    """

    name: str
    value: float
    unit: str
    goal: str
    holds: bool
    against: str = ""
    spread: tuple[float, float] | None = None

    def to_json(self, versions: Mapping[str, str]) -> dict[str, Any]:
        """An entry of results.json, with the machine and the versions of the measurement."""
        entry = asdict(self)
        if self.spread is None:
            del entry["spread"]
        else:
            entry["spread"] = [round(value, 4) for value in self.spread]
        return {
            **entry,
            "value": round(self.value, 4),
            "machine": environment(),
            "loop_ns": round(loop_ns(), 1),
            "python": platform.python_version(),
            "versions": dict(versions),
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


def median_of(name: str, runs: list[float], unit: str) -> Figure:
    """A figure without a goal: the median of some runs, with their spread."""
    spread = (min(runs), max(runs))
    return Figure(name=name, value=median(runs), unit=unit, goal="", holds=True, spread=spread)


OURS = "txnlog"


@dataclass(frozen=True)
class Comparison:
    """Values of `ours` and its peers, measured in turns, equally many of each."""

    name: str
    unit: str
    runs: Mapping[str, list[float]]
    ours: str = OURS

    def each(self) -> list[Figure]:
        """The median of each peer."""
        return [
            median_of(f"{self.name}: {peer}", runs, self.unit) for peer, runs in self.runs.items()
        ]

    def at_least(self, peer: str, goal: float, against: str = "") -> Figure:
        """The ratio of our value to the peer's; more is better."""
        return self._ratio(peer, against, f">= {goal:g}", lambda ratio: ratio >= goal)

    def at_most(self, peer: str, goal: float, against: str = "") -> Figure:
        """The same ratio; less is better."""
        return self._ratio(peer, against, f"<= {goal:g}", lambda ratio: ratio <= goal)

    def ratio(self, peer: str, against: str = "") -> Figure:
        """The same ratio without a goal."""
        return self._ratio(peer, against, "", lambda ratio: True)

    def _ratio(self, peer: str, against: str, goal: str, holds: Callable[[float], bool]) -> Figure:
        ours, theirs = self.runs[self.ours], self.runs[peer]
        value = median(ours) / median(theirs)
        by_round = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        digits = 0 if median(theirs) >= 10 else 2
        medians = f"{median(ours):,.{digits}f} to {median(theirs):,.{digits}f} {self.unit}"
        return Figure(
            name=f"{self.name}, {self.ours} against {peer}",
            value=value,
            unit="x",
            goal=goal,
            holds=holds(value),
            against=f"{against or peer}: {medians}",
            spread=(min(by_round), max(by_round)),
        )


def package_versions() -> dict[str, str]:
    """Versions of the packages that the figures depend on."""
    return {package: version(package) for package in PACKAGES}


@cache
def loop_ns() -> float:
    """Time of one iteration of a bare Python loop: a shared machine changes its speed.

    The minimum of some short loops.
    """
    best_s = min(timeit.repeat("total += 1", "total = 0", number=_TURNS, repeat=20))
    return best_s / _TURNS * 1e9


def environment() -> str:
    """Number of processors, and operating system."""
    release = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores, {platform.system()} {release}"
