"""docs/verify.md lists every kind of finding as the code has it."""

from __future__ import annotations

from pathlib import Path

from txnlog.protocol.verification.findings import KINDS, FindingKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "verify.md"


def kinds_table() -> str:
    """The table of the page."""
    lines = ["| kind | severity | what it means | what to do |", "|---|---|---|---|"]
    for kind in FindingKind:
        text = KINDS[kind]
        lines.append(f"| {kind.value} | {text.severity.value} | {text.meaning} | {text.advice} |")
    return "\n".join(lines) + "\n"


def test_every_kind_is_in_the_docs_as_it_is() -> None:
    """An operator who gets a report of damage reads this page."""
    assert kinds_table() in PAGE.read_text()


def test_every_kind_has_a_text() -> None:
    """A finding needs advice."""
    assert list(KINDS) == list(FindingKind)
    assert all(text.meaning and text.advice.endswith(".") for text in KINDS.values())
