"""What a consumer reads: all decided records and no others, in order, from its position."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from msgspec.structs import replace

from tests.consumer.records import (
    TIME_MS,
    Writer,
    at,
    consumer,
    messages,
    put,
    read,
    reader_of,
    staged,
    world,
)
from tests.world import process
from txnlog.admin import AdminClient, OffsetSpec
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import (
    CorruptLogError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from txnlog.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TopicPartition,
)
from txnlog.producer import Producer
from txnlog.protocol.batches import encode_stats
from txnlog.protocol.metadata import Owner
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.batches.records import MESSAGE_SCHEMA
from txnlog.testing.faults import Fault, FaultsAt, SharedMemory, no_faults


def test_read_committed_returns_committed_records_and_skips_aborted_ones() -> None:
    """Interleaved transactions, aborted and committed, must be distinguished (R15, R16, R17)."""
    shared = world(1)
    cluster = process(shared)
    one, two = Writer(cluster, "one"), Writer(cluster, "two")
    one.append(b"a1")
    two.append(b"b1")
    one.append(b"a2")
    reader = reader_of(process(shared))
    assert read(reader) == []
    one.abort()
    assert read(reader) == []
    assert at(reader) == 1
    two.append(b"b2")
    two.commit()
    assert read(reader) == [b"b1", b"b2"]
    assert at(reader) == 4
    two.append(b"b3")
    two.abort()
    assert read(reader) == []
    assert at(reader) == 5


def test_read_uncommitted_returns_all_records() -> None:
    """Aborted data stays visible to read_uncommitted (R18)."""
    shared = world(1)
    writer = Writer(process(shared))
    writer.append(b"open")
    reader = reader_of(process(shared), isolation_level="read_uncommitted")
    assert read(reader) == [b"open"]
    writer.abort()
    writer.append(b"again")
    assert read(reader) == [b"again"]
    assert read(reader_of(process(shared), isolation_level="read_uncommitted")) == [
        b"open",
        b"again",
    ]


def test_offsets_for_times_below_zero_are_those_that_brokers_answer() -> None:
    """-1, which is OFFSET_END, gave the start; the default of a TopicPartition is before all."""
    shared = world(1)
    put(process(shared), b"a", b"b", b"c")
    reader = consumer(process(shared))

    def at(time_ms: int) -> int:
        return reader.offsets_for_times([TopicPartition("t", 0, time_ms)])[0].offset

    assert (at(OFFSET_END), at(OFFSET_BEGINNING), at(OFFSET_INVALID), at(-3)) == (3, 0, 0, 0)
    admin = AdminClient({}, cluster=process(shared))
    for time_ms, offset in ((-1, 3), (-2, 0), (-3, 0)):
        asked = {TopicPartition("t", 0): OffsetSpec.for_timestamp(time_ms)}
        [found] = admin.list_offsets(asked).values()
        assert found.result().offset == offset


def test_watermarks_and_offsets_for_times_follow_the_isolation_level() -> None:
    """Else lag never reaches 0, and a look-up by time returns open records (R12, R15)."""
    shared = world(1)
    put(process(shared), b"x", b"y")
    writer = Writer(process(shared))
    writer.append(b"open", time_ms=TIME_MS + 1_000)
    where = TopicPartition("t", 0)
    committed = reader_of(process(shared))
    uncommitted = reader_of(process(shared), isolation_level="read_uncommitted")
    assert committed.get_watermark_offsets(where) == (0, 2)
    assert uncommitted.get_watermark_offsets(where) == (0, 3)

    def first_at(reader: Consumer, time_ms: int) -> int:
        return reader.offsets_for_times([TopicPartition("t", 0, time_ms)])[0].offset

    assert first_at(committed, TIME_MS + 1) == 1
    assert first_at(committed, TIME_MS + 500) == OFFSET_END
    assert first_at(uncommitted, TIME_MS + 500) == 2


def test_message_has_all_fields_of_its_record() -> None:
    """A field that a consumer drops is lost to its application (R15)."""
    shared = world(1)
    batch = staged(
        process(shared),
        [b"v", None, b""],
        keys=[b"k", None, b""],
        headers=[[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []],
    )
    commit_one_off(process(shared), [batch], Owner(run_id="put"))
    found = messages(reader_of(process(shared)))
    assert [(m.topic(), m.partition(), m.offset()) for m in found] == [
        ("t", 0, 0),
        ("t", 0, 1),
        ("t", 0, 2),
    ]
    assert [m.key() for m in found] == [b"k", None, b""]
    assert [m.value() for m in found] == [b"v", None, b""]
    assert [m.headers() for m in found] == [[("h", b"1"), ("h", None)], None, None]
    assert found[1].timestamp() == (TIMESTAMP_CREATE_TIME, TIME_MS + 1)
    assert [m.error() for m in found] == [None] * 3


def test_headers_written_without_a_key_are_read_with_an_empty_one() -> None:
    """produce() and the Spark sink take no others: a copy of the record failed for ever."""
    shared = world(1)
    nameless = [[{"key": None, "value": b"1"}, None, {"key": "h", "value": None}], None, []]
    batch = staged(process(shared), [b"v", b"w", b"x"], headers=nameless)
    commit_one_off(process(shared), [batch], Owner(run_id="put"))
    read = [("", b"1"), ("", None), ("h", None)]
    assert [m.headers() for m in messages(reader_of(process(shared)))] == [read, None, None]
    root = {"txnlog.root": "memory://"}
    copier = Consumer({**root, "group.id": "g"}, cluster=process(shared), background=False)
    copier.assign([TopicPartition("t", 0, 0)])
    table = copier.consume_batch(3, 1)
    assert table.column("headers").to_pylist() == [
        [{"key": key, "value": value} for key, value in read],
        None,
        [],
    ]
    with Producer(root, cluster=process(shared), background=False) as producer:
        producer.produce_batch("t", table.select(["value", "headers"]))
        producer.produce("t", "y", headers=read)
        assert producer.flush() == 0


def test_arrow_table_has_the_columns_of_the_spark_source() -> None:
    """The same records by every API (R15)."""
    shared = world(2)
    put(process(shared), b"a", b"b", keys=[b"k", None])
    put(process(shared), b"c", partition=1)
    table = reader_of(process(shared), partitions=2).consume_batch(timeout=0)
    assert table.schema == MESSAGE_SCHEMA
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    assert [(r["partition"], r["offset"], r["key"], r["value"]) for r in rows] == [
        (0, 0, b"k", b"a"),
        (0, 1, None, b"b"),
        (1, 0, None, b"c"),
    ]
    assert rows[0]["topic"] == "t"
    assert rows[0]["timestamp"] == datetime.datetime.fromtimestamp(
        TIME_MS / 1000, datetime.timezone.utc
    )


def test_batches_keep_their_limits_and_continue_after_them() -> None:
    """A limit that splits a batch must not lose the rest of it (R17)."""
    shared = world(1)
    for number in range(5):
        put(process(shared), *(b"%d-%d" % (number, k) for k in range(4)))
    reader = reader_of(process(shared))
    sizes, values = [], []
    while table := reader.consume_batch(7, timeout=0):
        sizes.append(table.num_rows)
        values += table.column("value").to_pylist()
    assert sizes == [7, 7, 6]
    assert values == [b"%d-%d" % (n, k) for n in range(5) for k in range(4)]
    small = reader_of(process(shared), fetch_max_bytes=1)
    assert small.consume_batch(timeout=0).num_rows == 1
    assert reader_of(process(shared), max_poll_records=3).consume_batch(timeout=0).num_rows == 3
    assert len(reader_of(process(shared), max_poll_records=3).consume(timeout=0)) == 3


def test_poll_consume_and_consume_batch_can_be_mixed() -> None:
    """All three share one position (R17)."""
    shared = world(1)
    put(process(shared), *(b"%d" % n for n in range(10)))
    reader = reader_of(process(shared))
    first = reader.poll(0)
    assert first is not None
    assert first.value() == b"0"
    assert reader.consume_batch(2, timeout=0).column("value").to_pylist() == [b"1", b"2"]
    assert [m.value() for m in reader.consume(2, 0)] == [b"3", b"4"]
    assert at(reader) == 5
    assert reader.consume_batch(timeout=0).num_rows == 5
    assert reader.poll(0) is None
    assert isinstance(reader.consume_batch(timeout=0), pa.Table)


def test_seek_and_position_are_the_next_offset() -> None:
    """A position that is off by one repeats or loses a record (R17)."""
    shared = world(1)
    put(process(shared), b"0", b"1", b"2", b"3")
    reader = reader_of(process(shared))
    assert at(reader) == OFFSET_INVALID
    assert [m.value() for m in reader.consume(2, 0)] == [b"0", b"1"]
    assert at(reader) == 2
    for offset, expected in [
        (1, [b"1", b"2", b"3"]),
        (OFFSET_BEGINNING, [b"0", b"1", b"2", b"3"]),
        (OFFSET_END, []),
    ]:
        reader.seek(TopicPartition("t", 0, offset))
        assert read(reader) == expected


def test_paused_partition_loses_no_records() -> None:
    """Records read ahead must be returned after resume (R17)."""
    shared = world(2)
    put(process(shared), b"a0", b"a1", b"a2")
    put(process(shared), b"b0", partition=1)
    reader = reader_of(process(shared), partitions=2)
    assert [m.value() for m in reader.consume(1, 0)] == [b"a0"]
    reader.pause([TopicPartition("t", 0)])
    assert read(reader) == [b"b0"]
    put(process(shared), b"a3")
    assert read(reader) == []
    reader.resume([TopicPartition("t", 0)])
    assert read(reader) == [b"a1", b"a2", b"a3"]


def test_no_partition_waits_for_the_backlog_of_another() -> None:
    """One busy partition must not starve the rest (R15)."""
    shared = world(2)
    for _ in range(20):
        put(process(shared), *[b"busy"] * 3)
    put(process(shared), b"rare", partition=1)
    reader = reader_of(process(shared), partitions=2)
    assert b"rare" in [m.value() for m in reader.consume(6, 0)]
    shared.clock.advance_ms(1_000)
    put(process(shared), b"rare", partition=1)
    assert b"rare" in [m.value() for m in reader.consume(9, 0)]


def test_file_replaced_by_compaction_while_it_is_read() -> None:
    """The plan has a file that compaction replaced and vacuum deleted (R20)."""
    shared = world(1)
    cluster = process(shared)
    for number in range(3):
        put(cluster, b"%d" % number)
    reader = reader_of(process(shared))
    assert [m.value() for m in reader.consume(1, 0)] == [b"0"]
    log = cluster.topic("t")
    merged = staged(cluster, [b"1", b"2"])
    old = log.view.partitions[0].batches[1:]

    def compact(state: object) -> TopicCommit | None:
        if merged.path in log.view.by_path:
            return None
        header = replace(
            old[0],
            path=merged.path,
            last_offset=2,
            producer_id=-1,
            size_bytes=merged.size_bytes,
            stats=encode_stats(2, merged.timestamp_min_us, merged.timestamp_max_us),
        )
        return TopicCommit(operation="OPTIMIZE", adds=(header,), removes=tuple(b.path for b in old))

    log.transact(compact)
    cluster.store.delete([f"t/{batch.path}" for batch in old])
    assert read(reader) == [b"1", b"2"]


def test_damaged_file_stops_the_partition_before_it() -> None:
    """Skipping a damaged file loses records silently (R66)."""
    shared = world(1)
    cluster = process(shared)
    put(cluster, b"0")
    put(cluster, b"1")
    path = f"t/{cluster.topic('t').view.partitions[0].batches[1].path}"
    whole = cluster.store.get(path)
    cluster.store.put(path, whole[: len(whole) // 2])
    reader = reader_of(process(shared))
    assert read(reader) == [b"0"]
    for _ in range(2):
        with pytest.raises(CorruptLogError, match=path):
            read(reader)
        assert at(reader) == 1
    cluster.store.put(path, whole)
    assert read(reader) == [b"1"]


def test_store_error_within_a_read_loses_no_records() -> None:
    """Records taken before the error must reach the caller, the others come later (R17)."""
    for number in range(12):
        shared = world(2)
        for value in (b"0", b"1", b"2"):
            put(process(shared), value, partition=int(value) % 2)
        cluster = process(shared)
        reader = reader_of(cluster, partitions=2)
        found = failing_read(shared, cluster, reader, number)
        assert sorted(found + read(reader)) == [b"0", b"1", b"2"], f"at call {number}"


def failing_read(
    shared: SharedMemory, cluster: Cluster, reader: Consumer, number: int
) -> list[bytes]:
    cluster.store.plan = FaultsAt({number: Fault.FAIL_BEFORE})  # type: ignore[attr-defined]
    try:
        return [m.value() or b"" for m in reader.consume(3, 0)]
    except StorageError:
        return []
    finally:
        cluster.store.plan = no_faults  # type: ignore[attr-defined]


def test_error_names_an_unknown_topic_or_partition() -> None:
    """A mistyped name must not look like an empty topic (R60)."""
    reader = consumer(process(world(1)))
    with pytest.raises(UnknownTopicOrPartitionError, match="'nope'"):
        reader.assign([TopicPartition("nope", 0)])
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 7"):
        reader.assign([TopicPartition("t", 7)])
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.get_watermark_offsets(TopicPartition("t", 7))


def test_list_topics_returns_partitions_and_errors_of_missing_topics() -> None:
    """Clients plan by these metadata (R64)."""
    reader = consumer(process(world(3)))
    found = reader.list_topics()
    assert list(found.topics) == ["t"]
    assert sorted(found.topics["t"].partitions) == [0, 1, 2]
    assert isinstance(reader.list_topics("nope").topics["nope"].error, UnknownTopicOrPartitionError)
