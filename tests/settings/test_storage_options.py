"""`storage.*`: every spelling, our own parsers, suggestions; no value is shown (D80, R67)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checkpoint.location import redacted_location
from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.config import parse_config
from txnlog.settings.docs import with_tables
from txnlog.settings.roots import checked_root, place_of, redacted_url, root_of
from txnlog.settings.storage_options import (
    checked_settings,
    parse_storage_options,
    secret_names,
    secret_spellings,
)
from txnlog.settings.storage_tables import COMMON_OPTIONS, TABLES, Cloud, StorageOption, spellings
from txnlog.settings.storage_values import unparsed

ROOTS: dict[Cloud, str] = {"s3": "s3://b/p", "azure": "az://c/p", "gcs": "gs://b/p"}
PLANTED = "pLaNtEd0sEcReT"
KEY_32 = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTEyMzQ="

EVERY = [(cloud, row) for cloud, rows in TABLES.items() for row in (*rows, *COMMON_OPTIONS)]
NOT_TRUE = {
    "aws_s3_express": "false",
    "aws_server_side_encryption": "AES256",
    "aws_sse_customer_key_base64": KEY_32,
    "aws_checksum_algorithm": "SHA256",
    "aws_conditional_put": "etag",
    "azure_storage_endpoint": "https://h:1",
    "azure_storage_account_key": KEY_32,
    "azure_storage_sas_token": "sv=1&sig=x",
    "azure_credential_type": "azure_cli",
    "azure_storage_encryption_key": KEY_32,
    "credentials.file": "/x",
    "backoff_base": "2.5",
    "max_retries": "3",
    "pool_max_idle_per_host": "3",
    "default_headers": '{"a": "b"}',
}
"""A good value of each option to which "true", or "30s" for a time, is none."""
PARSED = {
    "max_retries": ["-1", "1.5", "x", "101"],
    "retry_timeout": ["30", "-1s", "1 fortnight", "1s 1ms", "99999999h"],
    "init_backoff": ["0ms", "5"],
    "max_backoff": ["0ms", "1 fortnight"],
    "backoff_base": ["0.1", "x", "nan", "1e9"],
    "credentials.provider": ["other"],
    "credentials.file": ["relative", "~/x", "/a\nb"],
    "fsync": ["1"],
}
"""Values that our own parsers refuse."""


def good_value(row: StorageOption) -> str:
    if row.name.endswith(("timeout", "backoff", "interval")):
        return "30s"
    return NOT_TRUE.get(row.name, "true")


@pytest.mark.parametrize("name", PARSED)
def test_bad_values_are_refused_by_name_and_never_shown(name: str) -> None:
    """The library reads none of these (R67)."""
    for bad in (*PARSED[name], "", "\ud800", f"{PLANTED}\n€{PLANTED}"):
        with pytest.raises(ConfigError) as refused:
            parse_storage_options("s3://b", {name: bad})
        assert f"storage.{name}" in str(refused.value)
        assert PLANTED not in str(refused.value)
        assert refused.value.option == f"storage.{name}"
        assert refused.value.__cause__ is None


def test_only_rows_that_the_library_does_not_read_have_a_parser() -> None:
    """One of the library's would refuse what a later library takes."""
    assert {row.name for _, row in EVERY if row.parse is not unparsed} == set(PARSED)


@pytest.mark.parametrize("cloud", TABLES)
def test_every_spelling_is_one_option(cloud: Cloud) -> None:
    """A job moves here with the names of delta-rs, of the library, or of the environment."""
    for name, row in spellings(cloud).items():
        if row.name in ("credentials.provider", "aws_profile"):
            continue
        for spelling in (name, name.upper(), f"secret.{name}"):
            found = parse_storage_options(ROOTS[cloud], {spelling: good_value(row)})
            assert list(found.values) == [row.name]
            assert list(found.of(row.part)) == [row.name]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aws_acces_key_id", "aws_access_key_id"),
        ("regoin", "region"),
        ("alow_http", "allow_http"),
        ("time_out", "timeout"),
        ("credentials.fil", "credentials.file"),
        ("max_retry", "max_retries"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name: str, meant: str) -> None:
    """A setting that is silently ignored is found in production."""
    with pytest.raises(ConfigError, match=f"Did you mean storage.{meant}") as refused:
        parse_storage_options("s3://b", {name: PLANTED})
    assert PLANTED not in str(refused.value)


