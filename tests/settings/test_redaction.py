"""Which options Spark would show, and what Hadoop's settings follow from ours (R67)."""

from __future__ import annotations

from pathlib import Path

import pytest

from txnlog.settings.hadoop import general_name, hadoop_settings, hadoop_url, is_secret_setting
from txnlog.settings.redaction import (
    RECOMMENDED,
    SETTING,
    SPARK_DEFAULT,
    regex_of_conf,
    shown_by_spark,
    warning_of,
)
from txnlog.settings.roots import place_of
from txnlog.settings.storage_options import parse_storage_options, secret_spellings
from txnlog.settings.storage_tables import COMMON_OPTIONS, TABLES

CONF = Path(__file__).resolve().parents[2] / "conf"
KEY = "c2VjcmV0"


@pytest.mark.parametrize("prefix", ["storage.", "checkpoint.storage."])
def test_conf_covers_every_spelling_of_every_secret(prefix: str) -> None:
    """A spelling that the expression misses stands in clear in each streaming plan."""
    regex = regex_of_conf({"SPARK_CONF_DIR": str(CONF)})
    assert regex == RECOMMENDED
    names = [prefix + name for name in secret_spellings()]
    assert len(names) > 40
    assert shown_by_spark(names, regex) == []
    spelled = [f"{prefix}secret.{name}" for name in secret_spellings()]
    assert shown_by_spark(spelled, SPARK_DEFAULT) == []
    assert warning_of(names, regex) is None


def test_conf_does_not_hide_what_is_no_secret() -> None:
    """Plans stay readable."""
    plain = ["storage.aws_region", "storage.credentials.file", "storage.aws_profile", "path"]
    assert shown_by_spark(plain, RECOMMENDED) == sorted(plain)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, SPARK_DEFAULT),
        ("", SPARK_DEFAULT),
        (f"# {SETTING} x\n", SPARK_DEFAULT),
        (f"{SETTING}   (?i)mine\n", "(?i)mine"),
        (f"{SETTING}=mine", "mine"),
    ],
)
def test_regex_is_read_from_the_conf_of_this_process(
    tmp_path: Path, text: str | None, expected: str
) -> None:
    """A worker inherits SPARK_CONF_DIR, and nothing else of its session's settings."""
    if text is not None:
        (tmp_path / "spark-defaults.conf").write_text(text)
    assert regex_of_conf({"SPARK_CONF_DIR": str(tmp_path)}) == expected
    assert shown_by_spark(["storage.sas_key"], "(") == ["storage.sas_key"], "unreadable: warn"


# --- Hadoop ---------------------------------------------------------------------------------------

S3A = "org.apache.hadoop.fs.s3a"


