"""The table of options of the Spark source and sink: names, defaults, parsers, meaning.

Parsing, error messages and docs/options.md (txnlog.settings.docs) are all made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from txnlog.protocol.transitions import TIMEOUT_MS_DEFAULT
from txnlog.settings.names import NUM_PARTITIONS_DEFAULT
from txnlog.settings.values import (
    CODECS,
    COMPRESSION_DOC,
    boolean,
    choice,
    duration_ms,
    identifier,
    not_negative,
    pattern,
    positive,
    positive_int,
    publication,
    text,
    timestamp_ms,
)

Operation = Literal["read", "readStream", "write", "writeStream"]
Value = str | int | bool | None

READS: Final = frozenset({"read", "readStream"})
WRITES: Final = frozenset({"write", "writeStream"})
ALL: Final = READS | WRITES

STREAM: Final = frozenset({"readStream"})
BATCH: Final = frozenset({"read"})

# What Spark's Kafka connector refuses, too: taking these in silence would change what a job reads.
NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "key.deserializer": "Keys come as binary; cast or decode the column key.",
    "value.deserializer": "Values come as binary; cast or decode the column value.",
    "key.serializer": "Keys are written as they are; encode the column key.",
    "value.serializer": "Values are written as they are; encode the column value.",
    "interceptor.classes": "Records are never changed on their way.",
    "enable.auto.commit": "The sink commits the offsets of its batch when both have a group.id.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table.

    `applies_to` holds the operations it has a meaning for, `ignored_in` those that take it without
    effect. `kafka` says that the name is also taken with the prefix `kafka.`; `default_text` is
    the default as a user would write it, where that is not how it is held.
    """

    name: str
    parse: Callable[[str, str], Value]
    doc: str
    applies_to: frozenset[str]
    ignored_in: frozenset[str] = frozenset()
    default: Value = None
    default_text: str | None = None
    kafka: bool = False


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="subscribe",
        parse=text,
        applies_to=READS,
        doc="Topics, separated by commas. Exactly one of `subscribe`, `subscribePattern` and "
        "`assign` is needed.",
    ),
    Option(
        name="subscribePattern",
        parse=pattern,
        applies_to=READS,
        doc="Regular expression (Python's `re`) that a topic's whole name must match. Topics that "
        "appear later join at their earliest offset; one that goes is data loss.",
    ),
    Option(
        name="assign",
        parse=text,
        applies_to=READS,
        doc='Partitions: `{"topic":[0,1]}`.',
    ),
    Option(
        name="startingOffsets",
        parse=text,
        applies_to=READS,
        default_text="latest (stream), earliest (batch)",
        doc="Where a query without checkpoint starts: `earliest`, `latest` (streams only), "
        '`committed` (the offsets of `group.id`), or `{"topic":{"0":23,"1":-2}}`, which names '
        "every partition; -2 stands for earliest, -1 for latest.",
    ),
    Option(
        name="startingTimestamp",
        parse=timestamp_ms,
        applies_to=READS,
        doc="Start at the first record of each partition whose timestamp is this or later, in ms "
        "since 1970. Wins over `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        parse=text,
        applies_to=READS,
        doc='The same with a timestamp for each partition: `{"topic":{"0":1700000000000}}`. Wins '
        "over `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        parse=choice("error", "latest"),
        applies_to=READS,
        default="error",
        doc="What to do with a partition that has no record so late: fail, or start at its end.",
    ),
    Option(
        name="endingOffsets",
        parse=text,
        applies_to=BATCH,
        default_text="latest",
        doc='`latest`, or `{"topic":{"0":50,"1":-1}}`; the end is exclusive.',
    ),
    Option(
        name="endingTimestamp",
        parse=timestamp_ms,
        applies_to=BATCH,
        doc="End before the first record of each partition whose timestamp is this or later; at "
        "its end where there is none. Wins over `endingOffsetsByTimestamp` and `endingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        parse=text,
        applies_to=BATCH,
        doc="The same with a timestamp for each partition. Wins over `endingOffsets`.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        parse=positive,
        applies_to=STREAM,
        ignored_in=BATCH,
        doc="Records of a micro-batch at most, shared among the partitions in proportion to what "
        "waits in them.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        parse=positive,
        applies_to=STREAM,
        ignored_in=BATCH,
        doc="Wait until so many records are there, but no longer than `maxTriggerDelay`. At most "
        "`maxOffsetsPerTrigger`. `Trigger.AvailableNow` does not wait.",
    ),
    Option(
        name="maxTriggerDelay",
        parse=duration_ms,
        applies_to=STREAM,
        ignored_in=BATCH,
        default=900_000,
        default_text="15m",
        doc="The longest that `minOffsetsPerTrigger` may hold records back, as in `10s`, `15m` or "
        "`1h`; a number without unit means ms.",
    ),
    Option(
        name="minPartitions",
        parse=positive,
        applies_to=READS,
        doc="Spark tasks of a batch at least, as far as there are records: ranges of partitions "
        "are split, the largest first. See *Tasks* below.",
    ),
    Option(
        name="maxRecordsPerPartition",
        parse=positive,
        applies_to=READS,
        doc="Records of a Spark task at most: longer ranges are split evenly. See *Tasks* below.",
    ),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        applies_to=READS,
        default=True,
        doc="`false`: where records are gone, warn and go on from the log start.",
    ),
    Option(
        name="includeHeaders",
        parse=boolean,
        applies_to=ALL,
        default=False,
        default_text="false (source), true (sink)",
        doc="Source: give the column `headers`. Sink: `false` leaves that column out; by default "
        "it is written where it is there.",
    ),
    Option(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        applies_to=READS,
        default="read_committed",
        kafka=True,
        doc="`read_uncommitted` shows open and aborted transactions, too. Kafka's own default is "
        "`read_uncommitted`.",
    ),
    Option(
        name="group.id",
        parse=identifier,
        applies_to=frozenset({"read", "readStream", "writeStream"}),
        kafka=True,
        doc="Consumer group. A stream that reads and writes under one group commits the offsets of "
        "its batch in the transaction of its output.",
    ),
    Option(
        name="auto.offset.reset",
        parse=choice("earliest", "latest", "none"),
        applies_to=READS,
        kafka=True,
        default_text="latest; earliest in a partition added to a topic the group reads",
        doc="With `startingOffsets=committed`: where to start in a partition the group never read; "
        "`none` fails.",
    ),
    Option(
        name="groupIdPrefix",
        parse=identifier,
        applies_to=frozenset(),
        ignored_in=READS,
        doc="Without effect, as in Kafka's connector when `group.id` is set: no group is made up.",
    ),
    Option(
        name="topic",
        parse=text,
        applies_to=WRITES,
        doc="Topic of all rows; wins over the column `topic`.",
    ),
    Option(
        name="transactional.id",
        parse=identifier,
        applies_to=WRITES,
        kafka=True,
        default_text="the id of the streaming query",
        doc="Name of the transactions. Two queries that run at the same time need one each. A "
        "query may be restarted under another one: its last batch is found, its old run fenced.",
    ),
    Option(
        name="transaction.timeout.ms",
        parse=positive_int,
        applies_to=WRITES,
        default=TIMEOUT_MS_DEFAULT,
        kafka=True,
        doc="Time-out of an open transaction.",
    ),
    Option(
        name="transaction.publish",
        parse=publication,
        applies_to=WRITES,
        default="deferred",
        doc="The sink takes `deferred` only: data becomes readable with the commit.",
    ),
    Option(
        name="compression.type",
        parse=choice(*CODECS),
        applies_to=WRITES,
        doc=COMPRESSION_DOC,
        kafka=True,
    ),
    Option(
        name="num.partitions",
        parse=positive,
        applies_to=WRITES,
        default=NUM_PARTITIONS_DEFAULT,
        doc="Partitions of a topic the sink creates.",
    ),
    Option(
        name="auto.create.topics.enable",
        parse=boolean,
        applies_to=WRITES,
        default=True,
        doc="Create a topic that is missing.",
    ),
    Option(
        name="txnAppId",
        parse=identifier,
        applies_to=frozenset({"write"}),
        doc="With `txnVersion`: a batch write of the same pair happens once in each topic, as in "
        "each Delta table. It cannot be combined with `transactional.id`.",
    ),
    Option(
        name="txnVersion",
        parse=not_negative,
        applies_to=frozenset({"write"}),
        doc="Grows with each batch write of a `txnAppId` to a topic; a version that the topic has, "
        "or a lower one, is skipped with a warning.",
    ),
    Option(
        name="checkpointLocation",
        parse=text,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's own; the sink reads the batch's source offsets there.",
    ),
    Option(
        name="queryName",
        parse=identifier,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's own.",
    ),
)

BY_NAME: Final[Mapping[str, Option]] = {option.name.lower(): option for option in OPTIONS}
