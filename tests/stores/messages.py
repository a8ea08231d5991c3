"""HTTP/1.1 messages as the fault proxy and the fake of GCS read them: whole, with their bytes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qs, unquote, urlsplit

BODY_BYTES_MAX = 1 << 30
_NO_BODY = (204, 304)


class EndOfStreamError(ConnectionError):
    """The peer has closed the connection in the middle of a message."""


@dataclass(frozen=True)
class Request:
    """A request; `raw_body` is what stood on the wire, chunk headers included."""

    method: str
    target: str
    headers: dict[str, str]
    head: bytes
    raw_body: bytes

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters; one without a value is ''."""
        found = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: values[-1] for name, values in found.items()}

    @cached_property
    def path(self) -> str:
        """The path without escapes: bucket and object."""
        return unquote(urlsplit(self.target).path)

    @property
    def is_conditional(self) -> bool:
        """Whether it writes only where nothing is: S3's and Azure's condition, or GCS'."""
        generation = self.headers.get("x-goog-if-generation-match")
        return self.headers.get("if-none-match") == "*" or generation == "0"

    @cached_property
    def verb(self) -> str:
        """get, head, list, put, create (a conditional put), part, complete or delete."""
        query = self.query
        match self.method:
            case "GET" if "list-type" in query or query.get("comp") == "list":
                return "list"
            case "PUT" if query.get("comp") == "block" or "partNumber" in query:
                return "part"
            case "PUT" if query.get("comp") == "blocklist":
                return "complete"
            case "PUT":
                return "create" if self.is_conditional else "put"
            case "POST" if "delete" in query or query.get("comp") == "batch":
                return "delete"
            case "POST":
                return "complete" if "uploadId" in query else "part"
            case method:
                return method.lower()


@dataclass(frozen=True)
class Reply:
    """A reply as it stood on the wire."""

    status: int
    head: bytes
    raw_body: bytes
    closes: bool

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Request | None:
    """The next request of a connection; None at its end. Answers `Expect: 100-continue` itself."""
    head = await _read_head(reader)
    if not head:
        return None
    first, headers = _parse(head)
    method, target, _ = first.split(" ", 2)
    if headers.pop("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        lines = head.split(b"\r\n")
        head = b"\r\n".join(line for line in lines if not line.lower().startswith(b"expect:"))
    body = await _read_body(reader, headers, until_end=False)
    return Request(method, target, headers, head, body)


async def read_reply(reader: asyncio.StreamReader, method: str) -> Reply:
    """The reply to a request of that method. Raises EndOfStreamError."""
    while True:
        head = await _read_head(reader)
        if not head:
            raise EndOfStreamError("no reply")
        first, headers = _parse(head)
        version, status = first.split(" ")[:2]
        if not status.startswith("1"):
            break
    closes = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
    if method == "HEAD" or int(status) in _NO_BODY:
        return Reply(int(status), head, b"", closes)
    body = await _read_body(reader, headers, until_end=True)
    has_length = "content-length" in headers or "transfer-encoding" in headers
    return Reply(int(status), head, body, closes or not has_length)


def reply_bytes(status: int, headers: dict[str, str], body: bytes, *, method: str = "") -> bytes:
    """A reply for the wire; one to HEAD has the length of `body`, and not `body`."""
    lines = [f"HTTP/1.1 {status} {status}", f"content-length: {len(body)}"]
    if "content-length" in headers:
        lines.pop()
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if method == "HEAD" else head + body


def plain_body(request: Request) -> bytes:
    """The body without chunk headers."""
    if request.headers.get("transfer-encoding", "").lower() != "chunked":
        return request.raw_body
    found, rest = [], request.raw_body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        if length == 0:
            break
        found.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(found)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise EndOfStreamError("the head of a message is cut") from error
        return b""


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read_body(
    reader: asyncio.StreamReader, headers: dict[str, str], *, until_end: bool
) -> bytes:
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _read_chunks(reader)
        if "content-length" in headers:
            size = int(headers["content-length"])
            if size > BODY_BYTES_MAX:
                raise ValueError(f"a body of {size} bytes")
            return await reader.readexactly(size)
        return await reader.read() if until_end else b""
    except asyncio.IncompleteReadError as error:
        raise EndOfStreamError("the body of a message is cut") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    found = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        found.append(line + await reader.readexactly(size + 2))
        if size == 0:
            return b"".join(found)
