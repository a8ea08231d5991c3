"""The page in a headless browser: `make show-look`. Invented moments, a server on the loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.test_browser import BODY, OVERFLOW, foreign
from tests.docs.test_browser import browser as browser
from tests.ui.moments import HOSTILE, NOW_MS, QUERY_ID, FakeMoments, empty, rich
from txnlog.ui.answers import Answers
from txnlog.ui.export import exported, times_between
from txnlog.ui.formats import slug
from txnlog.ui.pages import Renderer
from txnlog.ui.reading import Reader
from txnlog.ui.server import PageServer, redirect_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext
    from playwright.sync_api import Page as Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WINDOWS = {"wide": (1440, 900), "narrow": (500, 800), "phone": (360, 740)}
# A moment that is asked for again is read again: nothing here waits for two seconds to pass.
ALWAYS_NEW = iter(range(0, 10**9, 10)).__next__
LUMINANCES = """() => {
  const lum = c => { const [r, g, b] = c.map(v => { v /= 255;
      return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const rgb = s => s.match(/[\\d.]+/g).map(Number);
  const back = e => { for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > .99) return c.slice(0, 3); }
    return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("main *, header *, footer *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("svg") || !e.getClientRects().length) continue;
    const a = lum(rgb(getComputedStyle(e).color).slice(0, 3)), b = lum(back(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(`${e.tagName} ${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 40)}`);
  }
  return found;
}"""  # noqa: E501


class Shown:
    """A tab on a server; whatever goes wrong in it is in `wrong`."""

    def __init__(self, context: BrowserContext, server: PageServer) -> None:
        self.base = f"http://127.0.0.1:{server.port}"
        self.wrong: list[str] = []
        self.tab = context.new_page()
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))
        self.tab.on("request", lambda request: self.wrong.extend(foreign("page", request.url)))
        self.tab.on(
            "console",
            lambda line: (
                self.wrong.append(line.text) if line.type in ("error", "warning") else None
            ),
        )
        self.tab.goto(server.url)

    def goto(self, path: str) -> Tab:
        self.tab.goto(self.base + path)
        return self.tab


@pytest.fixture
def moments() -> FakeMoments:
    return FakeMoments(rich())


@pytest.fixture
def server(moments: FakeMoments) -> Iterator[PageServer]:
    answers = Answers(Reader(moments, clock_s=ALWAYS_NEW), Renderer("/data/lake"))
    with PageServer(answers, 0) as server:
        yield server


@pytest.fixture
def shown(browser: Browser, server: PageServer) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Shown(context, server)
    yield found
    context.close()
    assert not found.wrong, "\n".join(found.wrong)


def test_a_page_of_the_users_opens_it(shown: Shown, server: PageServer, tmp_path: Path) -> None:
    """The browser is not started with the token, but with a file that leads there."""
    page = tmp_path / "open.html"
    page.write_text(redirect_page(server.url))
    shown.tab.context.clear_cookies()
    shown.tab.goto(page.as_uri())
    shown.tab.wait_for_selector("#verdict")
    assert "token" not in shown.tab.url


def paths(name: str) -> list[str]:
    """One page of each kind."""
    menu = ["", "timeline", "topics", "groups", "queries", "flow", "upkeep", "records"]
    named = [
        f"topic/{slug(f'orders{name}')}",
        f"group/{slug(f'billing{name}')}",
        f"query/{QUERY_ID}",
        f"id/{slug(f'import-legacy{name}')}",
        "transaction/11/3",
        "find?q=o",
    ]
    return [f"/{path}" for path in [*menu, *named]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["", HOSTILE], ids=["rich", "hostile"])
def test_every_page_fits_its_window_and_can_be_read(
    browser: Browser, window: str, scheme: str, name: str
) -> None:
    """Nothing is cut off or runs; text has the contrast that WCAG AA asks for."""
    width, height = WINDOWS[window]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    reader = Reader(FakeMoments(rich(name=name), name, f"{HOSTILE}".encode() * 9_000))
    with PageServer(Answers(reader, Renderer("/data/lake")), 0) as server:
        shown = Shown(context, server)
        for path in paths(name):
            tab = shown.goto(path)
            if (over := tab.evaluate(BODY)) > 1:
                shown.wrong.append(f"{path}: {over} px too wide: {tab.evaluate(OVERFLOW)[:3]}")
            shown.wrong += [f"{path}: {one}" for one in tab.evaluate(LUMINANCES)[:3]]
    context.close()
    assert not shown.wrong, "\n".join(shown.wrong)


def test_the_keyboard_alone_reaches_all_of_it(shown: Shown) -> None:
    tab = shown.goto("/")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    # From there on every link, field and button comes in turn, and shows that it has the focus.
    unseen = []
    reached = set()
    for _ in range(200):
        tab.keyboard.press("Tab")
        told, width, style = tab.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return [e.tagName + ' ' + (e.getAttribute('href') || e.textContent.trim()),"
            " s.outlineWidth, s.outlineStyle]; })()"
        )
        if told.startswith("BODY"):
            break
        reached.add(told)
        if style == "none" or width == "0px":
            unseen.append(told)
    assert not unseen
    assert {
        "BUTTON Copy",
        "A /id/import-legacy",
        "A /transaction/14/3",
        "A /topic/orders",
    } <= reached
    tab.keyboard.press("/")
    tab.keyboard.type("14:3")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/transaction/14/3")


def test_the_slider_moves_through_time_by_keys_and_live_leads_back(shown: Shown) -> None:
    tab = shown.goto("/topics")
    tab.focus("#slider")
    tab.keyboard.press("PageDown")
    tab.wait_for_selector("text=As of 2026-11-27 08:")
    assert re.search(r"/topics\?at=\d+$", tab.url)
    assert tab.evaluate("document.activeElement.id") == "slider"
    at = tab.url.partition("?")[2]
    for link in ("nav a >> text=Groups", "main a >> text=orders-enriched"):
        assert at in str(tab.get_attribute(link, "href"))
    tab.keyboard.press("End")
    tab.wait_for_selector("span.live.on")
    assert tab.url.endswith("/topics")
    tab.goto(f"{shown.base}/topics?at={NOW_MS - 600_000}")
    tab.click("a.live")
    assert tab.url.endswith("/topics")


def test_the_page_refreshes_itself_and_says_when_it_cannot(
    shown: Shown, moments: FakeMoments, server: PageServer
) -> None:
    tab = shown.goto("/")
    assert tab.inner_text("h1") == "2 problems"
    tab.focus("main a[href='/topic/orders']")
    moments.moment = rich(NOW_MS + 60_000)
    tab.wait_for_selector("text=2026-11-27 09:07:00.000 UTC")
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "/topic/orders"
    moments.moment = empty()
    tab.wait_for_selector("h1:has-text('No problems')")
    server.__exit__()
    tab.wait_for_selector(".toast:has-text('txnlog show has ended')")
    assert tab.inner_text("h1") == "No problems"
    shown.wrong = [one for one in shown.wrong if "ERR_" not in one]


def test_copy_copies_the_command(shown: Shown) -> None:
    shown.tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = shown.goto("/")
    tab.click(".problem >> nth=0 >> text=Copy")
    tab.wait_for_function("navigator.clipboard.readText().then(one => one.startsWith('txnlog'))")
    command = "txnlog --root=/data/lake transactions abort --transactional-id=import-legacy"
    assert tab.evaluate("navigator.clipboard.readText()") == command


def test_without_script_links_and_forms_work(browser: Browser, server: PageServer) -> None:
    context = browser.new_context(java_script_enabled=False)
    shown = Shown(context, server)
    tab = shown.goto("/topics")
    tab.fill("input[name=time]", "08:55")
    tab.click(".time button")
    assert "As of 2026-11-27 08:55:00.000 UTC" in tab.inner_text("main")
    tab.fill(".find input[type=search]", "billing")
    tab.click(".find button")
    assert tab.inner_text("h1") == "Group billing"
    assert "As of 2026-11-27 08:55" in tab.inner_text("main")
    tab.click("nav >> text=Records")
    tab.fill("input[name=topic]", "orders")
    tab.fill("input[name=offset]", "88012")
    tab.click("main button")
    assert tab.locator("tr.marked").inner_text().startswith("88012")
    assert not tab.locator(".copy:visible").count()
    tab.click("a.live")
    assert "As of" not in tab.inner_text("main")
    context.close()
    assert not shown.wrong


@pytest.mark.parametrize("with_script", [True, False])
@pytest.mark.parametrize("name", ["", HOSTILE], ids=["rich", "hostile"])
def test_the_file_opens_without_server_or_network(
    browser: Browser, tmp_path: Path, with_script: bool, name: str
) -> None:
    from playwright.sync_api import expect

    html = exported(
        Reader(FakeMoments(rich(name=name), name)),
        Renderer("/data/lake"),
        times_between(NOW_MS - 3_000, NOW_MS),
        written_ms=NOW_MS,
        with_values=False,
    )
    path = tmp_path / "root.html"
    path.write_text(html)
    context = browser.new_context(offline=True, java_script_enabled=with_script)
    tab, wrong = context.new_page(), list[str]()
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("dialog", lambda dialog: wrong.append(dialog.message))
    tab.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    tab.on("requestfailed", lambda request: wrong.append(request.url))
    tab.goto(path.as_uri())
    heading = tab.locator("h1:visible")
    expect(heading).to_have_text("2 problems")
    tab.click("nav >> text=Topics")
    expect(heading).to_have_text("Topics")
    tab.locator("main a:visible", has_text="orders-enriched").first.click()
    expect(heading).to_contain_text("Topic orders-enriched")
    tab.click("nav >> text=Timeline")
    tab.locator("main a:visible", has_text="import-legacy").first.click()
    tab.locator("main a:visible", has_text="14:3").first.click()
    expect(heading).to_contain_text("Transaction 14:3")
    if with_script:
        tab.click("nav >> text=Groups")
        tab.focus("#slider")
        tab.keyboard.press("Home")
        tab.wait_for_selector("text=As of 2026-11-27 08:59:57.000 UTC >> visible=true")
        expect(heading).to_have_text("Groups")
        expect(tab.locator("output")).to_have_text("2026-11-27 08:59:57.000 UTC")
    assert tab.url.startswith("file:")
    context.close()
    assert not wrong, wrong
