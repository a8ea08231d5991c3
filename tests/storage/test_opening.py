"""Opening object stores with the real library: no panic, no value in an error (D80, R67)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.settings.test_storage_options import ROOTS, good_value
from tests.storage.fake_store import (  # noqa: F401  fixtures
    ENDPOINTS,
    KEY,
    PLANTED,
    SECRETS,
    opened,
    plain_environment,
    replying_server,
    told,
)
from txnlog.errors import (
    BucketNotFoundError,
    ConfigError,
    NothingWrittenError,
    StorageError,
    StorePermissionError,
)
from txnlog.settings.storage_options import parse_storage_options
from txnlog.settings.storage_tables import (
    CLOUD_NAMES,
    COMMON_OPTIONS,
    PREFIXES,
    TABLES,
    Cloud,
    spellings,
)
from txnlog.storage.store.errors import store_errors
from txnlog.storage.store.objects import ObjectStore

# --- Options --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and keys that the library reads when it opens a store, by option."""
    folder = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
    name, now = x509.Name([]), datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    account = {"private_key": pem.decode(), "private_key_id": "i", "client_email": "e"}
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "s"}
    texts = {
        "google_service_account": json.dumps({"type": "service_account", **account}),
        "google_application_credentials": json.dumps({**user, "refresh_token": "r"}),
        "root_certificate": certificate.decode(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {
        "google_service_account_key": texts["google_service_account"],
        "proxy_ca_certificate": str(folder / "root_certificate"),
        **{name: str(folder / name) for name in texts},
    }


WITH: Mapping[str, Mapping[str, str]] = {
    "aws_access_key_id": {"aws_secret_access_key": "s"},
    "aws_secret_access_key": {"aws_access_key_id": "k"},
    "azure_storage_account_name": {},
}
"""What an option needs beside it; Azure's all need the account."""


@pytest.mark.parametrize("cloud", ROOTS)
def test_library_takes_every_documented_name(cloud: Cloud, key_files: dict[str, str]) -> None:
    """A name that the library does not know was a panic, or an error at the first use (D80)."""
    account = {"azure_storage_account_name": "acc"} if cloud == "azure" else {}
    for name, row in spellings(cloud).items():
        if row.part != "credentials":
            given = {name: key_files.get(row.name, good_value(row)), **WITH.get(row.name, account)}
            ObjectStore.from_url(ROOTS[cloud], given)


@pytest.mark.parametrize(
    "bad", [f"{PLANTED}\n€", f"http://u:{PLANTED}@127.0.0.1:9", f'"{PLANTED}"'], ids=repr
)
@pytest.mark.parametrize("cloud", ROOTS)
def test_value_that_the_library_refuses_is_never_shown(cloud: Cloud, bad: str) -> None:
    """Its errors quote values, and the URL of a request with its password (R67)."""
    which = {"s3": "s3", "azure": "azure-key", "gcs": "gcs"}[cloud]
    fixed = {"max_retries": "0", "timeout": "1s", "allow_http": "true"}
    given = {**SECRETS[which], ENDPOINTS[cloud]: "http://127.0.0.1:9", **fixed}
    working = parse_storage_options(ROOTS[cloud], given).values
    for row in (*TABLES[cloud], *(COMMON_OPTIONS if cloud == "s3" else ())):
        if row.part != "credentials":
            options = {**working, row.name: bad}
            shown = told(lambda: ObjectStore.from_url(ROOTS[cloud], options).get("x"))  # noqa: B023
            assert PLANTED not in shown, row.name


@pytest.mark.parametrize(
    ("cloud", "given", "name"),
    [
        ("s3", {"s3_express": PLANTED, "imdsv1_fallback": "true"}, "aws_s3_express"),
        ("s3", {"timeout": PLANTED, "connect_timeout": "5s"}, "timeout"),
        ("s3", {"access_key_id": PLANTED, "timeout": "5s"}, "aws_access_key_id"),
        ("s3", {"proxy_url": f"http://u:{PLANTED}@h:port"}, "proxy_url"),
        ("s3", {"default_headers": f'["{PLANTED}"]'}, "default_headers"),
        ("azure", {"account_name": "acc", "account_key": "!"}, "azure_storage_account_key"),
        ("gcs", {"service_account_key": f'"{PLANTED}"'}, "google_service_account_key"),
        ("gcs", {"service_account": f"/{PLANTED}"}, "google_service_account"),
    ],
)
def test_refused_option_is_named(cloud: Cloud, given: dict[str, str], name: str) -> None:
    """The library's error names none: who set ten options would have to try each."""
    with pytest.raises(ConfigError) as refused:
        ObjectStore.from_url(ROOTS[cloud], given)
    message = refused.value.message
    assert f"the store library for {CLOUD_NAMES[cloud]} refuses storage.{name} (" in message
    assert message.count("storage.") == 1
    assert refused.value.option == f"storage.{name}"


def test_refusal_of_no_single_option_names_all_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing points to one of them."""
    with pytest.raises(ConfigError, match=r"given: timeout.*needs storage\.azure_storage_account"):
        ObjectStore.from_url("az://c", {"timeout": "5s"})
    monkeypatch.setenv("AWS_S3_EXPRESS", PLANTED)
    shown = told(lambda: ObjectStore.from_url("s3://b", {"timeout": "5s"}))
    assert "given: timeout), and the variables AWS_*" in shown
    assert PLANTED not in shown


def test_store_without_conditional_puts_writes_nothing() -> None:
    """Two commits would take one version; the call that the library lacks is no foreign error."""
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    store = ObjectStore.from_url("s3://b", {**keys, "aws_conditional_put": "disabled"})
    with pytest.raises(StorageError, match=r"Leave out storage\.aws_conditional_put") as failed:
        store.put_if_absent("x", b"1")
    assert not failed.value.retriable


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


@pytest.mark.parametrize("options", [{}, {"timeout": "5s"}], ids=str)
@pytest.mark.parametrize("which", ["s3", "azure-key", "gcs"])
def test_variables_of_the_http_client_count_beside_options(
    server: Any, which: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads its own only where it is given no settings of its client at all."""
    cloud: Any = which.partition("-")[0]
    monkeypatch.setenv(f"{PREFIXES[cloud][-1]}allow_http".upper(), "true")
    given = {ENDPOINTS[cloud]: server.url, "max_retries": "0", **SECRETS[which], **options}
    assert ObjectStore.from_url(ROOTS[cloud], given).get("x") == b"found"


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
