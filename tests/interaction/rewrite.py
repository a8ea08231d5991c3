"""Write the current answers into the traces: python -m tests.interaction.rewrite [name ...]

Review the diff afterwards: each line of it is a change of behaviour.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interaction.commands import replay

TRACES = Path(__file__).parent / "traces"


def main() -> None:
    """Rewrite the named traces, or all."""
    for path in sorted(TRACES.glob("*.txt")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        path.write_text(replay(path.read_text()))


if __name__ == "__main__":
    main()
