"""What a local disk has acknowledged survives a power cut; the root says whether (D26)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.transactions import small_records, stage
from tests.storage.number_log import OFF as LOG
from tests.storage.number_log import TABLE, History, created, opened, write
from tests.storage.power_cut import PowerCut
from txnlog.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType, root_configs
from txnlog.admin.root_configs import FOLLOWED_MS, alter_root
from txnlog.cluster import Cluster
from txnlog.errors import (
    CommitStateUnknownError,
    ConfigError,
    NothingWrittenError,
    NotSyncedError,
    StorageError,
)
from txnlog.housekeeping.compaction.segments import STORES, store_at
from txnlog.process.clock import VirtualClock
from txnlog.protocol.metadata import Owner
from txnlog.storage.delta.actions import Metadata, decode_commit, encode_commit
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import DeltaLog, Unknown
from txnlog.storage.delta.log_cleanup import checkpoint_and_clean_up, clean_up
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.delta.transact import transact
from txnlog.storage.store import local_disk, objects
from txnlog.storage.store.local_disk import LocalDisk
from txnlog.storage.store.objects import LOOK_MS, ObjectStore

MARK = "txnlog.storage.fsync"
PUTS = ["put", "put_new", "put_if_absent", "open_writer"]


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc to see what is synced")
    return PowerCut(monkeypatch)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of these tests is amid a write when the root is changed."""
    monkeypatch.setattr(root_configs, "FOLLOWED_MS", 0)


@pytest.fixture
def by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside of tests."""
    monkeypatch.delenv("TXNLOG_FSYNC")


def put(disk: LocalDisk | ObjectStore, verb: str, path: str) -> None:
    if verb == "open_writer":
        with disk.open_writer(path) as writer:
            writer.write(b"data")
    else:
        getattr(disk, verb)(path, b"data")


def commit_transaction(cluster: Cluster) -> None:
    topic = cluster.find_or_create_topic("t", auto_create=True)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    cluster.coordinator.commit(row, stage(cluster, topic, small_records()))


def alter(cluster: Cluster, value: str, steps: list[str] | None = None) -> None:
    found = [] if steps is None else steps
    entry = ConfigEntry("storage.fsync", value)
    alter_root(cluster, [entry], lambda text, done, count: found.append(text))


def root_without_record(root: str) -> str:
    """As an earlier txnlog has left it."""
    Cluster.open(root, create=True)
    path = Path(root, commit_path("__cluster", 0))
    commit = decode_commit(path.read_bytes(), version=0, source=str(path))
    actions = [
        replace(action, configuration={k: v for k, v in action.configuration.items() if k != MARK})
        if isinstance(action, Metadata)
        else action
        for action in commit.actions
    ]
    path.write_bytes(encode_commit(commit.info, actions))
    return root


# --- puts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", PUTS)
def test_fsync_every_kind_of_put_survives_a_power_cut(
    tmp_path: Path, power: PowerCut, verb: str
) -> None:
    """File, its name, and the names of new folders above it, also above the root."""
    disk = LocalDisk(str(tmp_path / "new/root"), fsync=True)
    for path in ("t/one", "t/two", "t/deep/three"):
        put(disk, verb, path)
        assert power.survives(disk.path(path), str(tmp_path))


def test_fsync_off_calls_no_fsync(tmp_path: Path, power: PowerCut) -> None:
    """A root that was created so has no cost."""
    cluster = Cluster.open(str(tmp_path / "root"), {"fsync": "false"}, create=True)
    commit_transaction(cluster)
    assert not power.order or {kind for kind, _ in power.order} == {"unlink"}


# --- the root's record ----------------------------------------------------------------------------


def test_new_root_is_synced_from_its_first_file_on(
    tmp_path: Path, power: PowerCut, by_default: None
) -> None:
    """Whoever was given an acknowledgement finds the whole root again: rows, markers, records, and
    the file that says how durable all of it is.
    """
    root = str(tmp_path / "new/root")
    cluster = Cluster.open(root, create=True)
    assert power.lost(root) == []
    commit_transaction(cluster)
    assert power.lost(root) == []
    assert cluster.read_fsync() == "true"


@pytest.mark.parametrize("value", ["true", "false"])
def test_process_that_was_given_nothing_follows_the_root(
    tmp_path: Path, power: PowerCut, value: str
) -> None:
    """One process of a group did not sync: its commits were empty after a power cut, and so all
    offsets of the group were lost.
    """
    root = str(tmp_path / "root")
    Cluster.open(root, {"fsync": value}, create=True)
    for opened_root in (Cluster.open(root), Cluster.cached(root), Cluster.open(root)):
        commit_transaction(opened_root)
    assert (power.lost(root) == []) is (value == "true")


def test_variable_chooses_for_new_roots_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests and benchmarks; a root that exists is not theirs to change, nor to refuse."""
    for value, expected in (("false", "false"), ("true", "true"), (None, "true")):
        if value is None:
            monkeypatch.delenv("TXNLOG_FSYNC")
        else:
            monkeypatch.setenv("TXNLOG_FSYNC", value)
        root = str(tmp_path / f"{value}")
        assert Cluster.open(root, create=True).read_fsync() == expected
        for other in ("true", "false"):
            monkeypatch.setenv("TXNLOG_FSYNC", other)
            assert Cluster.open(root, create=True).read_fsync() == expected
    monkeypatch.setenv("TXNLOG_FSYNC", "on")
    with pytest.raises(ConfigError, match="TXNLOG_FSYNC"):
        Cluster.open(str(tmp_path / "refused"), create=True)


