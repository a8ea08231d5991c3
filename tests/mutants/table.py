"""The table of mutants: one change of one place in the code each, and the tests that must fail."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`old` stands exactly once in `file` and is replaced by `new`.

    `breaks` is the rule or hazard. With `harmless`, a reason, it may survive.
    """

    id: str
    area: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    harmless: str = ""

    def apply(self, root: Path) -> str:
        """The changed text of its file. Raises ValueError when `old` is not there exactly once."""
        text = (root / self.file).read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"{self.id}: {self.file} has the old text {found} times, not once; adapt the "
                f"mutant in tests/mutants/{self.area}.toml to the code as it is now"
            )
        return text.replace(self.old, self.new)


def read_table() -> list[Mutant]:
    """All mutants, file by file. Raises TypeError for a key that is unknown or missing."""
    return [
        Mutant(area=path.stem, **{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in _entries(path)
    ]


def missing_tests(mutant: Mutant) -> list[str]:
    """Files and functions among its tests that are not there."""
    missing = []
    for node in mutant.tests:
        file, _, name = node.partition("::")
        path = ROOT / file
        text = path.read_text() if path.is_file() else ""
        function = re.escape(name.partition("[")[0].rpartition("::")[2])
        if not text or (name and not re.search(rf"\bdef {function}\(", text)):
            missing.append(node)
    return missing


def _entries(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(path.read_text())["mutant"]
    return found
