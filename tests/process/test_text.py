"""Untrusted text on its way to people and to shells."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import unicodedata

import pytest

from txnlog.connector.causes import with_causes
from txnlog.errors import CorruptLogError, StorageError, TxnLogError
from txnlog.process.failures import combined
from txnlog.text import json_text, printable, printable_bytes, shell_option

FORGED = "a\nb\r\x1b]52;c;eA==\x07 \x7f\x9b31m\u2028\u202e\udc80 é 注 \\x"
SHOWN = r"a\x0ab\x0d\x1b]52;c;eA==\x07 \x7f\x9b31m\u2028\u202e\udc80 é 注 \x"


def test_printable_text_is_one_line_without_a_control_character() -> None:
    """A line break in an id forges a row, ESC commands the terminal."""
    assert printable(FORGED) == SHOWN
    assert printable(SHOWN) == SHOWN
    assert printable_bytes(b"\x9b31m\xff\xc2\x9b\xc3\xa9") == "\\x9b31m\\xff\\x9bé"


def test_every_control_character_and_no_letter_is_escaped() -> None:
    """A list by hand may miss one: the categories of Unicode decide."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        kind, bidi = unicodedata.category(char), unicodedata.bidirectional(char)
        reorders = bidi in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        assert (printable(char) != char) >= (kind in ("Cc", "Zl", "Zp", "Cs") or reorders), hex(
            code
        )
        assert (printable(char) == char) >= (kind[0] in "LMNPS" or kind in ("Zs", "Co", "Cn"))


def test_json_is_exact_and_printable() -> None:
    """Programs need the id as it is; a terminal may show the line all the same."""
    value = {"id": FORGED, "n": [1, None]}
    text = json_text(value)
    assert json.loads(text) == value
    assert printable(text) == text
    assert "é 注" in text


@pytest.mark.parametrize(
    "text", ["plain", "two words", "a'b!c\\d $(x) `y`", "", "\n\x1b'!\\", "é\x85\u2028\u202e"]
)
def test_word_of_a_command_is_exact_in_bash(text: str) -> None:
    """A command of an error is pasted: a group id `$(x)` must not run there."""
    command = f"printf %s {shell_option('--group', text)}"
    assert printable(command) == command
    found = subprocess.run(["bash", "--norc", "-c", f"set -H\n{command}"], capture_output=True)
    assert found.stdout.decode() == f"--group={text}"


def test_message_of_an_error_is_printable_and_its_attributes_exact() -> None:
    """Ids and replies of stores reach terminals and logs by way of errors."""
    error = TxnLogError(f"No group {FORGED}.", group_id=FORGED)
    for same in (error, error.replace(fatal=True), pickle.loads(pickle.dumps(error))):
        assert str(same) == same.message == f"No group {SHOWN}."
        assert same.group_id == FORGED


def test_lines_of_an_error_are_only_its_own() -> None:
    """A line break in an id must not forge a failed part, or a cause."""
    found = combined("Work", [(FORGED, StorageError(FORGED)), ("b", CorruptLogError("c"))])
    found.__cause__ = OSError("\x1b[2Jthe disk\nis gone")
    shown = with_causes(found)
    for same in (shown, shown.replace(fatal=True), pickle.loads(pickle.dumps(shown))):
        assert str(same).splitlines() == [
            "Work: 2 parts failed.",
            f"{SHOWN}: StorageError: {SHOWN}",
            "b: CorruptLogError: c",
            "Caused by OSError: \\x1b[2Jthe disk",
        ]
        assert same.message == " ".join(str(same).splitlines())


def test_word_with_a_nul_names_nothing() -> None:
    """No argument can have one: bash ended the word there, and another group lost its offsets."""
    assert shell_option("-g", "victim\0evil") == "-g='victim\\x00evil'"
