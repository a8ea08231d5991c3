"""A topic's state for readers: offsets, stability, and filtering."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnlog.errors import CorruptLogError, InvalidTopicError
from txnlog.protocol.batches import (
    ABORTED,
    COMMITTED,
    HEADER_COLUMNS,
    NONE,
    ONGOING,
    BatchHeader,
    headers_from_columns,
)
from txnlog.protocol.topics import (
    TopicCommit,
    TopicState,
    check_topic_name,
    end_app_id,
    may_be_topic,
    start_app_id,
)


def header(
    path: str,
    base: int,
    count: int = 1,
    status: str = NONE,
    *,
    partition: int = 0,
    producer_id: int = 7,
    epoch: int = 0,
) -> BatchHeader:
    last = base + count - 1
    return BatchHeader(path, partition, base, last, producer_id, epoch, 0, status, 1, "")


def topic(*headers: BatchHeader) -> TopicState:
    state = TopicState()
    state.set_topic("id", {"partitions": "1"})
    TopicCommit(operation="PRODUCE", adds=headers).apply(state)
    return state


def visible(state: TopicState, *, read_committed: bool = True) -> list[str]:
    end = state.last_stable_offset(0) if read_committed else state.high_watermark(0)
    return [batch.path for batch in state.batches(0, 0, end, read_committed)]


def test_last_stable_offset_is_the_first_undecided_offset_else_the_end() -> None:
    """A reader would pass an open transaction, and miss it when it commits (R12)."""
    state = topic(header("a", 0, 2), header("b", 2, 3, ONGOING), header("c", 5))
    assert (state.last_stable_offset(0), state.high_watermark(0)) == (2, 6)
    state.add(header("b", 2, 3, COMMITTED))
    assert state.last_stable_offset(0) == 6


def test_deferred_publication_keeps_the_last_stable_offset_at_the_end() -> None:
    """Readers of deferred topics never wait for a slow transaction (R12)."""
    state = topic(header("a", 0, 2, COMMITTED), header("b", 2, 3, COMMITTED))
    assert state.last_stable_offset(0) == state.high_watermark(0) == 5


def test_decisions_out_of_order_wait_for_the_earliest() -> None:
    """The second transaction commits first (R13)."""
    state = topic(header("a", 0, 1, ONGOING), header("b", 1, 1, ONGOING, producer_id=8))
    assert state.last_stable_offset(0) == 0
    state.add(header("b", 1, 1, COMMITTED, producer_id=8))
    assert state.last_stable_offset(0) == 0
    assert visible(state) == []
    state.add(header("a", 0, 1, ABORTED))
    assert state.last_stable_offset(0) == 2
    assert visible(state) == ["b"]


def test_bounds_of_a_partition_never_contradict_its_files() -> None:
    """An older end would assign offsets twice; a start beyond the end leaves none (R14, R22)."""
    state = topic(header("a", 0, 5))
    state.set_txn(end_app_id(0), 3)
    state.set_txn(start_app_id(0), 9)
    assert (state.log_start_offset(0), state.high_watermark(0)) == (5, 5)
    state.add(header("b", 5, 9))
    assert (state.log_start_offset(0), state.high_watermark(0)) == (9, 14)


def test_log_start_moves_with_retention_and_no_position_is_below_it() -> None:
    """A position below the log start would read removed records (R14)."""
    state = topic(header("a", 0, 2), header("b", 2, 2), header("c", 4, 2, ONGOING))
    TopicCommit(operation="RETENTION", removes=("a",)).apply(state)
    assert (state.log_start_offset(0), state.last_stable_offset(0)) == (2, 4)
    state.set_txn("txnlog/start/0", 5)
    assert (state.log_start_offset(0), state.last_stable_offset(0)) == (5, 5)


def test_partition_whose_files_are_all_gone_keeps_its_end() -> None:
    """Offsets assigned twice would name two records (R14, R22)."""
    state = topic(header("a", 0, 3))
    TopicCommit(operation="RETENTION", removes=("a",), txns={end_app_id(0): 3}).apply(state)
    assert state.log_start_offset(0) == state.last_stable_offset(0) == state.high_watermark(0) == 3
    fresh = TopicState()
    fresh.set_topic("id", {"partitions": "1"})
    fresh.set_txn(end_app_id(0), 3)
    assert fresh.high_watermark(0) == 3


def test_undecided_data_is_invisible_to_read_committed() -> None:
    """Not even a slice beyond the last stable offset shows it (R15)."""
    state = topic(header("a", 0), header("b", 1, 1, ONGOING))
    assert visible(state) == ["a"]
    assert [batch.path for batch in state.batches(0, 0, 99, True)] == ["a"]


def test_interleaved_transactions_are_filtered_exactly() -> None:
    """An abort would hide the next commit of the same producer, or of another one (R16, R17)."""
    state = topic(
        header("a", 0, 2, ABORTED),
        header("b", 2, 1, COMMITTED, producer_id=8),
        header("c", 3, 2, COMMITTED, epoch=1),
        header("d", 5, 1, ABORTED, producer_id=8, epoch=1),
        header("e", 6),
    )
    assert visible(state) == ["b", "c", "e"]
    assert visible(state, read_committed=False) == ["a", "b", "c", "d", "e"]


def test_read_uncommitted_shows_undecided_and_aborted_data() -> None:
    """The meaning of read_uncommitted (R18)."""
    state = topic(header("a", 0, 1, ABORTED), header("b", 1, 1, ONGOING))
    assert visible(state, read_committed=False) == ["a", "b"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 2, ["a"]), (1, 2, ["a"]), (1, 3, ["a", "b"]), (2, 2, []), (4, 9, ["c"]), (3, 1, [])],
)
def test_slice_gives_the_batches_that_hold_an_offset_of_the_range(
    start: int, end: int, expected: list[str]
) -> None:
    """A range that begins in the middle of a batch would lose its rest (R16)."""
    state = topic(header("a", 0, 2), header("b", 2, 2), header("c", 4, 2))
    assert [batch.path for batch in state.batches(0, start, end, False)] == expected


def test_header_added_again_replaces_the_old_one_in_place() -> None:
    """A marker that adds its headers again would duplicate the records (R5, R16)."""
    state = topic(header("a", 0, 2, ONGOING), header("b", 2))
    state.add(header("a", 0, 2, COMMITTED))
    assert visible(state) == ["a", "b"]
    assert len(state.by_path) == 2


def test_topic_created_again_continues_at_the_old_end() -> None:
    """Otherwise an old position would be in the middle of new data (R71)."""
    state = topic(header("a", 0, 4))
    state.set_topic("id", {"partitions": "1", "deleted": "true"})
    TopicCommit(operation="DELETE TOPIC", removes=("a",), txns={end_app_id(0): 4}).apply(state)
    assert state.deleted
    state.set_topic("new", {"partitions": "3"})
    assert not state.deleted
    assert (state.log_start_offset(0), state.high_watermark(0)) == (4, 4)
    assert [state.high_watermark(number) for number in (1, 2)] == [0, 0]


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_names_that_kafka_allows_are_allowed(name: str) -> None:
    """A migrated job keeps its topics' names (R64)."""
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "x" * 250, "a/b", "../a", "a b", "ä", "a\n", "a\x00", "a:b", "@", "a\\b"],
)
def test_names_that_kafka_refuses_are_refused(name: str) -> None:
    """A name with a slash could write outside the root (R64)."""
    with pytest.raises(InvalidTopicError) as error:
        check_topic_name(name)
    assert error.value.topic == name


