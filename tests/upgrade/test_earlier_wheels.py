"""A root that the wheel of an earlier commit wrote: this code upgrades it, and loses nothing.

The wheels are built from the history of this checkout; without one the tests are skipped.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from txnlog.admin import AdminClient, ConsumerGroupTopicPartitions, VerifySettings
from txnlog.consumer import Consumer
from txnlog.errors import UnsupportedProtocolError
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.producer import Producer
from txnlog.storage.tables.cluster_log import FORMAT

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("old_program.py")
FORMAT_FILE = "txnlog/storage/tables/cluster_log.py"


def git(*arguments: str) -> bytes:
    """What git prints. Skips the test where there is no history."""
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"`git {arguments[0]}` fails here: this checkout has no history ({error})")
    return run.stdout


def commit_before() -> str:
    """The parent of the checked-out commit."""
    return git("rev-parse", "--verify", "HEAD~1").decode().strip()


def format_before() -> str:
    """The newest commit with an earlier format of roots."""
    change = git("log", "-1", "--format=%H", "-G^FORMAT = ", "--", FORMAT_FILE).decode().strip()
    if not change:
        pytest.skip("the history does not reach back to an earlier format")
    return git("rev-parse", "--verify", f"{change}~1").decode().strip()


def installed(commit: str, folder: Path) -> Path:
    """The wheel of a commit, built by its own pyproject.toml and installed into a folder."""
    source, wheels, target = folder / "source", folder / "wheels", folder / "installed"
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
        archive.extractall(source)
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels), cwd=source)
    (wheel,) = wheels.glob("*.whl")
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps")
    python(*pip, "--no-index", "--target", str(target), str(wheel), cwd=folder)
    return target


def python(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """The stdout of this Python; with `path` it imports txnlog from there."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("find", [commit_before, format_before])
def test_root_of_an_earlier_wheel_is_upgraded_and_nothing_is_lost(
    find: Any, tmp_path: Path
) -> None:
    """Records, offsets, open transactions and fencing survive (R59); the damage check agrees."""
    old = installed(find(), tmp_path)
    root = str(tmp_path / "lake")
    written = json.loads(python(str(PROGRAM), root, str(old), cwd=tmp_path, path=old))
    config = {"txnlog.root": root}

    report = AdminClient(config).upgrade(watch_ms=0).result()
    assert report.format == str(FORMAT)
    assert AdminClient(config).upgrade(watch_ms=0).result().steps == ()
    admin = AdminClient(config)
    asked = [ConsumerGroupTopicPartitions(group) for group in ("audit", "router")]
    offsets = {
        group: [p.offset for p in future.result().topic_partitions or ()]
        for group, future in admin.list_consumer_group_offsets(asked).items()
    }
    assert offsets == {"audit": [written["audit"]], "router": [written["router"]]}

    # The owner that died is fenced, and its transaction aborted.
    with Producer({**config, "transactional.id": "dying"}) as heir:
        heir.init_transactions()
        with heir.transaction():
            heir.produce("stock", value="after")
    for topic, values in [("orders", written["orders"]), ("stock", [*written["stock"], "after"])]:
        assert sorted(read_all(config, topic)) == sorted(values)
    assert sorted(admin.list_topics().topics) == ["orders", "stock"]
    found = admin.verify(VerifySettings(deep=True)).result()
    assert not found.is_damaged, found.findings
    if report.steps:
        # What has not been stopped, or is started again, is refused, and says why.
        code = f"from txnlog.cluster import Cluster; Cluster.open({root!r})"
        with pytest.raises(AssertionError, match=UnsupportedProtocolError.__name__):
            python("-c", code, cwd=tmp_path, path=old)


def read_all(config: dict[str, str], topic: str) -> list[str]:
    """Every committed value of a topic, up to the ends of now."""
    values = []
    with Consumer(config) as consumer:
        partitions = [
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for number in consumer.list_topics(topic).topics[topic].partitions
        ]
        ends = {(p.topic, p.partition): consumer.get_watermark_offsets(p)[1] for p in partitions}
        consumer.assign(partitions)
        asked = [TopicPartition(*key) for key in ends]
        while any(p.offset < ends[p.topic, p.partition] for p in consumer.position(asked)):
            values += [(m.value() or b"").decode() for m in consumer.consume(timeout=0.2)]
    return values
