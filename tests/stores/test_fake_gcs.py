"""The fake of Google Cloud Storage answers as Google's reference of the XML API says.

https://cloud.google.com/storage/docs/xml-api/reference-headers (x-goog-if-generation-match),
.../reference-methods, .../request-preconditions, .../quotas (names, sizes of parts). None of this
has been run against the service itself.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from tests.stores.conftest import Servers
from tests.stores.fake_gcs import BUCKET, PART_BYTES_MIN, TOKEN
from tests.stores.servers import HOST, Server
from txnlog.storage.store.clock import check_conditional_puts
from txnlog.storage.store.objects import ObjectStore

IF_ABSENT = {"x-goog-if-generation-match": "0"}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found.group(1).decode() if found else ""


class Client:
    """Plain requests, below a prefix of its own."""

    def __init__(self, server: Server) -> None:
        self.prefix = server.place().url.rpartition("/")[2]
        self._port = server.port

    def __call__(
        self, method: str, name: str, body: bytes | None = None, **more: str | dict[str, str]
    ) -> Answer:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        headers.update(more.get("headers") or {})  # type: ignore[arg-type]
        bucket, query = more.get("bucket", BUCKET), more.get("query", "")
        path = f"{bucket}/{quote(f'{self.prefix}/{name}')}" if name else f"{bucket}"
        url = f"http://{HOST}:{self._port}/{path}?{query}"
        asked = urllib.request.Request(url, method=method, data=body, headers=headers)
        try:
            reply = urllib.request.urlopen(asked, timeout=60)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            found = {key.lower(): value for key, value in reply.headers.items()}
            return Answer(reply.status, found, reply.read())


@pytest.fixture
def server(servers: Servers) -> Server:
    return servers.get("gcs")


@pytest.fixture
def call(server: Server) -> Client:
    return Client(server)


def test_generation_0_means_that_there_is_no_object(call: Client) -> None:
    """412 PreconditionFailed otherwise, and the object stays as it is."""
    first = call("PUT", "slot", b"first", headers=IF_ABSENT)
    assert first.status == 200
    refused = call("PUT", "slot", b"second", headers=IF_ABSENT)
    assert (refused.status, refused.code) == (412, "PreconditionFailed")
    found = call("GET", "slot")
    assert found.body == b"first"
    assert found.headers["x-goog-generation"] == first.headers["x-goog-generation"]
    assert call("DELETE", "slot").status == 204
    assert call("PUT", "slot", b"third", headers=IF_ABSENT).status == 200


def test_each_write_has_a_larger_generation_and_may_be_asked_for(call: Client) -> None:
    """A write under another generation than the object's is refused."""
    one = call("PUT", "a", b"1").headers["x-goog-generation"]
    two = call("PUT", "a", b"2").headers["x-goog-generation"]
    assert int(two) > int(one)
    assert call("PUT", "a", b"3", headers={"x-goog-if-generation-match": one}).status == 412
    assert call("DELETE", "a", headers={"x-goog-if-generation-match": one}).status == 412
    assert call("PUT", "a", b"3", headers={"x-goog-if-generation-match": two}).status == 200
    assert call("GET", "a").body == b"3"


def test_missing_things_have_codes(call: Client) -> None:
    for method in ("GET", "DELETE"):
        missing = call(method, "never")
        assert (missing.status, missing.code) == (404, "NoSuchKey")
    assert call("HEAD", "never").status == 404
    missing = call("GET", "a", bucket="another")
    assert (missing.status, missing.code) == (404, "NoSuchBucket")
    missing = call("PUT", "a", b"", query="partNumber=1&uploadId=none")
    assert (missing.status, missing.code) == (404, "NoSuchUpload")
    denied = call("GET", "a", headers={"Authorization": "Bearer wrong"})
    assert denied.status == 401


def test_ranges(call: Client) -> None:
    call("PUT", "a", b"0123456789")
    for asked, expected in {"bytes=2-4": b"234", "bytes=7-": b"789", "bytes=-2": b"89"}.items():
        found = call("GET", "a", headers={"Range": asked})
        assert (found.status, found.body) == (206, expected)
    assert found.headers["content-range"] == "bytes 8-9/10"
    beyond = call("GET", "a", headers={"Range": "bytes=10-"})
    assert (beyond.status, beyond.code) == (416, "InvalidRange")


