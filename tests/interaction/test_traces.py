"""The traces are replayed, and every answer is compared exactly.

After an intended change run `python -m tests.interaction.rewrite`, and review the diff.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interaction.commands import replay
from tests.interaction.rewrite import TRACES

PATHS = sorted(TRACES.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_trace_gives_the_same_answers(path: Path) -> None:
    """An interleaving that was correct stays correct.

    Each trace says which rules it shows: R4, R5, R7, R12, R18, R27, R31, R32, R36, R42, R44, R45,
    R46, R47, R73.
    """
    text = path.read_text()
    assert replay(text) == text


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_trace_names_its_rules(path: Path) -> None:
    """A trace without a stated purpose would be rewritten without a review."""
    assert re.search(r"\bR\d+\b", path.read_text().split("\n\n")[0])


def test_trace_with_a_wrong_answer_is_found() -> None:
    """A replay that copied its input would pass for any trace."""
    text = PATHS[0].read_text()
    assert replay(text.replace("is done", "is not done")) == text
