"""The table of client settings: confluent-kafka's names, Kafka's defaults, their meaning here.

Parsing (settings.config), error messages and docs/clients.md (settings.docs) use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from txnlog.errors import ConfigError
from txnlog.protocol.cooperation import COOPERATIVE, is_cooperative
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.expiry import DELIVERY_TIMEOUT_MS_DEFAULT
from txnlog.protocol.transitions import TIMEOUT_MS_DEFAULT
from txnlog.settings.arguments import shown
from txnlog.settings.names import (
    NUM_PARTITIONS_DEFAULT,
    OFFSETS_SHARDS_DEFAULT,
    SHARDS_DEFAULT,
    SHARDS_MAX,
)
from txnlog.settings.values import (
    CODECS,
    COMPRESSION_DOC,
    boolean,
    choice,
    identifier,
    not_negative,
    not_negative_int,
    positive,
    positive_int,
    whole,
)

Client = Literal["consumer", "producer", "admin"]
Value = str | int | bool | tuple[str, ...] | Callable[..., Any] | logging.Logger | None

CONSUMER: Final = frozenset({"consumer"})
PRODUCER: Final = frozenset({"producer"})
EVERY: Final = CONSUMER | PRODUCER | frozenset({"admin"})


def callback(name: str, value: object) -> Callable[..., Any]:
    """A function. Raises ConfigError."""
    if not callable(value):
        raise ConfigError(f"Setting {name} is {shown(value)}: it takes a function.", option=name)
    return value


def logger(name: str, value: object) -> logging.Logger:
    """A logger. Raises ConfigError."""
    if not isinstance(value, logging.Logger):
        raise ConfigError(
            f"Setting {name} is {shown(value)}: it takes a logging.Logger.", option=name
        )
    return value


def debug_contexts(name: str, value: str) -> tuple[str, ...]:
    """Names separated by commas, of which any turns logging at DEBUG on."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


OBJECTS: Final = (callback, logger)
"""Parsers of values that are no text."""


ASSIGNORS: Final = {
    "range": "range",
    "sticky": "sticky",
    "cooperative-sticky": "cooperative-sticky",
    "roundrobin": "sticky",
}
"""The names that Kafka's clients know, and the assignor that does their work."""


