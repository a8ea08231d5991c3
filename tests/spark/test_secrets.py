"""Secrets given as options are in no plan, progress, event log, error or log of Spark (R67).

Plans and errors are looked at in `make test`, too: tests/spark_source/test_spark_source.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flights_driver import driver_environment
from spark_session import PROJECT

from txnlog.settings.storage_options import secret_spellings

PLANTED = "pLaNtEd0sEcReT"
VISIBLE = "vIsIbLe0rEgIoN"
SECONDS_MAX = 600


@pytest.mark.spark
@pytest.mark.soak
def test_planted_secrets_are_in_no_artefact_of_a_run(tmp_path: Path, scratch: Path) -> None:
    """Plans were shown with the account's key, SAS, the service account and the key id."""
    secrets = {f"storage.{name}": f"{PLANTED}{n}" for n, name in enumerate(secret_spellings())}
    secrets["storage.proxy_url"] = f"http://{PLANTED}:1"
    secrets["storage.default_headers"] = json.dumps({"x": PLANTED})
    secrets |= {f"checkpoint.{name}": value for name, value in secrets.items()}
    # Shows that options are in the artefacts at all.
    options = {**secrets, "storage.aws_region": VISIBLE}
    folder = tmp_path / "run"
    folder.mkdir()
    environment = driver_environment(scratch, {"TXNLOG_LOG_LEVEL": "DEBUG"})
    with (folder / "log.txt").open("wb") as log:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.secrets_driver", str(folder)],
            input=json.dumps(options).encode(),
            stdout=log,
            stderr=log,
            cwd=PROJECT,
            env=environment,
            timeout=SECONDS_MAX,
            check=False,
        )
    said = (folder / "log.txt").read_text(errors="replace")
    assert done.returncode == 0, said[-4_000:]
    shown = (folder / "shown.txt").read_text()
    for part in ("--- plan", "--- query", "--- error of planning", "--- error of a task"):
        assert part in shown
    assert "Connection refused" in shown
    assert VISIBLE in shown
    holders = {
        str(path.relative_to(folder)): sorted(
            {name for name, value in options.items() if value in text}
        )
        for path in folder.rglob("*")
        if path.is_file() and PLANTED in (text := path.read_bytes().decode("latin1"))
    }
    assert holders == {}
    events = [path for path in (folder / "events").rglob("*") if path.is_file()]
    assert any(VISIBLE in path.read_text() for path in events)
    assert "unless this session's spark.redaction.regex" not in said


def test_option_that_spark_would_show_is_one_warning(tmp_path: Path) -> None:
    """In a session with Spark's own regex; the warning has the name and not the value."""
    code = (
        "import logging, json, sys; logging.basicConfig(level='WARNING')\n"
        "from txnlog.settings.config import parse_config\n"
        "given = json.loads(sys.stdin.read())\n"
        "for _ in range(2): parse_config(given, 'read')\n"
    )
    given = {
        "path": "/r", "subscribe": "a", "storage.azure_storage_account_key": PLANTED,
        "checkpoint.storage.google_service_account_key": PLANTED, "storage.sas_token": PLANTED,
        "storage.secret.master_key": PLANTED,
    }  # fmt: skip
    for conf, expected in ((tmp_path, 1), (PROJECT / "conf", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(given).encode(),
            capture_output=True,
            cwd=PROJECT,
            env={**os.environ, "SPARK_CONF_DIR": str(conf)},
            timeout=SECONDS_MAX,
            check=True,
        )
        said = done.stderr.decode()
        assert said.count("spark.redaction.regex") == expected
        assert PLANTED not in said
        if expected:
            assert "storage.azure_storage_account_key" in said
            assert "checkpoint.storage.google_service_account_key" in said
            assert "sas_token" not in said
            assert "master_key" not in said
