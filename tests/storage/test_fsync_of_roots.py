"""A root records whether it is synced, and every process follows (D26)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.storage.power_cut import PowerCut, commit_transaction, put
from txnlog.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType, root_configs
from txnlog.admin.root_configs import FOLLOWED_MS, alter_root
from txnlog.cluster import Cluster
from txnlog.errors import (
    ConfigError,
    NotSyncedError,
)
from txnlog.process.clock import VirtualClock
from txnlog.storage.delta.actions import Metadata, decode_commit, encode_commit
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store import fsync, objects
from txnlog.storage.store.objects import LOOK_MS, ObjectStore

MARK = "txnlog.storage.fsync"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of these tests is amid a write when the root is changed."""
    monkeypatch.setattr(root_configs, "FOLLOWED_MS", 0)


def alter(cluster: Cluster, value: str, steps: list[str] | None = None) -> None:
    found = [] if steps is None else steps
    entry = ConfigEntry("storage.fsync", value)
    alter_root(cluster, [entry], lambda text, done, count: found.append(text))


def root_without_record(root: str) -> str:
    """As one that was copied from an object store."""
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
    """Opening it changes nothing, and stops no process that has set the option."""
    root = root_without_record(str(tmp_path / "root"))
    cluster = Cluster.open(root, {} if value is None else {"fsync": value})
    assert cluster.read_fsync() is None
    before = len(power.order)
    commit_transaction(cluster)
    names = {path for kind, path in power.order[before:] if kind == "fsync"}
    assert bool(names) is (value == "true")


def test_other_places_of_a_root_follow_it(tmp_path: Path, by_default: None) -> None:
    """What is opened again must not fall back."""
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, create=True)
    assert syncs(Cluster.open(cluster.store).store)


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
    fsync._failed.clear()
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


def test_file_that_was_open_during_a_change_is_synced_when_it_is_closed(
    tmp_path: Path, power: PowerCut
) -> None:
    """A task of Spark streams for longer than the change takes: its commit was acknowledged, and
    its file empty after a power cut.
    """
    root = str(tmp_path / "root")
    cluster = Cluster.open(root, create=True)
    assert cluster.read_fsync() == "false"
    cluster.create_topic("t")
    writer = cluster.store.open_writer("t/part-0")
    writer.write(b"data")
    alter(Cluster.open(root), "true")
    cluster.store._looked_ms = None  # more than a second later
    writer.close()
    assert power.survives(f"{root}/t/part-0", str(tmp_path))
