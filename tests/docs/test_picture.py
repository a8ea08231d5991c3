"""The pictures: a drawing that is what its script makes and is legible everywhere, a small PNG."""

from __future__ import annotations

import re
import runpy
from typing import Any
from xml.etree import ElementTree

from tests.docs.blocks import ROOT

PICTURE = ROOT / "docs" / "picture.svg"
SHOWN = ROOT / "docs" / "show.png"


def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "site" / "picture.py"))


def test_picture_is_what_its_script_makes() -> None:
    """Whoever changes it by hand loses the change."""
    assert PICTURE.read_text() == script()["picture"]()
    assert "(picture.svg)" in (ROOT / "docs/README.md").read_text()


def test_readme_shows_the_page_of_a_root() -> None:
    """On the project's first page: small, and made by a script, docs/site/show_picture.py."""
    assert "(docs/show.png)" in (ROOT / "README.md").read_text()
    data = SHOWN.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 150_000


def test_picture_has_its_own_background_and_needs_nothing_from_elsewhere() -> None:
    """Dark text on a dark page, a font that is missing, and a picture that is not there."""
    tree = ElementTree.fromstring(PICTURE.read_text())
    first = next(part for part in tree if part.tag.endswith("rect"))
    assert (first.get("width"), first.get("height")) == (tree.get("width"), tree.get("height"))
    assert luminance(first.get("fill", "")) > 0.9
    texts = [part for part in tree.iter() if part.tag.endswith("}text")]
    assert texts
    assert max(luminance(part.get("fill", "")) for part in texts) < 0.4
    assert tree.get("font-family") == "sans-serif"
    assert not re.search(r"href|@import|url\((?!#)", PICTURE.read_text())


def luminance(color: str) -> float:
    """Of `#rrggbb`, from 0 (black) to 1."""
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