def test_option_that_contradicts_the_root_is_refused_with_the_command(tmp_path: Path) -> None:
    """A process that did not sync, or thought that all others did, would break the promise."""
    for value, other in (("true", "false"), ("false", "true")):
        root = str(tmp_path / value)
        Cluster.open(root, {"fsync": value}, create=True)
        Cluster.open(root, {"fsync": value}, create=True)
        for cls in (Cluster.open, Cluster.cached):
            with pytest.raises(ConfigError, match=f"--add-config storage.fsync={other}") as caught:
                cls(root, {"fsync": other}, create=True)
            assert caught.value.option == "storage.fsync"


@pytest.mark.parametrize("value", ["true", None])
def test_root_without_a_record_keeps_the_option_of_each_process(
    tmp_path: Path, power: PowerCut, value: str | None
) -> None:
    """An upgrade of txnlog changes no root, and stops no process that has set the option."""
    root = root_without_record(str(tmp_path / "root"))
    cluster = Cluster.open(root, {} if value is None else {"fsync": value})
    assert cluster.read_fsync() is None
    before = len(power.order)
    commit_transaction(cluster)
    names = {path for kind, path in power.order[before:] if kind == "fsync"}
    assert bool(names) is (value == "true")


def test_other_places_of_a_root_follow_it(tmp_path: Path, by_default: None) -> None:
    """Compaction's Spark tasks open no cluster; what is opened again must not fall back."""
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, create=True)
    assert syncs(Cluster.open(cluster.store).store)
    store = store_at(root, {})
    put(store, "put_new", "__cluster/segment")
    assert syncs(store)
    STORES.drop(root, {})


def syncs(store: ObjectStore) -> bool:
    disk = store._disk
    assert disk is not None
    return disk.fsync


# --- changes of the record ------------------------------------------------------------------------


def test_change_reaches_processes_that_run(tmp_path: Path) -> None:
    """They hold the root open for months: what they write after the change must be synced, too."""
    root = str(tmp_path / "root")
    Cluster.open(root, create=True)
    clock = VirtualClock()
    running = Cluster.open(ObjectStore.from_url(root, clock=clock))
    alter(Cluster.open(ObjectStore.from_url(root, clock=VirtualClock())), "true")
    put(running.store, "put", "__cluster/within")
    assert not syncs(running.store)
    clock.advance_ms(LOOK_MS + 1)
    put(running.store, "put", "__cluster/after")
    assert syncs(running.store)
    assert FOLLOWED_MS > LOOK_MS


def test_change_reaches_a_process_amid_its_own_commit_to_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look comes before each write, also before one of the table that it reads."""
    root = str(tmp_path / "root")
    cluster, other = Cluster.open(root, create=True), Cluster.open(root)
    monkeypatch.setattr(objects, "LOOK_MS", -1)
    first = cluster.next_producer_id()
    other.change_fsync(lambda found: "true")
    numbers = [first, *(cluster.next_producer_id() for _ in range(2_000))]
    assert len(set(numbers)) == 2_001
    assert syncs(cluster.store)


def test_look_that_fails_leaves_writes_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`__cluster` is damaged or away for a moment: topics are written as before."""
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, {"fsync": "true"}, create=True)
    monkeypatch.setattr(objects, "LOOK_MS", -1)
    Path(root, commit_path("__cluster", 1)).write_bytes(b"{")
    put(cluster.store, "put", "__cluster/one")
    assert syncs(cluster.store)


