"""The part of Google Cloud Storage's XML API that obstore's client calls, in memory.

    python -m tests.stores.fake_gcs        # prints "listening on 127.0.0.1:<port>"

fake-gcs-server does not honour conditional writes, on which every commit rests. This one follows
Google's reference of the XML API: PUT with x-goog-if-generation-match, and of a copy, GET with
ranges, HEAD, DELETE, ListObjectsV2, and XML multipart uploads. It knows one bucket and one bearer
token. Each object is written at once and read back at once, as Google promises.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hashlib
import time
import uuid
import xml.etree.ElementTree as xml
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.stores.messages import Request, plain_body, read_request, reply_bytes

HOST = "127.0.0.1"
BUCKET = "txnlog-tests"
TOKEN = "token-of-the-fake"
KEYS_MAX = 1_000
NAME_BYTES_MAX = 1_024
PART_BYTES_MIN = 5 << 20
HEAD_BYTES_MAX = 1 << 20
XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True)
class Stored:
    """An object; a write gives it a new generation, larger than every earlier one."""

    data: bytes
    generation: int
    modified_s: float
    etag: str

    @property
    def headers(self) -> dict[str, str]:
        digest = base64.b64encode(hashlib.md5(self.data).digest()).decode()
        return {
            "etag": self.etag,
            "x-goog-generation": str(self.generation),
            "x-goog-metageneration": "1",
            "x-goog-stored-content-length": str(len(self.data)),
            "x-goog-hash": f"md5={digest}",
            "last-modified": email.utils.formatdate(self.modified_s, usegmt=True),
            "accept-ranges": "bytes",
        }


@dataclass
class Upload:
    """An XML multipart upload that is under way: part number -> (etag, bytes)."""

    name: str
    parts: dict[int, tuple[str, bytes]] = field(default_factory=dict)


class RefusedError(Exception):
    """An error reply."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message


