"""Offsets as JSON: those of users in options, and those of the source in Spark's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from txnlog.errors import CheckpointError, ConfigError
from txnlog.protocol.group_metadata import Positions
from txnlog.protocol.source_offsets import RESERVED_KEY
from txnlog.protocol.topics import check_topic_name

EARLIEST, EARLIEST_OFFSET = "earliest", -2
LATEST, LATEST_OFFSET = "latest", -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """One offset of the source: the next offset to read per partition, and which cluster's.

    `start` holds the start positions of the batch that ends here, for partitions where the
    previous batch's end does not give them: all in batch 0 and in the first batch under another
    group, added partitions, and partitions reset after data loss. So a replay reads the same
    range. The query commits under `group` and `generation`.
    """

    positions: Positions
    cluster: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    group: str | None = None
    generation: int | None = None
    start: Positions = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Topics and partitions in order, then the reserved key: equal offsets give equal text."""
        stamp: dict[str, Any] = {
            "cluster": self.cluster,
            "topics": {topic: self.topic_ids[topic] for topic in sorted(self.topic_ids)},
        }
        if self.group is not None:
            stamp["group"] = self.group
            stamp["generation"] = self.generation
        if self.start:
            stamp["start"] = positions_json(self.start)
        return {**positions_json(self.positions), RESERVED_KEY: stamp}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> SourceOffset:
        """Parse a logged offset. Raises CheckpointError if this source did not write it."""
        try:
            stamp = logged[RESERVED_KEY]
            return cls(
                positions=_positions({t: p for t, p in logged.items() if t != RESERVED_KEY}),
                cluster=str(stamp["cluster"]),
                topic_ids=dict(stamp["topics"]),
                group=stamp.get("group"),
                generation=stamp.get("generation"),
                start=_positions(stamp.get("start", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint contains an offset that format txnlog did not write: "
                f"{json.dumps(logged)[:500]}. A query cannot change its source; start it with a "
                "new checkpointLocation."
            ) from error


def positions_json(positions: Positions) -> dict[str, dict[str, int]]:
    """{"topic":{"0":42}}, ordered by topic and partition number."""
    return {
        topic: {str(partition): positions[topic][partition] for partition in sorted(partitions)}
        for topic, partitions in sorted(positions.items())
    }


def parse_subscribe(value: str) -> tuple[str, ...]:
    """Topics of option subscribe, without repeats. Raises ConfigError, InvalidTopicError."""
    topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not topics:
        raise ConfigError("Option subscribe names no topic.", option="subscribe")
    return tuple(check_topic_name(topic) for topic in topics)


def parse_assign(value: str) -> dict[str, tuple[int, ...]]:
    """Partitions of option assign, {"topic":[0,1]}. Raises ConfigError, InvalidTopicError."""
    parsed = _json_object("assign", value, '{"topic":[0,1]}')
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, partitions in parsed.items():
        check_topic_name(topic)
        if not isinstance(partitions, list) or not partitions:
            raise ConfigError(
                f'Option assign: topic {topic} needs a list of partitions: {{"{topic}":[0,1]}}.',
                option="assign",
                topic=topic,
            )
        for partition in partitions:
            if type(partition) is not int or partition < 0:
                raise ConfigError(
                    f"Option assign: {json.dumps(partition)} is not a partition of topic {topic}.",
                    option="assign",
                    topic=topic,
                )
        assigned[topic] = tuple(sorted(set(cast("list[int]", partitions))))
    if not assigned:
        raise ConfigError("Option assign names no topic.", option="assign")
    return assigned


def parse_positions(option: str, value: str) -> dict[str, dict[int, int]]:
    """Offsets of startingOffsets or endingOffsets; -2 is earliest, -1 latest.

    The reserved key of a logged offset is ignored, so that an offset can be copied from a
    checkpoint or a progress report. Raises: ConfigError that names option and topic (R60).
    """
    return _parse_numbers(
        option,
        value,
        '{"topic":{"0":23,"1":-2}}, earliest or latest',
        EARLIEST_OFFSET,
        "offsets are 0 or more, -1 for latest, -2 for earliest",
    )


def parse_timestamps(option: str, value: str) -> dict[str, dict[int, int]]:
    """Milliseconds since 1970 of startingOffsetsByTimestamp or endingOffsetsByTimestamp.

    Raises: ConfigError that names option and topic (R60).
    """
    return _parse_numbers(
        option,
        value,
        '{"topic":{"0":1700000000000,"1":1700000000000}}',
        0,
        "timestamps are milliseconds since 1970, 0 or more",
    )


def _parse_numbers(
    option: str, value: str, example: str, minimum: int, meaning: str
) -> dict[str, dict[int, int]]:
    numbers: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(option, value, example).items():
        if topic == RESERVED_KEY:
            continue
        if not isinstance(partitions, dict):
            raise ConfigError(
                f"Option {option}: topic {topic} needs a number per partition, as in {example}.",
                option=option,
                topic=topic,
            )
        numbers[topic] = {}
        for partition, number in partitions.items():
            is_valid = partition.isdecimal() and type(number) is int and number >= minimum
            if not is_valid:
                raise ConfigError(
                    f"Option {option}: topic {topic} has {json.dumps({partition: number})}; "
                    f"partitions are numbers, {meaning}.",
                    option=option,
                    topic=topic,
                )
            numbers[topic][int(partition)] = number
    return numbers


def _json_object(option: str, value: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"Option {option} is not JSON ({error}): {value[:200]!r}. Expected: {example}.",
            option=option,
        ) from error
    if not isinstance(parsed, dict):
        raise ConfigError(f"Option {option} must be {example}.", option=option)
    return parsed


def _positions(value: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in value.items()
    }
