"""What Spark's Delta reader is given for an object store; without a session."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from spark_source.sql import _hadoop_options, _reads, _table_path
from txnlog.settings import config as config_module
from txnlog.settings.redaction import RECOMMENDED

KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region": "r"}
PREFIX = "fs.s3a.bucket.b."


def reads(
    conf: dict[str, str], storage: dict[str, str], *, root: str = "s3://b/x", url: str | None = None
) -> Any:
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, other=None: conf.get(name, other))
    )
    return _reads(session, root, storage, url, include_headers=False)


def test_reader_gets_the_same_credentials_except_what_the_session_has() -> None:
    """One place for credentials; a setting of the session is meant as it is."""
    found = _hadoop_options(reads({}, KEYS))
    assert found[f"{PREFIX}access.key"] == "k"
    assert found[f"{PREFIX}endpoint.region"] == "r"
    for name in ("spark.hadoop.fs.s3a.endpoint.region", f"spark.hadoop.{PREFIX}endpoint.region"):
        own = _hadoop_options(reads({name: "other"}, KEYS))
        assert own == {k: v for k, v in found.items() if k != f"{PREFIX}endpoint.region"}
    assert _hadoop_options(reads({}, KEYS, url="s3a://b/x")) == {}
    assert _hadoop_options(reads({}, {}, root="/data")) == {}


def test_table_is_at_hadoops_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop has no s3://, except EMR's own."""
    cluster = SimpleNamespace(store=SimpleNamespace(local_path=lambda path: None))
    monkeypatch.setattr("spark_source.sql._Reads.cluster", cluster)
    assert _table_path(reads({}, {}), "t") == "s3a://b/x/t"
    assert _table_path(reads({"spark.hadoop.fs.s3.impl": "emr"}, {}), "t") == "s3://b/x/t"
    assert _table_path(reads({}, {}, url="s3n://b/y/"), "t") == "s3n://b/y/t"


def test_session_that_would_show_a_secret_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's own expression does not know Azure's account keys."""
    root, key = "abfss://c@a.dfs.core.windows.net", {"account_key": "c2VjcmV0"}
    config_module._warned.clear()
    with caplog.at_level(logging.WARNING, "txnlog"):
        _hadoop_options(reads({"spark.redaction.regex": RECOMMENDED}, key, root=root))
        assert not caplog.records
        for _ in range(2):
            _hadoop_options(reads({}, key, root=root))
    assert len(caplog.records) == 1
    assert "fs.azure.account.key.a.dfs.core.windows.net" in caplog.text
    assert "c2VjcmV0" not in caplog.text
