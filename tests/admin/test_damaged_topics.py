"""A damaged topic affects only itself: listings show its error, and it can be deleted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.housekeeping.steps import DAY_MS
from tests.world import PLAIN
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    CorruptLogError,
    ForeignTableError,
    StorageError,
    TopicAuthorizationError,
    TxnLogError,
    UnknownTopicIdError,
)
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_files import checkpoint_path, commit_path
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.forced_deletion import UNKNOWN_RECORDS
from txnlog.storage.tables.topic_log import TopicLog
from txnlog.testing.faults import Fault, FaultyStore, SharedMemory, SimulatedCrash

Damage = Callable[[ObjectStore], None]
GARBAGE = b'{"add": {"pa'


def first(store: ObjectStore) -> None:
    store.put(commit_path("bad", 0), GARBAGE)


def middle(store: ObjectStore) -> None:
    store.put(commit_path("bad", 1), GARBAGE)


def newest(store: ObjectStore) -> None:
    store.put(commit_path("bad", 3), b"")


def hole(store: ObjectStore) -> None:
    store.delete([commit_path("bad", 1)])


def checkpoint(store: ObjectStore) -> None:
    create_checkpoint(store, "bad", trust_ms=10**9)
    store.put(checkpoint_path("bad", 3), b"PAR1")
    store.delete([commit_path("bad", number) for number in range(4)])


DAMAGES = pytest.mark.parametrize("damage", [first, middle, newest, hole, checkpoint])
Open = Callable[[], Cluster]


@pytest.fixture(params=["memory", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Another process at the same root; `bad` has three records a partition, `good` one."""
    shared = SharedMemory()

    def new() -> Cluster:
        store: ObjectStore = shared.open()
        if request.param == "disk":
            store = ObjectStore.from_url(str(tmp_path / "root"), create=True)
        return Cluster.open(store, create=True, shards=1, settings=PLAIN)

    cluster = new()
    for topic, batches in (("bad", 3), ("good", 1)):
        cluster.create_topic(topic, partitions=2)
        fill(cluster, topic, batches)
    return new


def fill(cluster: Cluster, topic: str, batches: int) -> None:
    producer = Producer({"txnlog.root": cluster.root}, cluster=cluster, background=False)
    for number in range(batches):
        for partition in (0, 1):
            producer.produce(topic, f"{number}", partition=partition)
        producer.flush()


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({}, cluster=cluster)


def ends(cluster: Cluster, topic: str) -> list[int]:
    log = cluster.topic(topic)
    return [log.view.high_watermark(number) for number in range(log.partitions)]


@DAMAGES
def test_listing_shows_the_damaged_topic_with_its_error(opened: Open, damage: Damage) -> None:
    """After one damaged file the cluster could not be listed."""
    damage(opened().store)
    consumer = Consumer({"txnlog.root": "memory://", "group.id": "g"}, cluster=opened())
    for found in (admin(opened()).list_topics(), consumer.list_topics()):
        assert sorted(found.topics) == ["bad", "good"]
        assert isinstance(found.topics["bad"].error, CorruptLogError)
        assert (found.topics["good"].error, len(found.topics["good"].partitions)) == (None, 2)
    alone = admin(opened()).list_topics("bad").topics["bad"]
    assert isinstance(alone.error, CorruptLogError)
    assert opened().list_topics() == ["good"]


def test_listing_is_retried_after_a_store_error(opened: Open) -> None:
    """A topic missing because of a lost reply would be revoked from its consumers."""
    cluster = opened()
    if not isinstance(cluster.store, FaultyStore):
        pytest.skip("faults are injected in memory")
    cluster.store.plan = lambda verb, path: (
        Fault.FAIL_BEFORE if path.startswith("bad/") else Fault.NONE
    )
    with pytest.raises(StorageError):
        cluster.list_topics()
    assert isinstance(cluster.survey_topics()["bad"], StorageError)
    cluster.store.plan = lambda verb, path: Fault.DENY if path.startswith("bad/") else Fault.NONE
    assert cluster.list_topics() == ["good"]
    assert isinstance(cluster.survey_topics()["bad"], TopicAuthorizationError)


def test_consumer_of_a_pattern_reads_the_undamaged_topics(opened: Open) -> None:
    """One damaged topic stopped the whole group."""
    first(opened().store)
    consumer = Consumer(
        {"txnlog.root": "memory://", "group.id": "g", "auto.offset.reset": "earliest"},
        cluster=opened(),
    )
    consumer.subscribe(["^.*"])
    found = []
    for _ in range(50):
        message = consumer.poll(0)
        if message is not None:
            found.append((message.topic(), message.value()))
    assert found == [("good", b"0"), ("good", b"0")]
    consumer.close()


@DAMAGES
def test_damaged_topic_is_deleted_only_with_force(opened: Open, damage: Damage) -> None:
    """A backup of one file may restore its records: they must not be lost by mistake."""
    damage(opened().store)
    with pytest.raises(CorruptLogError, match="force"):
        admin(opened()).delete_topics(["bad"])["bad"].result()
    admin(opened()).delete_topics(["bad"], force=True)["bad"].result()
    assert sorted(admin(opened()).list_topics().topics) == ["good"]
    assert ends(opened(), "good") == [1, 1]


