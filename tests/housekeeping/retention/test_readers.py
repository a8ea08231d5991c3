"""What readers meet when records go; a transaction goes file by file (R24)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests import world as worlds
from tests.consumer.records import TIME_MS, Writer, consumer, put, read, staged
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import OffsetOutOfRangeError
from txnlog.housekeeping.retention import Retention
from txnlog.messages import OFFSET_BEGINNING, TopicPartition
from txnlog.protocol.metadata import Owner
from txnlog.testing.faults import SharedMemory

HOUR_MS = 3_600_000
OLD_MS = TIME_MS - 2 * HOUR_MS


def world() -> SharedMemory:
    """Topic t, whose records live for an hour; the clock is at TIME_MS."""
    return worlds.world(("t",), groups=(), config={"retention.ms": str(HOUR_MS)})


def expire(shared: SharedMemory) -> int:
    return Retention(process(shared)).enforce_all()


def reader_of(cluster: Cluster, *starts: int, **config: object) -> Consumer:
    """Reads partition 0, 1, ... from these offsets."""
    made = consumer(cluster, **config)
    made.assign([TopicPartition("t", number, start) for number, start in enumerate(starts)])
    return made


def purchase(cluster: Cluster, *parts: tuple[int, int, Sequence[bytes]]) -> None:
    """One transaction with a file per (partition, time, values)."""
    batches = [
        staged(cluster, values, partition=partition, time_ms=time_ms)
        for partition, time_ms, values in parts
    ]
    commit_one_off(cluster, batches, Owner(run_id="shop"))


# --- Below the log start --------------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "seen"), [("earliest", [b"new"]), ("latest", [])])
def test_consumer_below_the_log_start_follows_the_reset(reset: str, seen: list[bytes]) -> None:
    """Its position is never below the log start afterwards (R14)."""
    shared = world()
    put(process(shared), b"a", b"b", time_ms=OLD_MS)
    put(process(shared), b"new")
    reader = reader_of(process(shared), 1, auto_offset_reset=reset)
    assert expire(shared) == 1
    assert read(reader) == seen
    assert reader.position([TopicPartition("t", 0)])[0].offset == 3


def test_consumer_below_the_log_start_without_reset_gets_the_valid_range() -> None:
    """A silent jump would be a loss without a word (R14)."""
    shared = world()
    put(process(shared), b"a", b"b", time_ms=OLD_MS)
    put(process(shared), b"new")
    assert expire(shared) == 1
    reader = reader_of(process(shared), 0, auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRangeError, match="Offset 0 of 't' partition 0 .* 2 to 3"):
        read(reader)


def test_group_below_the_log_start_continues_at_it() -> None:
    """The committed offset does not change; reading continues at the log start (R14, R22)."""
    shared = world()
    put(process(shared), b"a", b"b", time_ms=OLD_MS)
    put(process(shared), b"new")
    first = consumer(process(shared), group_id="g", enable_auto_commit=False)
    first.assign([TopicPartition("t", 0)])
    first.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    assert expire(shared) == 1
    second = consumer(process(shared), group_id="g")
    second.assign([TopicPartition("t", 0)])
    assert second.committed([TopicPartition("t", 0)])[0].offset == 1
    assert read(second) == [b"new"]


def test_consumer_in_the_middle_of_a_file_that_expires_reads_it_to_its_end() -> None:
    """The bytes stay until vacuum: a read that has begun is not torn (R20)."""
    shared = world()
    put(process(shared), b"a", b"b", b"c", time_ms=OLD_MS)
    put(process(shared), b"new")
    reader = reader_of(process(shared), 0)
    assert [m.value() for m in reader.consume(1, 0)] == [b"a"]
    assert expire(shared) == 1
    shared.clock.advance_ms(1_000)
    assert read(reader) == [b"b", b"c", b"new"]


def test_watermarks_and_times_begin_at_the_log_start() -> None:
    """Offset look-ups ignore removed records (R14, R15)."""
    shared = world()
    put(process(shared), b"a", time_ms=OLD_MS)
    put(process(shared), b"new")
    expire(shared)
    reader = reader_of(process(shared), OFFSET_BEGINNING)
    assert reader.get_watermark_offsets(TopicPartition("t", 0)) == (1, 2)
    assert reader.offsets_for_times([TopicPartition("t", 0, OLD_MS)])[0].offset == 1
    assert read(reader) == [b"new"]


# --- Transactions ---------------------------------------------------------------------------------


def test_transaction_of_which_a_part_has_expired_is_read_in_part() -> None:
    """The commit is atomic, not the expiry: retention knows files and times (R24)."""
    shared = world()
    purchase(process(shared), (0, OLD_MS, [b"order"]), (1, TIME_MS, [b"stock"]))
    before = reader_of(process(shared), OFFSET_BEGINNING, OFFSET_BEGINNING)
    assert sorted(read(before)) == [b"order", b"stock"]
    assert expire(shared) == 1
    after = reader_of(process(shared), OFFSET_BEGINNING, OFFSET_BEGINNING)
    assert read(after) == [b"stock"]


def test_eager_transaction_whose_first_file_has_expired_shows_the_rest() -> None:
    """Several files of one partition: those that are left are read as committed (R16, R24)."""
    shared = world()
    writer = Writer(process(shared))
    writer.append(b"1", time_ms=OLD_MS)
    writer.append(b"2")
    assert expire(shared) == 0
    writer.commit()
    assert expire(shared) == 1
    assert read(reader_of(process(shared), OFFSET_BEGINNING)) == [b"2"]


def test_aborted_data_stays_hidden_after_its_neighbours_have_expired() -> None:
    """The list of aborted transactions must not lose entries with earlier files (R16, R19)."""
    shared = world()
    put(process(shared), b"old", time_ms=OLD_MS)
    writer = Writer(process(shared))
    writer.append(b"no")
    writer.abort()
    put(process(shared), b"yes")
    assert expire(shared) == 1
    assert read(reader_of(process(shared), OFFSET_BEGINNING)) == [b"yes"]
