"""The picture of README.md: the page of `txnlog show`, of an invented shop in which one producer is
paused. `PYTHONPATH=. python docs/site/show_picture.py` makes it, with the browser of show-look.
"""

from __future__ import annotations

from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

from tests.docs.test_browser import BROWSERS
from tests.ui.moments import FakeMoments, rich
from txnlog.ui.answers import Answers
from txnlog.ui.pages import Renderer
from txnlog.ui.reading import Reader
from txnlog.ui.server import PageServer

PICTURE = Path(__file__).resolve().parents[1] / "show.png"
WIDTH, HEIGHT = 1200, 980


def main() -> None:
    """Write it."""
    answers = Answers(Reader(FakeMoments(rich())), Renderer("/data/lake"))
    program = next(filter(None, map(which, BROWSERS)), None)
    with PageServer(answers, 0) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.goto(server.url)
        tab.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
