"""A folder, a FIFO or a broken link stands where a topic has a file or a folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.consuming.group_session import FAILED_JOINS_MAX
from txnlog.consuming.membership import AGAIN_MS
from txnlog.errors import (
    CorruptLogError,
    LogGapError,
    StorageError,
    TxnLogError,
    UnexpectedError,
    UnknownTopicOrPartitionError,
)
from txnlog.process.clock import VirtualClock
from txnlog.producer import Producer
from txnlog.protocol.verification.findings import FindingKind
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_cleanup import clean_up
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.forced_deletion import UNKNOWN_RECORDS
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash
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


def a_file(path: Path) -> None:
    path.write_bytes(b"x")


IN_PLACE_OF_FOLDERS = pytest.mark.parametrize("plant", [a_file, a_fifo, a_link_to_itself])


def without_log(root: Path, plant: Plant) -> None:
    shutil.rmtree(root / "bad" / "_delta_log")
    plant(root / "bad" / "_delta_log")


@IN_PLACE_OF_FOLDERS
def test_log_that_is_no_folder_is_damage_of_its_topic(root: Path, plant: Plant) -> None:
    """It was an error of the store, to be retried: a pattern read nothing, a record waited for its
    time-out, and the topic could neither be deleted nor be created.
    """
    warm = opened(root)
    log = warm.topic("bad")
    without_log(root, plant)
    for cluster in (opened(root), warm):
        with pytest.raises(CorruptLogError) as error:
            cluster.topic("bad")
        assert error.value.file == "bad/_delta_log"
    with pytest.raises(CorruptLogError):
        opened(root).create_topic("bad")
    assert damage_of(root) == [(FindingKind.LOG_MISSING, "bad/_delta_log")]
    began_s = time.monotonic()
    with pytest.raises(CorruptLogError):
        fill(opened(root), "bad", 1)
    assert time.monotonic() - began_s < 5
    admin(root).delete_topics(["bad"], force=True)["bad"].result()
    assert sorted(admin(root).list_topics().topics) == ["good"]
    assert warm.find_topic("bad") is None
    opened(root).create_topic("bad", partitions=1)
    fill(opened(root), "bad", 2)
    assert opened(root).topic("bad").view.log_start_offset(0) >= UNKNOWN_RECORDS
    log.refresh()
    assert log.view.high_watermark(0) == log.view.log_start_offset(0) + 2
    assert damage_of(root) == []
    create_checkpoint(warm.store, "bad", trust_ms=10**9)
    assert opened(root).topic("bad").view.high_watermark(0) == log.view.high_watermark(0)


def consumer_of_all(cluster: Cluster) -> Consumer:
    config = {"txnlog.root": "memory://", "group.id": "g", "auto.offset.reset": "earliest"}
    return Consumer({**config, "metadata.max.age.ms": 60_000}, cluster=cluster, background=False)


def read(consumer: Consumer, count: int) -> list[tuple[str | None, bytes | str | None]]:
    found = []
    for _ in range(50):
        message = consumer.poll(0)
        if message is not None:
            found.append((message.topic(), message.value()))
    assert len(found) == count, found
    return sorted(found)


@IN_PLACE_OF_FOLDERS
def test_consumer_of_a_pattern_reads_past_a_log_that_is_no_folder(root: Path, plant: Plant) -> None:
    """It raised 17,000 errors in six seconds, and read no topic."""
    without_log(root, plant)
    consumer = consumer_of_all(opened(root))
    consumer.subscribe(["^.*"])
    assert [topic for topic, _ in read(consumer, 3)] == ["good"] * 3
    consumer.close()


def shared_memory() -> SharedMemory:
    shared = SharedMemory()
    cluster = Cluster.open(shared.open(), create=True, shards=1, settings=PLAIN)
    for topic in ("bad", "good"):
        cluster.create_topic(topic, partitions=1)
        fill(cluster, topic, 3)
    return shared


def failing(verb: str, path: str) -> Fault:
    return Fault.FAIL_BEFORE if path.startswith("bad/") else Fault.NONE


def test_consumer_of_a_pattern_reads_past_an_unavailable_topic_and_takes_it_up_later() -> None:
    """One topic of which each request fails kept it from all others. It joins without the topic,
    and resolves its pattern again within AGAIN_MS.
    """
    shared = shared_memory()
    store = shared.open()
    store.plan = failing
    consumer = consumer_of_all(Cluster.open(store, settings=PLAIN))
    consumer.subscribe(["^.*"])
    for _ in range(FAILED_JOINS_MAX):
        with pytest.raises(StorageError):
            consumer.poll(0)
    assert [topic for topic, _ in read(consumer, 3)] == ["good"] * 3
    store.plan = lambda verb, path: Fault.NONE
    heartbeat = consumer._consumption().require_session().heartbeat
    heartbeat.send()
    assert not heartbeat.needs_rejoin
    shared.clock.advance_ms(AGAIN_MS)
    heartbeat.send()
    assert heartbeat.needs_rejoin
    assert [topic for topic, _ in read(consumer, 3)] == ["bad"] * 3
    consumer.close()


def test_unavailable_topic_is_not_taken_from_its_consumers() -> None:
    """A lost reply is no deletion: neither the pattern nor a rebalance drops the topic."""
    shared = shared_memory()
    store = shared.open()
    consumer = consumer_of_all(Cluster.open(store, settings=PLAIN))
    consumer.subscribe(["^.*"])
    read(consumer, 6)
    store.plan = failing
    session = consumer._consumption().require_session()
    shared.clock.advance_ms(60_000)
    session.heartbeat.send()
    assert not session.heartbeat.needs_rejoin
    session.heartbeat.needs_rejoin = True
    for _ in range(20):
        with suppress(StorageError):
            consumer.poll(0)
    assert session.membership.assignment == {"bad": (0,), "good": (0,)}
    store.plan = lambda verb, path: Fault.NONE
    consumer.close()


def test_polls_that_fail_wait_before_they_are_repeated() -> None:
    """An application polls again at once: it made thousands of requests a second."""
    shared = shared_memory()
    store = shared.open()
    cluster = Cluster.open(store, settings=PLAIN)
    consumer = consumer_of_all(cluster)
    consumer.subscribe(["^.*"])
    store.plan = lambda verb, path: Fault.FAIL_BEFORE
    began_ms = shared.clock.boot_ms()
    for _ in range(10):
        with pytest.raises(StorageError):
            consumer.poll(0.5)
    assert shared.clock.boot_ms() - began_ms > 3_000
    store.plan = lambda verb, path: Fault.NONE
    read(consumer, 6)
    began_ms = shared.clock.boot_ms()
    consumer.poll(0)
    assert shared.clock.boot_ms() == began_ms
    consumer.close()


def lost_log(store: ObjectStore) -> None:
    store.delete([item.path for item in store.list("bad/_delta_log")])


def lost_commits(store: ObjectStore) -> None:
    store.put("bad/_delta_log/_last_checkpoint", b'{"version":3}')
    store.delete([commit_path("bad", version) for version in range(4)])
    store.delete([item.path for item in store.list_files("bad")])


@pytest.mark.parametrize("lose", [lost_log, lost_commits])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_topic_whose_log_is_lost_is_created_only_after_a_forced_deletion(
    root: Path, kind: str, lose: Callable[[ObjectStore], None]
) -> None:
    """A producer created it over its data, acknowledged offset 0 again, and verify was content."""
    shared = shared_memory()

    def new() -> Cluster:
        return opened(root) if kind == "disk" else Cluster.open(shared.open(), settings=PLAIN)

    warm = new()
    warm.topic("bad")
    lose(new().store)
    # In an object store a process that has the log in memory looks every ten seconds only.
    for cluster in (new(), warm) if kind == "disk" else (new(),):
        with pytest.raises(TxnLogError, match="bad"):
            cluster.find_or_create_topic("bad", auto_create=True)
    with pytest.raises(LogGapError, match="topics delete --force"):
        new().create_topic("bad", exist_ok=True)
    new().delete_topic("bad", force=True)
    assert sorted(new().survey_topics()) == ["good"]
    shared.clock.advance_ms(20_000)
    assert warm.find_topic("bad") is None
    new().create_topic("bad", partitions=1)
    fill(new(), "bad", 1)
    assert new().topic("bad").view.log_start_offset(0) >= UNKNOWN_RECORDS


def test_folder_with_parquet_files_of_another_tool_becomes_no_topic(root: Path) -> None:
    """Vacuum would delete them: no log names them."""
    (root / "theirs").mkdir()
    (root / "theirs" / "part-00000-x.snappy.parquet").write_bytes(b"theirs")
    with pytest.raises(LogGapError, match="theirs"):
        opened(root).create_topic("theirs")
    with pytest.raises(UnknownTopicOrPartitionError):
        opened(root).delete_topic("theirs", force=True)
    (root / "notes").mkdir()
    (root / "notes" / "README").write_bytes(b"ours")
    opened(root).create_topic("notes")


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOSE_REPLY])
def test_creation_that_failed_at_any_call_can_be_repeated(fault: Fault) -> None:
    """It finds its own first commit, or an empty folder."""
    number = calls = 0
    while calls >= number:
        shared = shared_memory()
        dying = shared.open()
        cluster = Cluster.open(dying, settings=PLAIN)
        number, calls = number + 1, 0

        def plan(verb: str, path: str) -> Fault:
            nonlocal calls
            calls += 1
            return fault if calls == number else Fault.NONE  # noqa: B023

        dying.plan = plan
        with suppress(StorageError, SimulatedCrash):
            cluster.create_topic("new", exist_ok=True)
        again = Cluster.open(shared.open(), settings=PLAIN)
        again.create_topic("new", exist_ok=True)
        fill(again, "new", 1)
        again.delete_topic("new")
        Cluster.open(shared.open(), settings=PLAIN).create_topic("new")
    assert number > 2


def test_creation_beside_another_one_finds_that_topic(root: Path) -> None:
    """The files of a topic that was created after the look for one are no leftovers."""
    shared = shared_memory()
    store = shared.open()
    cluster = Cluster.open(store, settings=PLAIN)
    raced: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "list" and path == "new" and not raced:
            raced.append(path)
            other = Cluster.open(shared.open(), settings=PLAIN)
            other.create_topic("new", partitions=3)
            fill(other, "new", 1)
        return Fault.NONE

    store.plan = plan
    assert cluster.create_topic("new", partitions=1, exist_ok=True).partitions == 3
    assert raced == ["new"]


def test_verify_passes_over_file_names_that_are_no_text(root: Path) -> None:
    """It ended with a UnicodeEncodeError of Arrow."""
    folder = os.fsencode(root / "bad")
    for name in (b"/part-0-\xff.parquet", b"/_delta_log/\xff\xfe.json"):
        with open(folder + name, "wb"):
            pass
    assert damage_of(root) == []
    os.mkfifo(root / "bad" / "_delta_log" / "_last_checkpoint")
    assert AdminClient({"txnlog.root": str(root)}).verify().result().errors == []


def test_exception_of_any_kind_inside_a_call_is_an_error_of_txnlog(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of TxnLogError did not see it; verify stopped at the first such table."""

    def fails(*_: object, **__: object) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(Cluster, "delete_topic", fails)
    monkeypatch.setattr("txnlog.verifying.verify_pass.check_topic", fails)
    with pytest.raises(UnexpectedError):
        admin(root).delete_topics(["bad"])["bad"].result()
    found = admin(root).verify().result()
    assert [table for table, _ in found.errors] == ["bad", "good"]