def test_list_is_in_order_of_bytes_and_in_pages(call: Client) -> None:
    names = ["B", "a", "a/1", "a/2", "a0", "é", "日"]
    for name in reversed(names):
        call("PUT", name, b"x")
    base = f"list-type=2&prefix={call.prefix}/"
    assert keys(call, base) == [f"{call.prefix}/{name}" for name in names]
    after = quote(f"{call.prefix}/a/1")
    assert keys(call, f"{base}&start-after={after}") == keys(call, base)[3:]
    found = call("GET", "", query=f"{base}&delimiter=/")
    assert re.findall(rb"<Prefix>([^<]*)</Prefix>", found.body)[1:] == [
        f"{call.prefix}/a/".encode()
    ]
    seen: list[str] = []
    token = ""
    while True:
        more = f"&continuation-token={quote(token)}" if token else ""
        page = call("GET", "", query=f"{base}&max-keys=3{more}").body.decode()
        seen += re.findall("<Key>([^<]*)</Key>", page)
        if "<IsTruncated>false" in page:
            break
        token = re.findall("<NextContinuationToken>([^<]*)<", page)[0]
    assert seen == keys(call, base)


def keys(call: Client, query: str) -> list[str]:
    return re.findall("<Key>([^<]*)</Key>", call("GET", "", query=query).body.decode())


def test_multipart_upload_appears_at_its_end(call: Client) -> None:
    """Parts but the last have 5 MiB or more; ETags must be those of the parts."""
    upload = begin(call)
    first = call("PUT", "m", bytes(PART_BYTES_MIN), query=f"partNumber=1&uploadId={upload}")
    last = call("PUT", "m", b"end", query=f"partNumber=2&uploadId={upload}")
    assert call("GET", "m").status == 404
    assert complete(call, upload, [(1, "wrong")]).code == "InvalidPart"
    parts = [(1, first.headers["etag"]), (2, last.headers["etag"])]
    assert complete(call, upload, parts).status == 200
    assert call("GET", "m").body == bytes(PART_BYTES_MIN) + b"end"
    assert complete(call, upload, parts).code == "NoSuchUpload"


def test_multipart_upload_with_small_parts_is_refused(call: Client) -> None:
    upload = begin(call)
    parts = [
        (n, call("PUT", "m", b"x", query=f"partNumber={n}&uploadId={upload}").headers["etag"])
        for n in (1, 2)
    ]
    assert complete(call, upload, parts).code == "EntityTooSmall"
    assert call("DELETE", "m", query=f"uploadId={upload}").status == 204
    assert complete(call, upload, parts).code == "NoSuchUpload"
    assert call("GET", "m").status == 404


def begin(call: Client) -> str:
    found = re.search(rb"<UploadId>(\w+)<", call("POST", "m", b"", query="uploads=").body)
    assert found is not None
    return found.group(1).decode()


def complete(call: Client, upload: str, parts: list[tuple[int, str]]) -> Answer:
    listed = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in parts
    )
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    return call("POST", "m", body, query=f"uploadId={upload}")


def test_names_longer_than_1024_bytes_are_refused(call: Client) -> None:
    room = 1_024 - len(call.prefix) - 1
    assert call("PUT", "a" * room, b"").status == 200
    assert call("PUT", "a" * (room + 1), b"").code == "InvalidObjectName"


def test_client_of_the_library_makes_only_calls_that_the_fake_knows(server: Server) -> None:
    """An unknown call would be answered with 405, and fail here (see also test_contract.py)."""
    store: ObjectStore = server.place().open(max_retries="0")
    check_conditional_puts(store, "__cluster")
    store.now_ms()
    with store.open_writer("large") as writer:
        writer.write(bytes(12 << 20))
    assert store.head("large").size_bytes == 12 << 20
    assert [m.path for m in store.list("", start_after="large")] == []