def test_a_root_is_never_a_delta_table() -> None:
    """Readers of Delta go up from a table's folder until one has a `_delta_log`."""
    with pytest.raises(InvalidTopicError, match="one Delta table"):
        check_topic_name("_delta_log")
    assert not may_be_topic("_delta_log")
    assert may_be_topic("_delta_logs")


def test_internal_names_are_for_txnlog_only() -> None:
    """A user's topic could be confused with the coordinator's tables (R64)."""
    with pytest.raises(InvalidTopicError, match="internal"):
        check_topic_name("__transaction_state-0")
    assert check_topic_name("__consumer_offsets", internal=True) == "__consumer_offsets"


@given(st.data())
def test_headers_loaded_at_once_give_the_same_state_as_added_ones(data: st.DataObject) -> None:
    """A cold start from a checkpoint must have the state of a warm process (R11)."""
    headers = []
    ends: dict[object, int] = {}
    for number in range(data.draw(st.integers(0, 25))):
        partition, producer_id = data.draw(st.integers(0, 2)), data.draw(st.integers(-1, 2))
        count = data.draw(st.integers(1, 3))
        newest = ends.get(producer_id, 0)
        epoch = ends[producer_id] = newest + data.draw(st.sampled_from([0, 0, 0, 1]))
        base, sequence = ends.get(("offset", partition), 0), -1
        if producer_id >= 0 and data.draw(st.booleans()):
            key = (producer_id, partition, epoch)
            sequence = ends.get(key, 0)
            ends[key] = sequence + count
        ends["offset", partition] = base + count
        status = data.draw(st.sampled_from([NONE, ONGOING, COMMITTED, ABORTED]))
        headers.append(
            BatchHeader(
                f"f{number}", partition, base, base + count - 1, producer_id, epoch, sequence,
                status, number, "{}",
            )
        )  # fmt: skip
    warm, cold = TopicState(), TopicState()
    for state in (warm, cold):
        state.set_topic("id", {"partitions": "2"})
        state.set_txn(end_app_id(1), 20)
    for header_ in headers:
        warm.add(header_)
    if headers:
        shuffled = data.draw(st.permutations(headers))
        rows = [header_.to_values() for header_ in shuffled]
        cold.load(
            headers_from_columns(
                {name: pa.array([row[name] for row in rows]) for name in HEADER_COLUMNS},
                paths=pa.array([header_.path for header_ in shuffled]),
                sizes_bytes=pa.array([header_.size_bytes for header_ in shuffled]),
                stats=pa.array([header_.stats for header_ in shuffled]),
                source="checkpoint",
            )
        )
    assert vars(cold) == vars(warm)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("txn_status", "maybe", "maybe"),
        ("txn_status", None, "status"),
        ("base_offset", "x", "x"),
        ("last_offset", "-1", "offsets"),
        ("partition", None, "partition|null|NULL"),
    ],
)
def test_headers_from_invalid_columns_are_corrupt(column: str, value: str | None, why: str) -> None:
    """A damaged checkpoint must not give other visible records (R66)."""
    values = {name: [value_] for name, value_ in header("f", 5).to_values().items()}
    values[column] = [value]  # type: ignore[list-item]
    with pytest.raises(CorruptLogError, match=why) as caught:
        headers_from_columns(
            {name: pa.array(column_, pa.string()) for name, column_ in values.items()},
            paths=pa.array(["f"]),
            sizes_bytes=pa.array([1]),
            stats=pa.array(["{}"]),
            source="the.checkpoint.parquet",
        )
    assert "the.checkpoint.parquet" in str(caught.value)


@given(
    statuses=st.lists(st.sampled_from([NONE, ONGOING, COMMITTED]), max_size=12),
    removed=st.sets(st.integers(0, 15), max_size=12),
)
def test_many_files_removed_at_once_leave_the_others(
    statuses: list[str], removed: set[int]
) -> None:
    """Retention and compaction remove thousands in one commit: memory is as rebuilt (R11, R22)."""
    headers = [
        header(f"{at}", at, 1, status, partition=at % 2, producer_id=at)
        for at, status in enumerate(statuses)
    ]
    state = topic(*headers)
    paths = tuple(f"{at}" for at in sorted(removed, reverse=True))
    TopicCommit(operation="DELETE EXPIRED", removes=paths).apply(state)
    rest = topic(*(found for at, found in enumerate(headers) if at not in removed))
    assert state.by_path == rest.by_path
    assert state.sequences == rest.sequences
    for now, rebuilt in zip(state.partitions, rest.partitions, strict=False):
        assert (now.batches, now.ongoing) == (rebuilt.batches, rebuilt.ongoing)
