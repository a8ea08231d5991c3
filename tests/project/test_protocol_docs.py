"""docs/protocol.md shows the transitions of the code, and all pages the same steps of a commit.

Run this file to draw the diagram again.
"""

from __future__ import annotations

import re
from pathlib import Path

from txnlog.protocol.states import VALID_PREVIOUS, TransactionState

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "protocol.md"
STEPS = ["stage", "own", "ticket", "1", "2", "3", "4"]
_DRAWN = re.compile(r"(?<=```mermaid\n).*?(?=```)", re.DOTALL)


def diagram() -> str:
    """The transition table as a Mermaid diagram."""

    def name(state: TransactionState) -> str:
        return "".join(word.capitalize() for word in state.name.split("_"))

    moves = sorted(
        (before, after) for after, allowed in VALID_PREVIOUS.items() for before in allowed
    )
    lines = [f"    {name(before)} --> {name(after)}" for before, after in moves]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {name(TransactionState.EMPTY)}", *lines, ""])


def test_state_diagram_is_the_transition_table() -> None:
    """An outdated diagram is worse than none (R25)."""
    assert _DRAWN.findall(DOCUMENT.read_text()) == [diagram()]


def test_steps_of_a_commit_have_one_numbering() -> None:
    """A reader who goes from a page to the next must find the same step under the same name."""
    commits = section("ARCHITECTURE.md", "How a transaction commits")
    assert re.findall(r"^\| (\w+) \|", commits, re.MULTILINE)[1:] == STEPS
    sequence = section("ARCHITECTURE.md", "How a record becomes visible")
    drawn = re.findall(r"[TC]->>[ABOS]: (\w+)", sequence)
    assert list(dict.fromkeys(drawn)) == STEPS
    listed = re.findall(r"^- \*\*(\w+)", (ROOT / "docs/explanation/visible.md").read_text(), re.M)
    assert [name.lower() for name in listed] == STEPS
    on_disk = section("docs/format.md", "A transaction, as writes")
    written = re.findall(r"^\| (\w+)[ ,]", on_disk, re.MULTILINE)[1:]
    assert written == [step for step in STEPS if step != "own"]
    phases = section("docs/monitoring.md", "Phases of a commit")
    measured = re.findall(r"\| (\w+) \|$", phases, re.MULTILINE)[1:]
    assert measured == STEPS[:-1]


def section(page: str, heading: str) -> str:
    """The text below a heading of the second level."""
    return (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


if __name__ == "__main__":
    DOCUMENT.write_text(_DRAWN.sub(diagram(), DOCUMENT.read_text()))
