"""Where a query starts, continues and ends, decided from the topics' offsets; no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from spark_source.offsets import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    SourceOffset,
)
from spark_source.settings import COMMITTED, Subscription
from txnlog.errors import (
    ConfigError,
    DataLossError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.groups import reads_already

Wanted = Mapping[str, Sequence[int]]
MutablePositions = dict[str, dict[int, int]]


class TopicOffsets(Protocol):
    """The part of a topic's view that gives offsets."""

    def log_start_offset(self, partition: int) -> int: ...

    def high_watermark(self, partition: int) -> int: ...

    def last_stable_offset(self, partition: int) -> int: ...


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Offsets of a topic at one version of its log, one entry per partition.

    `end` is the last stable offset, or the high watermark under read_uncommitted (R15, R18).
    """

    topic_id: str
    log_start: tuple[int, ...]
    end: tuple[int, ...]
    high_watermark: tuple[int, ...]

    @classmethod
    def of(
        cls, view: TopicOffsets, *, topic_id: str, partitions: int, read_committed: bool
    ) -> TopicSnapshot:
        numbers = range(partitions)
        high_watermark = tuple(view.high_watermark(p) for p in numbers)
        stable = tuple(view.last_stable_offset(p) for p in numbers)
        return cls(
            topic_id=topic_id,
            log_start=tuple(view.log_start_offset(p) for p in numbers),
            end=stable if read_committed else high_watermark,
            high_watermark=high_watermark,
        )


Snapshots = Mapping[str, TopicSnapshot]


def wanted_partitions(subscription: Subscription, snapshots: Snapshots) -> dict[str, list[int]]:
    """Partitions to read of each existing topic.

    Raises: UnknownTopicOrPartitionError if assign names a partition that its topic does not have.
    """
    wanted: dict[str, list[int]] = {}
    for topic in sorted(snapshots):
        if not subscription.matches(topic):
            continue
        assigned = subscription.partitions.get(topic)
        count = len(snapshots[topic].log_start)
        partitions = list(range(count) if assigned is None else assigned)
        if partitions and partitions[-1] >= count:
            raise UnknownTopicOrPartitionError(
                f"Option {subscription.option}: topic {topic} has partitions 0 to {count - 1}, not "
                f"{partitions[-1]}.",
                topic=topic,
                partition=partitions[-1],
            )
        wanted[topic] = partitions
    return wanted


def resolve(
    option: str, value: str | Positions, wanted: Wanted, snapshots: Snapshots
) -> MutablePositions:
    """Positions for earliest, latest or the JSON of startingOffsets or endingOffsets.

    Raises: ConfigError if the JSON does not name exactly the wanted partitions (R60).
    """
    if not isinstance(value, str):
        check_named(option, value, wanted, "-1 is latest, -2 is earliest")
    resolved: MutablePositions = {}
    for topic, partition in _each(wanted):
        offset = _offset_of(value, topic, partition)
        if offset == EARLIEST_OFFSET:
            offset = snapshots[topic].log_start[partition]
        elif offset == LATEST_OFFSET:
            offset = snapshots[topic].end[partition]
        resolved.setdefault(topic, {})[partition] = offset
    return resolved


def resolve_committed(
    committed: Positions,
    reset: str | None,
    wanted: Wanted,
    snapshots: Snapshots,
    subscription: Subscription,
) -> MutablePositions:
    """Positions for startingOffsets=committed; `auto.offset.reset` where no offset is committed.

    A partition that was added since, or is of a new topic of the pattern, starts at earliest
    (D135). Raises: ConfigError for reset `none`.
    """
    is_pattern = subscription.pattern is not None

    @cache
    def is_read(topic: str) -> bool:
        return reads_already(
            committed, topic, lambda name: is_pattern and subscription.matches(name)
        )

    resolved: MutablePositions = {}
    for topic, partition in _each(wanted):
        known = committed.get(topic, {})
        if partition in known:
            offset = known[partition]
        elif reset == EARLIEST or is_read(topic):
            offset = snapshots[topic].log_start[partition]
        elif reset == "none":
            raise ConfigError(
                f"startingOffsets={COMMITTED}: the group has no offset for partition {partition} "
                f"of topic {topic}, and auto.offset.reset is none. Set it to earliest or latest.",
                option="auto.offset.reset",
                topic=topic,
                partition=partition,
            )
        else:
            offset = snapshots[topic].end[partition]
        resolved.setdefault(topic, {})[partition] = offset
    return resolved


def check_in_log(positions: Positions, snapshots: Snapshots) -> tuple[MutablePositions, list[str]]:
    """Positions moved into the log's range, and a description of each loss."""
    checked: MutablePositions = {}
    losses: list[str] = []
    for topic, partitions in positions.items():
        snapshot = snapshots[topic]
        for partition, offset in partitions.items():
            low, high = snapshot.log_start[partition], snapshot.high_watermark[partition]
            if offset < low:
                losses.append(_below(topic, partition, offset, low))
            elif offset > high:
                losses.append(_beyond(topic, partition, offset, high))
            checked.setdefault(topic, {})[partition] = min(max(offset, low), high)
    return checked, losses


