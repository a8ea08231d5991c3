"""Arguments and results of an AdminClient: confluent-kafka's names, or Kafka's where it has none.

All are values. Times are milliseconds since the epoch, by the wall clock of the process that wrote
them if nothing else is said, for display only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from txnlog.errors import TxnLogError
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Fenced
from txnlog.protocol.problems import Place, Problem
from txnlog.protocol.states import TransactionState
from txnlog.protocol.waiting import end_command

# --- Topics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. There is no replication.

    -1 partitions: 4, or more if a deleted topic of this name had more; fewer than it had are
    refused.
    """

    topic: str
    num_partitions: int = -1
    replication_factor: int = -1
    config: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The new number of partitions of a topic."""

    topic: str
    new_total_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A live topic; `config` holds the explicitly set values."""

    name: str
    topic_id: str
    partitions: Sequence[PartitionDescription]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition: its offsets, its files, and its records up to the last stable offset.

    `num_records` counts committed ones from the log start, `last_timestamp_ms` is the newest of
    their timestamps: -1 if there is none, or the log does not have it.
    """

    id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    num_records: int
    num_files: int
    size_bytes: int
    last_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """The log start after the deletion."""

    low_watermark: int


class IsolationLevel(Enum):
    """Which offset is the end: the high watermark, or the last stable offset."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Which offset to list."""

    kind: str
    timestamp_ms: int = -1

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The log start."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The end under the isolation level."""
        return cls("latest")

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """The first record at or after a time; -1 where there is none."""
        return cls("timestamp", timestamp)


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """An offset; -1 if there is no record at or after the timestamp."""

    offset: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster: its id, and its root, without what may be secret in it."""

    cluster_id: str
    root: str


# --- Configurations -------------------------------------------------------------------------------


class ResourceType(IntEnum):
    """Kinds of resources with configurations; BROKER, of any name, is the root."""

    TOPIC = 2
    BROKER = 4


class AlterConfigOpType(Enum):
    """SET a value, or DELETE it: back to the default."""

    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration; `describe_configs` sets the last three fields."""

    name: str
    value: str | None
    incremental_operation: AlterConfigOpType = AlterConfigOpType.SET
    is_default: bool = False
    default: str = ""
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by name, with the changes to make to it, if any."""

    restype: ResourceType
    name: str
    incremental_configs: Sequence[ConfigEntry] = field(default=(), compare=False)


# --- Transactions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional.id; `coordinator` is the shard of its row, `query_name` its Spark query's.

    With an `error` the row is unreadable: its state is None and its producer id -1.
    """

    transactional_id: str
    coordinator: int
    producer_id: int
    state: TransactionState | None
    query_name: str = ""
    error: TxnLogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The state row of a transactional.id, in words where it helps.

    `start_time_ms` is None when no transaction is open. `owner` is the producer that may write
    since `owner_since_ms` (-1: unknown), unless `is_owner_fenced`; `fenced` is the last fencing:
    by whom, when and why. `prepared_by_client`: phase one of a two-phase commit is done. `decider`:
    the enlisted table whose next commit decides it, "" if none does.
    """

    coordinator_id: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    start_time_ms: int | None
    topic_partitions: Sequence[TopicPartition]
    groups: Sequence[str]
    prepared_by_client: bool
    decider: str
    owner: str
    owner_since_ms: int
    query_id: str
    query_name: str
    is_owner_fenced: bool
    fenced: Fenced | None

    def transaction(self, now_ms: int) -> dict[str, object]:
        """The columns of Kafka's tool; partitions as `topic-0`."""
        start_ms = self.start_time_ms
        return {
            "CoordinatorId": self.coordinator_id,
            "TransactionalId": self.transactional_id,
            "ProducerId": self.producer_id,
            "ProducerEpoch": self.producer_epoch,
            "TransactionState": self.state.kafka_name,
            "TransactionTimeoutMs": self.timeout_ms,
            "CurrentTransactionStartTimeMs": start_ms,
            "TransactionDurationMs": None if start_ms is None else max(0, now_ms - start_ms),
            "TopicPartitions": [f"{p.topic}-{p.partition}" for p in self.topic_partitions],
        }

    def ownership(self) -> dict[str, object]:
        """Columns that Kafka does not have: the owner, and the last fencing."""
        last = self.fenced
        return {
            "Owner": self.owner,
            "OwnerSinceMs": self.owner_since_ms,
            "OwnerFenced": self.is_owner_fenced,
            "QueryId": self.query_id or None,
            "QueryName": self.query_name or None,
            "Groups": list(self.groups),
            "PreparedByClient": self.prepared_by_client,
            "DecidedByTable": self.decider or None,
            "LastFenced": last and {"By": last.by, "AtMs": last.at_ms, "Reason": last.reason},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The state of a producer in a partition.

    There is no coordinator broker: `coordinator_epoch` is the epoch of this producer's newest
    transaction marker in the topic, -1 without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """A transaction that readers of a partition wait for: the `problem`, and the `place` of it.

    With a `start_offset` it holds back the last stable offset there. Without one its records are
    decided and not in the partition yet; or it is to commit offsets of it for `groups`, whose
    readers wait. `state` is None, and the id "", where no process will end it. It has been open, or
    decided, since `since_ms`; `until_ms` is when it times out at the earliest, None if it does not:
    it is decided, `prepared_by_client`, or hanging. `command` ends it at once.
    """

    problem: Problem
    place: Place
    coordinator_epoch: int
    last_timestamp_ms: int
    duration_ms: int

    @property
    def topic(self) -> str:
        return self.place.topic

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def producer_id(self) -> int:
        return -1 if self.problem.transaction is None else self.problem.transaction.producer_id

    @property
    def producer_epoch(self) -> int:
        return -1 if self.problem.transaction is None else self.problem.transaction.epoch

    @property
    def start_offset(self) -> int | None:
        return self.place.start_offset

    @property
    def transactional_id(self) -> str:
        return "" if self.problem.row is None else self.problem.row.transactional_id

    @property
    def state(self) -> TransactionState | None:
        return None if self.problem.row is None else self.problem.row.state

    @property
    def since_ms(self) -> int:
        return self.place.since_ms if self.problem.row is None else self.problem.since_ms

    @property
    def until_ms(self) -> int | None:
        return self.problem.until_ms

    @property
    def prepared_by_client(self) -> bool:
        return self.problem.is_prepared_by_client

    @property
    def owner(self) -> str:
        return self.problem.who

    @property
    def query_name(self) -> str:
        return "" if self.problem.row is None else self.problem.row.owner.query_name

    @property
    def groups(self) -> Sequence[str]:
        return self.place.groups

    @property
    def command(self) -> str:
        problem, place = self.problem, self.place
        if problem.row is not None or problem.transaction is None:
            return problem.command
        return end_command(None, problem.transaction, place.topic, place.partition)

    def transaction(self) -> dict[str, object]:
        """The columns of Kafka's tool."""
        return {
            "Topic": self.topic,
            "Partition": self.partition,
            "ProducerId": self.producer_id,
            "ProducerEpoch": self.producer_epoch,
            "CoordinatorEpoch": self.coordinator_epoch,
            "StartOffset": self.start_offset,
            "LastTimestamp": self.last_timestamp_ms,
            "Duration(min)": self.duration_ms // 60_000,
        }

    def blocking(self) -> dict[str, object]:
        """Columns that Kafka does not have: who blocks, until when, and what ends it."""
        return {
            "TransactionalId": self.transactional_id or None,
            "TransactionState": None if self.state is None else self.state.kafka_name,
            "SinceMs": self.since_ms,
            "UntilMs": self.until_ms,
            "PreparedByClient": self.prepared_by_client,
            "Owner": self.owner or None,
            "QueryName": self.query_name or None,
            "Groups": list(self.groups),
            "Command": self.command,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionSpec:
    """A transaction identified by its data in a partition, for one without a state row."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class FencedProducer:
    """The epoch above that of the producer that was fenced."""

    producer_id: int
    producer_epoch: int


# --- Groups ---------------------------------------------------------------------------------------


class ConsumerGroupState(Enum):
    """The states of Kafka that a group without a coordinator can have."""

    STABLE = "Stable"
    PREPARING_REBALANCING = "PreparingRebalance"
    EMPTY = "Empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupListing:
    """A group. One without members belongs to a Spark query or to `assign`, or is unused."""

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState


@dataclass(frozen=True, slots=True)
class ListConsumerGroupsResult:
    """The groups; `errors`, with a `key` each, are those of unreadable groups."""

    valid: Sequence[ConsumerGroupListing]
    errors: Sequence[Exception] = ()


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of a member."""

    topic_partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a group.

    `heartbeat_ms` is the time of its last heartbeat by the store's clock: a live member writes
    three in session.timeout.ms.
    """

    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """An open transaction that will commit offsets of the group."""

    transactional_id: str
    producer_id: int
    topic_partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A group, its generation, its members, and the transactions with pending offsets."""

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState
    generation: int
    members: Sequence[MemberDescription]
    pending: Sequence[PendingTransaction]


@dataclass(frozen=True, slots=True)
class ConsumerGroupTopicPartitions:
    """A group and partitions of it; None means all partitions."""

    group_id: str
    topic_partitions: Sequence[TopicPartition] | None = None
