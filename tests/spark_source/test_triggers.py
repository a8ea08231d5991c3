"""Size and time of a micro-batch: minOffsetsPerTrigger, maxTriggerDelay; and its cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark_source.stream_steps import next_end, positions, reader_of, values
from txnlog.connector.spark_versions import ReadAllAvailable, ReadMaxRows, ReadMinRows
from txnlog.errors import ConfigError
from txnlog.process.clock import VirtualClock
from txnlog.protocol.topics import TopicState

MIN = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}


@pytest.fixture
def started(topics):
    """A query that has given its first batch, with its clock; topic t has 2 partitions."""

    def start(**options: str) -> tuple[Any, dict[str, Any], VirtualClock]:
        topics.create("t", 2)
        reader = reader_of(topics, **{**MIN, **options})
        clock = VirtualClock()
        reader._topics.cluster.store.clock = clock
        return reader, next_end(reader, {}, reader.getDefaultReadLimit()), clock

    return start


def test_limit_given_to_spark_is_the_one_it_passes_back(topics) -> None:
    """Spark's Python API takes one limit; ReadAllAvailable would mean that there is none."""
    assert reader_of(topics, **MIN).getDefaultReadLimit() == ReadMinRows(3)
    both = reader_of(topics, maxOffsetsPerTrigger="5", **MIN)
    assert both.getDefaultReadLimit() == ReadMaxRows(5)


def test_min_offsets_delays_a_batch_until_there_are_enough(topics, started) -> None:
    """All partitions together count (R61)."""
    reader, end, _ = started()
    limit = reader.getDefaultReadLimit()
    topics.append("t", 0, [b"a"])
    topics.append("t", 1, [b"b"])
    assert next_end(reader, end, limit) == end
    assert reader.reportLatestOffset() == {"t": {"0": 1, "1": 1}}
    topics.append("t", 0, [b"c"])
    second = next_end(reader, end, limit)
    assert values(reader, end, second) == [b"a", b"c", b"b"]


def test_min_offsets_waits_no_longer_than_max_trigger_delay(topics, started) -> None:
    """The last few records must be read in time; the delay counts from the last batch."""
    reader, end, clock = started(maxTriggerDelay="10s")
    limit = reader.getDefaultReadLimit()
    topics.append("t", 0, [b"a"])
    clock.advance_ms(9_999)
    assert next_end(reader, end, limit) == end
    clock.advance_ms(1)
    second = next_end(reader, end, limit)
    assert positions(second) == {"t": {"0": 1, "1": 0}}
    topics.append("t", 0, [b"b"])
    clock.advance_ms(9_999)
    assert next_end(reader, second, limit) == second


def test_min_offsets_first_batch_of_a_run_is_not_delayed(topics, started) -> None:
    """As in Kafka's connector: a restart reads the backlog."""
    reader, end, _ = started()
    topics.append("t", 0, [b"a"])
    assert next_end(reader, end, reader.getDefaultReadLimit()) == end
    again = reader_of(topics, **MIN)
    assert positions(next_end(again, end, again.getDefaultReadLimit())) == {"t": {"0": 1, "1": 0}}


def test_min_and_max_offsets_hold_together(topics, started) -> None:
    """Enough to start, and then no more than the maximum (R61)."""
    reader, end, _ = started(maxOffsetsPerTrigger="4")
    limit = reader.getDefaultReadLimit()
    topics.append("t", 0, [b"a", b"b"])
    assert next_end(reader, end, limit) == end
    topics.append("t", 0, [b"x"] * 4)
    second = next_end(reader, end, limit)
    assert positions(second) == {"t": {"0": 4, "1": 0}}
    assert next_end(reader, second, limit) == second


def test_min_offsets_do_not_apply_when_spark_reads_all(topics, started) -> None:
    """Spark asks for all with ReadAllAvailable: to wait then would lose the run's end."""
    reader, end, _ = started()
    topics.append("t", 0, [b"a"])
    assert positions(next_end(reader, end, ReadAllAvailable())) == {"t": {"0": 1, "1": 0}}


def test_min_offsets_are_ignored_by_available_now(topics, started) -> None:
    """Else the last records of the run would stay unread, or the run would not end (R61)."""
    _, end, _ = started()
    topics.append("t", 0, [b"a", b"b", b"c", b"d"])
    run = reader_of(topics, maxOffsetsPerTrigger="3", **MIN)
    run.prepareForTriggerAvailableNow()
    limit = run.getDefaultReadLimit()
    second = next_end(run, end, limit)
    third = next_end(run, second, limit)
    topics.append("t", 0, [b"late"] * 5)
    assert values(run, end, second) + values(run, second, third) == [b"a", b"b", b"c", b"d"]
    assert next_end(run, third, limit) == third


def test_min_offsets_above_max_is_refused(topics) -> None:
    """No batch could ever be both (R60)."""
    with pytest.raises(
        ConfigError, match="minOffsetsPerTrigger is 6 and maxOffsetsPerTrigger is 5"
    ):
        reader_of(topics, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


def test_micro_batch_reads_the_headers_of_its_range_only(topics, monkeypatch) -> None:
    """At 10,000 batches reading every header would cost more than the batch."""
    topics.create("t")
    for number in range(30):
        topics.append("t", 0, [str(number).encode()])
    reader = reader_of(topics)
    end = next_end(reader, {})
    topics.append("t", 0, [b"new"])
    asked: list[tuple[int, int]] = []
    batches = TopicState.batches

    def counted(state: TopicState, partition: int, start: int, end: int, read_committed: bool):
        asked.append((start, end))
        return batches(state, partition, start, end, read_committed)

    monkeypatch.setattr(TopicState, "batches", counted)
    second = next_end(reader, end)
    assert values(reader, end, second) == [b"new"]
    assert asked == [(30, 31)]


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_tasks_of_a_micro_batch_follow_the_options(topics, option: str) -> None:
    """Both halves of a cut range are read, once each (R61)."""
    topics.create("t")
    topics.append("t", 0, [str(i).encode() for i in range(10)])
    reader = reader_of(topics, startingOffsets="earliest", **{option: "5"})
    end = next_end(reader, {})
    assert (
        len(reader.partitions({}, end)) == {"minPartitions": 5, "maxRecordsPerPartition": 2}[option]
    )
    assert values(reader, {}, end) == [str(i).encode() for i in range(10)]
