"""What Spark's Delta is given for an object store; without a session."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from spark_source.sql import _reads, _table_path
from txnlog.connector.spark_delta import hadoop_options
from txnlog.settings import config as config_module
from txnlog.settings.redaction import RECOMMENDED
from txnlog.settings.storage_options import checked_settings

KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region": "r"}
PREFIX = "fs.s3a.bucket.b."


def session(conf: dict[str, str]) -> Any:
    return SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, other=None: conf.get(name, other)), version="4.2.0"
    )


def options(conf: dict[str, str], storage: dict[str, str], root: str = "s3://b/x") -> Any:
    return hadoop_options(session(conf), root, checked_settings(root, storage))


def test_spark_gets_the_same_credentials_except_what_the_session_has() -> None:
    """One place for credentials; a setting of the session is meant as it is."""
    found = options({}, KEYS)
    assert found[f"{PREFIX}access.key"] == "k"
    assert found[f"{PREFIX}endpoint.region"] == "r"
    for name in ("spark.hadoop.fs.s3a.endpoint.region", f"spark.hadoop.{PREFIX}endpoint.region"):
        own = options({name: "other"}, KEYS)
        assert own == {k: v for k, v in found.items() if k != f"{PREFIX}endpoint.region"}
    assert options({}, {}, root="/data") == {}


def test_table_is_at_hadoops_url() -> None:
    """Hadoop has no s3://, except EMR's own."""

    def path(conf: dict[str, str], url: str | None = None) -> str:
        return _table_path(_reads(session(conf), "s3://b/x", {}, url, include_headers=False), "t")

    assert path({}) == "s3a://b/x/t"
    assert path({"spark.hadoop.fs.s3.impl": "emr"}) == "s3://b/x/t"
    assert path({}, "s3n://b/y/") == "s3n://b/y/t"


def test_session_that_would_show_a_secret_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's own expression does not know Azure's account keys."""
    root, key = "abfss://c@a.dfs.core.windows.net", {"account_key": "c2VjcmV0"}
    config_module._warned.clear()
    with caplog.at_level(logging.WARNING, "txnlog"):
        options({"spark.redaction.regex": RECOMMENDED}, key, root)
        assert not caplog.records
        for _ in range(2):
            options({}, key, root)
    assert len(caplog.records) == 1
    assert "fs.azure.account.key.a.dfs.core.windows.net" in caplog.text
    assert "c2VjcmV0" not in caplog.text
