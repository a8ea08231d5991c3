"""Start positions without a committed offset, or with one out of range."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.consumer.records import (
    at,
    beat,
    committed,
    group_row,
    member,
    put,
    read,
    reader_of,
    sent,
    turn,
    world,
)
from tests.world import decide, process
from txnlog.cluster import Cluster
from txnlog.consuming import fetcher
from txnlog.errors import (
    OffsetOutOfRangeError,
)
from txnlog.messages import (
    TopicPartition,
)
from txnlog.protocol.metadata import Owner
from txnlog.protocol.topics import START_PREFIX, TopicCommit


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [b"0", b"1"]), ("latest", [])])
def test_reset_applies_without_a_committed_offset(reset: str, expected: list[bytes]) -> None:
    """earliest and latest (R14)."""
    shared = world(1)
    put(process(shared), b"0", b"1")
    reader = reader_of(process(shared), auto_offset_reset=reset)
    assert read(reader) == expected
    put(process(shared), b"2")
    assert read(reader) == [b"2"]


def delete_records(cluster: Cluster, before: int) -> None:
    """As AdminClient.delete_records: a new log start, and the files below it removed."""
    log = cluster.topic("t")
    gone = tuple(b.path for b in log.view.partitions[0].batches if b.last_offset < before)
    log.transact(
        lambda state: (
            TopicCommit(operation="DELETE RECORDS", removes=gone, txns={f"{START_PREFIX}0": before})
            if state.log_start_offset(0) < before
            else None
        )
    )


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_position_below_the_log_start_follows_the_reset(reset: str) -> None:
    """Retention removed records that the consumer had not read (R14)."""
    shared = world(1)
    for number in range(4):
        put(process(shared), b"%d" % number)
    reader = reader_of(process(shared), auto_offset_reset=reset)
    reader.assign([TopicPartition("t", 0, 0)])
    assert [m.value() for m in reader.consume(1, 0)] == [b"0"]
    delete_records(process(shared), 3)
    fresh = reader_of(process(shared), auto_offset_reset=reset)
    fresh.assign([TopicPartition("t", 0, 1)])
    if reset == "none":
        with pytest.raises(OffsetOutOfRangeError, match="Offset 1 of 't' partition 0 .* 3 to 4"):
            read(fresh)
        fresh.seek(TopicPartition("t", 0, 3))
        assert read(fresh) == [b"3"]
        return
    assert read(fresh) == ([b"3"] if reset == "earliest" else [])
    assert at(fresh) == 4


def test_position_above_the_end_follows_the_reset() -> None:
    """With an offset of another cluster, or a mistyped one, it would wait for ever (R14)."""
    shared = world(1)
    put(process(shared), b"0")
    reader = reader_of(process(shared))
    reader.seek(TopicPartition("t", 0, 17))
    assert read(reader) == [b"0"]


def test_topic_created_again_is_read_from_its_own_start() -> None:
    """Old positions must never be within the new topic's data (R71)."""
    shared = world(1)
    put(process(shared), b"old0", b"old1", b"old2")
    reader = reader_of(process(shared))
    assert len(reader.consume(2, 0)) == 2
    reader.seek(TopicPartition("t", 0, 1))
    process(shared).delete_topic("t")
    assert read(reader) == []
    process(shared).create_topic("t", partitions=1)
    put(process(shared), b"new0", b"new1")
    assert read(reader) == [b"new0", b"new1"]
    assert at(reader) == 5