def test_change_to_true_syncs_what_was_written_before(tmp_path: Path, power: PowerCut) -> None:
    """Else the promise would hold for what comes, on top of files that are not on the disk."""
    root, elsewhere = str(tmp_path / "root"), tmp_path / "elsewhere"
    cluster = Cluster.open(root, create=True)
    commit_transaction(cluster)
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"behind a link, which leads back, too")
    os.symlink(elsewhere, tmp_path / "root/linked")
    os.symlink(root, elsewhere / "loop")
    os.mkfifo(tmp_path / "root/fifo")
    steps: list[str] = []
    alter(cluster, "true", steps)
    os.unlink(f"{root}/fifo")
    assert power.lost(root) == []
    assert power.survives(str(elsewhere / "file"), str(elsewhere))
    assert [step.partition(" ")[0] for step in steps] == ["wait", "sync"]
    assert cluster.read_fsync() == "true"


@pytest.mark.parametrize("dies_at", ["before", "waiting", "syncing", "recording"])
def test_change_that_dies_promises_nothing_and_is_finished_by_the_next(
    tmp_path: Path, power: PowerCut, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    """A root must not say `true` before its last file is on the disk."""
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, create=True)
    commit_transaction(cluster)

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        if dies_at == "before":
            patch.setattr(Cluster, "change_fsync", die)
        elif dies_at == "waiting":
            patch.setattr(type(cluster.store.clock), "sleep_ms", die)
        elif dies_at == "syncing":
            power.failures["t/_delta_log"] = 1
        else:
            patch.setattr("txnlog.admin.root_configs._finished", die)
        with pytest.raises((Died, NotSyncedError)):
            alter(cluster, "true")
    # The process is another one.
    local_disk._not_synced.clear()
    again = Cluster.open(root)
    assert again.read_fsync() == ("false" if dies_at == "before" else "syncing")
    assert syncs(again.store) is (dies_at != "before")
    alter(again, "true")
    assert again.read_fsync() == "true"
    assert power.lost(root) == []


def test_change_to_what_is_recorded_does_nothing(tmp_path: Path, power: PowerCut) -> None:
    """Deployments run the command each time."""
    for value in ("true", "false"):
        root = str(tmp_path / value)
        cluster = Cluster.open(root, {"fsync": value}, create=True)
        before = sorted(os.listdir(f"{root}/__cluster/_delta_log")), len(power.order)
        alter(cluster, value)
        assert (sorted(os.listdir(f"{root}/__cluster/_delta_log")), len(power.order)) == before


def test_change_records_what_an_earlier_root_lacks(tmp_path: Path) -> None:
    """The advice of `verify`."""
    for value in ("true", "false"):
        root = root_without_record(str(tmp_path / value))
        cluster = Cluster.open(root)
        alter(cluster, value)
        assert Cluster.open(root).read_fsync() == value
        commit_transaction(Cluster.open(root))


def test_change_of_mind_during_a_change_ends_it(tmp_path: Path) -> None:
    """The first command must not record `true` over the second one's `false`."""
    root = str(tmp_path / "root")
    cluster, other = Cluster.open(root, create=True), Cluster.open(root)
    entry = ConfigEntry("storage.fsync", "true")
    with pytest.raises(ConfigError, match="meanwhile"):
        alter_root(cluster, [entry], lambda *_: alter(other, "false"))
    assert other.read_fsync() == "false"


def test_root_has_one_configuration(tmp_path: Path) -> None:
    """A configuration of a topic, given without its name, must not be lost silently."""
    root = str(tmp_path / "root")
    Cluster.open(root, create=True)
    admin = AdminClient({"txnlog.root": root})
    broker = ConfigResource(ResourceType.BROKER, "")
    found = admin.describe_configs([broker])[broker].result()
    assert [(name, entry.value) for name, entry in found.items()] == [("storage.fsync", "false")]
    for name, value in (("retention.ms", "1"), ("storage.fsync", None), ("storage.fsync", "on")):
        bad = ConfigResource(ResourceType.BROKER, "", [ConfigEntry(name, value)])
        with pytest.raises(ConfigError):
            admin.incremental_alter_configs([bad])[bad].result()


