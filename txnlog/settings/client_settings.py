"""The table of client settings: confluent-kafka's names, Kafka's defaults, what they mean here.

Parsing (settings.config), error messages and docs/clients.md (settings.docs) are made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from txnlog.errors import ConfigError
from txnlog.protocol.decoding import PARTITIONS_MAX
from txnlog.protocol.expiry import DELIVERY_TIMEOUT_MS_DEFAULT
from txnlog.protocol.transitions import TIMEOUT_MS_DEFAULT
from txnlog.settings.arguments import shown
from txnlog.settings.names import NUM_PARTITIONS_DEFAULT, SHARDS_DEFAULT, SHARDS_MAX
from txnlog.settings.options import (
    warn_once,
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
Value = str | int | bool | tuple[str, ...] | Callable[..., Any] | None

CONSUMER: Final = frozenset({"consumer"})
PRODUCER: Final = frozenset({"producer"})
EVERY: Final = CONSUMER | PRODUCER | frozenset({"admin"})

BROKER_NAMES: Final = frozenset(
    {
        "acks", "allow.auto.create.topics", "api.version.request", "check.crcs",
        "client.dns.lookup", "client.rack", "debug", "error_cb", "fetch.error.backoff.ms",
        "fetch.max.wait.ms", "fetch.message.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms",
        "group.protocol", "log_cb", "logger", "max.in.flight",
        "max.in.flight.requests.per.connection", "max.partition.fetch.bytes",
        "message.send.max.retries", "oauth_cb", "plugin.library.paths",
        "queued.max.messages.kbytes", "queued.min.messages", "receive.message.max.bytes",
        "request.required.acks", "request.timeout.ms", "retries", "retry.backoff.max.ms",
        "retry.backoff.ms", "stats_cb", "statistics.interval.ms", "throttle_cb",
        "batch.num.messages", "enable.gapless.guarantee",
        "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes",
        "queue.buffering.max.messages", "sticky.partitioning.linger.ms",
    }
)  # fmt: skip
BROKER_PREFIXES: Final = (
    "bootstrap.", "broker.", "enable.ssl.", "metadata.broker.", "reconnect.", "sasl.", "security.",
    "socket.", "ssl.",
)  # fmt: skip


def callback(name: str, value: object) -> Callable[..., Any]:
    """A function. Raises ConfigError."""
    if not callable(value):
        raise ConfigError(f"Setting {name} is {shown(value)}: it takes a function.", option=name)
    return value


def assignors(name: str, value: str) -> tuple[str, ...]:
    """Names of assignors, separated by commas, the best liked first. Raises ConfigError."""
    found = tuple(part.strip().lower() for part in value.split(",") if part.strip())
    wrong = [part for part in found if part not in ("range", "sticky")]
    if wrong or not found:
        raise ConfigError(
            f"Setting {name} is {shown(value)}: it takes range, sticky or both, separated by a "
            "comma.",
            option=name,
        )
    return found


def idempotence(name: str, value: str) -> bool:
    """true; or false, which changes nothing, after one warning. Raises ConfigError."""
    is_on = boolean(name, value)
    if not is_on:
        warn_once(
            f"Setting {name}=false has no effect here: records are written once and in order all "
            "the same, and it costs nothing."
        )
    return is_on


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
        doc="A name for logs and for whoever looks at groups and transactions.",
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
        doc="A name of this consumer alone: when it restarts within session.timeout.ms it takes "
        "its old place, and the group does not rebalance.",
    ),
    Setting(
        name="isolation.level",
        parse=choice("read_committed", "read_uncommitted"),
        default="read_committed",
        clients=CONSUMER,
        doc="`read_uncommitted` shows open and aborted transactions, too.",
    ),
    Setting(
        name="auto.offset.reset",
        parse=choice(
            "earliest", "latest", "none", "error", "smallest", "largest", "beginning", "end"
        ),
        default="latest",
        clients=CONSUMER,
        doc="Where to start in a partition without a committed offset, or whose offset is gone: "
        "`earliest`, `latest`, or `none` (or `error`), which raises OffsetOutOfRangeError.",
    ),
    Setting(
        name="enable.auto.commit",
        parse=boolean,
        default=True,
        clients=CONSUMER,
        doc="Commit what has been handed out when the consumer polls again.",
    ),
    Setting(
        name="auto.commit.interval.ms",
        parse=not_negative_int,
        default=5_000,
        clients=CONSUMER,
        doc="Time between two such commits.",
    ),
    Setting(
        name="max.poll.records",
        parse=positive_int,
        default=500,
        clients=CONSUMER,
        doc="Most records of one `consume()` without a number; where it is set, of one "
        "`consume_batch()`, too.",
    ),
    Setting(
        name="max.poll.interval.ms",
        parse=positive_int,
        default=300_000,
        clients=CONSUMER,
        doc="A consumer that polls less often leaves its group; a rebalance waits for it so long.",
    ),
    Setting(
        name="session.timeout.ms",
        parse=positive_int,
        default=45_000,
        clients=CONSUMER,
        doc="A member without a heartbeat for so long is expelled.",
    ),
    Setting(
        name="heartbeat.interval.ms",
        parse=positive_int,
        default=3_000,
        clients=CONSUMER,
        doc="Time between two heartbeats: one small write each, unless the member has committed.",
    ),
    Setting(
        name="fetch.max.bytes",
        parse=positive_int,
        default=52_428_800,
        clients=CONSUMER,
        doc="Most bytes of one `consume_batch()`; a record that is larger comes alone.",
    ),
    Setting(
        name="partition.assignment.strategy",
        parse=assignors,
        default=("range",),
        clients=CONSUMER,
        doc="`range`, `sticky` or both, the better liked first; the group takes what all know.",
    ),
    Setting(
        name="metadata.max.age.ms",
        parse=positive,
        default=300_000,
        clients=CONSUMER | PRODUCER,
        aliases=("topic.metadata.refresh.interval.ms",),
        doc="How often a pattern subscription looks for new topics, and a producer whether its "
        "topics have changed.",
    ),
    Setting(
        name="offset.metadata.max.bytes",
        parse=not_negative_int,
        default=4_096,
        clients=CONSUMER,
        doc="Most bytes of the metadata that is committed with an offset. (In Kafka a broker "
        "setting.)",
    ),
    Setting(
        name="on_commit",
        parse=callback,
        clients=CONSUMER,
        doc="Called by poll with (error, partitions) after a commit.",
    ),
    Setting(
        name="transactional.id",
        parse=identifier,
        clients=PRODUCER,
        doc="The name of a transactional producer; a newer producer of that name fences "
        "the older one.",
    ),
    Setting(
        name="transaction.timeout.ms",
        parse=positive_int,
        default=TIMEOUT_MS_DEFAULT,
        clients=PRODUCER,
        doc="An eager transaction that is open for longer is aborted by whoever sees it; "
        "at most 15 min. A deferred or a prepared one never times out.",
    ),
    Setting(
        name="transaction.publish",
        parse=choice("deferred", "eager"),
        default="deferred",
        clients=PRODUCER,
        doc="`deferred`: nothing is in the topics before the commit. `eager`: records "
        "are, for read_uncommitted readers.",
    ),
    Setting(
        name="enable.idempotence",
        parse=idempotence,
        default=True,
        clients=PRODUCER,
        doc="Records are idempotent in any case: it costs nothing here, and needs no permission "
        "of its own. `false` is taken with one warning, and refused beside transactional.id.",
    ),
    Setting(
        name="linger.ms",
        parse=not_negative,
        default=5,
        clients=PRODUCER,
        aliases=("queue.buffering.max.ms",),
        doc="How long records wait for more of them. In a deferred transaction they wait "
        "for the commit anyway.",
    ),
    Setting(
        name="batch.size",
        parse=positive_int,
        default=16_384,
        clients=PRODUCER,
        doc="Bytes: records that fill a batch for every partition of their topic wait no "
        "longer; and how much goes to one partition before the next one, without "
        "keys. All that waits for a partition becomes one file, however much it is.",
    ),
    Setting(
        name="buffer.memory",
        parse=positive,
        default=33_554_432,
        clients=PRODUCER,
        doc="Bytes of records that wait. A deferred transaction that has more writes "
        "them to files, which count only with its commit: the larger this is, the "
        "fewer files.",
    ),
    Setting(
        name="max.request.size",
        parse=positive_int,
        default=1_048_576,
        clients=PRODUCER,
        aliases=("message.max.bytes",),
        doc="Most bytes of one record; the topic's max.message.bytes holds, too.",
    ),
    Setting(
        name="max.block.ms",
        parse=not_negative,
        default=60_000,
        clients=PRODUCER,
        doc="How long a call without a timeout of its own may take, and produce() when "
        "memory is full.",
    ),
    Setting(
        name="delivery.timeout.ms",
        parse=positive_int,
        default=DELIVERY_TIMEOUT_MS_DEFAULT,
        clients=PRODUCER,
        aliases=("message.timeout.ms",),
        doc="How long a record is tried before its delivery has failed.",
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
        doc="Both names: Kafka's hash of the key; without a key one partition after the other.",
    ),
    Setting(
        name="auto.create.topics.enable",
        parse=boolean,
        default=True,
        clients=PRODUCER,
        doc="Create a topic that is missing.",
    ),
    Setting(
        name="num.partitions",
        parse=whole(1, PARTITIONS_MAX),
        default=NUM_PARTITIONS_DEFAULT,
        clients=PRODUCER,
        doc="Partitions of a topic that is created so.",
    ),
    Setting(
        name="transaction.state.log.num.partitions",
        parse=whole(1, SHARDS_MAX),
        default=SHARDS_DEFAULT,
        clients=PRODUCER | frozenset({"admin"}),
        doc="Shards of the transaction log of a cluster that this client creates; it never "
        "changes afterwards.",
    ),
    Setting(
        name="on_delivery",
        parse=callback,
        clients=PRODUCER,
        doc="Called by poll and flush with (error, message) for every record without a "
        "callback of its own.",
    ),
)
