"""Where a query starts, continues and ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source.offsets import SourceOffset
from spark_source.positions import (
    TopicSnapshot,
    check_in_log,
    check_ranges,
    check_selected,
    continue_from,
    data_loss,
    ends_of,
    limit_ends,
    resolve,
    resolve_committed,
    wanted_partitions,
)
from spark_source.settings import Subscription
from txnlog.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)


def snapshot(
    *partitions: tuple[int, int], topic_id: str = "id", high_watermark: int | None = None
) -> TopicSnapshot:
    """Partitions as (log start, end)."""
    ends = tuple(end for _, end in partitions)
    return TopicSnapshot(
        topic_id=topic_id,
        log_start=tuple(start for start, _ in partitions),
        end=ends,
        high_watermark=ends if high_watermark is None else tuple(high_watermark for _ in ends),
    )


SNAPSHOTS = {"t": snapshot((5, 20), (0, 0))}
SUBSCRIBED = Subscription(option="subscribe", partitions={"t": None})


def test_wanted_subscribe_takes_every_partition_and_skips_missing_topics() -> None:
    """Whether a missing topic is an error is decided with access to the cluster."""
    subscription = Subscription(option="subscribe", partitions={"t": None, "gone": None})
    assert wanted_partitions(subscription, SNAPSHOTS) == {"t": [0, 1]}


def test_wanted_assign_beyond_the_topic_names_topic_and_partition() -> None:
    """Reading nothing for ever would look like an idle topic (R60)."""
    subscription = Subscription(option="assign", partitions={"t": (0, 7)})
    with pytest.raises(UnknownTopicOrPartitionError, match="topic t has partitions 0 to 1, not 7"):
        wanted_partitions(subscription, SNAPSHOTS)


def test_resolve_words_and_json_give_offsets() -> None:
    """-2 and -1 are the start and end of that partition."""
    wanted = {"t": [0, 1]}
    assert resolve("o", "earliest", wanted, SNAPSHOTS) == {"t": {0: 5, 1: 0}}
    assert resolve("o", "latest", wanted, SNAPSHOTS) == {"t": {0: 20, 1: 0}}
    assert resolve("o", {"t": {0: -1, 1: -2}}, wanted, SNAPSHOTS) == {"t": {0: 20, 1: 0}}
    assert resolve("o", {"t": {0: 7, 1: 0}}, wanted, SNAPSHOTS) == {"t": {0: 7, 1: 0}}


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": {0: 1}}, "startingOffsets names topic x, which the query does not read"),
        ({"t": {0: 1, 1: 0, 9: 0}}, "names partition 9 of topic t"),
        ({"t": {0: 1}}, "does not name partition 1 of topic t"),
        ({}, "does not name partition 0 of topic t"),
    ],
)
def test_resolve_json_that_does_not_match_names_option_and_topic(
    named: dict[str, dict[int, int]], message: str
) -> None:
    """An omitted partition would start at an arbitrary offset (R60)."""
    with pytest.raises(ConfigError, match=message):
        resolve("startingOffsets", named, {"t": [0, 1]}, SNAPSHOTS)


def test_committed_falls_back_to_auto_offset_reset() -> None:
    """The group never read the topic: latest by default, as a Kafka consumer does (R59)."""
    wanted = {"t": [0, 1]}
    assert resolve_committed({}, None, wanted, SNAPSHOTS, SUBSCRIBED) == {"t": {0: 20, 1: 0}}
    assert resolve_committed({}, "earliest", wanted, SNAPSHOTS, SUBSCRIBED) == {"t": {0: 5, 1: 0}}
    with pytest.raises(ConfigError, match="no offset for partition 0 of topic t"):
        resolve_committed({}, "none", wanted, SNAPSHOTS, SUBSCRIBED)


@pytest.mark.parametrize("reset", [None, "latest", "none", "earliest"])
def test_committed_partition_added_since_starts_at_earliest(reset: str | None) -> None:
    """At latest, records written while the query was down would be lost (R59, D135)."""
    snapshots = {"t": snapshot((0, 20), (3, 9))}
    wanted = {"t": [0, 1]}
    found = resolve_committed({"t": {0: 11}}, reset, wanted, snapshots, SUBSCRIBED)
    assert found == {"t": {0: 11, 1: 3}}


def test_committed_topic_that_is_new_to_the_pattern_starts_at_earliest() -> None:
    """As in a running query. A topic that was added to a list may be an old one (D135)."""
    snapshots = {"t": snapshot((0, 20)), "t2": snapshot((3, 9))}
    wanted = {"t": [0], "t2": [0]}

    def start(subscription: Subscription) -> int:
        committed = {"t": {0: 11}, "x": {0: 1}}
        found = resolve_committed(committed, "latest", wanted, snapshots, subscription)
        return found["t2"][0]

    assert start(Subscription(option="subscribePattern", pattern="t.*")) == 3
    assert start(Subscription(option="subscribePattern", pattern="t2.*")) == 9
    assert start(Subscription(option="subscribe", partitions={"t": None, "t2": None})) == 9


def test_positions_outside_the_log_are_losses_that_name_everything() -> None:
    """The user must see which topic, partition and offsets were lost."""
    checked, losses = check_in_log({"t": {0: 2, 1: 4}}, SNAPSHOTS)
    assert checked == {"t": {0: 5, 1: 0}}
    assert losses == [
        "offsets 2 to 4 of partition 0 of topic t are below its log start",
        "offset 4 of partition 1 of topic t is after its end 0, as if the topic had been restored "
        "from an old copy",
    ]
    assert "failOnDataLoss=false" in str(data_loss(losses))


def test_position_between_stable_offset_and_end_is_in_the_log() -> None:
    """A read_uncommitted reader of the group may be there; it only has to wait."""
    snapshots = {"t": snapshot((0, 4), high_watermark=9)}
    assert check_in_log({"t": {0: 7}}, snapshots) == ({"t": {0: 7}}, [])
    assert ends_of({"t": {0: 7}}, snapshots) == {"t": {0: 7}}


def logged(positions: dict[str, dict[int, int]], **ids: str) -> SourceOffset:
    return SourceOffset(positions=positions, topic_ids=ids or dict.fromkeys(positions, "id"))


def go_on(
    offset: SourceOffset,
    snapshots: dict[str, TopicSnapshot],
    subscription: Subscription = SUBSCRIBED,
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]], list[str]]:
    wanted = wanted_partitions(subscription, snapshots)
    return continue_from(offset, subscription, wanted, snapshots)


def test_continue_nothing_changed_moves_nothing() -> None:
    """Else an idle query would run empty batches for ever."""
    assert go_on(logged({"t": {0: 7, 1: 0}}), SNAPSHOTS) == ({"t": {0: 7, 1: 0}}, {}, [])


def test_continue_new_partition_starts_at_its_log_start() -> None:
    """Kafka's rule; and the start is logged, so a replay reads the same range."""
    positions, moved, losses = go_on(logged({"t": {0: 7}}), {"t": snapshot((5, 20), (2, 9))})
    assert positions == {"t": {0: 7, 1: 2}}
    assert moved == {"t": {1: 2}}
    assert losses == []


