"""docs/protocol.md shows the transitions of the code; run this file to regenerate the diagram."""

from __future__ import annotations

import re
from pathlib import Path

from txnlog.protocol.states import VALID_PREVIOUS, TransactionState

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"
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


if __name__ == "__main__":
    DOCUMENT.write_text(_DRAWN.sub(diagram(), DOCUMENT.read_text()))
