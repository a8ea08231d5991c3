"""Every page of empty, rich, hostile and large moments: text stays text, links lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from itertools import combinations
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.ui.moments import HOSTILE, NOW_MS, QUERY_ID, FakeMoments, empty, large, rich
from txnlog.errors import StorageError
from txnlog.protocol.moments import Edge, Flow, Moment, Node, NodeKind
from txnlog.text import printable
from txnlog.ui.answers import Answer, Answers
from txnlog.ui.flow_layout import LABEL, drawn
from txnlog.ui.formats import number, slug
from txnlog.ui.pages import LISTS, Renderer
from txnlog.ui.reading import Reader

SEEN_MAX = {"/records?": 5, "/transaction/": 20}
INLINE = ("a", "b", "small", "span")
MOMENTS = {"empty": empty(), "rich": rich(), "hostile": rich(name=HOSTILE)}


class Page(HTMLParser):
    """What a browser sees of a page: elements, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._is_hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._is_hidden = tag in ("style", "script")
        self.text += "" if tag in INLINE else " "

    def handle_endtag(self, tag: str) -> None:
        self._is_hidden = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._is_hidden else data

    def links(self) -> set[str]:
        """Without those within the page, and without the one to now."""
        anchors = [given for tag, given in self.elements if tag == "a" and "href" in given]
        found = {given["href"] for given in anchors if given.get("class") != "live"}
        return {href for href in found if not href.startswith("#")}


def answers(moment: Moment, name: str = "", value: bytes | None = None) -> Answers:
    return Answers(Reader(FakeMoments(moment, name, value)), Renderer("/data/lake"))


def asked(page: Answers, href: str) -> Answer:
    """What the server would answer."""
    parts = urlsplit(href)
    query = dict(parse_qsl(parts.query, keep_blank_values=True, errors="surrogatepass"))
    return page.answer(parts.path, query)


def crawled(moment: Moment, name: str = "", at: str = "") -> Iterator[tuple[str, Page]]:
    """Every page that links lead to, from the start and the menu."""
    page = answers(moment, name)
    waiting, seen = [f"/{at}", f"/timeline{at}", f"/records{at}"], Counter[str]()
    while waiting:
        href = waiting.pop()
        # Records lead to ever older and newer ones, and transactions are many.
        kind = next((one for one in ("/records?", "/transaction/") if one in href), href)
        seen[kind] += 1
        if seen[kind] > SEEN_MAX.get(kind, 1):
            continue
        found = asked(page, href)
        assert found.status == 200, (href, found.status, Page(found.html).text[-300:])
        parsed = Page(found.html)
        yield href, parsed
        waiting += parsed.links()


@pytest.mark.parametrize("kind", MOMENTS)
@pytest.mark.parametrize("at", ["", f"?at={NOW_MS - 60_000}"])
def test_every_link_of_every_page_leads_to_a_page(kind: str, at: str) -> None:
    """Names are any text: dots, slashes, line breaks, NUL."""
    name = HOSTILE if kind == "hostile" else ""
    seen = [href for href, _ in crawled(MOMENTS[kind], name, at)]
    kinds = {href.split("?")[0].split("/")[1] for href in seen}
    assert kinds >= {*LISTS, "records"} - {"overview"}
    if kind != "empty":
        assert kinds >= {"topic", "group", "query", "id", "transaction"}
    if at:
        assert all("at=" in href for href in seen)


def test_names_keys_and_values_of_others_are_text() -> None:
    """None becomes an element, an attribute or a script; what is invisible is an escape."""
    evil = f"{HOSTILE}<img src=x onerror=alert(1)>".encode()
    page = answers(MOMENTS["hostile"], HOSTILE, evil)
    shown = [parsed for _, parsed in crawled(MOMENTS["hostile"], HOSTILE)]
    for href in (f"/topic/{slug('orders' + HOSTILE)}", f"/records?topic=orders&key={'%00<b>'}"):
        shown.append(Page(asked(page, href).html))
    for one in shown:
        tags = [tag for tag, _ in one.elements]
        assert tags.count("script") == 1
        assert "img" not in tags
        assert not [given for _, given in one.elements for name in given if name[:2] == "on"]
        assert not [given for _, given in one.elements if "style" in given]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", one.text)
    everything = " ".join(one.text for one in shown)
    assert printable(HOSTILE) in everything
    assert "49" not in re.findall(r"\{\{.*?\}\}", everything)


