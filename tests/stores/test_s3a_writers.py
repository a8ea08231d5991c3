"""What docs/limits.md says of Spark as a writer of Delta tables on S3: it overwrites commits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stores.test_checkpoints import job_settings

pytestmark = [pytest.mark.stores, pytest.mark.spark]

RACE = """
import json, sys

from pyspark.sql import SparkSession

given = json.load(open(sys.argv[1]))
builder = SparkSession.builder.master("local[1]")
for name, value in given["spark"].items():
    builder = builder.config(name, value)
spark = builder.config("spark.hadoop.fs.s3a.performance.flags", "create").getOrCreate()
path = spark._jvm.org.apache.hadoop.fs.Path(given["url"])
files = path.getFileSystem(spark._jsc.hadoopConfiguration())
assert files.hasPathCapability(path, "fs.s3a.create.performance.enabled")
# As Delta's LogStore for S3 creates a commit, after it has looked whether it is there.
stream = files.create(path, False)
stream.write(bytearray(b"of Spark"))
print("created", flush=True)
input()
stream.close()
"""


def test_flag_of_s3a_does_not_make_commits_conditional(servers: Any, tmp_path: Path) -> None:
    """Once this fails, Spark on S3 may be let write beside others: see docs/limits.md."""
    place = servers.get("versitygw").place("race")
    url = "s3a://" + place.url.removeprefix("s3://") + "/commit.json"
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({**job_settings(place, url), "url": url}))
    command = [sys.executable, "-c", RACE, str(settings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as spark:
        assert spark.stdin is not None
        assert spark.stdout is not None
        assert spark.stdout.readline() == "created\n"
        store = place.open()
        assert store.put_if_absent("commit.json", b"of another")
        spark.stdin.write("\n")
        spark.stdin.close()
        assert spark.wait(120) == 0
    assert store.get("commit.json") == b"of Spark"
