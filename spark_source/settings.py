"""The source's options, checked for consistency; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_source.offsets import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    parse_assign,
    parse_positions,
    parse_subscribe,
    parse_timestamps,
)
from txnlog.errors import ConfigError
from txnlog.protocol.group_metadata import Positions
from txnlog.settings.config import Config, parse_config
from txnlog.settings.patterns import compiled
from txnlog.settings.table import Scope

COMMITTED = "committed"
ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What to read: `option` is subscribe, subscribePattern or assign.

    `partitions` maps a topic to None for all of its partitions. It is empty for a pattern, which
    selects among the existing topics.
    """

    option: str
    partitions: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    pattern: str | None = None

    def matches(self, topic: str) -> bool:
        """Whether the option selects the topic, which need not exist."""
        if self.pattern is None:
            return topic in self.partitions
        return compiled(self.option, self.pattern).matches(topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where to start or end by time: ms since 1970, one for all or one for each partition.

    `on_no_match` is error or latest: what to do in a partition without a record at or after it.
    """

    option: str
    timestamps_ms: int | Positions
    on_no_match: str = LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings of a reader. `starting` and `ending` are a word, positions or times."""

    options: Config
    subscription: Subscription
    starting: str | Positions | Times
    ending: str | Positions | Times
    read_committed: bool
    group_id: str | None
    auto_offset_reset: str | None
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_interval_ms: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    snapshot: str | None


def source_settings(raw: Mapping[str, str], operation: Scope) -> SourceSettings:
    """Parse and check the options of `read` or `readStream`.

    Raises: ConfigError or InvalidTopicError that names the option (R60).
    """
    options = parse_config(raw, operation)
    batch = operation == "read"
    starting = _limit(options, "starting", EARLIEST if batch else LATEST)
    ending = _limit(options, "ending", LATEST) if batch else LATEST
    if batch:
        _check_batch("startingOffsets", starting, LATEST, LATEST_OFFSET)
        _check_batch("endingOffsets", ending, EARLIEST, EARLIEST_OFFSET)
    if ending == COMMITTED:
        raise ConfigError("Option endingOffsets must be latest or JSON.", option="endingOffsets")
    group_id = options.get("group.id")
    if starting == COMMITTED and group_id is None:
        raise ConfigError(
            "startingOffsets=committed requires option group.id: the group whose committed "
            "offsets the query starts from.",
            option="group.id",
        )
    return SourceSettings(
        options=options,
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        read_committed=options.get("isolation.level") == "read_committed",
        group_id=group_id,
        auto_offset_reset=options.get("auto.offset.reset"),
        fail_on_data_loss=options.get("failOnDataLoss"),
        include_headers=options.get("includeHeaders"),
        max_offsets_per_trigger=options.get("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=_min_offsets(options),
        max_trigger_delay_ms=options.get("maxTriggerDelay"),
        poll_interval_ms=options.get("metadata.poll.interval.ms"),
        min_partitions=options.get("minPartitions"),
        max_records_per_partition=options.get("maxRecordsPerPartition"),
        snapshot=options.get("snapshot") if batch else None,
    )


def _subscription(options: Config) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if options.is_set(name)]
    if len(given) != 1:
        named = f" Given are {' and '.join(given)}." if given else ""
        raise ConfigError(
            "Set exactly one of the options subscribe (topics, separated by commas), "
            'subscribePattern (a regular expression) and assign ({"topic":[0,1]}).'
            f"{named}",
            option="subscribe",
        )
    value = options.get(given[0])
    if given[0] == "subscribePattern":
        return Subscription(option=given[0], pattern=value)
    if given[0] == "assign":
        return Subscription(option=given[0], partitions={**parse_assign(value)})
    return Subscription(option=given[0], partitions=dict.fromkeys(parse_subscribe(value)))


def _limit(options: Config, which: str, default: str) -> str | Positions | Times:
    """The value of the three `starting` or `ending` options.

    As in Spark's Kafka connector, the first that is set overrides the others, which are not parsed.
    """
    by_time = f"{which}OffsetsByTimestamp"
    on_no_match = LATEST
    if which == "starting":
        on_no_match = options.get("startingOffsetsByTimestampStrategy")
    timestamp_ms = options.get(f"{which}Timestamp")
    if timestamp_ms is not None:
        return Times(
            option=f"{which}Timestamp", timestamps_ms=timestamp_ms, on_no_match=on_no_match
        )
    if (times := options.get(by_time)) is not None:
        parsed = parse_timestamps(by_time, times)
        return Times(option=by_time, timestamps_ms=parsed, on_no_match=on_no_match)
    name = f"{which}Offsets"
    value = options.get(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word in (EARLIEST, LATEST, COMMITTED):
        return word
    return parse_positions(name, value)


def _min_offsets(options: Config) -> int | None:
    least, most = options.get("minOffsetsPerTrigger"), options.get("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"Option minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger is {most}: the "
            "minimum must not exceed the maximum.",
            option="minOffsetsPerTrigger",
        )
    return least


def _check_batch(name: str, value: str | Positions | Times, word: str, offset: int) -> None:
    """Kafka's rule: a batch neither starts at latest nor ends at earliest."""
    if isinstance(value, Times):
        return
    if isinstance(value, str):
        wrong = value == word
    else:
        wrong = any(offset in partitions.values() for partitions in value.values())
    if wrong:
        raise ConfigError(
            f"Option {name} of a batch read cannot be {word} ({offset} in JSON).", option=name
        )