@DAMAGES
def test_topic_created_again_continues_above_all_old_offsets(opened: Open, damage: Damage) -> None:
    """An old position must not lie in the middle of new data (R71, D12): what stands in the damaged
    part is not known.
    """
    damage(opened().store)
    opened().delete_topic("bad", force=True)
    cluster = opened()
    cluster.create_topic("bad", partitions=2)
    fill(cluster, "bad", 1)
    log = opened().topic("bad")
    assert log.partitions == 2
    for number in range(2):
        # It had three records.
        assert log.view.log_start_offset(number) >= UNKNOWN_RECORDS
        assert log.view.high_watermark(number) == log.view.log_start_offset(number) + 1
    files = [item for item in cluster.store.list_files("bad") if item.path.endswith("parquet")]
    assert len(files) == 6 + 2


@DAMAGES
def test_process_with_the_log_in_memory_cannot_write_to_the_deleted_topic(
    opened: Open, damage: Damage
) -> None:
    """An empty log would accept its next commit, and the topic would stay damaged (D12, R71)."""
    cluster = opened()
    told: list[TxnLogError | None] = []
    producer = Producer(
        {"txnlog.root": cluster.root, "delivery.timeout.ms": 1_000, "linger.ms": 0},
        cluster=cluster, background=False,
    )  # fmt: skip
    producer.produce("bad", "before", partition=0)
    producer.flush()
    damage(opened().store)
    opened().delete_topic("bad", force=True)
    producer.produce("bad", "after", partition=0, on_delivery=lambda error, _: told.append(error))
    producer.flush()
    assert isinstance(told[0], UnknownTopicIdError)
    assert opened().find_topic("bad") is None
    opened().create_topic("bad")
    fill(opened(), "bad", 1)


@pytest.mark.parametrize("damage", [newest, hole])
def test_reader_that_read_the_damage_continues_after_the_topic_is_deleted(
    opened: Open, damage: Damage
) -> None:
    """It has the part before the damage in memory, and would read the damage again for ever."""
    log = TopicLog(opened().store, "bad")
    log.refresh()
    reader = opened()
    store = opened().store
    kept = [store.get(commit_path("bad", version)) for version in range(4)]
    store.delete([commit_path("bad", 2), commit_path("bad", 3)])
    reader.topic("bad")
    for version in (2, 3):
        store.put(commit_path("bad", version), kept[version])
    store.put(commit_path("bad", 2), GARBAGE)
    with pytest.raises(CorruptLogError):
        reader.topic("bad")
    opened().delete_topic("bad", force=True)
    assert reader.find_topic("bad") is None


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.FAIL_BEFORE])
def test_deletion_that_failed_at_any_call_can_be_repeated(fault: Fault) -> None:
    """A process that dies between the commit and its checkpoint leaves the topic damaged."""
    number = 0
    done = False
    while not done:
        shared = SharedMemory()
        cluster = Cluster.open(shared.open(), create=True, shards=1, settings=PLAIN)
        cluster.create_topic("bad", partitions=2)
        fill(cluster, "bad", 3)
        middle(cluster.store)
        dying = Cluster.open(shared.open(), settings=PLAIN)
        calls = 0

        def plan(verb: str, path: str) -> Fault:
            nonlocal calls
            calls += 1
            return fault if calls == number + 1 else Fault.NONE  # noqa: B023

        assert isinstance(dying.store, FaultyStore)
        dying.store.plan = plan
        try:
            dying.delete_topic("bad", force=True)
            done = calls <= number
        except (StorageError, SimulatedCrash):
            done = False
        again = Cluster.open(shared.open(), settings=PLAIN)
        if again.survey_topics():
            again.delete_topic("bad", force=True)
        again = Cluster.open(shared.open(), settings=PLAIN)
        assert again.survey_topics() == {}
        again.create_topic("bad", partitions=2)
        assert min(ends(again, "bad")) >= UNKNOWN_RECORDS
        # Ends that leap twice soon reach the highest offset.
        assert max(ends(again, "bad")) < 2 * UNKNOWN_RECORDS
        number += 1
    assert number > 5


