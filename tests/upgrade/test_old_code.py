"""The code of format 2 itself, from this repository's history, beside an upgrade."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.upgrade.roots import COMMITTED, expected, old_folder, positions, upgrade
from txnlog.cluster import Cluster
from txnlog.storage.store.objects import ObjectStore

ROOT = Path(__file__).parents[2]
LAST_OF_FORMAT_2 = "eb3df0a"
OLD = """
import sys
from txnlog.cluster import Cluster
from txnlog.errors import TxnLogError
cluster = Cluster.open(sys.argv[1])
cluster.groups.commit("plain 3", 1, {"input": {0: 33}})
print("open", flush=True)
sys.stdin.readline()
row = cluster.coordinator.describe
for act in (
    lambda: cluster.groups.commit("plain 3", 1, {"input": {0: 99}}),
    lambda: cluster.groups.start("undecided 1"),
    lambda: cluster.groups.start("never seen"),
    lambda: row("decided"),
    lambda: Cluster.open(sys.argv[1]),
):
    try:
        act()
        print("done", flush=True)
    except TxnLogError as error:
        print(type(error).__name__, "Upgrade txnlog" in str(error), flush=True)
"""


def test_old_code_is_refused_by_every_table(tmp_path: Path) -> None:
    """It had the root open, and reads it again (R38, R45)."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "archive", LAST_OF_FORMAT_2, "txnlog"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("this copy of the project has no history")
    code = tmp_path / "code"
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(code)
    root = old_folder("2", tmp_path / "root")
    environment = {**os.environ, "PYTHONPATH": str(code)}
    with subprocess.Popen(
        [sys.executable, "-c", OLD, root],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as old:
        assert old.stdin is not None
        assert old.stdout is not None
        assert old.stdout.readline() == "open\n"
        upgrade(ObjectStore.from_url(root, create=False)).run()
        out, _ = old.communicate("go\n", timeout=120)
    assert out.splitlines() == ["UnsupportedProtocolError True"] * 5
    after = positions(Cluster.open(root))
    assert after["plain 3"] == {0: 33, 1: 7}
    assert set(after) == set(expected(COMMITTED))
