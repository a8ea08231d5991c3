"""The page of symptoms: what it quotes is what users see, and what it tells to type exists."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_blocks import parse

PAGE = (ROOT / "docs/howto/symptoms.md").read_text()
FOLDERS = ("txnlog", "spark_source", "spark_sink", "checkpoint")
# What the code puts in, and the page leaves out.
HOLE = "\0"


def quotes() -> list[str]:
    """Every quoted message."""
    return re.findall(r"^ *> (.+)$", PAGE, re.MULTILINE)


def texts() -> Iterator[str]:
    """Every string of the code, with a hole for each value."""
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else HOLE for p in node.values]
                    yield "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value.replace("%s", HOLE).replace("%d", HOLE)


@pytest.fixture(scope="module")
def code() -> list[str]:
    return list(texts())


def test_every_quoted_message_is_one_of_the_code(code: list[str]) -> None:
    """Users search for what they see; a message that was reworded would not be found."""
    found = quotes()
    assert len(found) > 10
    known = "\n".join(code)
    pieces = {piece.strip(" .;:") for quote in found for piece in quote.split("...")}
    assert not sorted(piece for piece in pieces if piece not in known)


def test_every_problem_that_it_names_is_one_of_why(code: list[str]) -> None:
    """In italics, as `txnlog why` prints it."""
    named = re.findall(r"(?<!\*)\*([a-z][a-z ]+)\*(?!\*)", PAGE)
    assert len(named) > 4
    assert not set(named) - set(code)


def test_every_command_that_it_tells_to_type_exists() -> None:
    """A renamed option would be found by somebody in trouble."""
    commands = [one for one in re.findall(r"`(txnlog [^`]+)`", PAGE) if "..." not in one]
    assert len(commands) > 10
    for command in commands:
        parse(shlex.split(command)[1:])


def test_every_symptom_has_a_cause_and_a_way_out() -> None:
    """What to type, or a page."""
    symptoms = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert len(symptoms) > 13
    names = [text.splitlines()[0] for text in symptoms if not re.search(r"\]\(|`txnlog ", text)]
    assert not names