def test_transaction_with_a_deleted_topic_is_finished(opened: Open) -> None:
    """Else the transaction waits for its marker for ever (R71)."""
    cluster = opened()
    producer = Producer(
        {"txnlog.root": cluster.root, "transactional.id": "tx"}, cluster=cluster, background=False
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("bad", "v", partition=0)
    producer.produce("good", "v", partition=0)
    producer.prepare_transaction()
    first(opened().store)
    with pytest.raises(TxnLogError):
        Cluster.open(opened().store, settings=PLAIN).topic("bad")
    opened().delete_topic("bad", force=True)
    assert producer.complete_transaction(producer.prepared_state)
    assert ends(opened(), "good") == [2, 1]


def test_force_deletes_no_foreign_table(tmp_path: Path) -> None:
    """A Delta table below the root may belong to another application."""
    import pyarrow as pa
    from deltalake import write_deltalake

    store = ObjectStore.from_url(str(tmp_path / "root"), create=True)
    cluster = Cluster.open(store, create=True, shards=1, settings=PLAIN)
    for _ in range(3):
        write_deltalake(str(tmp_path / "root" / "theirs"), pa.table({"x": [1]}), mode="append")
    with pytest.raises(ForeignTableError):
        cluster.delete_topic("theirs", force=True)
    store.put(commit_path("theirs", 2), GARBAGE)
    before = sorted(item.path for item in store.list("theirs"))
    with pytest.raises(ForeignTableError):
        Cluster.open(store, settings=PLAIN).delete_topic("theirs", force=True)
    assert sorted(item.path for item in store.list("theirs")) == before


ODD = [
    b"caf\xe9", b"a b", b"a%20b", b"a%", b"a#b", b"new\nline", b"good\n", b"tab\t", b"q?", b"...",
    b"back\\slash", b"a*b", "\u00fc".encode(), b"__something", b"x" * 250, b".hidden", b"-",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_folder_of_any_name_fails_no_listing(tmp_path: Path, name: bytes) -> None:
    """After a backup tool created a folder, every listing of the root raised StorageError."""
    root = tmp_path / "root"
    cluster = Cluster.open(str(root), create=True, shards=1, settings=PLAIN)
    cluster.create_topic("good")
    folder = str(root).encode() + b"/" + name
    os.makedirs(folder + b"/nested/_delta_log")
    os.makedirs(folder + b"/_delta_log")
    with open(folder + b"/_delta_log/stray", "wb"), open(folder + b"/f\xff", "wb"):
        pass
    assert Cluster.open(str(root)).list_topics() == ["good"]
    assert admin(Cluster.open(str(root))).list_topics().topics["good"].error is None
    done = Housekeeper(Cluster.open(str(root))).run_once()
    assert done is not None


def test_odd_things_at_the_root_fail_no_listing(tmp_path: Path) -> None:
    """Files, dangling and cyclic links, pipes."""
    root = tmp_path / "root"
    cluster = Cluster.open(str(root), create=True, shards=1, settings=PLAIN)
    cluster.create_topic("good")
    (root / "file").write_bytes(b"x")
    (root / "good" / "f\udcff").write_bytes(b"x")
    os.symlink("/nowhere/at/all", root / "dangling")
    os.symlink(root / "itself", root / "itself")
    os.symlink(root, root / "loop")
    os.symlink("/nowhere/at/all", root / "good" / "dangling")
    os.mkfifo(root / "pipe")
    assert Cluster.open(str(root)).list_topics() == ["good"]
    assert Housekeeper(Cluster.open(str(root))).run_once() is not None


def test_watermarks_of_a_damaged_topic_raise_its_error(opened: Open) -> None:
    """With the name of the damaged file."""
    first(opened().store)
    consumer = Consumer({"txnlog.root": "memory://", "group.id": "g"}, cluster=opened())
    with pytest.raises(CorruptLogError) as error:
        consumer.get_watermark_offsets(TopicPartition("bad", 0))
    assert error.value.file == commit_path("bad", 0)


@DAMAGES
def test_files_of_a_topic_deleted_with_force_stay_for_vacuums_age(damage: Damage) -> None:
    """A backup of the damaged file, found a day later, still restores the topic: otherwise the
    next vacuum would delete its older files, which are unreferenced now (D11).
    """
    shared = SharedMemory()
    cluster = Cluster.open(shared.open(), create=True, shards=1, settings=PLAIN)
    cluster.create_topic("bad", partitions=2)
    fill(cluster, "bad", 3)
    shared.clock.advance_ms(30 * DAY_MS)
    damage(shared.open())
    cluster = Cluster.open(shared.open(), settings=PLAIN)
    cluster.delete_topic("bad", force=True)
    assert Vacuum(cluster).run() == 0
    shared.clock.advance_ms(8 * DAY_MS)
    assert Vacuum(Cluster.open(shared.open(), settings=PLAIN)).run() == 6


def test_writer_that_wins_the_race_with_the_deletion_has_its_data_deleted() -> None:
    """It does not see the damage, which is before the part it has in memory."""
    shared = SharedMemory()
    warm = Cluster.open(shared.open(), create=True, shards=1, settings=PLAIN)
    warm.create_topic("bad", partitions=2)
    fill(warm, "bad", 3)
    first(shared.open())
    deleting = Cluster.open(shared.open(), settings=PLAIN)
    assert isinstance(deleting.store, FaultyStore)
    raced: list[str] = []

    def plan(verb: str, path: str) -> Fault:
        if verb == "put" and path == commit_path("bad", 4):
            raced.append(path)
            fill(warm, "bad", 1)
        return Fault.NONE

    deleting.store.plan = plan
    deleting.delete_topic("bad", force=True)
    assert raced == [commit_path("bad", 4)]
    again = Cluster.open(shared.open(), settings=PLAIN)
    assert again.survey_topics() == {}
    assert warm.find_topic("bad") is None
    again.create_topic("bad", partitions=2)
    assert ends(again, "bad") == ends(warm, "bad") == [4 + UNKNOWN_RECORDS] * 2
