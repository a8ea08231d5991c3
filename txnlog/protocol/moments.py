"""What a root was at one moment: the data of every panel of `txnlog show`, `txnlog top`, notebooks.

Times are milliseconds since the epoch, by the store's clock; -1 is unknown. All of it is data of
others: who shows it, shows it as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from txnlog.errors import ConfigError
from txnlog.protocol.metadata import ProducerIdAndEpoch
from txnlog.protocol.moment_tables import MOMENT_TABLES, WRITTEN, as_table
from txnlog.protocol.problems import Problem


class Origin(NamedTuple):
    """The root of a moment, and the time that it shows."""

    root: str
    since_ms: int
    at_ms: int


# --- Timeline -------------------------------------------------------------------------------------


class Phase(Enum):
    """The colours of a bar."""

    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class Bar(NamedTuple):
    """A transaction in one phase; `until_ms` is None while it lasts.

    A complete transaction has one bar of its last phase, of no length.
    """

    transaction: ProducerIdAndEpoch
    phase: Phase
    since_ms: int
    until_ms: int | None


class TickKind(Enum):
    """What happened to an owner."""

    BEGUN = "begun"
    FENCED = "fenced"
    TIMED_OUT = "timed out"
    FINISHED_BY_OTHER = "finished by another process"
    EXPIRED = "expired"


class Tick(NamedTuple):
    """One moment of a lane; `text` is a sentence that says who did it."""

    at_ms: int
    kind: TickKind
    text: str


class Lane(NamedTuple):
    """The transactions of a transactional.id; of a Spark query, `title` is its name."""

    transactional_id: str
    title: str
    owner: str
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    origin: Origin | None = None


# --- Topics, groups, queries ----------------------------------------------------------------------


class Point(NamedTuple):
    """A value from `at_ms` on, to the next point."""

    at_ms: int
    value: float


class PartitionMoment(NamedTuple):
    """One partition. `num_records` and `size_bytes` are of its files."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    num_files: int
    num_records: int
    size_bytes: int
    last_timestamp_ms: int


class TopicMoment(NamedTuple):
    """One topic. `rate` is records per second over the last minute, `rates` over time.

    `writers` are ids, `readers` groups with their lag in records; `small_files` can be merged.
    """

    name: str
    topic_id: str
    partitions: Sequence[PartitionMoment]
    rate: float
    rates: Sequence[Point]
    small_files: int
    writers: Sequence[str]
    readers: Mapping[str, int]
    config: Mapping[str, str]
    origin: Origin | None = None


class PositionMoment(NamedTuple):
    """A group's position in a partition.

    `lag_records` are the offsets from it to the log end, as Kafka's tools count; `held_records` of
    them come after the last stable offset, which is `end_offset`. `lag_ms` is how old the first
    record after it is; 0: none.
    """

    topic: str
    partition: int
    offset: int
    end_offset: int
    lag_records: int
    lag_ms: int
    held_records: int = 0


class MemberMoment(NamedTuple):
    """A member; `heartbeat_ms` is when it sent its last heartbeat."""

    member_id: str
    client_id: str
    host: str
    heartbeat_ms: int
    partitions: Mapping[str, Sequence[int]]


class GroupMoment(NamedTuple):
    """One group. `lags` is the lag in records over time.

    `blocked_by` are the problems that keep its readers back.
    """

    group_id: str
    state: str
    generation: int
    positions: Sequence[PositionMoment]
    members: Sequence[MemberMoment]
    lags: Sequence[Point]
    blocked_by: Sequence[Problem]
    origin: Origin | None = None

    @property
    def lag_records(self) -> int:
        """Over all partitions."""
        return sum(one.lag_records for one in self.positions)

    @property
    def held_records(self) -> int:
        """Of these, those that a read_committed reader cannot see yet."""
        return sum(one.held_records for one in self.positions)

    @property
    def lag_ms(self) -> int:
        """Of the partition that is furthest behind."""
        return max((one.lag_ms for one in self.positions), default=0)


class BatchMoment(NamedTuple):
    """A micro-batch that was decided at `at_ms`; `phases` are milliseconds, {} while unknown."""

    batch_id: int
    at_ms: int
    transaction: ProducerIdAndEpoch
    records: int
    files: int
    phases: Mapping[str, float]


class QueryMoment(NamedTuple):
    """A Spark query that writes; `groups` are those whose offsets it commits."""

    query_id: str
    title: str
    owner: str
    is_fenced: bool
    groups: Sequence[str]
    topics: Sequence[str]
    batches: Sequence[BatchMoment]
    origin: Origin | None = None


# --- Flow, upkeep ---------------------------------------------------------------------------------


class NodeKind(Enum):
    """What stands in the graph."""

    PRODUCER = "producer"
    QUERY = "query"
    TOPIC = "topic"
    GROUP = "group"


class Node(NamedTuple):
    """A producer or query by its id, a topic or group by its name."""

    kind: NodeKind
    name: str
    title: str


class Edge(NamedTuple):
    """Records go from one node to another; `rate` is per second, over the window."""

    source: tuple[NodeKind, str]
    target: tuple[NodeKind, str]
    rate: float
    is_blocked: bool


