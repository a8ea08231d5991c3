"""The state row of a transactional.id, with all that is needed to finish its transaction.

Mirrors org.apache.kafka.coordinator.transaction.TransactionMetadata. Every value is frozen; a
transition makes a new one with `msgspec.structs.replace`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from txnlog.errors import IllegalGenerationError
from txnlog.protocol.decoding import (
    Codec,
    Int64,
    JsonObject,
    Natural,
    PartitionNumber,
    TableName,
    check_columns,
    to_int64,
    unreadable,
)
from txnlog.protocol.states import TransactionState

FORMER_RUNS_MAX = 100
NO_EPOCH = -1


class StagedBatch(JsonObject, frozen=True, kw_only=True):
    """One staged Parquet file: invisible until a marker commit names it.

    Timestamps are microseconds since the epoch, `staged_ms` is by the store's clock.
    """

    topic: str
    topic_id: str
    partition: PartitionNumber
    path: str
    size_bytes: Natural
    num_records: Natural
    timestamp_min_us: Int64
    timestamp_max_us: Int64
    staged_ms: Int64


Staging = Literal["hidden", "visible"]
"""Where a table's staged files are: below its folder `_txnlog`, or in its own folders."""


class StagedTable(JsonObject, frozen=True, kw_only=True):
    """What a transaction does to one enlisted Delta table, which is invisible until published.

    `part` is the path below `url` of the part file: what is to be added, and removed. `table_id`
    is the id in the table's metaData, `digest` that of the part file (BLAKE2b, 16 bytes).
    `staged_ms` is when the oldest file was staged, by the clock of the root's store. `first` is the
    part file of the decision if the rows have been staged again since then, else "".
    """

    name: TableName
    url: str
    table_id: str
    part: str
    size_bytes: Natural
    digest: str
    mode: Literal["append", "overwrite", "merge"] = "append"
    num_files: Natural
    num_records: Natural
    staged_ms: Int64
    first: str = ""
    staging: Staging = "hidden"

    def __post_init__(self) -> None:
        """Raises ValueError for a part file outside of the table."""
        if not self.url or not self.part or ".." in self.part.split("/") or self.part[0] == "/":
            raise ValueError(f"{self.part!r} is no path below a table")


