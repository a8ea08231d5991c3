"""Credentials by reference: a file, profiles, the clouds' libraries, the host's role (D81)."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.settings.test_storage_options import ROOTS
from tests.storage.fake_store import (  # noqa: F401  fixtures
    ENDPOINTS,
    KEY,
    PLANTED,
    opened,
    plain_environment,
    replying_server,
    told,
)
from txnlog.errors import ConfigError, NothingWrittenError, StorePermissionError
from txnlog.settings.roots import place_of
from txnlog.settings.storage_tables import Cloud
from txnlog.storage.store import credentials
from txnlog.storage.store.credentials import CredentialsError, CredentialsFile, Provider
from txnlog.storage.store.objects import ObjectStore


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
    """A tool that rotates the keys may write the file in place, or die in between."""
    file = tmp_path / "credentials"
    file.write_text('{"aws_access_key_id": "KEY1", "aws_secret_access_key": "x"}')
    given = {"credentials.file": str(file), "endpoint": server.url, "allow_http": "true"}
    store = ObjectStore.from_url("s3://b", given)
    store.get("x")
    texts = {"half": '{"aws_acc', "empty": "", "unknown": f'{{"aws_acess": "{PLANTED}"}}'}
    file.unlink() if spoil == "missing" else file.write_text(texts[spoil])
    with caplog.at_level(logging.DEBUG, "txnlog"):
        if spoil == "empty":
            with pytest.raises(NothingWrittenError, match="tried storage.credentials") as failed:
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
        pytest.param('{"a":' * 100_000, "neither", id="deep"),
        pytest.param('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "neither", id="deep, complete"),
        pytest.param(" " * (1 << 20) + "{}", "it has 1048578 bytes", id="large"),
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


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a device"])
@pytest.mark.parametrize(
    ("url", "option", "others"),
    [
        ("s3://b", "credentials.file", {}),
        ("s3://b", "root_certificate", {}),
        ("gs://b", "google_service_account", {}),
        ("gs://b", "google_application_credentials", {}),
        ("az://c", "azure_federated_token_file", {"azure_storage_account_name": "acc"}),
    ],
)
def test_file_that_is_none_is_refused_at_opening(
    tmp_path: Path, kind: str, url: str, option: str, others: dict[str, str]
) -> None:
    """The open of a FIFO waits for a writer, perhaps for ever; /dev/zero has no end."""
    file = tmp_path / "credentials"
    if kind == "a FIFO":
        os.mkfifo(file)
    elif kind == "a folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    shown = told(lambda: ObjectStore.from_url(url, {option: str(file), **others}))
    assert f"{option} " in shown
    assert f"it is {kind}, not a file" in shown


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
    with pytest.raises(ConfigError, match=r"pip install 'txnlog\[s3\]', on driver and executors"):
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
        with pytest.raises(NothingWrittenError) as failed:
            call()
        assert failed.value.message == (
            "No S3 credentials found for s3://b; tried storage.aws_access_key_id, the variables "
            "AWS_*, a web identity and the role of this host, but not ~/.aws, which needs "
            f"storage.credentials.provider=boto3 (HTTP {status})"
            f"{'; it is tried again' if retriable else ''}."
        )
        assert not isinstance(failed.value, StorePermissionError)
        assert (failed.value.retriable, failed.value.fatal) == (retriable, not retriable)
        assert failed.value.store_code == "NoCredentials"
    assert server.seen[0][1] == "/latest/api/token"
