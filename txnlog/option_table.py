"""The table of options of the Spark source and sink: names, defaults, parsers, meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from txnlog.errors import ConfigError

Operation = Literal["read", "readStream", "write", "writeStream"]
Value = str | int | bool | None

READS: Final = frozenset({"read", "readStream"})
WRITES: Final = frozenset({"write", "writeStream"})
ALL: Final = READS | WRITES

NEXT_RELEASE: Final = (
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
)


def text(name: str, value: str) -> str:
    """Any text but the empty one. Raises ConfigError."""
    if not value.strip():
        raise ConfigError(f"Option {name} is empty. Give it a value or leave it out.", option=name)
    return value


def boolean(name: str, value: str) -> bool:
    """true or false, in any case. Raises ConfigError."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ConfigError(f"Option {name} is {value!r}: it takes true or false.", option=name)
    return lowered == "true"


def positive(name: str, value: str) -> int:
    """A whole number of at least 1. Raises ConfigError."""
    number = _whole(name, value)
    if number < 1:
        raise ConfigError(f"Option {name} is {number}: it must be 1 or more.", option=name)
    return number


def not_negative(name: str, value: str) -> int:
    """A whole number of at least 0. Raises ConfigError."""
    number = _whole(name, value)
    if number < 0:
        raise ConfigError(f"Option {name} is {number}: it must be 0 or more.", option=name)
    return number


def choice(*allowed: str) -> Callable[[str, str], str]:
    """A parser for one of a few words, in any case."""

    def parse(name: str, value: str) -> str:
        lowered = value.strip().lower()
        if lowered not in allowed:
            raise ConfigError(
                f"Option {name} is {value!r}: it takes {' or '.join(allowed)}.", option=name
            )
        return lowered

    return parse


def publication(name: str, value: str) -> str:
    """`deferred`; `eager` is a producer's, not a sink's. Raises ConfigError."""
    parsed = choice("deferred", "eager")(name, value)
    if parsed == "eager":
        raise ConfigError(
            f"Option {name}=eager is not for the Spark sink: what a repeated task attempt wrote "
            "would be published, too. Leave the option out; the sink publishes at the commit.",
            option=name,
        )
    return parsed


def _whole(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise ConfigError(
            f"Option {name} is {value!r}: it takes a whole number.", option=name
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table; `kafka` says that the name is also taken with the prefix `kafka.`."""

    name: str
    parse: Callable[[str, str], Value]
    doc: str
    applies_to: frozenset[str]
    ignored_in: frozenset[str] = frozenset()
    default: Value = None
    kafka: bool = False


OPTIONS: Final[tuple[Option, ...]] = (
    Option(name="subscribe", parse=text, applies_to=READS, doc="topics, separated by commas"),
    Option(name="assign", parse=text, applies_to=READS, doc='partitions: {"topic":[0,1]}'),
    Option(
        name="startingOffsets",
        parse=text,
        applies_to=READS,
        doc="latest (a stream's default), earliest (a batch's), committed, or "
        '{"topic":{"0":23,"1":-2}} with -2 earliest, -1 latest',
    ),
    Option(
        name="endingOffsets",
        parse=text,
        applies_to=frozenset({"read"}),
        doc='latest (default), or {"topic":{"0":50,"1":-1}}; for batch reads',
    ),
    Option(
        name="maxOffsetsPerTrigger",
        parse=positive,
        applies_to=frozenset({"readStream"}),
        ignored_in=frozenset({"read"}),
        doc="records of a micro-batch at most, shared among the partitions in proportion",
    ),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        applies_to=READS,
        default=True,
        doc="false: go on from the log start, with a warning, where records are gone",
    ),
    Option(
        name="includeHeaders",
        parse=boolean,
        applies_to=ALL,
        default=False,
        doc="source: give the column headers (default false); sink: false leaves the column out "
        "(by default it is written where it is there)",
    ),
    Option(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        applies_to=READS,
        default="read_committed",
        kafka=True,
        doc="read_uncommitted shows open and aborted transactions, too",
    ),
    Option(
        name="group.id",
        parse=text,
        applies_to=frozenset({"read", "readStream", "writeStream"}),
        kafka=True,
        doc="consumer group whose offsets are read (source) and committed (sink)",
    ),
    Option(
        name="auto.offset.reset",
        parse=choice("earliest", "latest", "none"),
        applies_to=READS,
        kafka=True,
        doc="startingOffsets=committed: where to start in a partition the group never read; by "
        "default latest, and earliest in a partition added to a topic the group reads",
    ),
    Option(
        name="topic",
        parse=text,
        applies_to=WRITES,
        doc="topic of all rows; wins over the column topic",
    ),
    Option(
        name="transactional.id",
        parse=text,
        applies_to=WRITES,
        kafka=True,
        doc="by default the id of the streaming query",
    ),
    Option(
        name="transaction.timeout.ms",
        parse=positive,
        applies_to=WRITES,
        default=60_000,
        kafka=True,
        doc="time-out of an open transaction",
    ),
    Option(
        name="transaction.publish",
        parse=publication,
        applies_to=WRITES,
        default="deferred",
        doc="the sink takes deferred only",
    ),
    Option(
        name="num.partitions",
        parse=positive,
        applies_to=WRITES,
        default=4,
        doc="partitions of a topic the sink creates",
    ),
    Option(
        name="auto.create.topics.enable",
        parse=boolean,
        applies_to=WRITES,
        default=True,
        doc="create a topic that is missing",
    ),
    Option(
        name="txnAppId",
        parse=text,
        applies_to=frozenset({"write"}),
        doc="with txnVersion: a batch write of the same pair happens once",
    ),
    Option(
        name="txnVersion",
        parse=not_negative,
        applies_to=frozenset({"write"}),
        doc="grows with each batch write of a txnAppId",
    ),
    Option(
        name="checkpointLocation",
        parse=text,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's own; the sink reads the batch's source offsets there",
    ),
    Option(
        name="queryName",
        parse=text,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's own",
    ),
)

BY_NAME: Final[Mapping[str, Option]] = {option.name.lower(): option for option in OPTIONS}
