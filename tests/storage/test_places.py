"""Roots that are unmounted, replaced or full: nothing is written to another place."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.storage.mounts import bind, mount, mounted, remount, unmount
from tests.world import decide, owned, row_of, staged
from txnlog.cluster import Cluster
from txnlog.coordinator.finishing import finish
from txnlog.errors import (
    CommitStateUnknownError,
    ConfigError,
    FolderNotFoundError,
    NotCoordinatorError,
    NothingWrittenError,
    StorageError,
    StorePermissionError,
    TxnLogError,
)
from txnlog.process.clock import VirtualClock
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store import fsync, local_disk
from txnlog.storage.store.objects import ObjectStore

SETTINGS = LogSettings(checkpoint_interval=4, checkpoint_mode="inline")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def cluster_at(root: Path, topics: tuple[str, ...] = ("orders",)) -> Cluster:
    cluster = Cluster.open(str(root), create=True, shards=1, settings=SETTINGS)
    for topic in topics:
        cluster.create_topic(topic, partitions=2, exist_ok=True)
    return cluster


def lengthen(cluster: Cluster, topic: str = "orders") -> int:
    """Add a commit to a topic's log; returns its version."""
    log = cluster.topic_log(topic)
    value = str(log.log.version)
    log.alter(lambda config: {**config, "retention.ms": f"{value}000"})
    return log.log.version


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- A root that is unmounted and mounted ---------------------------------------------------------


@contextmanager
def away(root: Path) -> Iterator[None]:
    """An empty folder instead of the root, as after umount."""
    elsewhere = root.with_name("elsewhere")
    root.rename(elsewhere)
    root.mkdir()
    yield
    assert below(root) == [], "something was written into the empty mount point"
    root.rmdir()
    elsewhere.rename(root)


def attempts(cluster: Cluster) -> None:
    """Ordinary operations; each must be refused with a typed error."""
    store = cluster.store
    for attempt in (
        lambda: lengthen(cluster),
        lambda: cluster.topic_log("orders").refresh(),
        lambda: cluster.topic("orders"),
        lambda: cluster.create_topic("late"),
        lambda: cluster.next_producer_id(),
        lambda: store.put_new("orders/part-0-x.parquet", b"data"),
        lambda: store.open_writer("orders/part-0-y.parquet"),
        lambda: store.put("orders/_delta_log/_last_checkpoint", b"{}"),
        lambda: store.put_if_absent("orders/_delta_log/00000000000000000099.json", b"{}"),
        lambda: owned(cluster, "a"),
    ):
        with pytest.raises(FolderNotFoundError, match="not there"):
            attempt()


def test_unmounted_root_takes_nothing_and_work_continues_after_the_remount(root: Path) -> None:
    """Commits into the empty mount point are hidden by the remount, and the log has a hole: no
    process can read it any more.
    """
    cluster = cluster_at(root)
    for topic in ("orders", "stock"):
        cluster.create_topic(topic, exist_ok=True)
    version = lengthen(cluster)
    with away(root):
        attempts(cluster)
        with pytest.raises(ConfigError, match="no txnlog cluster"):
            Cluster.open(str(root))
    assert lengthen(cluster) == version + 1
    assert cluster.create_topic("late").exists
    assert sorted(cluster_at(root).list_topics()) == ["late", "orders", "stock"]


def test_root_unmounted_for_real_takes_nothing(tmp_path: Path) -> None:
    """As above, with a real umount: open handles keep the file system, paths do not."""
    root, keep = tmp_path / "root", tmp_path / "keep"
    keep.mkdir()
    with mounted(root), mounted(keep):
        cluster = cluster_at(root)
        version = lengthen(cluster)
        bind(root, keep)
        unmount(root)
        attempts(cluster)
        assert below(root) == []
        bind(keep, root)
        assert lengthen(cluster) == version + 1
        unmount(keep)


def test_another_cluster_mounted_in_place_of_the_first_takes_nothing(root: Path) -> None:
    """A process that continues after a remount must check which cluster is mounted."""
    cluster = cluster_at(root)
    lengthen(cluster)
    root.rename(root.with_name("first"))
    with pytest.raises(FolderNotFoundError):
        lengthen(cluster)
    cluster_at(root)
    before = below(root)
    for attempt in (lambda: lengthen(cluster), lambda: cluster.create_topic("late")):
        with pytest.raises(NotCoordinatorError, match="id"):
            attempt()
    assert below(root) == before
    shutil.rmtree(root)
    root.with_name("first").rename(root)
    lengthen(cluster)


def test_warm_reader_of_an_emptied_log_reports_it(root: Path) -> None:
    """A log never becomes absent (D12): the topic must not look as if it never existed."""
    clock = VirtualClock()
    store = ObjectStore.from_url(str(root), clock=clock)
    cluster = Cluster.open(store, create=True, shards=1, settings=SETTINGS)
    log = cluster.create_topic("orders")
    for file in (root / "orders/_delta_log").iterdir():
        file.unlink()
    clock.advance_ms(SETTINGS.trust_ms + 1)
    with pytest.raises(TxnLogError, match="no file of this log is left"):
        log.refresh()


# --- One topic's folder ---------------------------------------------------------------------------


def decided(cluster: Cluster) -> TransactionMetadata:
    """A transaction over two topics whose process died when it was decided."""
    row = owned(cluster, "a")
    batches = [staged(cluster, topic, "x") for topic in ("orders", "stock")]
    return decide(cluster, row, batches)


