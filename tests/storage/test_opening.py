"""Opening object stores with the real library: no panic, no value in an error (D80, R67)."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.settings.test_storage_options import EVERY, ROOTS, good_value
from txnlog.errors import (
    BucketNotFoundError,
    ConfigError,
    NothingWrittenError,
    StorageError,
    StorePermissionError,
    TxnLogError,
)
from txnlog.settings.roots import place_of
from txnlog.settings.storage_tables import Cloud, StorageOption
from txnlog.storage.store import credentials
from txnlog.storage.store.credentials import CredentialsError, CredentialsFile, Provider
from txnlog.storage.store.errors import store_errors
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


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Replies)
    found.seen, found.replies = [], [(200, b"found")]
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    threading.Thread(target=found.serve_forever, daemon=True).start()
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


# --- Options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "row"), EVERY, ids=[f"{cloud}-{row.name}" for cloud, row in EVERY]
)
def test_library_takes_every_option_under_its_name(
    cloud: Cloud, row: StorageOption, tmp_path: Path
) -> None:
    """A name that the library does not know was a panic, or an error at the first use (D80)."""
    if row.part == "credentials":
        return
    options = {row.name: good_value(row)}
    if cloud == "azure":
        options.setdefault("azure_storage_account_name", "acc")
    try:
        ObjectStore.from_url(ROOTS[cloud], options)
    except ConfigError as error:
        # The library wants the other half of a pair, or reads the file; it knows the name.
        message = str(error)
        assert any(
            part in message
            for part in (
                "Missing", "file of storage", "service account", "directory", "No such file",
                "bucket", "key", "field", "PEM", "zone",
            )
        ), message  # fmt: skip
        assert "not valid for store" not in message


@pytest.mark.parametrize("cloud", ROOTS)
def test_client_and_retry_settings_reach_the_store(cloud: Cloud) -> None:
    """They were a panic of the library on all three clouds."""
    given = {
        "timeout": "5s", "connect_timeout": "1s", "allow_http": "true", "max_retries": "3",
        "retry_timeout": "10s", "init_backoff": "5ms", "max_backoff": "1s", "backoff_base": "3",
        "proxy_url": "http://proxy:1", "pool_max_idle_per_host": "3",
    }  # fmt: skip
    more = {"account_name": "acc"} if cloud == "azure" else {}
    found = ObjectStore.from_url(ROOTS[cloud], {**given, **more})._store
    assert found.client_options["proxy_url"] == "http://proxy:1"
    assert found.client_options["timeout"] in ("5s", "5000ms")
    assert found.retry_config["max_retries"] == 3
    assert found.retry_config["retry_timeout"].total_seconds() == 10
    assert found.retry_config["backoff"]["base"] == 3


@pytest.mark.parametrize("which", SECRETS)
def test_request_carries_the_credentials(server: Any, which: str) -> None:
    """What a user gives is used, whatever its spelling."""
    assert opened(server, which).get("x") == b"found"
    _, path, headers = server.seen[0]
    sign = headers.get("Authorization", headers.get("authorization", "")) + path
    expected = {"s3": f"AKIA{PLANTED}", "azure-key": "SharedKey acc:"}.get(which, PLANTED)
    assert expected in sign


def test_url_of_another_azure_cloud_and_a_wrong_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library knows core.windows.net only."""
    store = ObjectStore.from_url("wasbs://c@acc.blob.core.chinacloudapi.cn/x")
    assert store._store.config["endpoint"] == "https://acc.blob.core.chinacloudapi.cn"
    assert (store.url, store._store.prefix) == (
        "abfss://c@acc.dfs.core.chinacloudapi.cn/x", "x",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="names another one"):
        ObjectStore.from_url("abfss://c@acc.dfs.core.windows.net", {"account_name": "other"})


def test_http_endpoint_needs_allow_http() -> None:
    """Otherwise each request fails with "builder error"."""
    with pytest.raises(ConfigError, match="allow_http=true"):
        ObjectStore.from_url("s3://b", {"endpoint": "http://127.0.0.1:9"})