def test_what_housekeeping_would_delete_is_listed_on_a_click_and_not_at_each_refresh() -> None:
    moments = FakeMoments(MOMENTS["rich"])
    now_s = [0.0]
    page = Answers(Reader(moments, clock_s=lambda: now_s[0]), Renderer("/data/lake"))
    assert "/deletable" in Page(asked(page, "/upkeep").html).links()
    assert "deletable" not in moments.calls
    found = " ".join(Page(asked(page, "/deletable").html).text.split())
    assert "unreferenced file 300 files, 44 KiB" in found
    assert "part-299.parquet" in found
    assert "200 of 300 files" in found
    now_s[0] = 59
    assert "part-0.parquet" in Page(asked(page, "/deletable?page=2").html).text
    assert moments.calls.count("deletable") == 1
    now_s[0] = 61
    asked(page, "/deletable")
    assert moments.calls.count("deletable") == 2
    at = f"?at={NOW_MS - 60_000}"
    assert asked(page, f"/deletable{at}").location == f"/upkeep{at}"


def test_a_group_says_how_many_records_an_open_transaction_holds_back() -> None:
    moment = MOMENTS["rich"]
    group = moment.groups["billing"]
    held = sum(one.held_records for one in group.positions)
    assert 0 < held < group.lag_records
    text = " ".join(Page(asked(answers(moment), "/group/billing").html).text.split())
    assert f"Held back {number(held)} of them, by an open transaction" in text


def test_labels_of_the_flow_do_not_lie_on_each_other() -> None:
    """Edges from one node, and edges that cross."""
    for flow in (MOMENTS["rich"].flow, crossing()):
        lines = drawn(flow).lines
        assert len(lines) >= 4
        for one, other in combinations(lines, 2):
            assert abs(one.x - other.x) >= LABEL[0] or abs(one.y - other.y) >= LABEL[1]


def crossing() -> Flow:
    """Two producers that write into both of two topics."""
    producers = [Node(NodeKind.PRODUCER, f"p{n}", f"p{n}") for n in range(2)]
    topics = [Node(NodeKind.TOPIC, f"t{n}", f"t{n}") for n in range(2)]
    edges = [
        Edge((one.kind, one.name), (two.kind, two.name), 1.0, False)
        for one in producers
        for two in topics
    ]
    return Flow([*producers, *topics], edges)


def test_a_name_that_is_not_there_says_so() -> None:
    """An old link, or a topic that did not exist at that time."""
    page = answers(MOMENTS["rich"])
    hostile = f"/id/{slug(HOSTILE)}"
    for href in (
        "/topic/none",
        "/group/none",
        "/query/none",
        hostile,
        "/nothing",
        "/id/~%",
        "/a/b",
    ):
        found = asked(page, href)
        assert found.status == 404, href
        assert "There is no" in Page(found.html).text
    assert asked(page, "/transaction/4711/1").status == 404
    for href in ("/transaction/1/x", "/topics?at=noon", "/topics?time=noon"):
        assert asked(page, href).status == 404, href


def test_a_root_that_cannot_be_read_is_a_sentence() -> None:
    """The page stays, and says what the store said."""
    moments = FakeMoments(MOMENTS["rich"])
    page = Answers(Reader(moments, clock_s=iter(range(0, 99, 9)).__next__), Renderer("/data/lake"))
    assert page.answer("/", {}).status == 200
    moments.error = StorageError("GET <b>lake</b>: timed out")
    found = page.answer("/", {})
    assert found.status == 503
    assert "GET <b>lake</b>: timed out" in Page(found.html).text


