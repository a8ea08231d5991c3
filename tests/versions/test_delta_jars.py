"""Which Sparks Delta has a jar for, by Maven Central: the one test that needs a network."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.versions.installed import ROOT
from txnlog.connector.spark_delta import DELTA_FOR

pytestmark = pytest.mark.versions

MAVEN = "https://repo1.maven.org/maven2/io/delta"
# In a process of its own: sockets of this one reach no other machine.
ASK = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
except urllib.error.HTTPError as error:
    if error.code != 404:
        raise
"""


def released(spark: str) -> list[str]:
    """The versions of Delta's jar for a Spark; none if there is no jar."""
    url = f"{MAVEN}/delta-spark_{spark}_2.13/maven-metadata.xml"
    run = subprocess.run([sys.executable, "-c", ASK, url], capture_output=True, text=True)
    if run.returncode != 0:
        pytest.skip(f"{MAVEN} cannot be reached: {run.stderr[-300:]}")
    return re.findall(r"<version>([^<]+)</version>", run.stdout)


@pytest.mark.parametrize("spark", ["4.0", "4.1", "4.2", "4.3", "4.4", "5.0"])
def test_delta_has_a_jar_exactly_for_the_sparks_that_we_name(spark: str) -> None:
    """If it fails for a newer Spark, add that to DELTA_FOR and to conf/, and try the views."""
    jar = re.search(
        r"io\.delta:delta-spark_4\.2_2\.13:(\S+)", (ROOT / "conf/spark-defaults.conf").read_text()
    )
    assert jar is not None
    assert (jar[1] in released(spark)) == (spark in DELTA_FOR)