# --- Panics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ACCESS_KEY_ID", f"a\n{PLANTED}"),
        ("AWS_SESSION_TOKEN", f"a\n{PLANTED}"),
        ("AWS_REGION", "a\nb"),
        ("AWS_ENDPOINT", f"no url {PLANTED}"),
    ],
)
def test_panic_at_a_request_is_an_error(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A PanicException passes `except Exception`, and ends a producer's thread. The environment is
    the library's own, so its values are not checked before."""
    for key, text in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", name: value}.items():
        monkeypatch.setenv(key, text)
    store = ObjectStore.from_url("s3://b", {"max_retries": "0", "timeout": "1s"})
    for call in (
        lambda: store.get("x"),
        lambda: store.put("x", b"1"),
        lambda: store.put_if_absent("x", b"1"),
        lambda: store.list("x"),
        lambda: store.head("x"),
        lambda: store.together([lambda: store.get("x")] * 3),
    ):
        with pytest.raises(StorageError, match="library failed inside") as failed:
            call()
        assert not failed.value.retriable
        assert not isinstance(failed.value, NothingWrittenError), "it may have been sent"
        assert PLANTED not in told(call)
    assert PLANTED not in "".join(capfd.readouterr())


def test_panic_in_a_stream_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads and range reads call the library outside of the store's methods."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a\nb")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    store = ObjectStore.from_url("s3://b", {"max_retries": "0"})
    with pytest.raises(StorageError, match="library failed inside"):
        store.open_reader("x")
    writer = store.open_writer("x")

    def upload() -> None:
        with store_errors("x", "upload"):
            writer.write(b"1" * 11_000_000)
            writer.close()

    with pytest.raises(StorageError, match="library failed inside"):
        upload()


# --- Errors (D83) ---------------------------------------------------------------------------------


def xml(code: str, more: str = "") -> bytes:
    text = f"<?xml version='1.0'?>\n<Error><Code>{code}</Code><Message>Told.</Message>"
    return f"{text}<AWSAccessKeyId>AKIA{PLANTED}</AWSAccessKeyId>{more}</Error>".encode()


REPLIES = [
    (403, xml("SignatureDoesNotMatch", f"<StringToSign>{PLANTED}</StringToSign>"), "refuses"),
    (403, xml("InvalidAccessKeyId"), "refuses"),
    (403, xml("AccessDenied"), "refuses"),
    (403, xml("AuthenticationFailed", f"<AuthenticationErrorDetail>{PLANTED}</A>"), "refuses"),
    (400, xml("ExpiredToken", f"<Token-0>{PLANTED}</Token-0>"), "expired"),
    (401, b'{"error":{"code":401,"message":"Told","errors":[{"reason":"authError"}]}}', "refuses"),
    (404, xml("NoSuchBucket"), "Create it"),
    (404, xml("ContainerNotFound"), "Create it"),
    (400, xml("AuthorizationHeaderMalformed"), "another region"),
    (301, xml("PermanentRedirect"), "another region"),
    (503, xml("SlowDown"), "try again"),
    (409, xml("ContainerBeingDeleted"), "try again"),
]


@pytest.mark.parametrize("which", SECRETS)
@pytest.mark.parametrize(
    ("status", "body", "remedy"), REPLIES, ids=[f"{r[0]}-{r[2]}-{n}" for n, r in enumerate(REPLIES)]
)
def test_error_has_the_code_and_a_remedy_and_no_secret(
    server: Any, which: str, status: int, body: bytes, remedy: str
) -> None:
    """The reply names keys; the library appends it twice to its error (R67, R68)."""
    store = opened(server, which)
    server.replies = [(status, body)]
    for call in (
        lambda: store.get("x"),
        lambda: store.put("x", b"1"),
        lambda: store.put_if_absent("x", b"1"),
        lambda: store.list("x"),
    ):
        with pytest.raises(StorageError) as failed:
            call()
        error = failed.value
        assert error.retriable == (status in (409, 503))
        assert isinstance(error, NothingWrittenError) == (status not in (409, 503))
        assert str(error.store_code) in str(error)
        assert remedy in str(error)
        shown = told(call)
        assert PLANTED not in shown
        assert KEY not in shown
    assert isinstance(error, BucketNotFoundError) == (status == 404)
    assert isinstance(error, StorePermissionError) == (remedy in ("refuses", "expired"))


def test_refusal_after_retries_of_a_put_is_in_doubt(server: Any) -> None:
    """The first try may have landed, and its reply been lost."""
    store = opened(server, "s3", max_retries="2", init_backoff="1ms", max_backoff="2ms")
    server.replies = [(500, xml("InternalError")), (403, xml("ExpiredToken"))]
    with pytest.raises(StorageError) as failed:
        store.put_if_absent("x", b"1")
    assert not isinstance(failed.value, NothingWrittenError)
    server.replies = [(500, xml("InternalError")), (403, xml("ExpiredToken"))]
    with pytest.raises(StorePermissionError):
        store.get("x")


@pytest.mark.parametrize("which", SECRETS)
def test_store_that_cannot_be_reached_is_retriable_and_named(server: Any, which: str) -> None:
    """The most usual error of all says what happened in the network."""
    store = opened(server, which)
    server.shutdown()
    server.server_close()
    with pytest.raises(StorageError, match="Connection refused") as failed:
        store.get("x")
    assert failed.value.retriable
    assert PLANTED not in told(lambda: store.put("x", b"1"))


# --- Credentials by reference (D81) ---------------------------------------------------------------


def authorization(server: Any) -> str:
    headers = server.seen[-1][2]
    return str(headers.get("Authorization", headers.get("authorization", ""))) + server.seen[-1][1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at for each request."""
    monkeypatch.setattr(credentials, "CHECK_EVERY", credentials.timedelta(minutes=-6))


FILES = {
    "json": lambda given: json.dumps(given),
    "lines": lambda given: "".join(f"{key} = {value}\n" for key, value in given.items()),
    "aws": lambda given: "[default]\n" + "".join(f"{k}={v}\n" for k, v in given.items()),
}


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize(
    ("cloud", "first", "second"),
    [
        (
            "s3",
            {"aws_access_key_id": "OLDKEY", "aws_secret_access_key": "x"},
            {"aws_access_key_id": "NEWKEY", "aws_secret_access_key": "y%%"},
        ),
        ("azure", {"sas_token": "sv=1&sig=OLDKEY"}, {"sas_token": "sv=1&sig=NEWKEY"}),
        ("azure", {"token": "OLDKEY"}, {"token": "NEWKEY"}),
        ("gcs", {"bearer_token": "OLDKEY"}, {"bearer_token": "NEWKEY"}),
    ],
    ids=["s3", "azure-sas", "azure-token", "gcs"],
)
def test_credentials_file_is_read_again_when_it_changes(
    server: Any,
    impatient: None,
    tmp_path: Path,
    form: str,
    cloud: Cloud,
    first: dict[str, str],
    second: dict[str, str],
) -> None:
    """A stream runs longer than its keys."""
    file = tmp_path / "credentials"
    file.write_text(FILES[form](first))
    given = {
        "credentials.file": str(file), ENDPOINTS[cloud]: server.url, "allow_http": "true",
        **({"account_name": "acc"} if cloud == "azure" else {}),
    }  # fmt: skip
    store = ObjectStore.from_url(ROOTS[cloud], given)
    store.get("x")
    assert "OLDKEY" in authorization(server)
    (tmp_path / "new").write_text(FILES[form](second))
    os.replace(tmp_path / "new", file)
    store.get("x")
    assert "NEWKEY" in authorization(server)


@pytest.mark.parametrize("spoil", ["missing", "half", "empty", "unknown"])
def test_spoiled_file_leaves_what_was_read_before(
    server: Any, impatient: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: str
) -> None:
    """Whoever rotates the keys may write the file in place, or die in between."""
    file = tmp_path / "credentials"
    file.write_text('{"aws_access_key_id": "KEY1", "aws_secret_access_key": "x"}')
    given = {"credentials.file": str(file), "endpoint": server.url, "allow_http": "true"}
    store = ObjectStore.from_url("s3://b", given)
    store.get("x")
    texts = {"half": '{"aws_acc', "empty": "", "unknown": f'{{"aws_acess": "{PLANTED}"}}'}
    file.unlink() if spoil == "missing" else file.write_text(texts[spoil])
    with caplog.at_level(logging.DEBUG, "txnlog"):
        if spoil == "empty":
            with pytest.raises(NothingWrittenError, match="no credentials") as failed:
                store.put("x", b"1")
            assert failed.value.retriable
            assert failed.value.store_code == "NoCredentials"
        else:
            assert store.get("x") == b"found"
            assert "KEY1" in authorization(server)
            assert "Continuing with what was read before" in caplog.text
    assert PLANTED not in caplog.text
    file.write_text('{"aws_access_key_id": "KEY2", "aws_secret_access_key": "x"}')
    store.get("x")
    assert "KEY2" in authorization(server)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("{", "neither a JSON object"),
        (f'{{"aws_acces_key_id": "{PLANTED}"}}', "Did you mean aws_access_key_id"),
        ('{"region": "x", "credentials.file": "/x"}', "may not refer"),
        ('{"timeout": "1s"}', "Keep one of them"),
        (f'{{"azure_storage_account_key": "{KEY}"}}', "for Azure"),
        ("[other]\naws_region=x", "neither"),
        ("\0", "neither"),
    ],
)
def test_file_that_cannot_be_used_is_refused_at_opening(
    tmp_path: Path, text: str | None, message: str
) -> None:
    """Without its values (R67)."""
    file = tmp_path / "credentials"
    if text is not None:
        file.write_text(text)
    given = {"credentials.file": str(file), "timeout": "5s"}
    shown = told(lambda: ObjectStore.from_url("s3://b", given))
    assert message in shown
    assert PLANTED not in shown
    assert KEY not in shown


def test_boto3_profile_signs_requests(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself does not read ~/.aws."""
    pytest.importorskip("boto3")
    file = tmp_path / "aws"
    file.write_text("[dev]\naws_access_key_id = FROMPROFILE\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    (tmp_path / "config").write_text("[profile dev]\nregion = from-profile\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    given = {"aws_profile": "dev", "endpoint": server.url, "allow_http": "true"}
    ObjectStore.from_url("s3://b", given).get("x")
    assert "FROMPROFILE" in authorization(server)
    assert "/from-profile/s3/" in authorization(server)
    ObjectStore.from_url("s3://b", {**given, "region": "given"}).get("x")
    assert "/given/s3/" in authorization(server)
    with pytest.raises(ConfigError, match=r"aws sso login") as refused:
        ObjectStore.from_url("s3://b", {**given, "aws_profile": "absent"})
    assert refused.value.option == "storage.aws_profile"


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has to be installed on executors, too."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'txnlog\[aws\]', on driver and executors"):
        ObjectStore.from_url("s3://b", {"credentials.provider": "boto3"})


def test_provider_that_fails_shows_no_value_and_is_retriable(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of another library's error is not ours to vouch for (R67)."""

    def fail() -> dict[str, Any]:
        raise RuntimeError(PLANTED)

    provider = Provider("boto3", fail)
    monkeypatch.setattr("txnlog.storage.store.opening.credential_provider", lambda *_: provider)
    store = opened(server, "s3")
    with pytest.raises(NothingWrittenError, match="boto3 failed with RuntimeError") as failed:
        store.get("x")
    assert failed.value.retriable
    assert PLANTED not in told(lambda: store.put("x", b"1"))
    with pytest.raises(CredentialsError):
        provider()
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(provider)


def test_file_names_itself_only(tmp_path: Path) -> None:
    """Its repr is in logs (R67)."""
    (tmp_path / "c").write_text(f'{{"bearer_token": "{PLANTED}"}}')
    place = place_of("gs://b")
    assert place is not None
    file = CredentialsFile(str(tmp_path / "c"), place)
    assert file.read() == {"bearer_token": PLANTED}
    assert PLANTED not in f"{file!r} {file}"


def test_azure_identity_supplies_tokens(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A managed identity's or a developer's token, without any secret in the options."""
    identity = pytest.importorskip("azure.identity")

    class Token:
        token, expires_on = "FROMAZURE", time.time() + 3_600

    class Default:
        def get_token(self, *_: object, **__: object) -> Token:
            return Token()

    monkeypatch.setattr(identity, "DefaultAzureCredential", Default)
    given = {"credentials.provider": "azure", "account_name": "acc", "endpoint": server.url}
    ObjectStore.from_url("az://c", {**given, "allow_http": "true"}).get("x")
    assert "FROMAZURE" in authorization(server)


def test_google_auth_supplies_tokens(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Azure's."""
    auth = pytest.importorskip("google.auth")

    class Default:
        token, expiry = None, None

        def refresh(self, _: object) -> None:
            self.token = "FROMGOOGLE"  # type: ignore[assignment]

    monkeypatch.setattr(auth, "default", lambda: (Default(), "project"))
    given = {"credentials.provider": "google", "base_url": server.url, "allow_http": "true"}
    ObjectStore.from_url("gs://b", given).get("x")
    assert "FROMGOOGLE" in authorization(server)

    def absent() -> None:
        raise RuntimeError(PLANTED)

    monkeypatch.setattr(auth, "default", absent)
    with pytest.raises(ConfigError, match="finds no credentials on this host") as refused:
        ObjectStore.from_url("gs://b", given)
    assert PLANTED not in str(refused.value)


@pytest.mark.parametrize(("status", "retriable"), [(404, False), (403, False), (500, True)])
def test_host_without_credentials_is_told_so(server: Any, status: int, retriable: bool) -> None:
    """Without any credentials the library asks the instance's role, and shows that reply only."""
    server.replies = [(status, b"no role")]
    given = {"metadata_endpoint": server.url, "allow_http": "true", "max_retries": "0"}
    store = ObjectStore.from_url("s3://b", given)
    for call in (lambda: store.get("x"), lambda: store.put_if_absent("x", b"1")):
        with pytest.raises(
            NothingWrittenError, match="no credentials.*the role of this host"
        ) as failed:
            call()
        assert not isinstance(failed.value, StorePermissionError)
        assert (failed.value.retriable, failed.value.fatal) == (retriable, not retriable)
        assert failed.value.store_code == "NoCredentials"
    assert server.seen[0][1] == "/latest/api/token"