def test_continue_topic_created_again_starts_over_and_is_a_loss() -> None:
    """The position may even equal the new log start: still none of it was read (R71)."""
    new = {"t": snapshot((20, 25), (0, 0), topic_id="new")}
    positions, moved, losses = go_on(logged({"t": {0: 20, 1: 0}}), new)
    assert positions == moved == {"t": {0: 20, 1: 0}}
    assert len(losses) == 2
    assert (
        "topic t was deleted and created again since partition 0 was read up to offset 20"
        in (losses[0])
    )


def test_continue_below_the_log_start_moves_to_it_and_is_a_loss() -> None:
    """Retention was faster than the query."""
    positions, moved, losses = go_on(logged({"t": {0: 2, 1: 0}}), SNAPSHOTS)
    assert positions == {"t": {0: 5, 1: 0}}
    assert moved == {"t": {0: 5}}
    assert losses == ["offsets 2 to 4 of partition 0 of topic t are below its log start"]


def test_continue_topic_deleted_or_no_longer_subscribed_is_a_loss() -> None:
    """The checkpoint has read a part of it; skipping it silently would lose its rest (R60)."""
    offset = logged({"gone": {0: 3}, "t": {0: 7, 1: 0}})
    both = Subscription(option="subscribe", partitions={"t": None, "gone": None})
    positions, _, losses = go_on(offset, SNAPSHOTS, both)
    assert positions == {"t": {0: 7, 1: 0}}
    assert losses == ["topic gone was deleted; its partition 0 was read up to offset 3"]
    assert "option subscribe no longer names it" in go_on(offset, SNAPSHOTS)[2][0]
    only = Subscription(option="assign", partitions={"t": (1,)})
    losses = go_on(logged({"t": {0: 7, 1: 0}}), SNAPSHOTS, only)[2]
    assert losses == [
        "partition 0 of topic t was read up to offset 7, and option assign no longer names it"
    ]


def test_checkpoint_of_another_subscription_is_said_first() -> None:
    """It was "Records were removed ... Retention removed them", and nobody looked at the option."""
    offset = logged({"gone": {0: 3}, "t": {0: 7, 1: 0}})
    everything = Subscription(option="subscribe", partitions={"t": None, "gone": None})
    check_selected(offset, everything)
    one = Subscription(option="subscribe", partitions={"t": None})
    with pytest.raises(DataLossError) as failure:
        check_selected(offset, one)
    assert str(failure.value).startswith(
        "The checkpoint is of a query that read other topics: gone"
    )
    assert "new checkpointLocation" in str(failure.value)
    assigned = Subscription(option="assign", partitions={"t": (1,), "gone": None})
    with pytest.raises(DataLossError, match=r"t \(partitions 0\), which option assign"):
        check_selected(offset, assigned)