class Flow(NamedTuple):
    """Producers, topics, queries and groups as a graph."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]


class TableUpkeep(NamedTuple):
    """What housekeeping has done to a table, and has to do; the checkpoint's version may be -1,
    unknown.
    """

    table: str
    version: int
    num_files: int
    size_bytes: int
    small_files: int
    vacuumed_ms: int
    vacuum_age_ms: int
    checkpoint_version: int = -1


class UpkeepMoment(NamedTuple):
    """Who does the housekeeping ("": nobody), when its lease last changed, and each table."""

    holder: str
    lease_ms: int
    changed_ms: int
    free_bytes: int | None
    tables: Sequence[TableUpkeep]
    origin: Origin | None = None


# --- All of it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything about a root at `at_ms`, with the history since `since_ms`.

    `earliest_ms` is the first moment that the logs can still show. `is_now`: it was read now, and
    not as of a time. `notes` say what is left out or not exact, one sentence each; so many
    topics as `later` says have not been read yet. `waiting` are the transactions for which readers
    wait, those too that are too young for a problem.
    """

    root: str
    cluster_id: str
    at_ms: int
    since_ms: int
    earliest_ms: int
    is_now: bool = True
    problems: Sequence[Problem] = ()
    waiting: Sequence[Problem] = ()
    lanes: Sequence[Lane] = ()
    topics: Mapping[str, TopicMoment] = field(default_factory=dict)
    groups: Mapping[str, GroupMoment] = field(default_factory=dict)
    queries: Mapping[str, QueryMoment] = field(default_factory=dict)
    flow: Flow = field(default_factory=lambda: Flow((), ()))
    upkeep: UpkeepMoment | None = None
    notes: Sequence[str] = ()
    later: int = 0

    def to_arrow(self, table: str) -> pa.Table:
        """A table of it, by a name of MOMENT_TABLES. Raises ConfigError for another name."""
        rows: Iterable[Sequence[object]]
        match table:
            case "partitions":
                rows = ((t.name, *one) for t in self.topics.values() for one in t.partitions)
            case "rates":
                rows = ((t.name, *point) for t in self.topics.values() for point in t.rates)
            case "positions":
                rows = ((g.group_id, *one) for g in self.groups.values() for one in g.positions)
            case "lags":
                rows = ((g.group_id, *point) for g in self.groups.values() for point in g.lags)
            case "transactions":
                rows = _transactions(self.lanes)
            case "events":
                rows = (
                    (lane.transactional_id, tick.at_ms, tick.kind.value, tick.text)
                    for lane in self.lanes
                    for tick in lane.ticks
                )
            case "batches":
                rows = _batches(self.queries)
            case "phases":
                rows = (
                    (q.query_id, one.batch_id, *phase)
                    for q in self.queries.values()
                    for one in q.batches
                    for phase in one.phases.items()
                )
            case _:
                names = ", ".join(MOMENT_TABLES)
                raise ConfigError(f"A moment has these tables: {names}; not {table!r}.")
        return as_table(rows, MOMENT_TABLES[table])


def with_origins(moment: Moment, earliest_ms: int) -> Moment:
    """The same, whose parts know of which moment they are, and since when the logs show it."""
    since_ms = min(max(moment.since_ms, earliest_ms), moment.at_ms)
    origin = Origin(moment.root, since_ms, moment.at_ms)
    upkeep = moment.upkeep
    return replace(
        moment,
        earliest_ms=earliest_ms,
        lanes=[one._replace(origin=origin) for one in moment.lanes],
        topics={name: one._replace(origin=origin) for name, one in moment.topics.items()},
        groups={name: one._replace(origin=origin) for name, one in moment.groups.items()},
        queries={name: one._replace(origin=origin) for name, one in moment.queries.items()},
        upkeep=None if upkeep is None else upkeep._replace(origin=origin),
    )


# --- One transaction, some records ----------------------------------------------------------------


class Step(NamedTuple):
    """A sentence of a transaction's history."""

    at_ms: int
    text: str


class Written(NamedTuple):
    """What a transaction wrote to a partition; `first_offset` is -1 while it is unknown."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    num_records: int
    files: Sequence[str]


class Moved(NamedTuple):
    """Offsets of a group that a transaction commits."""

    group_id: str
    offsets: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMoment:
    """A transaction with everything that is known of it.

    `phases` are milliseconds of its commit, {} where it is not known (yet). `is_compacted`: its
    batches were merged, and the log that named its siblings is gone: what is missing is unknown.
    """

    transaction: ProducerIdAndEpoch
    transactional_id: str
    state: str
    owner: str
    query_id: str = ""
    batch_id: int | None = None
    steps: Sequence[Step] = ()
    written: Sequence[Written] = ()
    moved: Sequence[Moved] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    is_compacted: bool = False

    def to_arrow(self) -> pa.Table:
        """What it wrote, by partition: the columns are those of Written."""
        return as_table(self.written, WRITTEN)


class RecordMoment(NamedTuple):
    """A record. `transaction` is None for one that was written outside, or is unknown.

    `status` is "none", "committed", "aborted", "ongoing", or "compacted, unknown". `key` and
    `value` are None for null, and for what was not asked for.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    transaction: ProducerIdAndEpoch | None
    status: str


def _transactions(lanes: Sequence[Lane]) -> Iterator[Sequence[object]]:
    for lane in lanes:
        for bar in lane.bars:
            yield (
                lane.transactional_id,
                lane.title,
                lane.owner,
                *bar.transaction,
                bar.phase.value,
                bar.since_ms,
                bar.until_ms,
            )


def _batches(queries: Mapping[str, QueryMoment]) -> Iterator[Sequence[object]]:
    for query in queries.values():
        for one in query.batches:
            yield (
                query.query_id,
                query.title,
                one.batch_id,
                one.at_ms,
                *one.transaction,
                one.records,
                one.files,
            )
