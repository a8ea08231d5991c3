"""Serves the page to this machine's user and to nobody else; nothing that it answers can write.

Whoever knows the token may look: it is in the address that is printed, and then in a cookie. A page
of another origin that a browser has open knows neither, and its requests are refused besides: by
the Host header (a name of theirs that resolves to this machine), Origin and Sec-Fetch-Site.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from html import escape
from itertools import count
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from txnlog.errors import ConfigError
from txnlog.text import printable
from txnlog.ui.answers import Answer, Answers
from txnlog.ui.pages import encoded, skin

logger = logging.getLogger("txnlog")
_numbers = count()

ADDRESS: Final = "127.0.0.1"
HOSTS: Final = (ADDRESS, "localhost")
"""A tunnel may have another port, and call its end localhost."""
METHODS: Final = ("GET", "HEAD")
CONNECTIONS_MAX: Final = 64
BACKLOG: Final = 64
"""So many are accepted at once. Without file descriptors asyncio logs a traceback for each."""
HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": skin().policy(
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refusal(NamedTuple):
    """Why a request gets no page, and what its sender can do."""

    status: int
    title: str
    text: str


FOREIGN: Final = "This page answers only to itself. Copy the printed address into the address bar."


def refusal(
    method: str, hosts: list[str], headers: Mapping[str, str], *, knows_token: bool
) -> Refusal | None:
    """None for a request of the page, or one whose sender knows its address."""
    if len(hosts) != 1 or _host_name(hosts[0]) not in HOSTS:
        return Refusal(403, "Another host", f"The Host header must name {ADDRESS} or localhost.")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    is_foreign = site not in ("none", "same-origin") and not knows_token
    if origin not in (None, f"http://{hosts[0]}") or is_foreign:
        return Refusal(403, "Another origin", FOREIGN)
    if method not in METHODS:
        return Refusal(405, "Read-only", "Only GET and HEAD are answered: nothing can be written.")
    return None


def _host_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Connection(H11Protocol):
    """The oldest makes room for one too many: it may be one that never asks, and waits for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(_numbers)
        if len(self.connections) > CONNECTIONS_MAX:
            oldest = min(self.connections, key=lambda one: one.number)  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()


class PageServer:
    """The page at http://127.0.0.1:port, 0 for any free port, until it is left.

    Raises ConfigError when the port is taken.
    """

    def __init__(self, answers: Answers, port: int) -> None:
        self._answers = answers
        self._token = secrets.token_urlsafe(32)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._cookie = f"txnlog-{self.port}"
        # One thread reads the root and makes the pages, one after the other.
        self._one = ThreadPoolExecutor(1, thread_name_prefix="txnlog-show")
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=Connection,
            backlog=BACKLOG,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    @property
    def url(self) -> str:
        """With the token: for the user alone."""
        return f"http://{ADDRESS}:{self.port}/?token={self._token}"

    @property
    def is_serving(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._one.shutdown(wait=False, cancel_futures=True)
        self._socket.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(Request(scope, receive))
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        query = dict(parse_qsl(request.url.query, keep_blank_values=True))
        knows_token = self._is_token(query.pop("token", ""))
        headers = request.headers
        refused = refusal(request.method, headers.getlist("host"), headers, knows_token=knows_token)
        if refused is not None:
            more = {"Allow": ", ".join(METHODS)} if refused.status == 405 else {}
            return self._refused(refused, more)
        if knows_token:
            is_typed = headers.get("sec-fetch-site", "none") == "none"
            return self._with_cookie(request.url.path, query, is_typed=is_typed)
        if not self._is_token(request.cookies.get(self._cookie, "")):
            text = "Open the address that `txnlog show` has printed: it has a token."
            return self._refused(Refusal(403, "No token", text))
        return _response(await self._made(request.url.path, query))

    async def _made(self, path: str, query: Mapping[str, str]) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._one, self._answers.answer, path, query)
        except Exception as error:
            logger.exception("The page %s cannot be made", printable(path))
            text = f"{type(error).__name__}, a defect of txnlog: the command's log says where."
            return self._answers.refused(500, "No page", text)

    def _refused(self, why: Refusal, headers: Mapping[str, str] = {}) -> Response:
        """At once: it waits for nothing that is read."""
        return _response(self._answers.refused(*why), headers)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token.encode())

    def _with_cookie(self, path: str, query: Mapping[str, str], *, is_typed: bool) -> Response:
        """To the same address without the token, so that neither history nor screen shows it."""
        # Two slashes would be another host.
        here = f"/{path.lstrip('/')}"
        here = f"{here}?{encoded(query)}" if query else here
        answer = Answer(303, location=here)
        if not is_typed:
            # After a link of another page, browsers send the cookie only from a page of ours.
            answer = Answer(200, redirect_page(_quoted(here)))
        reply = _response(answer)
        reply.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return reply


def redirect_page(address: str) -> str:
    """HTML that leads to an address at once, and does not say whence."""
    return (
        '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
        f'<meta http-equiv="refresh" content="0; url={escape(address)}"><title>txnlog</title>'
    )


def _quoted(location: str) -> str:
    # What is in a path may be any text, and browsers take \\ for /, as in the address of a host.
    return quote(location, safe="/?&=%~:+,")


def _response(answer: Answer, headers: Mapping[str, str] = {}) -> Response:
    where = _quoted(answer.location)
    more = {"Location": where} if where else {}
    body = answer.html.encode(errors="backslashreplace")
    return Response(body, answer.status, {**HEADERS, **headers, **more}, "text/html")


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise ConfigError(
            f"Port {port} cannot be used: {error.strerror}. Give another, or 0 for any free one."
        ) from None
    return found