def test_ranges_in_the_log_pass_and_empty_ones_are_left_out() -> None:
    """An idle partition whose records are all gone is no loss."""
    starts, ends, losses = check_ranges(
        {"t": {0: 5, 1: 0}}, {"t": {0: 9, 1: 0}}, {"t": "id"}, SNAPSHOTS
    )
    assert (starts, ends, losses) == ({"t": {0: 5}}, {"t": {0: 9}}, [])


def test_ranges_below_the_log_start_are_cut_and_a_loss() -> None:
    """Retention may run between planning the offsets and planning the tasks."""
    starts, ends, losses = check_ranges({"t": {0: 1}}, {"t": {0: 9}}, {"t": "id"}, SNAPSHOTS)
    assert (starts, ends) == ({"t": {0: 5}}, {"t": {0: 9}})
    assert losses == ["offsets 1 to 4 of partition 0 of topic t are below its log start"]
    _, _, losses = check_ranges({"t": {0: 1}}, {"t": {0: 3}}, {"t": "id"}, SNAPSHOTS)
    assert losses == ["offsets 1 to 2 of partition 0 of topic t are below its log start"]


@pytest.mark.parametrize("snapshots", [{}, {"t": snapshot((0, 99), topic_id="new")}])
def test_ranges_of_a_deleted_topic_read_nothing(snapshots: dict[str, TopicSnapshot]) -> None:
    """The new topic's records at those offsets are other records (R71)."""
    starts, ends, losses = check_ranges({"t": {0: 1}}, {"t": {0: 9}}, {"t": "id"}, snapshots)
    assert (starts, ends) == ({}, {})
    assert losses == ["offsets 1 to 8 of partition 0 of topic t, which was deleted"]


@pytest.mark.parametrize(("end", "last"), [(7, 6), (12, 8)])
def test_ranges_with_open_transactions_are_refused(end: int, last: int) -> None:
    """Planned under read_uncommitted, replayed under read_committed: they would be lost (R15).

    So they would where the range ends after the log, and what is after it is given up.
    """
    snapshots = {"t": snapshot((0, 4), high_watermark=9)}
    with pytest.raises(OffsetOutOfRangeError, match=f"Offsets 4 to {last} .* open transactions"):
        check_ranges({"t": {0: 1}}, {"t": {0: end}}, {"t": "id"}, snapshots)


def waiting(*sizes: int) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    starts = {"t": {p: 100 * p for p in range(len(sizes))}}
    return starts, {"t": {p: 100 * p + size for p, size in enumerate(sizes)}}


def taken(starts: dict[str, dict[int, int]], ends: dict[str, dict[int, int]]) -> list[int]:
    return [ends["t"][p] - starts["t"][p] for p in starts["t"]]


@pytest.mark.parametrize(
    ("sizes", "limit", "shares"),
    [
        ((101, 11, 1), 10, [8, 1, 1]),  # KafkaMicroBatchSourceSuite, "maxOffsetsPerTrigger"
        ((93, 10, 0), 10, [9, 1, 0]),
        ((5, 5), 10, [5, 5]),
        ((0, 0), 10, [0, 0]),
        ((100, 100, 100), 100, [33, 33, 33]),
        ((100, 1, 1, 1), 10, [7, 1, 1, 1]),
    ],
)
def test_limit_is_shared_as_in_kafka(sizes: tuple[int, ...], limit: int, shares: list[int]) -> None:
    """In proportion, and no partition starves; but never above the limit (R61)."""
    starts, ends = waiting(*sizes)
    assert taken(starts, limit_ends(starts, ends, limit)) == shares


@given(sizes=st.lists(st.integers(0, 1000), min_size=1, max_size=8), limit=st.integers(1, 300))
def test_limit_any_backlog_holds_and_everything_is_read(sizes: list[int], limit: int) -> None:
    """Every batch takes something, none too much, no partition waits for ever (R61)."""
    starts, ends = waiting(*sizes)
    batches = 0
    while starts != ends:
        limited = limit_ends(starts, ends, limit)
        shares = taken(starts, limited)
        assert 0 < sum(shares) <= limit
        assert all(share >= 0 for share in shares)
        starts = limited
        batches += 1
        assert batches <= sum(sizes)


def test_limit_below_the_number_of_partitions_takes_turns() -> None:
    """Stateless, and still each partition comes up (R61)."""
    starts, ends = waiting(50, 50, 50, 50, 50)
    for _ in range(5):
        starts = limit_ends(starts, ends, 2)
    assert taken(waiting(0, 0, 0, 0, 0)[0], starts) == [2, 2, 2, 2, 2]