def check_selected(logged: SourceOffset, subscription: Subscription) -> None:
    """Raise DataLossError if the checkpoint has read what the option no longer selects."""
    left = {
        topic: [
            partition for partition in partitions if not _selects(subscription, topic, partition)
        ]
        for topic, partitions in logged.positions.items()
    }
    named = [f"{topic} (partitions {', '.join(map(str, p))})" for topic, p in left.items() if p]
    if named:
        raise DataLossError(
            f"The checkpoint is of a query that read other topics: {'; '.join(named)}, which "
            f"option {subscription.option} does not select now. Start the query with its former "
            "option, or with a new checkpointLocation. To give up what it has not read of them "
            "set option failOnDataLoss=false.",
            option=subscription.option,
        )


def _selects(subscription: Subscription, topic: str, partition: int) -> bool:
    assigned = subscription.partitions.get(topic)
    return subscription.matches(topic) and (assigned is None or partition in assigned)


def continue_from(
    logged: SourceOffset, subscription: Subscription, wanted: Wanted, snapshots: Snapshots
) -> tuple[MutablePositions, MutablePositions, list[str]]:
    """Positions a query continues from, those that differ from the logged ones, and the losses.

    A new partition starts at its log start. A topic that was deleted and created again is a new
    topic: none of its offsets were read (R71).
    """
    losses = [
        _gone(topic, partition, offset, wanted, subscription)
        for topic, partitions in logged.positions.items()
        for partition, offset in partitions.items()
        if partition not in wanted.get(topic, ())
    ]
    positions: MutablePositions = {}
    moved: MutablePositions = {}
    for topic, partition in _each(wanted):
        snapshot = snapshots[topic]
        known = logged.positions.get(topic, {}).get(partition)
        logged_id = logged.topic_ids.get(topic, snapshot.topic_id)
        if known is None:
            offset = snapshot.log_start[partition]
        elif logged_id != snapshot.topic_id:
            offset = snapshot.log_start[partition]
            losses.append(
                f"topic {topic} was deleted and created again since partition {partition} was read "
                f"up to offset {known}; the new topic starts at offset {offset}"
            )
        else:
            checked, lost = check_in_log({topic: {partition: known}}, snapshots)
            offset = checked[topic][partition]
            losses += lost
        positions.setdefault(topic, {})[partition] = offset
        if offset != known or logged_id != snapshot.topic_id:
            moved.setdefault(topic, {})[partition] = offset
    return positions, moved, losses


def check_ranges(
    starts: Positions, ends: Positions, topic_ids: Mapping[str, str], snapshots: Snapshots
) -> tuple[MutablePositions, MutablePositions, list[str]]:
    """Planned ranges moved into the log's present range, and a description of each loss.

    Raises: OffsetOutOfRangeError for a range with open transactions, planned under another
    isolation.level; skipping their records would lose them.
    """
    checked_starts: MutablePositions = {}
    checked_ends: MutablePositions = {}
    losses: list[str] = []
    for topic, partition in _each(ends):
        start, end = starts[topic][partition], ends[topic][partition]
        if end <= start:
            continue
        snapshot = snapshots.get(topic)
        if snapshot is None or snapshot.topic_id != topic_ids[topic]:
            losses.append(
                f"offsets {start} to {end - 1} of partition {partition} of topic {topic}, which "
                "was deleted"
            )
            continue
        low, high = snapshot.log_start[partition], snapshot.high_watermark[partition]
        stable, there = snapshot.end[partition], min(end, high)
        if stable < there:
            raise OffsetOutOfRangeError(
                f"Offsets {stable} to {there - 1} of partition {partition} of topic {topic} belong "
                "to open transactions, and isolation.level is read_committed. Try again when they "
                "have ended, or read with isolation.level=read_uncommitted.",
                topic=topic,
                partition=partition,
            )
        if start < low:
            losses.append(_below(topic, partition, start, min(low, end)))
        if end > high:
            losses.append(_beyond(topic, partition, end, high))
        checked_starts.setdefault(topic, {})[partition] = max(start, low)
        checked_ends.setdefault(topic, {})[partition] = there
    return checked_starts, checked_ends, losses


def ends_of(
    positions: Positions, snapshots: Snapshots, available_now: Snapshots | None = None
) -> MutablePositions:
    """The end offsets to read up to; not below the positions, nor above `available_now`."""
    return {
        topic: {
            partition: max(offset, _end_of(topic, partition, snapshots, available_now))
            for partition, offset in partitions.items()
        }
        for topic, partitions in positions.items()
    }