def test_object_store_has_no_fsync() -> None:
    """What it has acknowledged is durable: the option is accepted, and there is none to change."""
    for url in ("memory://", "s3://bucket/x"):
        more = {"aws_region": "x"} if url.startswith("s3") else {}
        store = ObjectStore.from_url(url, {"fsync": "true", **more})
        assert (store.url, store.fsync) == (url, None)
    cluster = Cluster.open(ObjectStore.from_url("memory://", {"fsync": "true"}), create=True)
    assert cluster.read_fsync() is None
    admin = AdminClient({}, cluster=cluster)
    broker = ConfigResource(ResourceType.BROKER, "", [ConfigEntry("storage.fsync", "true")])
    assert admin.describe_configs([broker])[broker].result() == {}
    with pytest.raises(ConfigError, match="local disk only"):
        admin.incremental_alter_configs([broker])[broker].result()


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_fsync_option_takes_true_or_false(tmp_path: Path, value: str) -> None:
    """Requested durability must never be off silently."""
    with pytest.raises(ConfigError, match=r"storage\.fsync"):
        ObjectStore.from_url(str(tmp_path), {"fsync": value})


# --- what others wrote ----------------------------------------------------------------------------


def test_reader_does_not_rely_on_a_commit_that_a_power_cut_may_remove(
    tmp_path: Path, power: PowerCut, by_default: None
) -> None:
    """The writer has linked its commit and not yet synced the folder when a reader acts on it."""
    root = str(tmp_path / "root")
    Cluster.open(root, create=True).create_topic("t", partitions=1)
    reader = Cluster.open(root)
    log = reader.topic("t").log
    slow = LocalDisk(root)
    path = commit_path("t", log.version + 1)
    whole = slow.get(commit_path("t", log.version)).replace(b'"version"', b'"versio_"')
    slow.put_if_absent(path, whole)
    named = str(tmp_path / "root/t/_delta_log")
    assert os.path.basename(path) not in power.named.get(named, ())
    reader.topic("t")
    assert os.path.basename(path) in power.named[named]


@pytest.mark.parametrize("behind", [1, 40])
@pytest.mark.parametrize("is_open", [True, False])
def test_reader_syncs_files_of_processes_that_do_not(
    tmp_path: Path, power: PowerCut, behind: int, is_open: bool
) -> None:
    """A root without a record: on top of an empty file nothing could be read again, whatever the
    process has synced that was acknowledged.
    """
    root = str(tmp_path / "root")
    writer, reader = ObjectStore.from_url(root), ObjectStore.from_url(root, {"fsync": "true"})
    theirs = created(writer, 3)
    create_checkpoint(writer, TABLE, trust_ms=LOG.trust_ms)
    log = opened(reader)[0] if is_open else None
    for number in range(4, 4 + behind):
        write(theirs, number)
    if log is None:
        log = opened(reader)[0]
    log.refresh()
    assert log.version == theirs.version
    relied_on = [checkpoint_path(TABLE, 3), *(commit_path(TABLE, v) for v in range(4, 4 + behind))]
    lost = [path for path in relied_on if not power.survives(f"{root}/{path}", str(tmp_path))]
    assert lost == []


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("by_housekeeping", [True, False])
def test_anchor_is_synced_before_a_commit_is_deleted(
    tmp_path: Path, power: PowerCut, value: str, by_housekeeping: bool
) -> None:
    """Deletions reached the disk before the checkpoint that replaces them, written by whichever
    process: the whole topic was unreadable after the power cut.
    """
    root = str(tmp_path / "root")
    theirs = ObjectStore.from_url(root)
    created(theirs, 14)
    store = ObjectStore.from_url(root, {"fsync": value})
    if by_housekeeping:
        later_ms = store.now_ms() + LOG.log_retention_ms + 60_000
        assert checkpoint_and_clean_up(store, TABLE, LOG, now_ms=later_ms) == 14
    else:
        create_checkpoint(theirs, TABLE, trust_ms=LOG.trust_ms)
        power.order.clear()
        assert len(clean_up(store, TABLE, retention_ms=-60_000)) == 14
    anchor = f"{root}/{checkpoint_path(TABLE, 14)}"
    deleted = power.order.index(("unlink", f"{root}/{commit_path(TABLE, 0)}"))
    before = [path for kind, path in power.order[:deleted] if kind == "fsync"]
    assert anchor in before
    assert os.path.dirname(anchor) in before[before.index(anchor) :]
    assert power.survives(anchor, str(tmp_path))