@pytest.fixture
def one_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file that is read next is fetched: what follows is only planned."""
    monkeypatch.setattr(fetcher, "AHEAD_FILES", 1)


@pytest.mark.usefixtures("one_ahead")
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_planned_file_past_its_retention_triggers_the_reset(reset: str) -> None:
    """Retention and vacuum removed a planned file: readers must not skip it silently (R14)."""
    shared = world(1)
    cluster = process(shared)
    for number in range(4):
        put(cluster, b"%d" % number)
    reader = reader_of(process(shared), auto_offset_reset=reset)
    reader.assign([TopicPartition("t", 0, 0)])
    assert [m.value() for m in reader.consume(1, 0)] == [b"0"]
    old = cluster.topic("t").view.partitions[0].batches[:3]
    delete_records(cluster, 3)
    cluster.store.delete([f"t/{batch.path}" for batch in old])
    put(cluster, b"4")
    if reset == "none":
        with pytest.raises(OffsetOutOfRangeError, match="Offset 1 of 't' partition 0 .* 3 to 5"):
            read(reader)
        assert at(reader) == 1
        return
    found = read(reader) + read(reader)
    assert found == ([b"3", b"4"] if reset == "earliest" else [])
    assert at(reader) == 5


@pytest.mark.usefixtures("one_ahead")
def test_planned_file_of_a_deleted_topic_is_no_error() -> None:
    """There is nothing left to read."""
    shared = world(1)
    cluster = process(shared)
    for number in range(2):
        put(cluster, b"%d" % number)
    reader = reader_of(process(shared))
    assert [m.value() for m in reader.consume(1, 0)] == [b"0"]
    (_, planned) = cluster.topic("t").view.partitions[0].batches
    cluster.delete_topic("t")
    cluster.store.delete([f"t/{planned.path}"])
    assert read(reader) == read(reader) == []


# --- Partitions and topics that appear later ------------------------------------------------------


def grow(cluster: Cluster, partitions: int, topic: str = "t") -> None:
    """As AdminClient.create_partitions."""
    cluster.topic_log(topic).alter(lambda config: {**config, "partitions": str(partitions)})


LATER = pytest.mark.parametrize("reset", ["latest", "none", "earliest"])


@LATER
def test_partition_added_while_the_group_was_away_starts_at_its_log_start(reset: str) -> None:
    """At latest what was written there meanwhile was never read (KAFKA-12478, KIP-842, D135)."""
    shared = world(1)
    first = member(shared, auto_offset_reset="latest")
    read(first)
    put(process(shared), b"0")
    assert read(first) == [b"0"]
    first.close()
    grow(process(shared), 3)
    for partition in range(3):
        put(process(shared), b"later", partition=partition)
    assert read(member(shared, auto_offset_reset=reset)) == [b"later"] * 3
    alone = reader_of(process(shared), 3, group_id="g", auto_offset_reset=reset)
    assert read(alone) == [b"later"] * 3


def test_running_group_reads_what_appears_from_its_log_start() -> None:
    """A partition, and a topic of the pattern, have records before a member notices them."""
    shared = world(1)
    reader = member(shared, ["^t.*"], auto_offset_reset="latest", metadata_max_age_ms=1_000)
    read(reader)
    put(process(shared), b"0")
    assert read(reader) == [b"0"]
    reader.commit(asynchronous=False)
    grow(process(shared), 2)
    process(shared).create_topic("t2", partitions=1)
    process(shared).create_topic("u", partitions=1)
    put(process(shared), b"1", partition=1)
    put(process(shared), b"2", topic="t2")
    turn(shared, reader)
    beat(reader)
    assert sorted(map(bytes, filter(None, read(reader)))) == [b"1", b"2"]


def test_topic_that_is_new_to_the_group_follows_the_reset() -> None:
    """A topic that is added to a list, or selected by another pattern, may be an old one (D135)."""
    shared = world(1)
    for topic in ("other", "u1"):
        process(shared).create_topic(topic, partitions=1)
        put(process(shared), b"old", topic=topic)
    with member(shared, ["t"], auto_offset_reset="latest") as first:
        read(first)
    assert committed(member(shared, ["t"])) == 0
    reader = member(shared, ["t", "other", "^u.*"], auto_offset_reset="latest")
    turn(shared, reader)
    assert read(reader) == []


def test_commit_of_one_message_keeps_the_starts_of_the_other_partitions() -> None:
    """Else they would seem to have appeared since, and all that they had would be read (D135)."""
    shared = world(3)
    for partition in range(3):
        put(process(shared), b"old", b"old", partition=partition)
    settings = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    with member(shared, **settings) as first:
        read(first)
        put(process(shared), b"0")
        [message] = first.consume(10, 0)
        first.commit(message=message, asynchronous=False)
        put(process(shared), b"1", partition=1)
    assert group_row(shared).positions() == {"t": {0: 3, 1: 2, 2: 2}}
    with member(shared, **settings) as second:
        assert read(second) == [b"1"]


def test_commit_keeps_no_start_where_there_is_an_offset() -> None:
    """A start is older than whatever was committed since, by this consumer or a transaction."""
    shared = world(2)
    settings = {"auto_offset_reset": "latest", "enable_auto_commit": False}
    with member(shared, **settings) as reader:
        read(reader)
        put(process(shared), b"0")
        put(process(shared), b"1", partition=1)
        for message in reader.consume(10, 0):
            reader.commit(message=message)
            reader.commit(message=message, asynchronous=False)
    assert group_row(shared).positions() == {"t": {0: 1, 1: 1}}


def test_commit_keeps_no_start_where_a_transaction_has_decided_an_offset() -> None:
    """It is in the producer's row, and not yet in the group's: it would go back to the start."""
    shared = world(2)
    reader = member(shared, auto_offset_reset="latest", enable_auto_commit=False)
    read(reader)
    put(process(shared), b"0")
    put(process(shared), b"1", b"1", partition=1)
    first = [message for message in reader.consume(10, 0) if message.partition() == 0]
    dying = process(shared)
    row = dying.coordinator.init_producer_id("copy", Owner(run_id="copy"))
    offsets = replace(sent(reader), end={"t": {1: 2}})
    decide(dying, row, offsets=[offsets])
    reader.commit(message=first[0], asynchronous=False)
    assert group_row(shared).positions() == {"t": {0: 1, 1: 2}}