def records_between(starts: Positions, ends: Positions) -> int:
    """The number of offsets from the starts to the ends, over all partitions."""
    return sum(
        end - starts[topic][partition]
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def limit_ends(starts: Positions, ends: Positions, limit: int) -> MutablePositions:
    """Ends with at most `limit` records in total, split among partitions by backlog.

    As in Spark's Kafka connector (KafkaMicroBatchStream.rateLimit): shares are rounded down, but a
    partition gets at least one record. If that exceeds the limit the largest shares are reduced;
    with more partitions than the limit, they take turns.
    """
    sizes = {
        (topic, partition): end - starts[topic][partition]
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
        if end > starts[topic][partition]
    }
    total = sum(sizes.values())
    if total <= limit:
        return {topic: dict(partitions) for topic, partitions in ends.items()}
    shares = {key: max(1, limit * size // total) for key, size in sizes.items()}
    excess = sum(shares.values()) - limit
    for key in sorted(shares, key=lambda key: (-shares[key], key)):
        reduction = min(max(excess, 0), shares[key] - 1)
        shares[key] -= reduction
        excess -= reduction
    if excess > 0:
        # Every share is 1. The sum of the starts grows with each batch, and the turn with it.
        turn = sum(starts[topic][partition] for topic, partition in sizes) % len(sizes)
        order = sorted(shares)
        for key in (order[turn:] + order[:turn])[limit:]:
            shares[key] = 0
    return {
        topic: {p: min(end, starts[topic][p] + shares.get((topic, p), 0)) for p, end in ps.items()}
        for topic, ps in ends.items()
    }


def data_loss(losses: Collection[str], option: str | None = None) -> DataLossError:
    """The error for unread records that were removed, or that `option` names but do not exist."""
    if option is not None:
        return DataLossError(
            f"Option {option} names offsets that are not in the log: {'; '.join(losses)}. Correct "
            "it, or set option failOnDataLoss=false to use the nearest existing offsets.",
            option=option,
        )
    return DataLossError(
        f"Records were removed before this query read them: {'; '.join(losses)}. Retention removed "
        "them, or the topic was deleted. To continue without them set option "
        "failOnDataLoss=false: the query continues from the log start."
    )


def check_named(option: str, named: Positions, wanted: Wanted, hint: str) -> None:
    """Raise ConfigError unless the JSON names exactly the wanted partitions (R60)."""
    for topic, partitions in named.items():
        if topic not in wanted:
            raise ConfigError(
                f"Option {option} names topic {topic}, which the query does not read; it reads "
                f"{', '.join(sorted(wanted)) or 'none'}.",
                option=option,
                topic=topic,
            )
        extra = sorted(set(partitions) - set(wanted[topic]))
        if extra:
            raise ConfigError(
                f"Option {option} names partition {extra[0]} of topic {topic}; the query reads "
                f"partitions {', '.join(map(str, wanted[topic]))} of it.",
                option=option,
                topic=topic,
            )
    for topic, partition in _each(wanted):
        if partition not in named.get(topic, {}):
            raise ConfigError(
                f"Option {option} does not name partition {partition} of topic {topic}. Name every "
                f"partition; {hint}.",
                option=option,
                topic=topic,
            )


def _offset_of(value: str | Positions, topic: str, partition: int) -> int:
    if isinstance(value, str):
        return {EARLIEST: EARLIEST_OFFSET, LATEST: LATEST_OFFSET}[value]
    return value[topic][partition]


def _each(wanted: Mapping[str, Collection[int]]) -> Iterator[tuple[str, int]]:
    for topic in sorted(wanted):
        for partition in wanted[topic]:
            yield topic, partition


def _end_of(
    topic: str, partition: int, snapshots: Snapshots, available_now: Snapshots | None
) -> int:
    snapshot = snapshots[topic]
    if available_now is None:
        return snapshot.end[partition]
    fixed = available_now.get(topic)
    if fixed is None or fixed.topic_id != snapshot.topic_id or partition >= len(fixed.end):
        return 0
    return min(snapshot.end[partition], fixed.end[partition])


def _below(topic: str, partition: int, offset: int, low: int) -> str:
    return (
        f"offsets {offset} to {low - 1} of partition {partition} of topic {topic} are below its "
        "log start"
    )


def _beyond(topic: str, partition: int, offset: int, high: int) -> str:
    return (
        f"offset {offset} of partition {partition} of topic {topic} is after its end {high}, as "
        "if the topic had been restored from an old copy"
    )


def _gone(
    topic: str, partition: int, offset: int, wanted: Wanted, subscription: Subscription
) -> str:
    if _selects(subscription, topic, partition) and topic not in wanted:
        return (
            f"topic {topic} was deleted; its partition {partition} was read up to offset {offset}"
        )
    return (
        f"partition {partition} of topic {topic} was read up to offset {offset}, and option "
        f"{subscription.option} no longer names it"
    )