def test_option_of_another_cloud_is_refused_on_a_remote_root() -> None:
    """It says nothing about this root; on a disk the same options have no effect."""
    given = {"azure_storage_account_key": "c2VjcmV0"}
    with pytest.raises(ConfigError, match="for Azure, and the root is on S3"):
        parse_storage_options("s3://b", given)
    assert not parse_storage_options("/data", given).values
    assert checked_settings("/data", given) == given


def test_two_spellings_with_different_values_are_refused() -> None:
    """Which one counts would be a matter of order."""
    with pytest.raises(ConfigError, match=r"storage\.aws_region and storage\.region"):
        parse_storage_options("s3://b", {"aws_region": "x", "region": "y"})
    assert parse_storage_options("s3://b", {"aws_region": "x", "region": "x"}).values


def test_times_of_retries_have_units_and_ranges() -> None:
    """A bare number would be ms to some and s to others."""
    for text, length in (("500 ms", "500ms"), ("30s", "30000ms"), ("5 minutes", "300000ms")):
        found = parse_storage_options("s3://b", {"retry_timeout": text})
        assert found.values == {"retry_timeout": length}
    with pytest.raises(ConfigError, match="unit"):
        parse_storage_options("s3://b", {"retry_timeout": "30"})


def test_secrets_are_known_in_every_spelling() -> None:
    """The redaction and its warning rely on it (R67)."""
    given = {
        "azure_storage_account_key": "x",
        "SAS_TOKEN": "x",
        "secret.access_key": "x",
        "google_service_account_key": "x",
        "aws_access_key_id": "x",
        "aws_allow_http": "true",
        "region": "x",
        "credentials.file": "/x",
    }
    assert secret_names(given) == sorted(
        set(given) - {"aws_allow_http", "region"} - {"credentials.file"}
    )
    assert {"token", "master_key", "proxy_url", "bearer_token"} <= set(secret_spellings())


def test_providers_fit_the_cloud_and_exclude_static_keys() -> None:
    """The library would silently prefer one of the two."""
    profile = parse_storage_options("s3://b", {"profile": "dev"})
    assert profile.provider == "boto3"
    assert parse_storage_options("s3://b", {}).provider == "default"
    for url, given in (
        ("gs://b", {"credentials.provider": "boto3"}),
        ("az://b", {"credentials.provider": "google"}),
        ("s3://b", {"aws_profile": "x", "credentials.provider": "default"}),
        ("s3://b", {"aws_profile": "x", "aws_access_key_id": "x"}),
        ("s3://b", {"credentials.provider": "boto3", "credentials.file": "/x"}),
    ):
        with pytest.raises(ConfigError):
            parse_storage_options(url, given)


# --- Everywhere the same parsing ------------------------------------------------------------------


def test_clients_and_spark_options_parse_alike() -> None:
    """One place; a setting that works in a producer works in a query."""
    given = {"storage.token": "x", "storage.AWS_ALLOW_HTTP": "yes", "storage.Timeout": "5s"}
    expected = {"aws_session_token": "x", "allow_http": "yes", "timeout": "5s"}
    assert parse_config({"txnlog.root": "s3a://b/p", **given}, "producer").storage == expected
    parsed = parse_config({"path": "s3a://b/p", **given}, "read")
    assert (parsed.storage, parsed.root) == (expected, "s3://b/p")
    for parse in (
        lambda: parse_config({"txnlog.root": "s3://b", "storage.bogus": PLANTED}, "admin"),
        lambda: parse_config({"path": "s3://b", "storage.bogus": PLANTED}, "write"),
        lambda: parse_config({"path": "/b", "checkpoint.storage.bogus": PLANTED}, "write"),
    ):
        with pytest.raises(ConfigError, match=r"storage\.bogus") as refused:
            parse()
        assert PLANTED not in str(refused.value)


