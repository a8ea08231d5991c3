"""How many requests wait for one another, and how many an idle process makes: held by counting.

A round takes 25 to 60 ms on an object store, and a request costs money. The numbers are those of
a store in memory that counts, so they do not depend on the speed of a machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_source.planning import FileSlice, PartitionRange
from spark_source.reading import read_ranges
from spark_source.schema import spark_schema
from spark_source.stream import TxnLogStreamReader, open_reader
from tests.consumer.records import put
from tests.spark_source.stream_steps import ALL
from tests.world import PLAIN
from txnlog.cli.app import app
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.messages import TopicPartition
from txnlog.protocol.txn_memory import VACUUM_AGE_MS_DEFAULT
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory
from txnlog.testing.rounds import RoundsStore

MINUTE_MS = 60_000


def cluster_of(shared: SharedMemory) -> Cluster:
    """For preparations, which are not counted."""
    return Cluster.open(shared.open(), create=True, shards=2, settings=PLAIN)


def counting(shared: SharedMemory) -> tuple[Cluster, RoundsStore]:
    """A new process whose calls are counted from here on."""
    store = RoundsStore(shared)
    cluster = Cluster.open(store, settings=PLAIN)
    store.rounds = 0
    store.calls.clear()
    return cluster, store


def world(topics: int, files: int = 0) -> SharedMemory:
    """Topics t0, t1, ... of one partition, with some files of one record each."""
    shared = SharedMemory()
    cluster = cluster_of(shared)
    for number in range(topics):
        cluster.create_topic(f"t{number}", partitions=1)
        for file in range(files):
            put(cluster, b"%d" % file, topic=f"t{number}")
    return shared


# --- Opening --------------------------------------------------------------------------------------


def test_cluster_and_topic_open_in_three_rounds_each() -> None:
    """The hint, the listing, then checkpoint and commits together."""
    shared = world(1, files=5)
    before = cluster_of(shared)
    create_checkpoint(before.store, "t0", trust_ms=PLAIN.trust_ms)
    put(before, b"after", topic="t0")
    store = RoundsStore(shared)
    cluster = Cluster.open(store, settings=PLAIN)
    assert store.rounds <= 3
    store.rounds = 0
    assert cluster.topic("t0").view.high_watermark(0) == 6
    assert store.rounds <= 3


@pytest.mark.parametrize("count", [2, 30])
def test_topics_open_together(count: int) -> None:
    """The number of topics is not in the number of rounds."""
    cluster, store = counting(world(count))
    assert len(cluster.list_topics()) == count
    assert store.rounds <= 4
    store.rounds = 0
    assert len(cluster.list_topics()) == count
    assert store.rounds == 2, "one listing, and the tails together"


def test_offsets_of_200_topics_take_at_most_10_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`txnlog offsets` without a topic: it took one request after the other for each of them."""
    store = RoundsStore(world(200))
    monkeypatch.setattr(ObjectStore, "from_url", lambda *given, **named: store)
    printed = CliRunner().invoke(app, ["--root", "memory://", "offsets"], None, {"TXNLOG_ROOT": ""})
    assert printed.exit_code == 0, printed.stderr
    assert len(printed.stdout.splitlines()) == 1 + 200
    assert store.rounds <= 10


# --- Records --------------------------------------------------------------------------------------


def consuming(shared: SharedMemory, topics: int, **config: Any) -> tuple[Consumer, RoundsStore]:
    cluster, store = counting(shared)
    reader = Consumer(
        {"auto.offset.reset": "earliest", "enable.auto.commit": False, **config},
        cluster=cluster,
        background=False,
    )
    reader.assign([TopicPartition(f"t{number}", 0) for number in range(topics)])
    return reader, store


@pytest.mark.parametrize(("topics", "files"), [(1, 2), (3, 10), (12, 20)])
def test_poll_that_finds_files_of_several_topics_takes_constant_rounds(
    topics: int, files: int
) -> None:
    """Tails together, files together: 240 files took 240 rounds."""
    shared = world(topics)
    reader, store = consuming(shared, topics)
    assert reader.consume(1, 0) == []
    for number in range(topics):
        for file in range(files):
            put(cluster_of(shared), b"%d" % file, topic=f"t{number}")
    shared.clock.advance_ms(1_000)
    # The tails are read commit by commit; these are counted apart.
    reader.list_topics()
    shared.clock.advance_ms(1_000)
    store.rounds = 0
    found = reader.consume(topics * files, 0)
    assert len(found) == topics * files
    for number in range(topics):
        values = [m.value() for m in found if m.topic() == f"t{number}"]
        assert values == [b"%d" % file for file in range(files)], "in the order of offsets"
    assert store.rounds <= 3


