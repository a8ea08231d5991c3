"""The clicks that lead to the answer of each question, on a real root: `make show-look`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.docs.test_browser import browser as browser
from tests.why.test_incidents import opened
from tests.why.worlds import Disk, produce
from txnlog.admin.moments import Moments
from txnlog.cli.app import app
from txnlog.errors import ProducerFencedError
from txnlog.ui.answers import Answers
from txnlog.ui.formats import field
from txnlog.ui.pages import Renderer
from txnlog.ui.reading import Reader
from txnlog.ui.server import PageServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]


class Incident:
    """A shop has written, a twin was fenced, and a paused producer blocks the readers."""

    def __init__(self, disk: Disk) -> None:
        produce(disk, "shop", records=3).close()
        readers = disk.consumer("readers")
        readers.subscribe(["orders", "stock"])
        assert len(readers.consume(6, 30)) == 6
        readers.commit(asynchronous=False)
        first = disk.producer("twin")
        first.begin_transaction()
        first.produce("orders", "of the first")
        disk.producer("twin")
        with pytest.raises(ProducerFencedError):
            first.commit_transaction()
        disk.later(5_000)
        self.before_ms = disk.clock.now_ms()
        disk.later(5_000)
        self.paused = opened(disk, "slow", transaction_timeout_ms=600_000)
        produce(disk, "shop", records=2).close()
        disk.later(40_000)
        self.disk = disk
        self.root = str(disk.folder)
        self.moments = Moments(disk.process())


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    return Incident(Disk(tmp_path_factory.mktemp("root") / "lake", age_ms=120_000))


@pytest.fixture
def tab(browser: Browser, incident: Incident) -> Iterator[Tab]:
    """At the start, as its user first sees it."""
    with PageServer(Answers(Reader(incident.moments), Renderer(incident.root)), 0) as server:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        tab = context.new_page()
        tab.goto(server.url)
        yield tab
        context.close()


def test_which_transaction_wrote_this_record_and_what_else_did_it_write(tab: Tab) -> None:
    tab.fill(".find input", "orders:0:1")
    tab.keyboard.press("Enter")
    tab.click("tr.marked a >> nth=1")
    assert tab.inner_text("h1").startswith("Transaction")
    assert "shop" in tab.inner_text(".facts")
    written = tab.inner_text("section[aria-labelledby=h-written]")
    assert "orders" in written
    assert "stock" in written
    tab.click("section[aria-labelledby=h-written] >> tr:has-text('stock') >> a >> nth=1")
    assert "key-0" in tab.inner_text("tr.marked")


def test_the_records_of_a_key_are_found_by_the_form(tab: Tab) -> None:
    tab.click("nav >> text=Records")
    tab.fill("input[name=topic]", "stock")
    tab.fill("input[name=key]", "key-2")
    tab.click("main button")
    assert tab.locator("table.records tbody tr").count() == 1
    assert "key-2" in tab.inner_text("table.records")


def test_why_was_this_producer_fenced(tab: Tab) -> None:
    tab.click(".timeline >> text=twin")
    story = tab.inner_text("section[aria-labelledby=h-story]")
    assert "was fenced by" in story
    assert "taken over by a newer start" in story


def test_who_holds_the_last_stable_offset(tab: Tab) -> None:
    tab.click("section[aria-labelledby=h-topics] >> text=orders")
    partitions = tab.locator("section[aria-labelledby=h-partitions] tbody tr")
    assert "slow" in partitions.first.inner_text()
    tab.click("section[aria-labelledby=h-partitions] >> text=slow")
    assert "open transaction: slow" in tab.inner_text("section.bad")


def test_which_group_is_how_far_behind(tab: Tab) -> None:
    group = tab.locator("section[aria-labelledby=h-groups] tr:has-text('readers')")
    records, time = group.locator("td.n").all_inner_texts()[1:3]
    # Two of stock, and in orders three that the open transaction holds back.
    assert int(records) == 5
    assert "3 records held back" in group.inner_text()
    assert float(time.split()[0]) >= 40
    assert "slow" in group.inner_text()


def test_what_would_vacuum_delete(tab: Tab, incident: Incident) -> None:
    command = tab.inner_text("section[aria-labelledby=h-upkeep] .command code >> nth=-1")
    assert typed(command).startswith("FILE") or "othing" in typed(command)


def test_what_did_the_root_look_like_then(tab: Tab, incident: Incident) -> None:
    assert tab.inner_text("h1") == "1 problem"
    tab.fill("input[name=time]", field(incident.before_ms))
    tab.click(".time button")
    assert tab.inner_text("h1") == "No problems"
    tab.click("nav >> text=Groups")
    cells = tab.locator("tr:has-text('readers') td.n").all_inner_texts()
    assert cells[1:] == ["0", "none"]
    tab.click("a.live")
    assert "slow" in tab.inner_text("main")


def test_what_must_i_type(tab: Tab, incident: Incident) -> None:
    """The last of these tests, as what is copied ends the problem."""
    tab.click(".problem >> text=Copy")
    tab.wait_for_function("navigator.clipboard.readText().then(one => one.startsWith('txnlog'))")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert copied == tab.inner_text(".problem code")
    typed(str(copied))
    # The clock of the root stands still, and so would what is known of it.
    incident.disk.later(5_000)
    tab.wait_for_selector(".problem:has-text('owner fenced')")
    assert "open transaction" not in tab.inner_text(".verdict")


def typed(command: str) -> str:
    """What it prints, in a terminal that knows no root."""
    program, *args = shlex.split(command)
    assert program == "txnlog"
    result = CliRunner().invoke(app, args, env={"TXNLOG_ROOT": "", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return str(result.output)