@pytest.mark.parametrize(("moment", "verdict"), [(empty(), "No problems"), (rich(), "2 problems")])
def test_the_first_heading_is_the_verdict(moment: Moment, verdict: str) -> None:
    html = asked(answers(moment), "/").html
    [heading] = re.findall(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
    assert Page(heading).text.strip() == verdict


def test_a_problem_has_who_since_why_what_ends_it_and_a_command_with_the_root() -> None:
    text = " ".join(Page(asked(answers(rich()), "/").html).text.split())
    for part in (
        "open transaction: import-legacy",
        "an eager transaction holds the last stable offset",
        "Who run-9 on node-3, process 4711",
        "Since 4 min ago 2026-11-27 08:56:00.000 UTC",
        "Until in 6 min",
        "orders-1 at offset 88012",
        "groups billing",
        "Its time-out, if any client or housekeeping runs then.",
        "txnlog --root=/data/lake transactions abort --transactional-id=import-legacy",
    ):
        assert part in text, part


def test_the_partition_says_who_holds_its_last_stable_offset() -> None:
    html = asked(answers(rich()), "/topic/orders").html
    [row] = [one for one in re.findall(r"<tr>.*?</tr>", html, re.DOTALL) if "88,029" in one]
    assert "import-legacy" in Page(row).text


def test_a_transaction_shows_its_siblings_offsets_phases_and_query() -> None:
    page = answers(rich())
    text = " ".join(Page(asked(page, "/transaction/11/3").html).text.split())
    for part in ("orders 0 88,100 88,199", "payments 3", "billing orders 1 87,004", "batch 417",
                 "enrich orders", "publish 101 ms", "driver-1 decided it"):  # fmt: skip
        assert part in text, part


@pytest.mark.soak
def test_a_large_root_is_cut_and_says_what_is_left_out() -> None:
    """A thousand topics, groups and ids, and a million transactions."""
    page = answers(large())
    overview = asked(page, "/").html
    assert len(overview) < 1_000_000
    text = " ".join(Page(overview).text.split())
    assert "10 of 1,000: those with problems" in text
    assert "The first 8 of 1,000. All topics" in text
    topics = Page(asked(page, "/topics?page=5").html)
    assert "200 of 1,000 topics" in topics.text
    assert not [one for one in topics.links() if "page=6" in one]
    found = Page(asked(page, "/topics?q=topic-77").html).text
    assert "11 of 11 that match, of 1,000 topics" in " ".join(found.split())
    assert len(asked(page, "/timeline").html) < 2_000_000
    flow = Page(asked(page, "/flow").html).text
    assert "more nodes are left out" in flow
    assert "blocked" in flow


@pytest.mark.parametrize(
    ("q", "location"),
    [
        ("orders:1:88012", "/records?topic=orders&partition=1&offset=88012"),
        ("14:3", "/transaction/14/3"),
        ("billing", "/group/billing"),
        ("enrich orders", f"/query/{QUERY_ID}"),
    ],
)
def test_find_leads_to_the_thing(q: str, location: str) -> None:
    page = answers(rich())
    found = page.answer("/find", {"q": q})
    assert (found.status, found.location) == (303, location)
    assert asked(page, location).status == 200


def test_find_lists_what_contains_the_text_and_keeps_the_time() -> None:
    page = answers(rich())
    links = Page(page.answer("/find", {"q": "RD", "at": str(NOW_MS - 1_000)}).html).links()
    assert {f"/topic/orders?at={NOW_MS - 1_000}"} <= links
    assert "Nothing is named like" in Page(page.answer("/find", {"q": HOSTILE}).html).text


@pytest.mark.parametrize(
    ("query", "location"),
    [
        ({"time": "2026-11-27 08:50:00", "q": "a"}, "/topics?q=a&at=1795769400000"),
        ({"time": "08:50"}, "/topics?at=1795769400000"),
        ({"time": "09:30:00"}, "/topics?at=1795685400000"),
        ({"time": "8:50:00"}, "/topics?at=1795769400000"),
        ({"time": "0001-01-01"}, "/topics?at=0"),
        ({"time": ""}, "/topics"),
    ],
)
def test_the_field_of_the_time_leads_to_the_moment(query: Mapping[str, str], location: str) -> None:
    """09:00 alone is the last one: today's, or yesterday's."""
    found = answers(rich()).answer("/topics", query)
    assert (found.status, found.location) == (303, location)


@pytest.mark.parametrize("page", ["0", "00", "-1", "9" * 5_000, "1e3", ""])
def test_a_page_number_that_is_none_is_a_page_of_the_list(page: str) -> None:
    found = answers(rich()).answer("/topics", {"page": page})
    assert found.status == 200
    assert "orders" in Page(found.html).text


def test_a_time_outside_of_what_the_logs_know_is_the_nearest() -> None:
    moments = FakeMoments(rich())
    page = Answers(Reader(moments, clock_s=lambda: 0.0), Renderer("/data/lake"))
    assert "As of <b>2026-11-27 03:00:00" in page.answer("/", {"at": "1000"}).html
    assert page.answer("/", {"at": str(NOW_MS * 2)}).status == 200
    assert moments.calls == ["now", f"at {NOW_MS - 6 * 3_600_000}", f"at {NOW_MS}"]


def test_records_are_asked_for_by_offset_time_and_key() -> None:
    moments = FakeMoments(rich())
    page = Answers(Reader(moments, clock_s=lambda: 0.0), Renderer("/data/lake"))
    for more in ({}, {"offset": "7"}, {"from": "08:00"}, {"key": "k"}, {"partition": "3"}):
        assert page.answer("/records", {"topic": "orders", **more}).status == 200
    assert moments.calls[1:] == [
        "records 'orders' 0 None True",
        "records 'orders' 0 7 True",
        "records 'orders' 0 None True",
        "records 'orders' 0 None True",
        "records 'orders' 3 None True",
    ]
    for wrong in ({"offset": "x"}, {"partition": "9"}, {"from": "x"}, {"offset": "1", "key": "k"}):
        text = Page(page.answer("/records", {"topic": "orders", **wrong}).html).text
        assert "not x" in text or "no partition 9" in text or "Give an offset" in text


def test_many_tabs_read_the_root_once_in_two_seconds() -> None:
    now_s = [100.0]
    moments = FakeMoments(rich())
    page = Answers(Reader(moments, clock_s=lambda: now_s[0]), Renderer("/data/lake"))
    for _ in range(5):
        for path in ("/", "/topics", "/topic/orders", "/transaction/11/3"):
            assert page.answer(path, {}).status == 200
    assert sorted({*moments.calls}) == sorted(moments.calls)
    now_s[0] += 2.5
    page.answer("/", {})
    assert moments.calls.count("now") == 2


@pytest.mark.parametrize(
    ("text", "before_ms"),
    [("-2 min", 120_000), ("-90s", 90_000), ("\u22121 h", 3_600_000), ("-3m", 180_000)],
)
def test_a_time_may_be_before_now(text: str, before_ms: int) -> None:
    """Nobody who looks for what was just now wants to reckon in UTC."""
    found = answers(rich()).answer("/topics", {"time": text})
    assert (found.status, found.location) == (303, f"/topics?at={NOW_MS - before_ms}")
    wrong = answers(rich()).answer("/topics", {"time": "-2 moons"})
    assert wrong.status == 404
    assert "-2 min" in Page(wrong.html).text


def test_a_fence_on_the_timeline_leads_to_the_story() -> None:
    html = asked(answers(rich()), "/timeline").html
    fences = [
        re.findall(r'href="([^"]+)"', tick)[0]
        for tick in re.findall(r'<a class="tick".*?</a>', html)
        if "#m-fenced" in tick
    ]
    assert fences
    for href in fences:
        assert "What happened" in asked(answers(rich()), href).html