class FakeGcs:
    """The objects of one bucket, and replies to requests for them."""

    def __init__(self) -> None:
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, Upload] = {}
        self._generation = 0

    def answer(self, request: Request) -> bytes:
        """The whole reply to a request."""
        try:
            status, headers, body = self._answer(request)
        except RefusedError as refused:
            status, headers = refused.status, {"content-type": "application/xml; charset=UTF-8"}
            body = (
                f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{refused.code}</Code>"
                f"<Message>{escape(refused.message)}</Message></Error>"
            ).encode()
        headers["x-guploader-uploadid"] = uuid.uuid4().hex
        return reply_bytes(status, headers, body, method=request.method)

    def _answer(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise RefusedError(401, "AuthenticationRequired", "Authentication required.")
        bucket, _, name = request.path.lstrip("/").partition("/")
        if bucket != BUCKET:
            raise RefusedError(404, "NoSuchBucket", "The specified bucket does not exist.")
        if not name:
            return self._list(request.query)
        if len(name.encode()) > NAME_BYTES_MAX or "\n" in name or "\r" in name:
            raise RefusedError(400, "InvalidObjectName", "The specified object name is not valid.")
        upload_id = request.query.get("uploadId")
        match request.method:
            case "GET" | "HEAD":
                return self._get(request, name)
            case "PUT" if upload_id is not None:
                return self._put_part(request, upload_id)
            case "PUT":
                return self._put(name, plain_body(request), request)
            case "POST" if "uploads" in request.query:
                return self._begin(name)
            case "POST" if upload_id is not None:
                return self._complete(request, upload_id)
            case "DELETE" if upload_id is not None:
                self._upload(upload_id)
                del self._uploads[upload_id]
                return 204, {}, b""
            case "DELETE":
                return self._delete(request, name)
        raise RefusedError(405, "MethodNotAllowed", "The method is not allowed.")

    # -- objects -----------------------------------------------------------------------------------

    def _get(self, request: Request, name: str) -> tuple[int, dict[str, str], bytes]:
        found = self._objects.get(name)
        if found is None:
            raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
        headers = {**found.headers, "content-type": "application/octet-stream"}
        asked = request.headers.get("range")
        if asked is None:
            if request.method == "HEAD":
                headers["content-length"] = str(len(found.data))
            return 200, headers, found.data
        start, end = _range(asked, len(found.data))
        headers["content-range"] = f"bytes {start}-{end - 1}/{len(found.data)}"
        return 206, headers, found.data[start:end]

    def _put(self, name: str, data: bytes, request: Request) -> tuple[int, dict[str, str], bytes]:
        self._check_generation(request, name)
        self._check_hash(request, data)
        source = request.headers.get("x-goog-copy-source")
        if source is not None:
            found = self._objects.get(unquote(source).lstrip("/").partition("/")[2])
            if found is None:
                raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
            data = found.data
        return 200, self._store(name, data).headers, b""

    def _store(self, name: str, data: bytes) -> Stored:
        # Google's generations are times in us; this one never repeats nor decreases either.
        self._generation = max(self._generation + 1, time.time_ns() // 1_000)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        stored = self._objects[name] = Stored(data, self._generation, time.time(), etag)
        return stored

    def _delete(self, request: Request, name: str) -> tuple[int, dict[str, str], bytes]:
        if name not in self._objects:
            raise RefusedError(404, "NoSuchKey", "The specified key does not exist.")
        self._check_generation(request, name)
        del self._objects[name]
        return 204, {}, b""

    def _check_generation(self, request: Request, name: str) -> None:
        """x-goog-if-generation-match: 0 means that there is no such object."""
        wanted = request.headers.get("x-goog-if-generation-match")
        if wanted is None:
            return
        found = self._objects.get(name)
        if int(wanted) != (0 if found is None else found.generation):
            raise RefusedError(
                412, "PreconditionFailed", "At least one of the pre-conditions did not hold."
            )

    def _check_hash(self, request: Request, data: bytes) -> None:
        wanted = request.headers.get("content-md5")
        if wanted is not None and base64.b64decode(wanted) != hashlib.md5(data).digest():
            raise RefusedError(400, "BadDigest", "The Content-MD5 did not match the body.")

    # -- listings ----------------------------------------------------------------------------------

    def _list(self, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """ListObjectsV2: names in the order of their UTF-8 bytes, KEYS_MAX of them a page."""
        if query.get("list-type") != "2":
            raise RefusedError(400, "InvalidArgument", "The fake lists with list-type=2 only.")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = query.get("continuation-token")
        after = query.get("start-after", "") if token is None else _named(token)
        keys_max = min(KEYS_MAX, int(query.get("max-keys") or KEYS_MAX))
        entries: dict[str, Stored | None] = {}
        newest, is_truncated = "", False
        for name in sorted(self._objects, key=str.encode):
            if not name.startswith(prefix) or name.encode() <= after.encode():
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            shown = name if cut < 0 else name[: cut + len(delimiter)]
            if shown in entries or (cut >= 0 and after.startswith(shown)):
                newest = name
                continue
            if len(entries) == keys_max:
                is_truncated = True
                break
            entries[shown] = self._objects[name] if cut < 0 else None
            newest = name
        body = _listing(prefix, entries, _token(newest) if is_truncated else None)
        return 200, {"content-type": "application/xml; charset=UTF-8"}, body

    # -- multipart uploads -------------------------------------------------------------------------

    def _begin(self, name: str) -> tuple[int, dict[str, str], bytes]:
        upload_id = uuid.uuid4().hex
        self._uploads[upload_id] = Upload(name)
        body = (
            f"<InitiateMultipartUploadResult xmlns='{XMLNS}'><Bucket>{BUCKET}</Bucket>"
            f"<Key>{escape(name)}</Key><UploadId>{upload_id}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )
        return 200, {"content-type": "application/xml"}, body.encode()

    def _upload(self, upload_id: str) -> Upload:
        found = self._uploads.get(upload_id)
        if found is None:
            raise RefusedError(404, "NoSuchUpload", "The requested upload was not found.")
        return found

    def _put_part(self, request: Request, upload_id: str) -> tuple[int, dict[str, str], bytes]:
        data = plain_body(request)
        self._check_hash(request, data)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        self._upload(upload_id).parts[int(request.query["partNumber"])] = (etag, data)
        return 200, {"etag": etag}, b""

    def _complete(self, request: Request, upload_id: str) -> tuple[int, dict[str, str], bytes]:
        upload = self._upload(upload_id)
        self._check_generation(request, upload.name)
        chosen = []
        root = xml.fromstring(plain_body(request))
        for part in (child for child in root if child.tag.rpartition("}")[2] == "Part"):
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in part}
            etag, data = upload.parts.get(int(fields["PartNumber"]), ("", b""))
            if etag.strip('"') != fields["ETag"].strip('"') or not etag:
                raise RefusedError(400, "InvalidPart", "A part was not found.")
            chosen.append(data)
        if any(len(data) < PART_BYTES_MIN for data in chosen[:-1]):
            raise RefusedError(400, "EntityTooSmall", "A part is smaller than 5 MiB.")
        stored = self._store(upload.name, b"".join(chosen))
        del self._uploads[upload_id]
        body = (
            f"<CompleteMultipartUploadResult xmlns='{XMLNS}'><Bucket>{BUCKET}</Bucket>"
            f"<Key>{escape(upload.name)}</Key><ETag>{escape(stored.etag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        )
        headers = {"content-type": "application/xml", "x-goog-generation": str(stored.generation)}
        return 200, headers, body.encode()


def _range(asked: str, size: int) -> tuple[int, int]:
    """Start and end (exclusive) of `bytes=a-b`, `bytes=a-` or `bytes=-n`."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= size:
        raise RefusedError(416, "InvalidRange", "The requested range cannot be satisfied.")
    return start, end


def _listing(prefix: str, entries: dict[str, Stored | None], token: str | None) -> bytes:
    parts = [f"<ListBucketResult xmlns='{XMLNS}'><Name>{BUCKET}</Name>"]
    parts.append(f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>")
    parts.append(f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>")
    if token:
        parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    for name, stored in entries.items():
        if stored is None:
            parts.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
            continue
        modified = datetime.fromtimestamp(stored.modified_s, timezone.utc)
        parts.append(
            f"<Contents><Key>{escape(name)}</Key><Generation>{stored.generation}</Generation>"
            f"<MetaGeneration>1</MetaGeneration>"
            f"<LastModified>{modified:%Y-%m-%dT%H:%M:%S}.{modified.microsecond // 1000:03}Z"
            f"</LastModified><ETag>{escape(stored.etag)}</ETag><Size>{len(stored.data)}</Size>"
            "</Contents>"
        )
    return "".join([*parts, "</ListBucketResult>"]).encode()


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _named(token: str) -> str:
    return base64.urlsafe_b64decode(token).decode()


async def serve() -> None:
    """Answer requests until the process ends."""
    fake = FakeGcs()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (request := await read_request(reader, writer)) is not None:
                writer.write(fake.answer(request))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(accept, HOST, 0, limit=HEAD_BYTES_MAX, backlog=1_000)
    print(f"listening on {HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
