"""The table of settings: Spark's options, settings of clients, configurations of topics.

Names and defaults are those of Kafka and of Spark's Kafka connector, the meaning is the one here.
Parsing (settings.config), error messages and the tables of the documentation (settings.docs) use
it. `storage.*` has tables of its own (settings.storage_tables).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.expiry import DELIVERY_TIMEOUT_MS_DEFAULT
from txnlog.protocol.transitions import TIMEOUT_MS_DEFAULT
from txnlog.settings.names import (
    NUM_PARTITIONS_DEFAULT,
    OFFSETS_SHARDS_DEFAULT,
    SHARDS_DEFAULT,
    SHARDS_MAX,
)
from txnlog.settings.patterns import topic_pattern
from txnlog.settings.values import (
    CODECS,
    assignors,
    boolean,
    callback,
    choice,
    duration_ms,
    identifier,
    logger,
    names,
    not_negative,
    not_negative_int,
    policies,
    positive,
    positive_int,
    publication,
    ratio,
    text,
    timestamp_ms,
    unlimited,
    whole,
)

Scope = Literal[
    "read", "readStream", "write", "writeStream", "consumer", "producer", "admin", "topic"
]
"""What takes a setting: a read or write of Spark, a client, or a topic as its configuration."""
Value = str | int | float | bool | tuple[str, ...] | Callable[..., Any] | logging.Logger | None

SOURCE_BATCH: Final[frozenset[Scope]] = frozenset({"read"})
SOURCE_STREAM: Final[frozenset[Scope]] = frozenset({"readStream"})
SINK_BATCH: Final[frozenset[Scope]] = frozenset({"write"})
SINK_STREAM: Final[frozenset[Scope]] = frozenset({"writeStream"})
READS: Final = SOURCE_BATCH | SOURCE_STREAM
WRITES: Final = SINK_BATCH | SINK_STREAM
SPARK: Final = READS | WRITES
CONSUMER: Final[frozenset[Scope]] = frozenset({"consumer"})
PRODUCER: Final[frozenset[Scope]] = frozenset({"producer"})
ADMIN: Final[frozenset[Scope]] = frozenset({"admin"})
CLIENTS: Final = CONSUMER | PRODUCER | ADMIN
TOPIC: Final[frozenset[Scope]] = frozenset({"topic"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table. `parse` takes the name and the value as text; see `values.OBJECTS`.

    `ignored_in` are the scopes that accept and ignore it. `default_text` is the default as a user
    would write it, where that differs from `default`.
    """

    name: str
    parse: Callable[[str, Any], Value]
    doc: str
    applies_to: frozenset[Scope]
    ignored_in: frozenset[Scope] = frozenset()
    default: Value = None
    default_text: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and the others that are accepted."""
        return self.name, *self.aliases


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="subscribe",
        parse=text,
        applies_to=READS,
        doc="Topics, separated by commas. Exactly one of `subscribe`, `subscribePattern` and "
        "`assign` is required.",
    ),
    Setting(
        name="subscribePattern",
        parse=topic_pattern,
        applies_to=READS,
        doc="Regular expression (RE2's syntax, and lookahead at its beginning) that a topic's "
        "whole name must match. Topics created later are read from their earliest offset; a "
        "deleted topic is data loss.",
    ),
    Setting(
        name="assign",
        parse=text,
        applies_to=READS,
        doc='Partitions to read: `{"topic":[0,1]}`.',
    ),
    Setting(
        name="startingOffsets",
        parse=text,
        applies_to=READS,
        default_text="latest (stream), earliest (batch)",
        doc="Where a query without a checkpoint starts: `earliest`, `latest` (streams only), "
        '`committed` (the committed offsets of `group.id`), or `{"topic":{"0":23,"1":-2}}`, which '
        "must name every partition; -2 is earliest, -1 is latest.",
    ),
    Setting(
        name="startingTimestamp",
        parse=timestamp_ms,
        applies_to=READS,
        doc="Start at the first record of each partition with this timestamp or a later one, in "
        "ms since 1970. Overrides `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Setting(
        name="startingOffsetsByTimestamp",
        parse=text,
        applies_to=READS,
        doc='Starting timestamp of each partition: `{"topic":{"0":1700000000000}}`. Overrides '
        "`startingOffsets`.",
    ),
    Setting(
        name="startingOffsetsByTimestampStrategy",
        parse=choice("error", "latest"),
        applies_to=READS,
        default="error",
        doc="If a partition has no record with the timestamp or a later one: fail, or start at "
        "its end.",
    ),
    Setting(
        name="endingOffsets",
        parse=text,
        applies_to=SOURCE_BATCH,
        default_text="latest",
        doc='Where a batch ends: `latest`, or `{"topic":{"0":50,"1":-1}}`; exclusive.',
    ),
    Setting(
        name="snapshot",
        parse=text,
        applies_to=SOURCE_BATCH,
        doc="Read the topics as a named snapshot shows them (`txnlog snapshots create`); "
        "`startingOffsets=committed` then starts from its offsets.",
    ),
    Setting(
        name="endingTimestamp",
        parse=timestamp_ms,
        applies_to=SOURCE_BATCH,
        doc="End before the first record of each partition with this timestamp or a later one; at "
        "the partition's end if there is none. Overrides `endingOffsetsByTimestamp` and "
        "`endingOffsets`.",
    ),
    Setting(
        name="endingOffsetsByTimestamp",
        parse=text,
        applies_to=SOURCE_BATCH,
        doc="Ending timestamp of each partition. Overrides `endingOffsets`.",
    ),
    Setting(
        name="maxOffsetsPerTrigger",
        parse=positive,
        applies_to=SOURCE_STREAM,
        ignored_in=SOURCE_BATCH,
        doc="Maximum records per micro-batch, split among partitions by backlog.",
    ),
    Setting(
        name="minOffsetsPerTrigger",
        parse=positive,
        applies_to=SOURCE_STREAM,
        ignored_in=SOURCE_BATCH,
        doc="Minimum records per micro-batch: fewer wait for up to `maxTriggerDelay`. Must not "
        "exceed `maxOffsetsPerTrigger`. `Trigger.AvailableNow` does not wait.",
    ),
    Setting(
        name="maxTriggerDelay",
        parse=duration_ms,
        applies_to=SOURCE_STREAM,
        ignored_in=SOURCE_BATCH,
        default=900_000,
        default_text="15m",
        doc="Maximum delay of a micro-batch by `minOffsetsPerTrigger`, such as `10s`, `15m` or "
        "`1h`; a number without a unit is in ms.",
    ),
    Setting(
        name="metadata.poll.interval.ms",
        parse=positive_int,
        applies_to=SOURCE_STREAM,
        ignored_in=SOURCE_BATCH,
        default_text="object store: 1000, or 10 per topic if that is more; local disk: no limit",
        doc="How long a new record may wait until an idle stream finds it. Each check of a topic "
        "is one request; a stream checks more often for a while after a batch.",
    ),
    Setting(
        name="minPartitions",
        parse=positive,
        applies_to=READS,
        doc="Minimum number of Spark tasks per batch, or one per record if there are fewer: "
        "the largest offset ranges are split first. See *Tasks* below.",
    ),
    Setting(
        name="maxRecordsPerPartition",
        parse=positive,
        applies_to=READS,
        doc="Maximum records per Spark task: larger offset ranges are split evenly. See *Tasks* "
        "below.",
    ),
    Setting(
        name="failOnDataLoss",
        parse=boolean,
        applies_to=READS,
        default=True,
        doc="`true`: fail if records were deleted before they were read. `false`: log a warning "
        "and continue from the log start.",
    ),
    Setting(
        name="includeHeaders",
        parse=boolean,
        applies_to=READS,
        default=False,
        doc="Add the column `headers`.",
    ),
    Setting(
        name="includeHeaders",
        parse=boolean,
        applies_to=WRITES,
        default=True,
        doc="`false` omits the column `headers`, which is written if it is present.",
    ),
    Setting(
        name="group.id",
        parse=identifier,
        applies_to=READS | SINK_STREAM,
        doc="Consumer group. A stream with the same group in source and sink commits the offsets "
        "of each batch in the transaction of its output.",
    ),
    Setting(
        name="auto.offset.reset",
        parse=choice("earliest", "latest", "none"),
        applies_to=READS,
        default_text="latest",
        doc="With `startingOffsets=committed`: where to start in a partition without a committed "
        "offset; `none` fails. Partitions of a topic that the group reads, and topics of a pattern "
        "of which it reads another, start at earliest in any case: they were added later.",
    ),
    Setting(
        name="groupIdPrefix",
        parse=identifier,
        applies_to=frozenset(),
        ignored_in=READS,
        doc="No effect, as in Spark's Kafka connector when `group.id` is set: no group id is "
        "generated.",
    ),
    Setting(
        name="topic",
        parse=text,
        applies_to=WRITES,
        doc="Topic of all rows; overrides the column `topic`.",
    ),
    Setting(
        name="transactional.id",
        parse=identifier,
        applies_to=SINK_BATCH,
        doc="The name of a writer: a write fences an older one of that name that still runs. "
        "Without it each write has an id of its own. On a stream it is an error: a query's "
        "transactional.id is its query id, and fencing by name is what `group.id` does.",
    ),
    Setting(
        name="transaction.publish",
        parse=publication,
        applies_to=WRITES,
        default="deferred",
        doc="The sink supports `deferred` only: data becomes readable with the commit.",
    ),
    Setting(
        name="txnAppId",
        parse=identifier,
        applies_to=SINK_BATCH,
        doc="With `txnVersion`: makes batch writes idempotent, as in a Delta table; each topic "
        "gets the rows of one pair once. In `foreachBatch` use `transactional`, see "
        "[recipes](recipes.md#several-topics-at-once). Cannot be combined with "
        "`transactional.id`.",
    ),
    Setting(
        name="txnVersion",
        parse=not_negative,
        applies_to=SINK_BATCH,
        doc="Version of a batch write, increasing per `txnAppId` and topic; a write with the "
        "topic's version or a lower one is skipped with a warning.",
    ),
    Setting(
        name="checkpointLocation",
        parse=text,
        applies_to=SINK_STREAM,
        doc="Spark's option; the sink reads the batch's source offsets from the checkpoint.",
    ),
    Setting(
        name="queryName",
        parse=identifier,
        applies_to=SINK_STREAM,
        doc="Spark's option.",
    ),
    Setting(
        name="openlineage.disabled",
        parse=boolean,
        default=True,
        applies_to=SINK_STREAM,
        doc="`false` sends an OpenLineage event after each micro-batch "
        "([monitoring](monitoring.md#openlineage)).",
    ),
    Setting(
        name="openlineage.namespace",
        parse=identifier,
        default=None,
        applies_to=SINK_STREAM,
        doc="The namespace of the job; without it that of `OPENLINEAGE_NAMESPACE`, else `default`.",
    ),
    Setting(
        name="client.id",
        parse=identifier,
        default="txnlog",
        applies_to=CLIENTS,
        doc="A name shown in logs and in descriptions of groups and transactions.",
    ),
    Setting(
        name="error_cb",
        parse=callback,
        applies_to=CONSUMER | PRODUCER,
        doc="A function that poll and flush call with an error of background work: a heartbeat or "
        "a send that failed and is tried again. Of errors in a row that are alike, the first.",
    ),
    Setting(
        name="stats_cb",
        parse=callback,
        applies_to=CONSUMER | PRODUCER,
        doc="A function that poll and flush call every statistics.interval.ms with statistics as "
        "JSON, in librdkafka's names, as far as they have a meaning here.",
    ),
    Setting(
        name="statistics.interval.ms",
        parse=not_negative_int,
        default=0,
        applies_to=CONSUMER | PRODUCER,
        doc="Interval of `stats_cb`; 0: it is not called.",
    ),
    Setting(
        name="logger",
        parse=logger,
        applies_to=CLIENTS,
        doc="A `logging.Logger` whose handlers also get the process's log records of txnlog, from "
        "INFO on.",
    ),
    Setting(
        name="debug",
        parse=names,
        applies_to=CLIENTS,
        doc="With any value, as `all`, txnlog logs at DEBUG in this process.",
    ),
    Setting(
        name="group.id",
        parse=identifier,
        applies_to=CONSUMER,
        doc="The consumer group. Needed to subscribe and to commit.",
    ),
    Setting(
        name="group.instance.id",
        parse=identifier,
        applies_to=CONSUMER,
        doc="The unique name of a static member: if it restarts within session.timeout.ms it "
        "keeps its assignment, and the group does not rebalance.",
    ),
    Setting(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        default="read_committed",
        applies_to=READS | CONSUMER,
        doc="`read_uncommitted` also returns records of open and aborted transactions. Kafka's "
        "default is `read_uncommitted`.",
    ),
    Setting(
        name="auto.offset.reset",
        parse=choice(
            "earliest", "latest", "none", "error", "smallest", "largest", "beginning", "end"
        ),
        default="latest",
        applies_to=CONSUMER,
        doc="Where to start in a partition without a committed offset, or with one out of range: "
        "`earliest`, `latest`, or `none` (or `error`), which raises OffsetOutOfRangeError.",
    ),
    Setting(
        name="enable.auto.commit",
        parse=boolean,
        default=True,
        applies_to=CONSUMER,
        doc="Commit the positions of returned messages at later polls.",
    ),
    Setting(
        name="auto.commit.interval.ms",
        parse=not_negative_int,
        default=5_000,
        applies_to=CONSUMER,
        doc="Interval of automatic commits.",
    ),
    Setting(
        name="enable.auto.offset.store",
        parse=boolean,
        default=True,
        applies_to=CONSUMER,
        doc="`false`: what is committed is what `store_offsets()` was given, not the positions of "
        "returned messages.",
    ),
    Setting(
        name="enable.partition.eof",
        parse=boolean,
        default=False,
        applies_to=CONSUMER,
        doc="`poll()` and its like raise PartitionEndError each time the end of a partition is "
        "reached.",
    ),
    Setting(
        name="max.poll.records",
        parse=positive_int,
        default=500,
        applies_to=CONSUMER,
        doc="Maximum number of records of one `consume()` without a number; if set explicitly, "
        "also of one `consume_batch()`.",
    ),
    Setting(
        name="max.poll.interval.ms",
        parse=positive_int,
        default=300_000,
        applies_to=CONSUMER,
        doc="Maximum time between two polls before the consumer leaves its group; also the time "
        "that a rebalance waits for it.",
    ),
    Setting(
        name="session.timeout.ms",
        parse=positive_int,
        default=45_000,
        applies_to=CONSUMER,
        doc="A member without a heartbeat for this long is expelled from its group.",
    ),
    Setting(
        name="heartbeat.interval.ms",
        parse=positive_int,
        default=3_000,
        applies_to=CONSUMER,
        doc="How often a member reads the state of its group. Three times per session.timeout.ms "
        "it also makes a small write, unless it has committed.",
    ),
    Setting(
        name="fetch.max.bytes",
        parse=positive_int,
        default=52_428_800,
        applies_to=CONSUMER,
        doc="Maximum size of one `consume_batch()`; a larger record is returned alone.",
    ),
    Setting(
        name="partition.assignment.strategy",
        parse=assignors,
        default=("range",),
        applies_to=CONSUMER,
        doc="`range`, `sticky` or both, in order of preference; the group uses one that all "
        "members support. `roundrobin` is taken as `sticky`, which is as even. Or "
        "`cooperative-sticky` alone: a rebalance revokes only what moves, and all members of the "
        "group must have it.",
    ),
    Setting(
        name="metadata.max.age.ms",
        parse=positive,
        default=300_000,
        applies_to=CONSUMER | PRODUCER,
        aliases=("topic.metadata.refresh.interval.ms",),
        doc="How often a pattern subscription checks for new topics, and a producer for changes "
        "of its topics.",
    ),
    Setting(
        name="metadata.poll.interval.ms",
        parse=positive_int,
        applies_to=CONSUMER,
        doc="How long a new record of an idle topic may wait until it is found; the consumer "
        "checks more often for a while after a record. Default: on a local disk 10, or 0.5 per "
        "topic if that is more; on an object store 1000, or 10 per topic: there each check of a "
        "topic is one request. `poll(0)` does not check more often (but for up to 20 topics on a "
        "local disk).",
    ),
    Setting(
        name="offset.metadata.max.bytes",
        parse=not_negative_int,
        default=4_096,
        applies_to=CONSUMER,
        doc="Maximum size of the metadata of a committed offset. (A broker setting in Kafka.)",
    ),
    Setting(
        name="on_commit",
        parse=callback,
        applies_to=CONSUMER,
        doc="A function that poll calls with (error, partitions) after a commit.",
    ),
    Setting(
        name="transactional.id",
        parse=identifier,
        applies_to=PRODUCER,
        doc="The name of a transactional producer; a newer producer with the same name fences "
        "the older one.",
    ),
    Setting(
        name="transaction.timeout.ms",
        parse=positive_int,
        default=TIMEOUT_MS_DEFAULT,
        applies_to=WRITES | PRODUCER,
        doc="Any process aborts an eager transaction that is open for longer; maximum 15 min. "
        "Deferred and prepared transactions never time out.",
    ),
    Setting(
        name="transaction.publish",
        parse=choice("deferred", "eager"),
        default="deferred",
        applies_to=PRODUCER,
        doc="`deferred`: records are added to the topics at the commit. `eager`: before it, so "
        "that read_uncommitted readers see them.",
    ),
    Setting(
        name="enable.idempotence",
        parse=boolean,
        default=True,
        applies_to=PRODUCER,
        doc="Producers are always idempotent, at no extra cost. `false` has no effect but a "
        "warning, and is an error with transactional.id.",
    ),
    Setting(
        name="linger.ms",
        parse=not_negative,
        default=5,
        applies_to=PRODUCER,
        aliases=("queue.buffering.max.ms",),
        doc="How long records wait for more records before they are written. In a deferred "
        "transaction they wait for the commit anyway.",
    ),
    Setting(
        name="batch.size",
        parse=positive_int,
        default=16_384,
        applies_to=PRODUCER,
        doc="Bytes. Buffered records of a topic are written before linger.ms when they fill a "
        "batch for each of its partitions. Records without keys switch to another partition after "
        "this many bytes. All buffered records of a partition become one file of any size.",
    ),
    Setting(
        name="buffer.memory",
        parse=positive,
        default=33_554_432,
        applies_to=PRODUCER,
        doc="Maximum size of buffered records, in bytes. A deferred transaction with more writes "
        "them to staged files, visible only after its commit: a larger buffer means fewer files.",
    ),
    Setting(
        name="max.request.size",
        parse=positive_int,
        default=1_048_576,
        applies_to=PRODUCER,
        aliases=("message.max.bytes",),
        doc="Maximum size of one record; the topic's max.message.bytes also applies.",
    ),
    Setting(
        name="max.block.ms",
        parse=not_negative,
        default=60_000,
        applies_to=PRODUCER,
        doc="Time-out of calls without their own time-out, and of produce() when buffer.memory is "
        "full.",
    ),
    Setting(
        name="delivery.timeout.ms",
        parse=positive_int,
        default=DELIVERY_TIMEOUT_MS_DEFAULT,
        applies_to=PRODUCER,
        aliases=("message.timeout.ms",),
        doc="How long the delivery of a record is retried before it fails.",
    ),
    Setting(
        name="compression.type",
        parse=choice(*CODECS),
        applies_to=WRITES | PRODUCER,
        aliases=("compression.codec",),
        doc="The codec of data files. Default: snappy for files of a few records, else zstd if "
        "the values are compressible, none if not. Compaction uses zstd.",
    ),
    Setting(
        name="partitioner",
        parse=choice("murmur2", "murmur2_random"),
        default="murmur2",
        applies_to=PRODUCER,
        doc="`murmur2` or `murmur2_random`: both use Kafka's hash of the key. Records without a "
        "key go to one partition after the other.",
    ),
    Setting(
        name="auto.create.topics.enable",
        parse=boolean,
        default=True,
        applies_to=WRITES | PRODUCER,
        doc="Create missing topics.",
    ),
    Setting(
        name="txnlog.create",
        parse=boolean,
        default=True,
        applies_to=PRODUCER | ADMIN,
        doc="Create the cluster if the root has none, with a warning; `false`: that is an error.",
    ),
    Setting(
        name="num.partitions",
        parse=whole(1, PARTITIONS_MAX),
        default=NUM_PARTITIONS_DEFAULT,
        applies_to=WRITES | PRODUCER,
        doc="Number of partitions of a topic that is created automatically; one that was deleted "
        "gets at least as many as it had.",
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        parse=whole(1, SHARDS_MAX),
        default=SHARDS_DEFAULT,
        applies_to=PRODUCER | ADMIN,
        doc="Number of shards of the transaction log of a cluster that this client creates; it "
        "cannot be changed later.",
    ),
    Setting(
        name="offsets.topic.num.partitions",
        parse=whole(1, SHARDS_MAX),
        default=OFFSETS_SHARDS_DEFAULT,
        applies_to=PRODUCER | ADMIN,
        doc="Number of shards of the consumer offsets of a cluster that this client creates; it "
        "cannot be changed later.",
    ),
    Setting(
        name="on_delivery",
        parse=callback,
        applies_to=PRODUCER,
        doc="A function that poll and flush call with (error, message) for every record without "
        "its own callback.",
    ),
    Setting(
        name="cleanup.policy",
        parse=policies,
        applies_to=TOPIC,
        default="delete",
        doc="`delete` by age or size, `compact` to the newest record of each key, or "
        "`compact,delete`.",
    ),
    Setting(
        name="delete.retention.ms",
        parse=not_negative,
        applies_to=TOPIC,
        default=86_400_000,
        doc="How long a compacted topic keeps the tombstone of a deleted key.",
    ),
    Setting(
        name="max.compaction.lag.ms",
        parse=positive,
        applies_to=TOPIC,
        default=9_223_372_036_854_775_807,
        doc="Maximum age of a record before its partition is key-compacted, regardless of the "
        "dirty ratio.",
    ),
    Setting(
        name="max.message.bytes",
        parse=positive_int,
        applies_to=TOPIC,
        default=1_048_588,
        doc="Maximum size of one record, as Kafka's producer estimates it; a larger record "
        "raises RecordTooLarge.",
    ),
    Setting(
        name="min.cleanable.dirty.ratio",
        parse=ratio,
        applies_to=TOPIC,
        default=0.5,
        doc="A partition is key-compacted when more than this fraction of its bytes is not.",
    ),
    Setting(
        name="min.compaction.lag.ms",
        parse=not_negative,
        applies_to=TOPIC,
        default=0,
        doc="Minimum age of a record before key compaction removes it.",
    ),
    Setting(
        name="retention.bytes",
        parse=unlimited,
        applies_to=TOPIC,
        default=-1,
        doc="Size of the newest data files kept per partition; older files are removed. -1: no "
        "limit.",
    ),
    Setting(
        name="retention.ms",
        parse=unlimited,
        applies_to=TOPIC,
        default=604_800_000,
        doc="A file is removed when its newest record is older, by the record's timestamp. "
        "-1: never.",
    ),
    Setting(
        name="segment.bytes",
        parse=positive_int,
        applies_to=TOPIC,
        default=134_217_728,
        doc="Approximate size of the files that compaction writes (Kafka's default is 1 GiB).",
    ),
)