@pytest.mark.parametrize(
    ("root", "given", "expected"),
    [
        (
            "s3://b/x",
            {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region": "r"},
            {
                "fs.s3a.bucket.b.access.key": "k",
                "fs.s3a.bucket.b.secret.key": "s",
                "fs.s3a.bucket.b.endpoint.region": "r",
                "fs.s3a.bucket.b.aws.credentials.provider": f"{S3A}.SimpleAWSCredentialsProvider",
            },
        ),
        (
            "s3://b",
            {"endpoint": "http://h:1", "allow_http": "true", "skip_signature": "true"},
            {
                "fs.s3a.bucket.b.endpoint": "http://h:1",
                "fs.s3a.bucket.b.path.style.access": "true",
                "fs.s3a.bucket.b.connection.ssl.enabled": "false",
                "fs.s3a.bucket.b.aws.credentials.provider": (
                    f"{S3A}.AnonymousAWSCredentialsProvider"
                ),
            },
        ),
        (
            "s3://b",
            {"aws_profile": "dev"},
            {
                "fs.s3a.bucket.b.auth.profile.name": "dev",
                "fs.s3a.bucket.b.aws.credentials.provider": (
                    f"{S3A}.auth.ProfileAWSCredentialsProvider"
                ),
            },
        ),
        (
            "abfss://c@a.dfs.core.windows.net/x",
            {"account_key": KEY},
            {
                "fs.azure.account.auth.type.a.dfs.core.windows.net": "SharedKey",
                "fs.azure.account.key.a.dfs.core.windows.net": KEY,
            },
        ),
        (
            "az://c",
            {"account_name": "a", "sas_token": "sv=1&sig=x"},
            {
                "fs.azure.account.auth.type.a.dfs.core.windows.net": "SAS",
                "fs.azure.sas.fixed.token.a.dfs.core.windows.net": "sv=1&sig=x",
            },
        ),
        (
            "gs://b",
            {"service_account": "/sa.json"},
            {
                "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
                "fs.gs.auth.service.account.json.keyfile": "/sa.json",
            },
        ),
        ("s3://b", {}, {}),
        ("az://c", {"account_name": "a"}, {}),
        ("/data", {"fsync": "true"}, {}),
    ],
)
def test_settings_of_hadoop_follow_from_ours(
    root: str, given: dict[str, str], expected: dict[str, str]
) -> None:
    """One place for credentials: without it Spark's reader needs all of them a second time."""
    assert hadoop_settings(root, parse_storage_options(root, given)) == expected


@pytest.mark.parametrize("bad", ["http://u:x@h:port", "http://[h", "2h 37min", "a\nb"])
@pytest.mark.parametrize("root", ["s3://b", "abfss://c@a.dfs.core.windows.net", "gs://b"])
def test_values_that_hadoop_cannot_have_are_left_out(root: str, bad: str) -> None:
    """The store library reads the values, maybe later: a foreign error here would show them."""
    place = place_of(root)
    assert place is not None
    for row in (*TABLES[place.cloud], *COMMON_OPTIONS):
        if row.part in ("store", "client"):
            found = hadoop_settings(root, parse_storage_options(root, {row.name: bad}))
            assert not row.name.endswith(("timeout", "proxy_url")) or not found, row.name


def test_times_have_units_that_hadoop_reads() -> None:
    """Hadoop would take "5 minutes" for no number."""
    given = {"connect_timeout": "5 minutes", "read_timeout": "30s"}
    assert hadoop_settings("s3://b", parse_storage_options("s3://b", given)) == {
        "fs.s3a.bucket.b.connection.establish.timeout": "300000ms",
        "fs.s3a.bucket.b.connection.timeout": "30000ms",
    }


def test_secrets_among_hadoops_settings_are_known() -> None:
    """The command prints none of them (R67)."""
    given = {
        "s3://b": {
            "aws_access_key_id": "k", "aws_secret_access_key": "s", "token": "t",
            "server_side_encryption": "sse-c", "sse_customer_key_base64": KEY,
            "proxy_url": "http://u:p@h:1",
        },
        "az://c": {
            "account_name": "a", "client_id": "i", "client_secret": "s", "tenant_id": "t",
        },
    }  # fmt: skip
    secrets = {
        name
        for root, options in given.items()
        for name in hadoop_settings(root, parse_storage_options(root, options))
        if is_secret_setting(name)
    }
    assert {general_name("s3://b", name) for name in secrets} == {
        "fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token", "fs.s3a.encryption.key",
        "fs.s3a.proxy.password",
        "fs.azure.account.oauth2.client.secret.a.dfs.core.windows.net",
    }  # fmt: skip
    assert shown_by_spark(secrets, RECOMMENDED) == []


def test_url_of_hadoop() -> None:
    """Hadoop knows no s3:// of its own, and az:// not at all."""
    assert hadoop_url("s3://b/x") == "s3a://b/x"
    assert hadoop_url("az://c/x", {"account_name": "a"}) == "abfss://c@a.dfs.core.windows.net/x"
    assert hadoop_url("/data") == "/data"
