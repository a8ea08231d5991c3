"""A folder, a FIFO or a broken link stands where a topic has a file or a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.errors import CorruptLogError
from txnlog.process.clock import VirtualClock
from txnlog.producer import Producer
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.forced_deletion import UNKNOWN_RECORDS
from txnlog.verifying.verifier import verify

PLAIN = LogSettings(checkpoint_mode="off")
DAY_MS = 86_400_000


def a_folder(path: Path) -> None:
    path.mkdir()


def a_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "x").write_bytes(b"x")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_broken_link(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def a_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


Plant = Callable[[Path], None]
IN_PLACE_OF_FILES = pytest.mark.parametrize(
    "plant", [a_folder, a_full_folder, a_fifo, a_broken_link, a_link_to_itself]
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`bad` and `good` with three records each, in versions 1 to 3."""
    root = tmp_path / "root"
    cluster = Cluster.open(str(root), create=True, shards=1, settings=PLAIN)
    for topic in ("bad", "good"):
        cluster.create_topic(topic, partitions=1)
        fill(cluster, topic, 3)
    return root


def opened(root: Path) -> Cluster:
    """Another process at the root."""
    return Cluster.open(str(root), settings=PLAIN)


def admin(root: Path) -> AdminClient:
    return AdminClient({}, cluster=opened(root))


def fill(cluster: Cluster, topic: str, batches: int) -> None:
    producer = Producer({"txnlog.root": cluster.root}, cluster=cluster, background=False)
    for number in range(batches):
        producer.produce(topic, f"{number}", partition=0)
        producer.flush()


def damage_of(root: Path) -> list[tuple[FindingKind, str]]:
    """What verify finds, and that it can read everything."""
    found = verify(ObjectStore.from_url(str(root), clock=VirtualClock()))
    assert found.errors == []
    return [(finding.kind, finding.file) for finding in found.findings if found.is_damaged]


@IN_PLACE_OF_FILES
@pytest.mark.parametrize("version", [3, 2])
def test_whatever_has_the_name_of_a_commit_is_a_damaged_commit(
    root: Path, plant: Plant, version: int
) -> None:
    """A listing left it out: verify found no damage, a broken link ended the log before it, so that
    its records were gone without an error, and the topic could never be deleted.
    """
    place = root / commit_path("bad", version)
    place.unlink()
    plant(place)
    with pytest.raises(CorruptLogError) as error:
        opened(root).topic("bad")
    assert error.value.file == commit_path("bad", version)
    assert damage_of(root) == [(FindingKind.COMMIT_DAMAGED, commit_path("bad", version))]
    admin(root).delete_topics(["bad"], force=True)["bad"].result()
    assert sorted(admin(root).list_topics().topics) == ["good"]
    assert damage_of(root) == []
    opened(root).create_topic("bad", partitions=1)
    fill(opened(root), "bad", 1)
    assert opened(root).topic("bad").view.log_start_offset(0) >= UNKNOWN_RECORDS
    assert damage_of(root) == []


@IN_PLACE_OF_FILES
def test_process_with_the_log_in_memory_meets_the_damage(root: Path, plant: Plant) -> None:
    """A broken link was no commit to it, and a commit of its own ended as unknown."""
    cluster = opened(root)
    log = cluster.topic("bad")
    plant(root / commit_path("bad", 4))
    with pytest.raises(CorruptLogError):
        log.alter(lambda config: {**config, "retention.ms": "1000"})
    with pytest.raises(CorruptLogError):
        cluster.topic("bad")
    opened(root).delete_topic("bad", force=True)
    assert cluster.find_topic("bad") is None


@IN_PLACE_OF_FILES
def test_log_clean_up_removes_what_stood_in_place_of_a_commit(root: Path, plant: Plant) -> None:
    """It deletes the oldest first: what it cannot delete would keep all commits for ever."""
    place = root / commit_path("bad", 2)
    place.unlink()
    plant(place)
    opened(root).delete_topic("bad", force=True)
    for path in (root / "bad" / "_delta_log").iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    clean_up(opened(root).store, "bad", retention_ms=DAY_MS)
    left = sorted(path.name for path in (root / "bad" / "_delta_log").iterdir())
    assert [name for name in left if not name.endswith(".folder")] == [
        f"{4:020}.checkpoint.parquet",
        f"{4:020}.json",
        "_last_checkpoint",
    ]
    assert damage_of(root) == []
