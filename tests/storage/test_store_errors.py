"""The error keeps the store's exception, code and reason."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore.store import S3Store

from txnlog.errors import (
    BucketNotFoundError,
    ObjectNotFoundError,
    StorageError,
    StorePermissionError,
    TopicAuthorizationError,
)
from txnlog.storage.store.errors import store_code
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.topic_log import TopicLog

STATUS = {
    "NoSuchKey": 404,
    "NoSuchBucket": 404,
    "AccessDenied": 403,
    "InvalidAccessKeyId": 403,
    "SlowDown": 503,
    "InternalError": 500,
}


class Refusals(BaseHTTPRequestHandler):
    """An S3 server that replies with the error code in the key."""

    def do_GET(self) -> None:
        code = self.path.partition("?")[0].strip("/").split("/")[1]
        body = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>".encode()
        self.send_response(STATUS[code])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusals)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{server.server_address[1]}",
        access_key_id="key",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    yield ObjectStore(found, "s3://bucket")
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
def test_stores_own_code_is_in_the_error_and_its_message(s3: ObjectStore, code: str) -> None:
    """SlowDown needs a retry, NoSuchBucket another root."""
    for call in (lambda: s3.get(f"{code}/a"), lambda: s3.put_if_absent(f"{code}/a", b"x")):
        with pytest.raises(StorageError) as failed:
            call()
        assert failed.value.store_code == code
        assert code in failed.value.message
        assert failed.value.retriable


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId"])
def test_refusal_keeps_the_stores_code_up_to_the_topics_error(s3: ObjectStore, code: str) -> None:
    """A wrong key and a missing permission have different remedies."""
    with pytest.raises(StorePermissionError) as refused:
        s3.get(f"{code}/a")
    assert refused.value.store_code == code
    assert refused.value.store_error == "PermissionDeniedError"
    with pytest.raises(TopicAuthorizationError) as denied:
        TopicLog(s3, code).refresh()
    assert (denied.value.store_code, denied.value.topic) == (code, code)


def test_missing_bucket_is_no_missing_object(s3: ObjectStore) -> None:
    """A log without any file means no topic. To retry without a bucket is to hang."""
    with pytest.raises(ObjectNotFoundError):
        s3.get("NoSuchKey/a")
    for call in (
        lambda: s3.get("NoSuchBucket/a"),
        lambda: s3.put("NoSuchBucket/a", b"x"),
        lambda: s3.put_if_absent("NoSuchBucket/a", b"x"),
    ):
        with pytest.raises(BucketNotFoundError, match="NoSuchBucket.*Create it") as missing:
            call()
        assert (missing.value.retriable, missing.value.fatal) == (False, True)
        assert missing.value.store_code == "NoSuchBucket"


def test_local_disk_names_the_errno(tmp_path: Path) -> None:
    """ENAMETOOLONG, ENOSPC, EROFS are documented names."""
    store = ObjectStore.from_url(str(tmp_path), create=True)
    with pytest.raises(StorageError) as failed:
        store.put("x" * 300, b"")
    assert failed.value.store_error == "NothingWrittenOSError"
    assert failed.value.store_code == "ENAMETOOLONG"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "ENOSPC"),
        (RuntimeError("Generic LocalFileSystem error: No space left (os error 28)"), "ENOSPC"),
        (RuntimeError("status code: 429 Too Many Requests: slow"), "429"),
        (RuntimeError('{"error": {"code": "rateLimitExceeded"}}'), "rateLimitExceeded"),
        (RuntimeError("error sending request"), None),
        (ValueError("x leaves its root"), None),
    ],
)
def test_code_is_found_where_the_store_puts_it(error: BaseException, code: str | None) -> None:
    """Stores put it in different places."""
    assert store_code(error) == code
