"""Reading a malicious file ends with a typed error that names it, in bounded time and memory (R66).

Each case is read in a child process with an address space of 3 GB.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.storage.hostile_run import CASES

TIMEOUT_S = 900
"""Limit for a read that hangs; the slowest case takes seconds."""
TYPED = ("CorruptLogError", "LogGapError", "CheckpointError")
NAMED = re.compile(
    r"\d{20}\.(json|checkpoint\.parquet)|part-0-[xy]\.parquet|(offsets|commits)/\d|/metadata"
    r"|__cluster"
)


def run(folder: Path, *cases: str) -> list[tuple[str, str]]:
    """(case, result) of each line that the child printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.hostile_run", str(folder), *cases],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = [line.partition("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.stderr[-2_000:])
    return [(name, end.strip("'\"")) for name, _, end in lines]


def test_hostile_files_end_in_a_typed_error_that_names_them(tmp_path: Path) -> None:
    """One such file may affect its own table only, never the process or the machine."""
    ends = run(tmp_path, *CASES)
    assert [name for name, _ in ends] == list(CASES)
    wrong = [(n, e) for n, e in ends if not e.startswith(TYPED) or not NAMED.search(e)]
    assert not wrong


def test_files_damaged_at_random_end_in_a_typed_error(tmp_path: Path, seed: int) -> None:
    """Random damage: bits, lengths, numbers, repeats and brackets, by a seed."""
    ends = run(tmp_path, f"seed {seed}")
    assert ends
    assert not [end for _, end in ends if "UNTYPED" in end]
