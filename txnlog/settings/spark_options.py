"""The table of options of the Spark source and sink: names, defaults, parsers, meaning.

Parsing, error messages and docs/options.md (txnlog.settings.docs) are all made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from txnlog.protocol.transitions import TIMEOUT_MS_DEFAULT
from txnlog.settings.names import NUM_PARTITIONS_DEFAULT
from txnlog.settings.patterns import topic_pattern
from txnlog.settings.values import (
    CODECS,
    COMPRESSION_DOC,
    boolean,
    choice,
    duration_ms,
    identifier,
    not_negative,
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

# Spark's Kafka connector rejects these, too: ignoring them would change what a job reads.
NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "key.deserializer": "Keys are binary; cast or decode the column key.",
    "value.deserializer": "Values are binary; cast or decode the column value.",
    "key.serializer": "Keys are written unchanged; encode the column key.",
    "value.serializer": "Values are written unchanged; encode the column value.",
    "interceptor.classes": "Records are never intercepted.",
    "enable.auto.commit": "The sink commits the offsets of its batch when both have a group.id.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row of the table.

    `applies_to` holds the operations that use it, `ignored_in` those that accept and ignore it.
    `refused_in` says why another one refuses it. With `kafka` the name is also accepted with the
    prefix `kafka.`; `default_text` is the default as a user would write it, where that differs from
    `default`.
    """

    name: str
    parse: Callable[[str, str], Value]
    doc: str
    applies_to: frozenset[str]
    ignored_in: frozenset[str] = frozenset()
    refused_in: Mapping[str, str] = field(default_factory=dict)
    default: Value = None
    default_text: str | None = None
    kafka: bool = False


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        name="subscribe",
        parse=text,
        applies_to=READS,
        doc="Topics, separated by commas. Exactly one of `subscribe`, `subscribePattern` and "
        "`assign` is required.",
    ),
    Option(
        name="subscribePattern",
        parse=topic_pattern,
        applies_to=READS,
        doc="Regular expression (RE2's syntax, and lookahead at its beginning) that a topic's "
        "whole name must match. Topics created later are read from their earliest offset; a "
        "deleted topic is data loss.",
    ),
    Option(
        name="assign",
        parse=text,
        applies_to=READS,
        doc='Partitions to read: `{"topic":[0,1]}`.',
    ),
    Option(
        name="startingOffsets",
        parse=text,
        applies_to=READS,
        default_text="latest (stream), earliest (batch)",
        doc="Where a query without a checkpoint starts: `earliest`, `latest` (streams only), "
        '`committed` (the committed offsets of `group.id`), or `{"topic":{"0":23,"1":-2}}`, which '
        "must name every partition; -2 is earliest, -1 is latest.",
    ),
    Option(
        name="startingTimestamp",
        parse=timestamp_ms,
        applies_to=READS,
        doc="Start at the first record of each partition with this timestamp or a later one, in "
        "ms since 1970. Overrides `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        parse=text,
        applies_to=READS,
        doc='Starting timestamp of each partition: `{"topic":{"0":1700000000000}}`. Overrides '
        "`startingOffsets`.",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        parse=choice("error", "latest"),
        applies_to=READS,
        default="error",
        doc="If a partition has no record with the timestamp or a later one: fail, or start at "
        "its end.",
    ),
    Option(
        name="endingOffsets",
        parse=text,
        applies_to=BATCH,
        default_text="latest",
        doc='Where a batch ends: `latest`, or `{"topic":{"0":50,"1":-1}}`; exclusive.',
    ),
    Option(
        name="endingTimestamp",
        parse=timestamp_ms,
        applies_to=BATCH,
        doc="End before the first record of each partition with this timestamp or a later one; at "
        "the partition's end if there is none. Overrides `endingOffsetsByTimestamp` and "
        "`endingOffsets`.",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        parse=text,
        applies_to=BATCH,
        doc="Ending timestamp of each partition. Overrides `endingOffsets`.",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        parse=positive,
        applies_to=STREAM,
        ignored_in=BATCH,
        doc="Maximum records per micro-batch, split among partitions by backlog.",
    ),
    Option(
        name="minOffsetsPerTrigger",
        parse=positive,
        applies_to=STREAM,
        ignored_in=BATCH,
        doc="Minimum records per micro-batch: fewer wait for up to `maxTriggerDelay`. Must not "
        "exceed `maxOffsetsPerTrigger`. `Trigger.AvailableNow` does not wait.",
    ),
    Option(
        name="maxTriggerDelay",
        parse=duration_ms,
        applies_to=STREAM,
        ignored_in=BATCH,
        default=900_000,
        default_text="15m",
        doc="Maximum delay of a micro-batch by `minOffsetsPerTrigger`, such as `10s`, `15m` or "
        "`1h`; a number without a unit is in ms.",
    ),
    Option(
        name="metadata.poll.interval.ms",
        parse=positive_int,
        applies_to=STREAM,
        ignored_in=BATCH,
        default_text="object store: 1000, or 10 per topic if that is more; local disk: no limit",
        doc="How long a new record may wait until an idle stream finds it. Each check of a topic "
        "is one request; a stream checks more often for a while after a batch.",
    ),
    Option(
        name="minPartitions",
        parse=positive,
        applies_to=READS,
        doc="Minimum number of Spark tasks per batch, or one per record if there are fewer: "
        "the largest offset ranges are split first. See *Tasks* below.",
    ),
    Option(
        name="maxRecordsPerPartition",
        parse=positive,
        applies_to=READS,
        doc="Maximum records per Spark task: larger offset ranges are split evenly. See *Tasks* "
        "below.",
    ),
    Option(
        name="failOnDataLoss",
        parse=boolean,
        applies_to=READS,
        default=True,
        doc="`true`: fail if records were deleted before they were read. `false`: log a warning "
        "and continue from the log start.",
    ),
    Option(
        name="includeHeaders",
        parse=boolean,
        applies_to=ALL,
        default=False,
        default_text="false (source), true (sink)",
        doc="Source: add the column `headers`. Sink: `false` omits that column; by default it is "
        "written if present.",
    ),
    Option(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        applies_to=READS,
        default="read_committed",
        kafka=True,
        doc="`read_uncommitted` also returns records of open and aborted transactions. Kafka's "
        "default is `read_uncommitted`.",
    ),
    Option(
        name="group.id",
        parse=identifier,
        applies_to=frozenset({"read", "readStream", "writeStream"}),
        kafka=True,
        doc="Consumer group. A stream with the same group in source and sink commits the offsets "
        "of each batch in the transaction of its output.",
    ),
    Option(
        name="auto.offset.reset",
        parse=choice("earliest", "latest", "none"),
        applies_to=READS,
        kafka=True,
        default_text="latest",
        doc="With `startingOffsets=committed`: where to start in a partition without a committed "
        "offset; `none` fails. Partitions of a topic that the group reads, and topics of a pattern "
        "of which it reads another, start at earliest in any case: they were added later.",
    ),
    Option(
        name="groupIdPrefix",
        parse=identifier,
        applies_to=frozenset(),
        ignored_in=READS,
        doc="No effect, as in Spark's Kafka connector when `group.id` is set: no group id is "
        "generated.",
    ),
    Option(
        name="topic",
        parse=text,
        applies_to=WRITES,
        doc="Topic of all rows; overrides the column `topic`.",
    ),
    Option(
        name="transactional.id",
        parse=identifier,
        applies_to=frozenset({"write"}),
        refused_in={
            "writeStream": "a query's transactional.id is its query id, and fencing by name is "
            "what group.id does; leave it out."
        },
        kafka=True,
        doc="The name of a writer: a write fences an older one of that name that still runs. "
        "Without it each write has an id of its own. On a stream it is an error: a query's "
        "transactional.id is its query id, and fencing by name is what `group.id` does.",
    ),
    Option(
        name="transaction.timeout.ms",
        parse=positive_int,
        applies_to=WRITES,
        default=TIMEOUT_MS_DEFAULT,
        kafka=True,
        doc="Timeout of an open transaction.",
    ),
    Option(
        name="transaction.publish",
        parse=publication,
        applies_to=WRITES,
        default="deferred",
        doc="The sink supports `deferred` only: data becomes readable with the commit.",
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
        doc="Number of partitions of a topic that the sink creates; a topic that was deleted gets "
        "at least as many as it had.",
    ),
    Option(
        name="auto.create.topics.enable",
        parse=boolean,
        applies_to=WRITES,
        default=True,
        doc="Create missing topics.",
    ),
    Option(
        name="txnAppId",
        parse=identifier,
        applies_to=frozenset({"write"}),
        doc="With `txnVersion`: makes batch writes idempotent, as in a Delta table; each topic "
        "gets the rows of one pair once. In `foreachBatch` it names the query, see "
        "[recipes](recipes.md#several-topics-at-once). Cannot be combined with "
        "`transactional.id`.",
    ),
    Option(
        name="txnVersion",
        parse=not_negative,
        applies_to=frozenset({"write"}),
        doc="Version of a batch write, increasing per `txnAppId` and topic; a write with the "
        "topic's version or a lower one is skipped with a warning.",
    ),
    Option(
        name="checkpointLocation",
        parse=text,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's option; the sink reads the batch's source offsets from the checkpoint.",
    ),
    Option(
        name="queryName",
        parse=identifier,
        applies_to=frozenset({"writeStream"}),
        doc="Spark's option.",
    ),
)

BY_NAME: Final[Mapping[str, Option]] = {option.name.lower(): option for option in OPTIONS}