def test_anchor_that_cannot_be_synced_replaces_nothing(tmp_path: Path, power: PowerCut) -> None:
    """The second attempt gets no error from the kernel, and must not delete either."""
    root = str(tmp_path / "root")
    store = ObjectStore.from_url(root)
    created(store, 14)
    create_checkpoint(store, TABLE, trust_ms=LOG.trust_ms)
    power.failures[".checkpoint.parquet"] = 1
    for _ in range(2):
        with pytest.raises(NotSyncedError):
            clean_up(store, TABLE, retention_ms=-60_000)
    assert not [path for kind, path in power.order if kind == "unlink" and "_clock" not in path]


# --- fsync that fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["/_delta_log", f"/{TABLE}", "/root"])
def test_commit_whose_folder_is_not_synced_is_never_acknowledged(
    tmp_path: Path, power: PowerCut, place: str
) -> None:
    """The commit can be read back, and a second fsync succeeds: the kernel has reported the error,
    and dropped what it could not write. So no other way may end in an acknowledgement.
    """
    root = str(tmp_path / "root")
    created(ObjectStore.from_url(root), 1)
    store = ObjectStore.from_url(root, {"fsync": "true"})
    power.failures[place] = 0
    log, view = opened(store)
    # As if this process had synced nothing there yet.
    store._disk._known_folders.clear()  # type: ignore[union-attr]
    power.failures[place] = 1
    assert isinstance(write(log, 2), Unknown)
    assert power.failures[place] == 0
    of_another_client = DeltaLog(ObjectStore.from_url(root, {"fsync": "true"}), TABLE, History())
    for again in (log, of_another_client):
        with pytest.raises((CommitStateUnknownError, NotSyncedError)):
            transact(again, lambda: 2, lambda number: None)
    assert "2" not in view.numbers


def test_commit_that_ended_unknown_is_not_settled_by_reading_it(
    tmp_path: Path, power: PowerCut
) -> None:
    """The error names the folder, the disk, and what to do."""
    cluster = Cluster.open(str(tmp_path / "root"), {"fsync": "true"}, create=True)
    topic = cluster.create_topic("t", partitions=4)
    row = cluster.coordinator.init_producer_id("id", Owner(run_id="r"))
    staged = stage(cluster, topic, small_records())
    [table] = [name for name in os.listdir(tmp_path / "root") if name.startswith("__trans")]
    power.failures[f"{table}/_delta_log"] = 1
    for _ in range(3):
        with pytest.raises((CommitStateUnknownError, NotSyncedError), match=r"dmesg.*restart"):
            cluster.coordinator.commit(row, staged)
    assert cluster.topic("t").view.high_watermark(0) == 0


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_file_that_is_not_synced_has_no_name(tmp_path: Path, power: PowerCut, verb: str) -> None:
    """A new file has pages of its own, so the next attempt counts."""
    store = ObjectStore.from_url(str(tmp_path / "root"), {"fsync": "true"})

    def temporary_fails(file: int) -> None:
        monkey.setattr(local_disk.os, "fsync", power.fsync)
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(local_disk.os, "fsync", temporary_fails)
        with pytest.raises(NothingWrittenError):
            put(store, verb, "t/one")
        assert not store.exists("t/one")
        put(store, verb, "t/one")
    assert power.survives(str(tmp_path / "root/t/one"), str(tmp_path))


@pytest.mark.parametrize("verb", PUTS)
def test_put_whose_name_is_not_synced_fails_and_so_does_the_next(
    tmp_path: Path, power: PowerCut, verb: str
) -> None:
    """A folder is not remembered as synced, nor written to again."""
    store = ObjectStore.from_url(str(tmp_path / "root"), {"fsync": "true"})
    power.failures["/t"] = 1
    with pytest.raises((StorageError, OSError)) as caught:
        put(store, verb, "t/one")
    if verb != "open_writer":
        assert isinstance(caught.value, NotSyncedError)
        assert caught.value.fatal
        with pytest.raises(NothingWrittenError):
            put(store, verb, "t/two")
        assert not store.exists("t/two")
    put(store, verb, "other/one")


def test_file_system_that_cannot_sync_folders_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_default: None
) -> None:
    """With the default, a root there fails at its creation: the error must say what to choose."""
    real = os.fsync

    def fsync(file: int) -> None:
        if os.path.isdir(os.readlink(f"/proc/self/fd/{file}")):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(local_disk.os, "fsync", fsync)
    with pytest.raises(NotSyncedError, match=r"storage\.fsync=false"):
        Cluster.open(str(tmp_path / "root"), create=True)
    Cluster.open(str(tmp_path / "root"), {"fsync": "false"}, create=True)
