"""Topics and groups as the panels show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from txnlog.errors import CorruptLogError
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.explanations import concerning
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.moments import (
    GroupMoment,
    MemberMoment,
    PartitionMoment,
    Point,
    PositionMoment,
    TopicMoment,
)
from txnlog.protocol.panels.changes import (
    Changes,
    GroupChange,
    NewRecords,
    Window,
    first_offsets,
    log_ends,
    newest_rate,
    rates,
    thinned,
)
from txnlog.protocol.problems import Problem, RootState
from txnlog.protocol.topics import TopicState
from txnlog.protocol.verification.topics import TopicFacts
from txnlog.protocol.waiting import last_stable_offset

# --- Topics ---------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """What is counted over all files of a topic, which costs time where they are many."""

    partitions: Sequence[PartitionMoment]
    small_files: int
    config: Mapping[str, str]


def count_partitions(view: TopicState) -> list[PartitionMoment]:
    """Each partition of a topic."""
    return [
        PartitionMoment(
            partition=number,
            log_start_offset=part.log_start_offset,
            last_stable_offset=part.last_stable_offset,
            high_watermark=part.end_offset,
            num_files=len(part.batches),
            num_records=sum(map(_num_records, part.batches)),
            size_bytes=sum(batch.size_bytes for batch in part.batches),
            last_timestamp_ms=_last_timestamp_ms(part.batches),
        )
        for number, part in enumerate(view.partitions)
    ]


def _num_records(batch: BatchHeader) -> int:
    offsets = batch.last_offset + 1 - batch.base_offset
    # As `encode_stats` has it: to decode all of them takes seconds for a million files.
    told = f'{{"numRecords":{offsets}'
    if batch.stats.startswith((told + ",", told + "}")):
        return offsets
    try:
        found = batch.num_records
    except CorruptLogError:
        found = None
    return offsets if found is None else found


def _last_timestamp_ms(batches: Sequence[BatchHeader]) -> int:
    try:
        last_us = batches[-1].timestamp_max_us if batches else -1
    except CorruptLogError:
        last_us = -1
    return last_us // 1000 if 0 <= last_us < 2**62 else -1


def readers_of(groups: Mapping[str, GroupMoment]) -> dict[str, dict[str, int]]:
    """Topic -> group -> its lag there."""
    found: dict[str, dict[str, int]] = {}
    for group_id, group in groups.items():
        for one in group.positions:
            readers = found.setdefault(one.topic, {})
            readers[group_id] = readers.get(group_id, 0) + one.lag_records
    return found


def topic_moment(
    facts: TopicFacts,
    counted: Counted,
    readers: Mapping[str, int],
    records: Sequence[NewRecords],
    writers: Iterable[str],
    window: Window,
) -> TopicMoment:
    """A topic that is there."""
    return TopicMoment(
        name=facts.name,
        topic_id=facts.topic_id,
        partitions=counted.partitions,
        rate=newest_rate(records, window),
        rates=rates(records, window),
        small_files=counted.small_files,
        writers=sorted(writers),
        readers=readers,
        config=counted.config,
    )


# --- Groups ---------------------------------------------------------------------------------------


def group_moment(
    group: Group,
    group_state: str,
    state: RootState,
    problems: Sequence[Problem],
    changes: Changes,
    window: Window,
) -> GroupMoment:
    """A group."""
    positions = _positions(group, state)
    left = sum(one.lag_records for one in positions)
    return GroupMoment(
        group_id=group.group_id,
        state=group_state,
        generation=group.generation,
        positions=positions,
        members=[
            MemberMoment(
                member_id=member_id,
                client_id=member.client_id,
                host=member.host,
                heartbeat_ms=member.heartbeat_ms,
                partitions=dict(group.assignment.get(member_id, {})),
            )
            for member_id, member in sorted(group.members.items())
        ],
        lags=[*_lags(group, state, changes, window), Point(window.until_ms, left)],
        blocked_by=concerning(problems, state, group),
    )


def _positions(group: Group, state: RootState) -> list[PositionMoment]:
    found = []
    for topic, numbers in sorted(group.positions().items()):
        facts = state.topics.get(topic)
        for number, offset in sorted(numbers.items()):
            is_there = facts is not None and not facts.is_deleted and number < len(facts.ends)
            key = group.group_id, topic, number
            end, stable = -1, -1
            if is_there and facts:
                end, stable = facts.ends[number], last_stable_offset(facts, number)
            lag = max(0, end - offset)
            oldest_ms = state.oldest_ms.get(key, -1)
            lag_ms = -1 if oldest_ms < 0 else max(0, state.now_ms - oldest_ms)
            found.append(
                PositionMoment(
                    topic=topic,
                    partition=number,
                    offset=offset,
                    end_offset=stable,
                    lag_records=lag,
                    lag_ms=lag_ms if lag and (state.unread.get(key) or stable < end) else 0,
                    held_records=min(lag, end - stable),
                )
            )
    return found


def _lags(group: Group, state: RootState, changes: Changes, window: Window) -> list[Point]:
    """The lag over time, of partitions whose end and position are known then."""
    events: list[tuple[int, tuple[str, int], bool, int]] = []
    for topic in group.offsets:
        for at_ms, partition, end in log_ends(changes.topics.get(topic, ())):
            events.append((at_ms, (topic, partition), True, end))
    moved: Sequence[GroupChange] = changes.groups.get(group.group_id, ())
    for change in moved:
        for topic, numbers in change.positions.items():
            for number, offset in numbers.items():
                events.append((change.at_ms, (topic, number), False, offset))
    ends, offsets = _before(group, state, changes, moved)
    points: list[Point] = []
    total = sum(max(0, ends[key] - offsets[key]) for key in ends.keys() & offsets.keys())
    if events and ends.keys() & offsets.keys():
        points.append(Point(window.since_ms, total))
    for at_ms, key, is_end, value in sorted(events):
        before = max(0, ends[key] - offsets[key]) if key in ends and key in offsets else 0
        (ends if is_end else offsets)[key] = value
        if key in ends and key in offsets:
            total += max(0, ends[key] - offsets[key]) - before
            points.append(Point(at_ms, total))
    return [point for point in thinned(points, window) if point.at_ms < window.until_ms]


def _before(
    group: Group, state: RootState, changes: Changes, moved: Sequence[GroupChange]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """(ends, offsets) at the start of a window: of what did not move in it, as they are; an end
    that moved was where the first commit in the window appended.
    """
    ends: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], int] = {}
    named = {
        (topic, number)
        for change in moved
        for topic, numbers in change.positions.items()
        for number in numbers
    }
    for topic, numbers in group.positions().items():
        firsts = first_offsets(changes.topics.get(topic, ()))
        facts = state.topics.get(topic)
        for number, offset in numbers.items():
            if (topic, number) not in named:
                offsets[topic, number] = offset
            if number in firsts:
                ends[topic, number] = firsts[number]
            elif facts is not None and number < len(facts.ends):
                ends[topic, number] = facts.ends[number]
    return ends, offsets
