"""The source's options, checked against each other; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_source.offsets import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    Positions,
    parse_assign,
    parse_positions,
    parse_subscribe,
)
from txnlog.errors import ConfigError
from txnlog.option_table import Operation
from txnlog.options import Options, parse_options

COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What to read: `option` is subscribe or assign; `partitions` holds None for all of a topic."""

    option: str
    partitions: Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """What a reader needs to know. `starting` and `ending` are a word or positions."""

    options: Options
    subscription: Subscription
    starting: str | Positions
    ending: str | Positions
    read_committed: bool
    group_id: str | None
    auto_offset_reset: str | None
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None


def source_settings(raw: Mapping[str, str], operation: Operation) -> SourceSettings:
    """Parse and check the options of `read` or `readStream`.

    Raises: ConfigError or InvalidTopicError that names the option (R60).
    """
    options = parse_options(raw, operation)
    batch = operation == "read"
    starting = _offsets_option(options, "startingOffsets", EARLIEST if batch else LATEST)
    ending = _offsets_option(options, "endingOffsets", LATEST) if batch else LATEST
    if batch:
        _check_batch("startingOffsets", starting, LATEST, LATEST_OFFSET)
        _check_batch("endingOffsets", ending, EARLIEST, EARLIEST_OFFSET)
    if ending == COMMITTED:
        raise ConfigError("Option endingOffsets takes latest or JSON.", option="endingOffsets")
    group_id = options.text("group.id")
    if starting == COMMITTED and group_id is None:
        raise ConfigError(
            "startingOffsets=committed needs option group.id: the group whose committed offsets "
            "the query starts from.",
            option="group.id",
        )
    return SourceSettings(
        options=options,
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        read_committed=options.text("isolation.level") == "read_committed",
        group_id=group_id,
        auto_offset_reset=options.text("auto.offset.reset"),
        fail_on_data_loss=options.flag("failOnDataLoss"),
        include_headers=options.flag("includeHeaders"),
        max_offsets_per_trigger=None if batch else options.number("maxOffsetsPerTrigger"),
    )


def _subscription(options: Options) -> Subscription:
    subscribe, assign = options.text("subscribe"), options.text("assign")
    if (subscribe is None) == (assign is None):
        raise ConfigError(
            "Say what to read with exactly one of the options subscribe (topics, separated by "
            'commas) and assign ({"topic":[0,1]}).',
            option="subscribe",
        )
    if subscribe is not None:
        topics = parse_subscribe(subscribe)
        return Subscription(option="subscribe", partitions=dict.fromkeys(topics))
    return Subscription(option="assign", partitions={**parse_assign(assign or "")})


def _offsets_option(options: Options, name: str, default: str) -> str | Positions:
    value = options.text(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word in (EARLIEST, LATEST, COMMITTED):
        return word
    return parse_positions(name, value)


def _check_batch(name: str, value: str | Positions, word: str, offset: int) -> None:
    """Kafka's rule: a batch neither starts at latest nor ends at earliest."""
    if isinstance(value, str):
        wrong = value == word
    else:
        wrong = any(offset in partitions.values() for partitions in value.values())
    if wrong:
        raise ConfigError(
            f"Option {name} of a batch read cannot be {word} ({offset} in JSON).", option=name
        )