def assignors(name: str, value: str) -> tuple[str, ...]:
    """Names of assignors in order of preference, separated by commas. Raises ConfigError."""
    found = tuple(part.strip().lower() for part in value.split(",") if part.strip())
    wrong = [part for part in found if part not in ASSIGNORS]
    if wrong or not found:
        raise ConfigError(
            f"Setting {name} is {shown(value)}: it takes {', '.join(ASSIGNORS)}, or several of "
            "them, separated by commas.",
            option=name,
        )
    taken = tuple(dict.fromkeys(ASSIGNORS[part] for part in found))
    if is_cooperative(taken) and len(taken) > 1:
        raise ConfigError(
            f"Setting {name} is {shown(value)}: {COOPERATIVE} goes with no other, since its "
            "members keep partitions that the others give up. To change a group over, stop all of "
            "its members first.",
            option=name,
        )
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table. `parse` takes the name and the value as text; see `callback`."""

    name: str
    parse: Callable[[str, Any], Value]
    doc: str
    clients: frozenset[str]
    default: Value = None
    aliases: tuple[str, ...] = ()


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        name="client.id",
        parse=identifier,
        default="txnlog",
        clients=EVERY,
        doc="A name shown in logs and in descriptions of groups and transactions.",
    ),
    Setting(
        name="error_cb",
        parse=callback,
        clients=CONSUMER | PRODUCER,
        doc="A function that poll and flush call with an error of background work: a heartbeat or "
        "a send that failed and is tried again. Of errors in a row that are alike, the first.",
    ),
    Setting(
        name="stats_cb",
        parse=callback,
        clients=CONSUMER | PRODUCER,
        doc="A function that poll and flush call every statistics.interval.ms with statistics as "
        "JSON, in librdkafka's names, as far as they have a meaning here.",
    ),
    Setting(
        name="statistics.interval.ms",
        parse=not_negative_int,
        default=0,
        clients=CONSUMER | PRODUCER,
        doc="Interval of `stats_cb`; 0: it is not called.",
    ),
    Setting(
        name="logger",
        parse=logger,
        clients=EVERY,
        doc="A `logging.Logger` whose handlers also get the process's log records of txnlog, from "
        "INFO on.",
    ),
    Setting(
        name="debug",
        parse=debug_contexts,
        clients=EVERY,
        doc="With any value, as `all`, txnlog logs at DEBUG in this process.",
    ),
    Setting(
        name="group.id",
        parse=identifier,
        clients=CONSUMER,
        doc="The consumer group. Needed to subscribe and to commit.",
    ),
    Setting(
        name="group.instance.id",
        parse=identifier,
        clients=CONSUMER,
        doc="The unique name of a static member: if it restarts within session.timeout.ms it "
        "keeps its assignment, and the group does not rebalance.",
    ),
    Setting(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        default="read_committed",
        clients=CONSUMER,
        doc="`read_uncommitted` also returns records of open and aborted transactions.",
    ),
    Setting(
        name="auto.offset.reset",
        parse=choice(
            "earliest", "latest", "none", "error", "smallest", "largest", "beginning", "end"
        ),
        default="latest",
        clients=CONSUMER,
        doc="Where to start in a partition without a committed offset, or with one out of range: "
        "`earliest`, `latest`, or `none` (or `error`), which raises OffsetOutOfRangeError.",
    ),
    Setting(
        name="enable.auto.commit",
        parse=boolean,
        default=True,
        clients=CONSUMER,
        doc="Commit the positions of returned messages at later polls.",
    ),
    Setting(
        name="auto.commit.interval.ms",
        parse=not_negative_int,
        default=5_000,
        clients=CONSUMER,
        doc="Interval of automatic commits.",
    ),
    Setting(
        name="enable.auto.offset.store",
        parse=boolean,
        default=True,
        clients=CONSUMER,
        doc="`false`: what is committed is what `store_offsets()` was given, not the positions of "
        "returned messages.",
    ),
    Setting(
        name="enable.partition.eof",
        parse=boolean,
        default=False,
        clients=CONSUMER,
        doc="`poll()` and its like raise PartitionEndError each time the end of a partition is "
        "reached.",
    ),
    Setting(
        name="max.poll.records",
        parse=positive_int,
        default=500,
        clients=CONSUMER,
        doc="Maximum number of records of one `consume()` without a number; if set explicitly, "
        "also of one `consume_batch()`.",
    ),
    Setting(
        name="max.poll.interval.ms",
        parse=positive_int,
        default=300_000,
        clients=CONSUMER,
        doc="Maximum time between two polls before the consumer leaves its group; also the time "
        "that a rebalance waits for it.",
    ),
    Setting(
        name="session.timeout.ms",
        parse=positive_int,
        default=45_000,
        clients=CONSUMER,
        doc="A member without a heartbeat for this long is expelled from its group.",
    ),
    Setting(
        name="heartbeat.interval.ms",
        parse=positive_int,
        default=3_000,
        clients=CONSUMER,
        doc="How often a member reads the state of its group. Three times per session.timeout.ms "
        "it also makes a small write, unless it has committed.",
    ),
    Setting(
        name="fetch.max.bytes",
        parse=positive_int,
        default=52_428_800,
        clients=CONSUMER,
        doc="Maximum size of one `consume_batch()`; a larger record is returned alone.",
    ),
    Setting(
        name="partition.assignment.strategy",
        parse=assignors,
        default=("range",),
        clients=CONSUMER,
        doc="`range`, `sticky` or both, in order of preference; the group uses one that all "
        "members support. `roundrobin` is taken as `sticky`, which is as even. Or "
        "`cooperative-sticky` alone: a rebalance revokes only what moves, and all members of the "
        "group must have it.",
    ),
    Setting(
        name="metadata.max.age.ms",
        parse=positive,
        default=300_000,
        clients=CONSUMER | PRODUCER,
        aliases=("topic.metadata.refresh.interval.ms",),
        doc="How often a pattern subscription checks for new topics, and a producer for changes "
        "of its topics.",
    ),
    Setting(
        name="metadata.poll.interval.ms",
        parse=positive_int,
        clients=CONSUMER,
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
        clients=CONSUMER,
        doc="Maximum size of the metadata of a committed offset. (A broker setting in Kafka.)",
    ),
    Setting(
        name="on_commit",
        parse=callback,
        clients=CONSUMER,
        doc="A function that poll calls with (error, partitions) after a commit.",
    ),
    Setting(
        name="transactional.id",
        parse=identifier,
        clients=PRODUCER,
        doc="The name of a transactional producer; a newer producer with the same name fences "
        "the older one.",
    ),
    Setting(
        name="transaction.timeout.ms",
        parse=positive_int,
        default=TIMEOUT_MS_DEFAULT,
        clients=PRODUCER,
        doc="Any process aborts an eager transaction that is open for longer; maximum 15 min. "
        "Deferred and prepared transactions never time out.",
    ),
    Setting(
        name="transaction.publish",
        parse=choice("deferred", "eager"),
        default="deferred",
        clients=PRODUCER,
        doc="`deferred`: records are added to the topics at the commit. `eager`: before it, so "
        "that read_uncommitted readers see them.",
    ),
    Setting(
        name="enable.idempotence",
        parse=boolean,
        default=True,
        clients=PRODUCER,
        doc="Producers are always idempotent, at no extra cost. `false` has no effect but a "
        "warning, and is an error with transactional.id.",
    ),
    Setting(
        name="linger.ms",
        parse=not_negative,
        default=5,
        clients=PRODUCER,
        aliases=("queue.buffering.max.ms",),
        doc="How long records wait for more records before they are written. In a deferred "
        "transaction they wait for the commit anyway.",
    ),
    Setting(
        name="batch.size",
        parse=positive_int,
        default=16_384,
        clients=PRODUCER,
        doc="Bytes. Buffered records of a topic are written before linger.ms when they fill a "
        "batch for each of its partitions. Records without keys switch to another partition after "
        "this many bytes. All buffered records of a partition become one file of any size.",
    ),
    Setting(
        name="buffer.memory",
        parse=positive,
        default=33_554_432,
        clients=PRODUCER,
        doc="Maximum size of buffered records, in bytes. A deferred transaction with more writes "
        "them to staged files, visible only after its commit: a larger buffer means fewer files.",
    ),
    Setting(
        name="max.request.size",
        parse=positive_int,
        default=1_048_576,
        clients=PRODUCER,
        aliases=("message.max.bytes",),
        doc="Maximum size of one record; the topic's max.message.bytes also applies.",
    ),
    Setting(
        name="max.block.ms",
        parse=not_negative,
        default=60_000,
        clients=PRODUCER,
        doc="Time-out of calls without their own time-out, and of produce() when buffer.memory is "
        "full.",
    ),
    Setting(
        name="delivery.timeout.ms",
        parse=positive_int,
        default=DELIVERY_TIMEOUT_MS_DEFAULT,
        clients=PRODUCER,
        aliases=("message.timeout.ms",),
        doc="How long the delivery of a record is retried before it fails.",
    ),
    Setting(
        name="compression.type",
        parse=choice(*CODECS),
        clients=PRODUCER,
        aliases=("compression.codec",),
        doc=COMPRESSION_DOC,
    ),
    Setting(
        name="partitioner",
        parse=choice("murmur2", "murmur2_random"),
        default="murmur2",
        clients=PRODUCER,
        doc="`murmur2` or `murmur2_random`: both use Kafka's hash of the key. Records without a "
        "key go to one partition after the other.",
    ),
    Setting(
        name="auto.create.topics.enable",
        parse=boolean,
        default=True,
        clients=PRODUCER,
        doc="Create a missing topic at the first record.",
    ),
    Setting(
        name="txnlog.create",
        parse=boolean,
        default=True,
        clients=PRODUCER | frozenset({"admin"}),
        doc="Create the cluster if the root has none, with a warning; `false`: that is an error.",
    ),
    Setting(
        name="num.partitions",
        parse=whole(1, PARTITIONS_MAX),
        default=NUM_PARTITIONS_DEFAULT,
        clients=PRODUCER,
        doc="Partitions of a topic created automatically; at least as many as it had before.",
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        parse=whole(1, SHARDS_MAX),
        default=SHARDS_DEFAULT,
        clients=PRODUCER | frozenset({"admin"}),
        doc="Number of shards of the transaction log of a cluster that this client creates; it "
        "cannot be changed later.",
    ),
    Setting(
        name="offsets.topic.num.partitions",
        parse=whole(1, SHARDS_MAX),
        default=OFFSETS_SHARDS_DEFAULT,
        clients=PRODUCER | frozenset({"admin"}),
        doc="Number of shards of the consumer offsets of a cluster that this client creates; it "
        "cannot be changed later.",
    ),
    Setting(
        name="on_delivery",
        parse=callback,
        clients=PRODUCER,
        doc="A function that poll and flush call with (error, message) for every record without "
        "its own callback.",
    ),
)
