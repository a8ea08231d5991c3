"""The built site in a headless browser, in three windows: `make docs-look`.

Uses a Chromium on PATH, else the one that `playwright install chromium` fetches. Pictures of some
pages are left in build/look.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from tests.docs.blocks import ROOT, blocks, steps
from tests.docs.test_site import build

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Width, height, colours, and the height of the smallest text of a diagram.
WINDOWS = {
    "wide": (1400, 900, "light", 9),
    "narrow": (500, 900, "dark", 9),
    "phone": (360, 740, "light", 7),
}
PICTURES = (
    "index",
    "tutorial",
    "overview",
    "architecture",
    "protocol",
    "options",
    "howto/symptoms",
    "traces/two_finishers",
)
LOOK = ROOT / "build" / "look"
# Every element that reaches out of the window, but for those in a box that scrolls by itself.
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const scrolls = e => e && (["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX)
    || scrolls(e.parentElement));
  return [...document.querySelectorAll("main *")]
    .filter(e => e.getBoundingClientRect().right > width + 1 && !scrolls(e.parentElement))
    .map(e => e.tagName + " " + e.className + " " + e.textContent.trim().slice(0, 60));
}"""
BODY = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNDRAWN = (
    """() => [...document.querySelectorAll("pre.mermaid")].map(e => e.textContent.slice(0, 200))"""
)
# Width, height, and the height of the smallest text, in pixels of the window. A sequence is hidden
# where its list is shown.
DRAWN = """() => [...document.querySelectorAll("div.mermaid")].filter(e => e.checkVisibility())
  .map(e => {
    const svg = e.shadowRoot.querySelector("svg");
    const shown = svg.getBoundingClientRect();
    const scale = shown.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text, .nodeLabel")].filter(t => t.textContent.trim());
    const sizes = texts.map(t => parseFloat(getComputedStyle(t).fontSize) * scale);
    return [shown.width, shown.height, Math.min(...sizes)];
  })"""
# Material hides its diagrams from scripts.
OPEN = """() => {
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function () { return attach.call(this, {mode: "open"}); };
}"""
TABLES = """() => [...document.querySelectorAll(".md-typeset__scrollwrap, div.mermaid")]
  .filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent.trim().slice(0, 40))"""
COPIED = """() => [...document.querySelectorAll(".language-console code")]
  .map(e => e.closest("[data-copy]").dataset.copy)"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Accepts all that a page asks for at once, on a busy machine, too."""

    request_queue_size = 128


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (Path(sys.prefix) / ".docs/mermaid.min.js").exists(), "make docs fetches it with npm"
    return build(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Of a server on this machine."""
    handler = functools.partial(Quiet, directory=str(site))
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(which, BROWSERS)), None)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


def pages(site: Path) -> list[str]:
    """Of the site, by their address."""
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


@pytest.mark.parametrize("window", WINDOWS)
def test_every_page_fits_its_window_and_draws_its_diagrams(
    browser: Browser, address: str, site: Path, window: str
) -> None:
    """Nothing is cut off, nothing fails, nothing comes from elsewhere."""
    width, height, scheme, text_px = WINDOWS[window]
    tab = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab.add_init_script(f"({OPEN})()")
    wrong: list[str] = []
    name = ""
    tab.on("pageerror", lambda error: wrong.append(f"{name}: {error}"))
    # Going on to the next page ends what the last one still asks for, such as its icon.
    tab.on(
        "requestfailed",
        lambda request: (
            wrong.append(f"{name}: {request.url} failed, {request.failure}")
            if request.failure != "net::ERR_ABORTED"
            else None
        ),
    )
    tab.on("request", lambda request: wrong.extend(foreign(name, request.url)))
    tab.on(
        "response",
        lambda reply: (
            wrong.append(f"{name}: {reply.url} {reply.status}") if reply.status >= 400 else None
        ),
    )
    drawn = 0
    for name in pages(site):
        if name == "404.html":
            continue
        tab.goto(f"{address}/{name}", wait_until="networkidle")
        diagrams = (site / name).read_text().count('class="mermaid"')
        wrong += [f"{name}: {text}" for text in look(tab, diagrams, text_px)]
        drawn += diagrams
        if name.removesuffix(".html") in PICTURES:
            LOOK.mkdir(parents=True, exist_ok=True)
            stem = name.removesuffix(".html").replace("/", "-")
            tab.screenshot(path=str(LOOK / f"{stem}-{window}.png"), full_page=True)
    tab.close()
    assert not wrong, "\n".join(wrong)
    assert drawn > 15


def look(tab: Tab, diagrams: int, text_px: int) -> list[str]:
    """What is wrong with the page that is open."""
    if diagrams:
        # Drawn one after the other, by a script that is loaded when the first comes into view.
        tab.wait_for_function(f"document.querySelectorAll('div.mermaid').length == {diagrams}")
    wrong = [f"not drawn: {text}" for text in tab.evaluate(UNDRAWN)]
    wrong += [
        f"a diagram is {width} x {height}, with texts of {text} px"
        for width, height, text in tab.evaluate(DRAWN)
        if width < 100 or height < 50 or text < text_px
    ]
    wrong += [f"does not fit: {text}" for text in tab.evaluate(TABLES)]
    if (over := tab.evaluate(BODY)) > 1:
        wrong.append(f"{over} px too wide: {tab.evaluate(OVERFLOW)[:3]}")
    return wrong


def foreign(page: str, url: str) -> list[str]:
    """A request to another machine."""
    host = urlparse(url).hostname
    return [] if host in (None, "127.0.0.1") else [f"{page} asks {url}"]


def test_copy_button_copies_the_commands_of_a_session(
    browser: Browser, address: str, site: Path
) -> None:
    """No prompt, which the shell would take for a command, and no output."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        sessions = [block for block in blocks(page) if block.language == "console"]
        if sessions:
            name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
            tab.goto(f"{address}/{name}")
            commands = ["\n".join(command for command, _ in steps(block)) for block in sessions]
            assert tab.evaluate(COPIED) == commands, name
    tab.goto(f"{address}/explanation/visible.html", wait_until="networkidle")
    tab.locator(".language-console .md-code__button").first.click()
    copied = tab.evaluate("() => navigator.clipboard.readText()").splitlines()
    assert [line.split()[0] for line in copied] == ["export", "txnlog", "printf"]
    context.close()


def test_home_shows_the_first_lines_in_three_languages(browser: Browser, address: str) -> None:
    """One after the other, by a click."""
    tab = browser.new_page(viewport={"width": 500, "height": 900})
    tab.goto(f"{address}/index.html", wait_until="networkidle")
    for title, word in (("SQL", "SELECT"), ("Python", "Producer"), ("Spark", "readStream")):
        tab.locator(".tabbed-labels label", has_text=title).click()
        assert word in tab.locator(".tabbed-block:visible").inner_text()
    assert tab.locator(".doors > div").count() == 3
    tab.close()


def test_search_finds_a_page(browser: Browser, address: str) -> None:
    """It works in the browser alone."""
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.goto(f"{address}/index.html", wait_until="networkidle")
    tab.click("input.md-search__input")
    tab.keyboard.type("ProducerFencedError")
    tab.wait_for_selector(".md-search-result__item")
    assert tab.locator(".md-search-result__item").count() >= 1
    tab.close()
