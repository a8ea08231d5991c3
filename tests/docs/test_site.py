"""The documentation site: built without a warning, whole, and without anything from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

from tests.docs.blocks import ROOT

# What a browser fetches by itself; `a` only leads elsewhere.
FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
STYLE_URL = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. The build fails at a warning: `strict` in mkdocs.yml."""
    folder = tmp_path_factory.mktemp("site")
    return build(folder / "site")


def build(folder: Path) -> Path:
    """Raises AssertionError with the warnings."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    run = subprocess.run(
        [*command, "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


class Page(HTMLParser):
    """Ids, links, fetched resources and text of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        name = FETCHED.get(tag)
        # A canonical or alternate link is not fetched.
        if name in values and values.get("rel") not in ("canonical", "alternate", "next", "prev"):
            self.fetched.append(values[name])


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """The site works offline, and no other server learns who reads it."""
    wrong = [
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.html")
        for url in Page(path).fetched
        if urlparse(url).netloc
    ]
    wrong += [
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.css")
        for url in STYLE_URL.findall(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_every_link_leads_to_a_page_and_a_place_of_the_site(site: Path) -> None:
    """Menus and generated pages, too, which the build does not check."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 50
    wrong = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            url, place = urldefrag(link)
            if path.name == "404.html" or urlparse(url).scheme or urlparse(url).netloc:
                continue
            target = (path.parent / unquote(url)).resolve() if url else path
            target = target / "index.html" if target.is_dir() else target
            is_there = target.exists() and (
                not place or target not in pages or unquote(place) in pages[target].ids
            )
            wrong += [] if is_there else [f"{path.relative_to(site)}: {link}"]
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_every_page_is_in_the_menu(site: Path) -> None:
    """A page that only a link leads to is not found."""
    menu = Page(site / "index.html").links
    hidden = [
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if path.relative_to(site).as_posix() not in {urldefrag(link)[0] for link in menu}
    ]
    assert sorted(hidden) == ["404.html"]


def test_every_trace_and_every_notebook_has_its_page(site: Path) -> None:
    """They are made from other files, and found from a page."""
    traces = {path.stem for path in (ROOT / "tests/interaction/traces").glob("*.txt")}
    assert {path.stem for path in (site / "traces").glob("*.html")} == traces
    linked = set(Page(site / "explanation/traces.html").links)
    assert {f"../traces/{name}.html" for name in traces} <= linked
    for path in sorted((site / "traces").glob("*.html")):
        assert "sequenceDiagram" in path.read_text(), path
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.stem for path in (site / "notebooks").glob("*.html")} == notebooks


def test_reference_has_every_public_call(site: Path) -> None:
    """By the docstrings of the code."""
    ids = Page(site / "reference/api.html").ids
    for name in ("producer.Producer.produce", "consumer.Consumer.poll"):
        assert f"txnlog.{name}" in ids
