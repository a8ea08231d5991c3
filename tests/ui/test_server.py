"""A real server on the loopback: who may look, what is refused, and that nothing can be written."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.ui.moments import NOW_MS, FakeMoments, rich
from txnlog.errors import ConfigError
from txnlog.ui.answers import Answers
from txnlog.ui.pages import Renderer, skin
from txnlog.ui.reading import Reader
from txnlog.ui.server import CONNECTIONS_MAX, PageServer

Reply = tuple[int, dict[str, str], str]


class Browser:
    """Requests with the cookie, unless other headers are given."""

    def __init__(self, server: PageServer, moments: FakeMoments) -> None:
        self.server = server
        self.moments = moments
        status, headers, _ = self.get(server.url.partition(f":{server.port}")[2], is_known=False)
        assert (status, headers["location"]) == (303, "/")
        self.set_cookie = headers["set-cookie"]

    def get(
        self, path: str, method: str = "GET", *, is_known: bool = True, **headers: str
    ) -> Reply:
        """Status, headers and text of an answer; `sec_fetch_site` is Sec-Fetch-Site."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if is_known:
            given.setdefault("cookie", self.set_cookie.partition(";")[0])
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        connection.request(method, path, headers=given)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    moments = FakeMoments(rich())
    with PageServer(
        Answers(Reader(moments, clock_s=lambda: 0.0), Renderer("/data/lake")), 0
    ) as server:
        yield Browser(server, moments)


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(
    browser: Browser,
) -> None:
    assert "HttpOnly" in browser.set_cookie
    assert "SameSite=strict" in browser.set_cookie
    status, _, text = browser.get("/")
    assert status == 200
    assert "2 problems" in text
    assert browser.server.url.partition("token=")[2] not in text


def test_a_link_with_the_token_keeps_the_rest_of_the_address(browser: Browser) -> None:
    token = browser.server.url.partition("token=")[2]
    _, headers, _ = browser.get(f"//evil.example/a?q=x%00&token={token}")
    assert headers["location"] == "/evil.example/a?q=x%00"


def test_who_comes_from_another_page_with_the_token_is_led_on_by_a_page(browser: Browser) -> None:
    """A file of this user, as `txnlog show` opens: after a redirect there would be no cookie."""
    token = browser.server.url.partition("token=")[2]
    status, headers, text = browser.get(
        f"/topics?q=%22%3E&token={token}", is_known=False, sec_fetch_site="cross-site"
    )
    assert status == 200
    assert "SameSite=strict" in headers["set-cookie"]
    assert 'content="0; url=/topics?q=%22%3E"' in text
    assert token not in text
    for wrong in ("", token[1:]):
        status, headers, _ = browser.get(
            f"/topics?token={wrong}", is_known=False, sec_fetch_site="cross-site"
        )
        assert status == 403
        assert "set-cookie" not in headers