def test_spark_task_reads_the_files_of_all_its_ranges_together() -> None:
    """A task of 60 small files on an object store took 60 rounds."""
    cluster, store = counting(world(3, files=20))
    ranges = []
    for number in range(3):
        batches = cluster.topic(f"t{number}").view.partitions[0].batches
        files = tuple(
            FileSlice(f"t{number}/{b.path}", b.base_offset, b.last_offset, b.size_bytes, 1)
            for b in batches
        )
        ranges.append(PartitionRange(f"t{number}", 0, 0, 20, files))
    store.rounds = 0
    read = list(read_ranges(store, ranges, include_headers=False))
    offsets = [
        (topic, offset)
        for batch in read
        for topic, offset in zip(
            batch.column("topic").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    ]
    assert offsets == [(f"t{number}", offset) for number in range(3) for offset in range(20)]
    assert store.rounds == 1


# --- Idling ---------------------------------------------------------------------------------------


def source(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **options: str) -> TxnLogStreamReader:
    monkeypatch.setattr(Cluster, "cached", lambda *given, **named: cluster)
    wanted = {"path": "memory://", "subscribe": "t0", "startingOffsets": "earliest", **options}
    return open_reader(wanted, spark_schema(include_headers=False))


def test_idle_source_makes_at_most_two_requests_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks every 10 ms: that was 83 USD a month for one topic."""
    cluster, store = counting(world(1, files=1))
    reader = source(cluster, monkeypatch)
    clock = store.clock
    at = reader.latestOffset({}, ALL)
    until_ms = clock.boot_ms() + MINUTE_MS
    store.calls.clear()
    while clock.boot_ms() < until_ms:
        assert reader.latestOffset(at, ALL) == at
        clock.sleep_ms(10)
    assert len(store.calls) <= 2 * 60
    assert store.calls, "it does check"


@pytest.mark.parametrize("options", [{}, {"metadata.poll.interval.ms": "200"}])
def test_idle_source_finds_a_record_within_the_interval(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The price of checking less often, and its bound."""
    shared = world(1, files=1)
    cluster, store = counting(shared)
    reader = source(cluster, monkeypatch, **options)
    clock = store.clock
    at = reader.latestOffset({}, ALL)
    until_ms = clock.boot_ms() + MINUTE_MS
    while clock.boot_ms() < until_ms:
        reader.latestOffset(at, ALL)
        clock.sleep_ms(10)
    put(cluster_of(shared), b"new", topic="t0")
    begun_ms = clock.boot_ms()
    while (found := reader.latestOffset(at, ALL)) == at:
        clock.sleep_ms(10)
    interval_ms = int(options.get("metadata.poll.interval.ms", "1000"))
    assert clock.boot_ms() - begun_ms <= interval_ms + 10
    assert len(reader.partitions(at, found)) == 1


def idle_calls(reader: Consumer, store: RoundsStore, topics: int) -> int:
    """Requests of a minute without records, after a minute to become idle."""
    for _ in range(2):
        store.calls.clear()
        assert reader.poll(60) is None
    assert {path.partition("/")[0] for _, path in store.calls} >= {f"t{n}" for n in range(topics)}
    return len(store.calls)


def test_idle_consumer_makes_at_most_two_requests_per_second() -> None:
    """It polled ten times a second."""
    reader, store = consuming(world(1, files=1), 1)
    assert len(reader.consume(1, 0)) == 1
    assert idle_calls(reader, store, 1) <= 2 * 60


def test_idle_consumer_of_many_topics_is_bounded_too() -> None:
    """The interval grows with the topics: at most 100 tails per second, and the rare checks."""
    reader, store = consuming(world(110), 110)
    assert idle_calls(reader, store, 110) <= 140 * 60


def test_idle_consumer_finds_a_record_within_the_interval() -> None:
    """As the source does."""
    shared = world(1, files=1)
    reader, store = consuming(shared, 1)
    assert len(reader.consume(1, 0)) == 1
    assert reader.poll(60) is None
    put(cluster_of(shared), b"new", topic="t0")
    begun_ms = store.clock.boot_ms()
    message = reader.poll(60)
    assert message is not None
    assert message.value() == b"new"
    assert store.clock.boot_ms() - begun_ms <= 1_000


@pytest.mark.parametrize(
    "change",
    [
        lambda reader, t: reader.seek(TopicPartition("t0", 0, 0)),
        lambda reader, t: (reader.pause([t]), reader.resume([t]), reader.seek(t)),
        lambda reader, t: reader.assign([t]),
    ],
)
def test_change_of_what_is_read_ends_the_wait(change: Callable[[Consumer, Any], object]) -> None:
    """An idle consumer that seeks back must not wait for the next check."""
    reader, _ = consuming(world(1, files=1), 1)
    assert len(reader.consume(1, 0)) == 1
    assert reader.poll(60) is None
    change(reader, TopicPartition("t0", 0, 0))
    assert [m.value() for m in reader.consume(1, 0)] == [b"0"]


# --- Housekeeping ---------------------------------------------------------------------------------


def test_5000_files_are_deleted_in_one_round_of_five_requests() -> None:
    """One request after the other took two minutes at 25 ms."""
    store = RoundsStore(SharedMemory())
    paths = [f"t/{number}" for number in range(5_000)]
    store.together([partial(store.put, path, b"1") for path in paths])
    store.rounds = 0
    store.calls.clear()
    store.delete(paths)
    assert (store.rounds, len(store.calls)) == (1, 5)
    assert store.list("t") == []


@pytest.mark.parametrize("topics", [1, 8])
def test_vacuum_takes_the_same_rounds_for_many_tables_and_files(topics: int) -> None:
    """Barriers of all topics together, and 2,000 deletions together."""
    shared = world(topics, files=1)
    store = shared.open()
    for number in range(2_000):
        store.put(f"t{number % topics}/part-0-{uuid.UUID(int=number)}.parquet", b"1")
    shared.clock.advance_ms(2 * VACUUM_AGE_MS_DEFAULT)
    cluster, counted = counting(shared)
    assert Vacuum(cluster).run() >= 2_000
    assert counted.rounds <= 60
    assert len([call for call in counted.calls if call[0] == "delete"]) <= 2 + topics * 2


@pytest.mark.parametrize("files", [20, 200])
def test_compaction_reads_the_files_of_a_segment_together(files: int) -> None:
    """2,000 small files a second are out of reach with a round for each."""
    cluster, store = counting(world(1, files=files))
    cluster.topic("t0")
    store.rounds = 0
    assert Compactor(cluster).compact("t0") == files
    assert store.rounds <= 20