class TopicPartitions(JsonObject, frozen=True, kw_only=True):
    """The partitions of one topic in a transaction."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionNumber, ...]


class AppTransaction(JsonObject, frozen=True, kw_only=True):
    """txnAppId and txnVersion of a batch write: a `txn` action in each topic, as in Delta."""

    app_id: str
    version: Int64


def merge_partitions(
    known: Iterable[TopicPartitions], more: Iterable[TopicPartitions]
) -> tuple[TopicPartitions, ...]:
    """The union of both, with each topic once, in order."""
    merged: dict[tuple[str, str], TopicPartitions] = {}
    for tp in (*known, *more):
        there = merged.setdefault((tp.topic, tp.topic_id), tp)
        numbers = tuple(sorted({*there.partitions, *tp.partitions}))
        merged[tp.topic, tp.topic_id] = msgspec.structs.replace(there, partitions=numbers)
    return tuple(merged[key] for key in sorted(merged))


class GroupTicket(JsonObject, frozen=True, kw_only=True):
    """Offsets of a group that a transaction carries, see txnlog.protocol.tickets."""

    group_id: str
    producer_id: Int64
    ticket: Int64
    generation: Int64
    offsets: dict[str, dict[PartitionNumber, Int64]]


def merge_tickets(
    known: Iterable[GroupTicket], more: Iterable[GroupTicket]
) -> tuple[GroupTicket, ...]:
    """Each group once, in order, with its newest ticket and the newest offset of each partition.

    A run registers again for more partitions, and its newest ticket is for all of them. Raises
    IllegalGenerationError for two generations of one group.
    """
    merged: dict[str, GroupTicket] = {}
    for one in (*known, *more):
        there = merged.setdefault(one.group_id, one)
        if there.generation != one.generation:
            raise IllegalGenerationError(
                f"This transaction has offsets of generation {there.generation} of group "
                f"{one.group_id!r}, and now of generation {one.generation}. Abort it, and begin "
                "again from the committed positions.",
                group_id=one.group_id,
            )
        offsets = {topic: dict(numbers) for topic, numbers in there.offsets.items()}
        for topic, numbers in one.offsets.items():
            offsets.setdefault(topic, {}).update(numbers)
        ticket = max(there.ticket, one.ticket)
        merged[one.group_id] = msgspec.structs.replace(there, ticket=ticket, offsets=offsets)
    return tuple(merged[group_id] for group_id in sorted(merged))


class LastBatch(JsonObject, frozen=True, kw_only=True):
    """The newest micro-batch a streaming query committed.

    `digest` is that of `offsets/<batch_id>` in the query's checkpoint, "" if it was unreadable.
    """

    batch_id: Int64
    digest: str = ""
    topics: tuple[str, ...] = ()


class Manifest(JsonObject, frozen=True, kw_only=True):
    """What a decided transaction publishes: staged batches, and offsets of groups with tickets.

    `app` goes into each topic with the batches; `tables` are parts of Delta tables of others. While
    one of them is to decide, `last_batch` is what the decision will record.
    """

    batches: tuple[StagedBatch, ...] = ()
    prepared_by_client: bool = False
    app: AppTransaction | None = None
    tickets: tuple[GroupTicket, ...] = ()
    tables: tuple[StagedTable, ...] = ()
    last_batch: LastBatch | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for two tables that decide, or one in a two-phase transaction."""
        if sum(table.mode == "merge" for table in self.tables) > (not self.prepared_by_client):
            raise ValueError("rows of one table only can be changed by what they are")


class Fenced(JsonObject, frozen=True, kw_only=True):
    """Who fenced the previous owner, when (wall clock, ms) and why."""

    by: str
    at_ms: Int64
    reason: str


class Owner(JsonObject, frozen=True, kw_only=True):
    """Who writes under a transactional.id: one run of a Spark query, or one producer session.

    `former_runs` are the last fenced runs. `last_batch` is that of the query whose id the
    transactional.id is: it outlives every owner. `floors`: group id -> the lowest ticket that may
    commit offsets of it. `since_ms` is when it became the owner, by its wall clock (-1: unknown).
    """

    run_id: str = ""
    query_id: str = ""
    query_name: str = ""
    host: str = ""
    pid: Int64 = 0
    one_off: bool = False
    former_runs: tuple[str, ...] = ()
    last_batch: LastBatch | None = None
    floors: dict[str, Int64] = msgspec.field(default_factory=dict)
    fenced: Fenced | None = None
    since_ms: Int64 = -1

    def describe(self) -> str:
        """One line for messages."""
        what = f"query {self.query_id}, run {self.run_id}" if self.query_id else self.run_id
        return f"{what} on {self.host}, process {self.pid}"


class ProducerIdAndEpoch(NamedTuple):
    """Kafka's class of this name. With a txn epoch it names one transaction."""

    producer_id: int
    epoch: int


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes a request under a transactional.id: a run, with the id and epoch it was given."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    run_id: str


class TransactionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a `__transaction_state` shard.

    `producer_epoch` is the epoch of the next transaction, `txn_epoch` that of the transaction that
    is open, prepared, or ended last (-1: none yet). `path` is the row's one-row file.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_epoch: int = NO_EPOCH
    state: TransactionState = TransactionState.EMPTY
    timeout_ms: int
    partitions: tuple[TopicPartitions, ...] = ()
    pending: Manifest = Manifest()
    owner: Owner = Owner()
    started_ms: int = -1
    updated_ms: int = -1
    path: str = ""

    @property
    def holder(self) -> Holder:
        """Who may write under this row."""
        return Holder(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            run_id=self.owner.run_id,
        )

    @property
    def transaction(self) -> ProducerIdAndEpoch:
        """The name of the transaction that is open, prepared, or was last ended."""
        return ProducerIdAndEpoch(self.producer_id, self.txn_epoch)

    @property
    def decider(self) -> StagedTable | None:
        """The table whose next commit decides the transaction, until the row says how (R77)."""
        is_asked = self.state is TransactionState.ONGOING
        return next((one for one in self.pending.tables if one.mode == "merge" and is_asked), None)

    @property
    def is_ending(self) -> bool:
        """Whether any process carries its end out: it is decided, or a table is to decide it."""
        return self.state.is_prepared or self.decider is not None

    @property
    def moves(self) -> tuple[GroupTicket, ...]:
        """The offsets that a decided commit moves; none otherwise."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        return self.pending.tickets if is_commit else ()

    @property
    def tables(self) -> tuple[StagedTable, ...]:
        """The parts of enlisted tables that a decided commit publishes; none otherwise."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        return self.pending.tables if is_commit else ()

    @property
    def topics(self) -> dict[str, str]:
        """Topic -> topic id, of the partitions and the manifest together."""
        return dict(self.topic_ids)

    @property
    def topic_ids(self) -> tuple[tuple[str, str], ...]:
        """(topic, topic id) of all topics that get a marker; one created again is in it twice."""
        named = {(tp.topic, tp.topic_id) for tp in self.partitions}
        named.update((batch.topic, batch.topic_id) for batch in self.pending.batches)
        return tuple(sorted(named))

    def to_values(self) -> dict[str, str]:
        """The row as Delta partition values: strings, never null nor empty."""
        return {
            "transactional_id": self.transactional_id,
            "producer_id": str(self.producer_id),
            "producer_epoch": str(self.producer_epoch),
            "txn_epoch": str(self.txn_epoch),
            "state": self.state.name,
            "timeout_ms": str(self.timeout_ms),
            "partitions": _PARTITIONS.encode(self.partitions),
            "pending": _MANIFEST.encode(self.pending),
            "owner": _OWNER.encode(self.owner),
            "started_ms": str(self.started_ms),
            "updated_ms": str(self.updated_ms),
        }

    @classmethod
    def from_values(
        cls, values: Mapping[str, str], *, path: str, source: str
    ) -> TransactionMetadata:
        """Parse a row. Raises CorruptLogError naming `source` if it is invalid (R38)."""
        try:
            check_columns(values, ROW_COLUMNS)
            return cls(
                transactional_id=values["transactional_id"],
                producer_id=to_int64(values["producer_id"]),
                producer_epoch=to_int64(values["producer_epoch"]),
                txn_epoch=to_int64(values["txn_epoch"]),
                state=TransactionState[values["state"]],
                timeout_ms=to_int64(values["timeout_ms"]),
                partitions=_PARTITIONS.decode(values["partitions"]),
                pending=_MANIFEST.decode(values["pending"]),
                owner=_OWNER.decode(values["owner"]),
                started_ms=to_int64(values["started_ms"]),
                updated_ms=to_int64(values["updated_ms"]),
                path=path,
            )
        except (KeyError, ValueError, TypeError, msgspec.MsgspecError) as error:
            what = f"the transaction state row {values.get('transactional_id')!r}"
            raise unreadable(what, error, source=source) from error


ROW_COLUMNS: Mapping[str, str] = {
    "transactional_id": "string",
    "producer_id": "long",
    "producer_epoch": "long",
    "txn_epoch": "long",
    "state": "string",
    "timeout_ms": "long",
    "partitions": "string",
    "pending": "string",
    "owner": "string",
    "started_ms": "long",
    "updated_ms": "long",
}

_PARTITIONS: Codec[tuple[TopicPartitions, ...]] = Codec(tuple[TopicPartitions, ...])
_MANIFEST: Codec[Manifest] = Codec(Manifest)
_OWNER: Codec[Owner] = Codec(Owner)
