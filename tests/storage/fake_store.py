"""A store that replies as a test says, on 127.0.0.1, and stores opened on it with secrets."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.settings.test_storage_options import ROOTS
from txnlog.errors import TxnLogError
from txnlog.storage.store.objects import ObjectStore

PLANTED = "pLaNtEd0sEcReT"
KEY = "cExhTnRFZDBzRWNSZVQ="
SECRETS = {
    "s3": {
        "aws_access_key_id": f"AKIA{PLANTED}",
        "aws_secret_access_key": f"s{PLANTED}",
        "aws_session_token": f"t{PLANTED}",
    },
    "azure-key": {"account_name": "acc", "azure_storage_account_key": KEY},
    "azure-sas": {"account_name": "acc", "azure_storage_sas_token": f"sv=1&sig={PLANTED}"},
    "azure-token": {"account_name": "acc", "azure_storage_token": PLANTED},
    "gcs": {"google_bearer_token": PLANTED},
}
STOPS_WITHIN_S = 0.01
ENDPOINTS = {"s3": "aws_endpoint", "azure": "azure_endpoint", "gcs": "google_base_url"}


class Replies(BaseHTTPRequestHandler):
    """A store that gives each request the reply that the test chose, and keeps the requests."""

    def answer(self) -> None:
        server: Any = self.server
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.seen.append((self.command, self.path, dict(self.headers)))
        status, body = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
        self.send_response(status)
        for name in ("ETag", "Last-Modified"):
            self.send_header(name, '"1"' if name == "ETag" else "Mon, 23 Nov 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


@pytest.fixture(name="server")
def replying_server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    found.seen, found.replies = [], [(200, b"found")]
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    threading.Thread(target=found.serve_forever, args=(STOPS_WITHIN_S,), daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)


def opened(server: Any, which: str, **more: str) -> ObjectStore:
    cloud: Any = which.partition("-")[0]
    given = {ENDPOINTS[cloud]: server.url, "allow_http": "true", "max_retries": "0", **more}
    return ObjectStore.from_url(ROOTS[cloud], {**SECRETS[which], **given})


def told(call: Callable[[], object]) -> str:
    """All that a user or a log may see of an error, with its causes."""
    try:
        call()
    except TxnLogError as error:
        whole = "".join(traceback.format_exception(error))
        return f"{whole} {error!r} {error.context} {error.__context__!r} {error.__cause__!r}"
    raise AssertionError("no error")