def test_configuration_page_is_as_the_tables_are() -> None:
    """Outdated docs lead users into errors."""
    page = (Path(__file__).resolve().parents[2] / "docs/configuration.md").read_text()
    assert page.count("<!-- table: storage") == 4
    assert page == with_tables(page), "python -m txnlog.settings.docs docs/configuration.md"
    assert "-->\n<!-- end -->" not in page, "a table is empty"


# --- Roots (D82) ----------------------------------------------------------------------------------

SAME = (
    ("s3://b/x/y", ("s3a://b/x/y", "s3a://b/x/y/", "S3A://b/x/y", "s3://b//x/y")),
    (
        "abfss://c@acc.dfs.core.windows.net/x",
        (
            "wasbs://c@acc.blob.core.windows.net/x",
            "wasb://c@acc.blob.core.windows.net/x/",
            "abfs://c@acc.dfs.core.windows.net/x",
            "abfss://c@ACC.dfs.core.windows.net/x",
            "az://c@acc.blob.core.windows.net/x",
        ),
    ),
    ("abfss://c@acc.dfs.core.chinacloudapi.cn/x", ("wasbs://c@acc.blob.core.chinacloudapi.cn/x",)),
    ("az://c/x", ("azure://c/x", "adl://c/x", "abfss://c/x")),
    ("gs://b/x", ("gs://b/x/",)),
    ("/data/x", ("/data/x",)),
)


@pytest.mark.parametrize(("one", "others"), SAME, ids=[one for one, _ in SAME])
def test_a_place_has_one_name(one: str, others: tuple[str, ...]) -> None:
    """Two names of one root were two clusters to the caches."""
    assert checked_root(one) == one
    for other in others:
        assert checked_root(other) == one
        assert root_of([one, other]) == one
        assert redacted_url(other) == one


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///x", "hdfs://n/x", "s3n://b/x", f"s3://AKIA:{PLANTED}@b/x",
        f"az://c/x?sig={PLANTED}", f"wasbs://c:{PLANTED}@acc.blob.core.windows.net/x",
        "abfss://c@nowhere/x", f"s3://b/x#{PLANTED}", f"s3://u:a/{PLANTED}@b",
        f"s3://u:a?{PLANTED}@b", f"s3://b/x?sig=a@{PLANTED}", f"s3:/u:{PLANTED}@b",
        f"s3:///u:{PLANTED}@b", f"s3:u:{PLANTED}@b", f"s3:\\\\u:{PLANTED}@b", f"s3//u:{PLANTED}@b",
        f"u:{PLANTED}@b", f"gs:/{PLANTED}@b/x",
    ],
)  # fmt: skip
def test_no_place_for_other_urls_and_secrets(url: str) -> None:
    """They are refused when they are opened; a message does not show what may be a secret."""
    assert place_of(url) is None
    assert PLANTED not in redacted_url(url)
    assert PLANTED not in redacted_location(url)
    with pytest.raises(ConfigError) as caught:
        Cluster.open(url)
    assert PLANTED not in f"{caught.value} {caught.value.context}"


def test_options_of_a_place_show_names_only() -> None:
    """The repr of parsed options goes into logs (R67)."""
    options = parse_storage_options("s3://b", {"aws_secret_access_key": PLANTED, "timeout": "1s"})
    assert re.search("aws_secret_access_key, timeout", repr(options))
    assert PLANTED not in f"{options!r} {options} {checked_settings('s3://b', options.values)}"