@pytest.mark.parametrize("path", ["/%5Cevil.example", "//evil.example", "/%E2%82%AC%0D%0Aa:b/"])
def test_no_redirect_leads_to_another_host(browser: Browser, path: str) -> None:
    """Browsers take a backslash for a slash."""
    status, headers, _ = browser.get(f"{path}?time=09:00")
    assert status == 303
    assert headers["location"].startswith("/")
    assert headers["location"][1:2] not in ("/", "\\", "")
    assert headers["location"].isascii()


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topic/orders", "/none", "/?token=", "/?token=wrong", "/?token=%ff"]
)
def test_without_the_token_nothing_is_shown_nor_read(browser: Browser, path: str) -> None:
    before = len(browser.moments.calls)
    for headers in ({}, {"cookie": "txnlog=x"}, {"cookie": f"txnlog-{browser.server.port}=wrong"}):
        status, _, text = browser.get(path, is_known=False, **headers)
        assert status == 403
        assert "txnlog show" in text
        assert "orders" not in text
    assert len(browser.moments.calls) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example@"},
        {"host": "[::1"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"host": "localhost", "origin": "http://evil.example"},
    ],
)
def test_other_hosts_and_origins_are_refused_with_the_cookie_too(
    browser: Browser, headers: dict[str, str]
) -> None:
    """A name of theirs that resolves to this machine; a page of another port."""
    before = len(browser.moments.calls)
    status, _, text = browser.get("/", **headers)
    assert status in (400, 403)
    assert "orders" not in text
    assert len(browser.moments.calls) == before


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:9999"},
        {"host": "127.0.0.1"},
        {"sec_fetch_site": "none"},
        {"sec_fetch_site": "same-origin"},
        {"host": "localhost:9999", "origin": "http://localhost:9999"},
    ],
)
def test_a_typed_address_and_a_tunnel_are_answered(
    browser: Browser, headers: dict[str, str]
) -> None:
    assert browser.get("/", **headers)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_only_get_and_head_are_answered(browser: Browser, method: str) -> None:
    status, headers, _ = browser.get("/topics", method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_head_has_the_headers_without_the_page(browser: Browser) -> None:
    status, headers, text = browser.get("/", "HEAD")
    assert (status, text) == (200, "")
    assert headers["content-security-policy"]


def test_every_answer_forbids_foreign_scripts_frames_caches_and_referrers(
    browser: Browser,
) -> None:
    """Those that refuse, too."""
    for path, is_known in (("/", True), ("/none", True), ("/", False), ("/find?q=orders", True)):
        _, headers, _ = browser.get(path, is_known=is_known)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"https?:|\*", policy)
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-type"].startswith("text/html")
        assert not [name for name in headers if name.startswith("access-control")]


def test_the_page_has_no_script_style_or_font_from_elsewhere(browser: Browser) -> None:
    _, _, text = browser.get("/")
    assert text.count("<script") == text.count("<style") == 1
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(\s*['"]?(?!#)""", text)
    assert "http" not in skin().script


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be used"):
            PageServer(Answers(Reader(FakeMoments(rich())), Renderer("/")), taken.getsockname()[1])


def test_the_server_listens_on_this_machine_only(browser: Browser) -> None:
    assert browser.server._socket.getsockname()[0] == "127.0.0.1"


def test_connections_that_say_nothing_make_room(browser: Browser) -> None:
    """Whoever has no token may open them; without file descriptors the log grew without end."""
    address = ("127.0.0.1", browser.server.port)
    silent = [socket.create_connection(address, timeout=60) for _ in range(CONNECTIONS_MAX + 1)]
    with suppress(ConnectionResetError):
        assert silent[0].recv(1) == b""
    assert browser.get("/topics")[0] == 200
    for one in silent:
        one.close()


def test_requests_at_once_are_answered_one_after_the_other() -> None:
    """The logs of a cluster are for one thread."""

    class Counting(FakeMoments):
        inside, most, threads = 0, 0, set[int]()

        def at(self, at_ms: int):  # type: ignore[no-untyped-def]
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.threads.add(threading.get_ident())
            found = super().at(at_ms)
            self.inside -= 1
            return found

    moments = Counting(rich())
    with PageServer(
        Answers(Reader(moments, clock_s=lambda: 0.0), Renderer("/data/lake")), 0
    ) as server:
        one = Browser(server, moments)
        asked = [
            threading.Thread(target=one.get, args=(f"/topics?at={NOW_MS - n}",)) for n in range(8)
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join()
    assert moments.most == 1
    assert len(moments.threads) == 1
    assert len(moments.calls) == 9


def test_a_defect_is_a_page_and_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeMoments):
        def now(self):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("/secret/path")

    with PageServer(Answers(Reader(Broken(rich())), Renderer("/data/lake")), 0) as server:
        status, _, text = Browser(server, Broken(rich())).get("/%1b%5b31m")
    assert status == 500
    assert "\x1b" not in caplog.text
    assert "ZeroDivisionError" in text
    assert "/secret" not in text
    assert "ZeroDivisionError" in caplog.text