def test_missing_topic_folder_delays_its_marker_and_is_reported(root: Path) -> None:
    """Of a transaction over two topics one half was dropped without a word: no log counted as
    deleted.
    """
    cluster = cluster_at(root, ("orders", "stock"))
    row = decided(cluster)
    (root / "stock").rename(root.with_name("away"))
    helper = Cluster.open(str(root), settings=SETTINGS)
    for _ in range(2):
        with pytest.raises(FolderNotFoundError, match="'stock'.*Restore"):
            finish(helper, row)
    found = row_of(helper)
    assert found.state is TransactionState.PREPARE_COMMIT
    assert helper.topic("orders").view.markers, "the other topic need not wait"
    root.with_name("away").rename(root / "stock")
    done = finish(helper, row)
    assert done is not None
    assert done.state is TransactionState.COMPLETE_COMMIT
    assert helper.topic("stock").view.high_watermark(staged(helper, "stock", "x").partition) == 2


def test_deleted_topic_does_not_delay_its_marker(root: Path) -> None:
    """A deleted topic has a log, with the commit that deleted it (D12)."""
    cluster = cluster_at(root, ("orders", "stock"))
    row = decided(cluster)
    cluster.delete_topic("stock")
    done = finish(Cluster.open(str(root), settings=SETTINGS), row)
    assert done is not None
    assert done.state is TransactionState.COMPLETE_COMMIT


# --- Certain failures -----------------------------------------------------------------------------


def refused(cluster: Cluster) -> NothingWrittenError:
    """The error of a commit that certainly did not land, raised without waiting for a time-out."""
    clock = cluster.store.clock
    started_ms = clock.boot_ms()
    log = cluster.topic_log("orders")
    before = log.log.version
    with pytest.raises(NothingWrittenError) as caught:
        lengthen(cluster)
    assert clock.boot_ms() - started_ms < SETTINGS.commit_timeout_ms // 2
    assert "unknown" not in str(caught.value)
    with pytest.raises(NothingWrittenError) as data:
        cluster.store.put_new("orders/part-0-x.parquet", b"x" * (1 << 20))
    assert "orders/part-0-x.parquet" in str(data.value)
    log.refresh()
    assert log.log.version == before
    assert not [name for name in below(Path(cluster.root[7:])) if "#" in name or "part-" in name]
    return caught.value


def test_full_disk_is_a_certain_failure_and_names_the_cause(tmp_path: Path) -> None:
    """'Whether the commit landed is still unknown' would mislead the operator."""
    with mounted(tmp_path / "root", "size=2m"):
        cluster = cluster_at(tmp_path / "root")
        filler = tmp_path / "root/filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        error = refused(cluster)
        assert "make room" in str(error)
        assert error.retriable
        filler.unlink()
        lengthen(cluster)


def test_read_only_file_system_is_a_certain_failure_and_names_the_cause(tmp_path: Path) -> None:
    """ext4 remounts itself read-only after a disk error."""
    with mounted(tmp_path / "root"):
        cluster = cluster_at(tmp_path / "root")
        remount(tmp_path / "root", "ro")
        assert "read-only" in str(refused(cluster))
        remount(tmp_path / "root", "rw")
        lengthen(cluster)


def test_too_many_open_files_is_a_certain_failure_and_names_the_cause(root: Path) -> None:
    """A leak elsewhere in the process must not make a commit's state unknown."""
    cluster = cluster_at(root)
    lengthen(cluster)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        with suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        # The files that a commit reads first cannot be opened either.
        with pytest.raises(StorageError, match="ulimit -n") as caught:
            lengthen(cluster)
        assert not isinstance(caught.value, CommitStateUnknownError)
        with pytest.raises(NothingWrittenError, match="ulimit -n"):
            cluster.store.put_if_absent("orders/_delta_log/99.json", b"")
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    lengthen(cluster)


def test_file_size_limit_is_a_certain_failure_and_names_the_cause(root: Path) -> None:
    """The limit cuts the temporary file, which no reader opens."""
    cluster = cluster_at(root)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
        assert "ulimit -f" in str(refused(cluster))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lengthen(cluster)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMLINK, errno.EACCES, errno.EPERM]
)
def test_refused_name_is_a_certain_failure(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The last step of a put may be refused, too."""
    cluster = cluster_at(root)

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local_disk.os, "link", refuse)
    with pytest.raises(NothingWrittenError, match=os.strerror(code)):
        lengthen(cluster)


def test_error_after_the_name_exists_leaves_the_state_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that may be written but not opened lets the commit land, and then fails the sync: to
    say that nothing was written would have it written twice.
    """
    store = ObjectStore.from_url(str(root), {"fsync": "true"})
    store.put_if_absent("a/one", b"1")

    def refuse(_: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(fsync, "sync", refuse)
    with pytest.raises(StorageError) as caught:
        store.put_if_absent("a/two", b"2")
    assert not isinstance(caught.value, NothingWrittenError)
    assert not isinstance(caught.value, StorePermissionError)
    assert store.get("a/two") == b"2"


def test_name_that_is_too_long_is_a_certain_failure(root: Path) -> None:
    """Long roots and topic names of 249 characters come near the limits of file systems."""
    store = ObjectStore.from_url(str(root))
    with pytest.raises(NothingWrittenError, match="shorter"):
        store.put_if_absent("a/" + "x" * 250, b"")


def test_mount_helper_leaves_nothing(tmp_path: Path) -> None:
    """A mount that remains would hide files of the next test."""
    with mounted(tmp_path / "root"):
        assert os.path.ismount(tmp_path / "root")
        (tmp_path / "root/x").touch()
    assert not os.path.ismount(tmp_path / "root")
    mount(tmp_path / "root")
    unmount(tmp_path / "root")
