"""`txnlog spark-conf` prints settings, and no secret (R67)."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from txnlog.cli.app import app

PLANTED = "pLaNtEd0sEcReT"


def invoke(*arguments: str) -> str:
    given = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"]
    options = [f"--storage={name}={PLANTED}" for name in given]
    more = ["--storage", "endpoint=https://h:1", "spark-conf"]
    done = CliRunner().invoke(app, ["--root", "s3a://b/x", *options, *more, *arguments])
    assert done.exit_code == 0, done.output
    assert PLANTED not in done.output
    return done.output


def test_settings_are_lines_of_spark_defaults_without_secrets() -> None:
    """The output is appended to a file that others read."""
    lines = invoke().splitlines()
    assert lines[0] == "# s3a://b/x"
    assert "spark.hadoop.fs.s3a.bucket.b.endpoint  https://h:1" in lines
    assert any(line.startswith("spark.redaction.regex  ") for line in lines)
    hidden = [line for line in lines if "not printed" in line]
    assert len(hidden) == 3
    assert all(line.startswith("# spark.hadoop.fs.s3a.bucket.b.") for line in hidden)


def test_settings_as_json() -> None:
    """For programs."""
    found = json.loads(invoke("--output", "json"))
    assert found["root"] == "s3a://b/x"
    assert found["settings"]["spark.hadoop.fs.s3a.bucket.b.path.style.access"] == "true"
    assert len(found["secrets"]) == 3
