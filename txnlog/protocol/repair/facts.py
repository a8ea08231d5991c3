"""What is whole of each table of a damaged root, and which decisions have lost their effect.

A log is read past its damage: what a readable commit behind it says is kept if it fits. So of each
log it is known which markers it has for sure: those `before` the damage, up to an epoch, and those
`behind` it, one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.expiry import CLOCK_ERROR_MS
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.shards import offsets_table_of

LEAP = 1_000_000
"""Where commits are lost that nobody can read, everything that they may have counted (offsets,
epochs, generations, tickets, producer ids, versions of the log) goes on this much higher."""

Row = TypeVar("Row", TransactionMetadata, Group)


class Gap(NamedTuple):
    """Offsets of a partition that no file has; both inclusive."""

    partition: int
    first: int
    last: int


@dataclass(slots=True, kw_only=True)
class Markers:
    """The transactions that have ended in a log: producer id -> newest epoch, and see the module.

    Markers last written before `expired_ms` are forgotten.
    """

    newest: Mapping[int, int] = field(default_factory=dict)
    before: Mapping[int, int] = field(default_factory=dict)
    behind: Collection[tuple[int, int]] = ()
    expired_ms: int = -1

    def has(self, row: TransactionMetadata, decided_ms: int) -> bool:
        """Whether the log has, or had, the marker of this row's transaction."""
        producer_id, epoch = row.transaction
        if epoch <= self.before.get(producer_id, -1) or row.transaction in self.behind:
            return True
        is_expired = self.expired_ms >= 0 and decided_ms < self.expired_ms + CLOCK_ERROR_MS
        return producer_id not in self.newest and is_expired


@dataclass(slots=True, kw_only=True)
class SalvagedTopic:
    """A topic without what is lost of it.

    `damaged` are live batches whose files are not whole, `superseded` live files that a segment
    behind the damage replaces, `committed` the newest epoch of a committed batch by producer id.
    `removed`: files that commits behind the damage remove, and lost ones had added: segments have
    their records. `has_lost`: commits of it are lost, so it may have had more of everything.
    """

    name: str
    topic_id: str
    is_deleted: bool = False
    ends: Sequence[int] = ()
    markers: Markers = field(default_factory=Markers)
    committed: Mapping[int, int] = field(default_factory=dict)
    undecided: Sequence[BatchHeader] = ()
    damaged: Sequence[BatchHeader] = ()
    superseded: Sequence[str] = ()
    removed: Collection[str] = ()
    gaps: Sequence[Gap] = ()
    has_lost: bool = False
    producer_id_max: int = -1

    def files_of(self, row: TransactionMetadata) -> set[str]:
        """What the row publishes here, of what is staged."""
        return {one.path for one in row.pending.batches if one.topic == self.name}


@dataclass(slots=True, kw_only=True)
class SalvagedRows(Generic[Row]):
    """A shard of the transaction log, or of the groups, without what is lost of it.

    `broken` are the paths of one-row files that are not whole, `stale` those of rows that another
    row of the same id replaced. `version` is that of the next commit.
    """

    table: str
    rows: dict[str, Row] = field(default_factory=dict)
    markers: Markers = field(default_factory=Markers)
    has_lost: bool = False
    broken: Collection[str] = ()
    stale: Sequence[str] = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided transaction, as its row said it; `topics` lack its marker."""

    row: TransactionMetadata
    topics: tuple[str, ...]


class Position(NamedTuple):
    """An offset that the transaction of this epoch moved."""

    epoch: int
    offset: int
    generation: int


@dataclass(slots=True)
class Unmoved:
    """Offsets of one producer that its decisions moved and a shard of the groups lacks.

    `epoch` is that of the newest such decision, `first_epoch` of the oldest; positions are by
    group, topic and partition.
    """

    first_epoch: int
    epoch: int = -1
    positions: dict[tuple[str, str, int], Position] = field(default_factory=dict)


class Decisions:
    """Collects decisions that lack a marker from the rows that the commits of all shards wrote.

    Topics and `offsets`, by table, are read before. Rows of a shard come in the order of its log;
    the same ones may come again.
    """

    def __init__(
        self,
        topics: Mapping[str, SalvagedTopic],
        offsets: Mapping[str, SalvagedRows[Group]],
        *,
        shards: int,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._shards = shards
        self.unpublished: dict[tuple[int, int], Decision] = {}
        self.unmoved: dict[tuple[str, int], Unmoved] = {}
        """By table and producer id."""

    def add(self, row: TransactionMetadata, decided_ms: int) -> None:
        """A row that a commit wrote at this time of the store."""
        if not row.state.is_prepared:
            return
        lacking = tuple(
            name
            for name, topic_id in row.topic_ids
            if (topic := self._topics.get(name)) is not None
            and topic.topic_id == topic_id
            and not topic.is_deleted
            and not topic.markers.has(row, decided_ms)
        )
        if lacking:
            self.unpublished[row.transaction] = Decision(row, lacking)
        for one in row.moves:
            table = offsets_table_of(one.group_id, self._shards)
            shard = self._offsets.get(table)
            if shard is not None and shard.markers.has(row, decided_ms):
                continue
            unmoved = self.unmoved.setdefault((table, row.producer_id), Unmoved(row.txn_epoch))
            unmoved.epoch = max(unmoved.epoch, row.txn_epoch)
            for name, offsets in one.offsets.items():
                for partition, offset in offsets.items():
                    key, found = (one.group_id, name, partition), unmoved.positions
                    if key not in found or found[key].epoch <= row.txn_epoch:
                        found[key] = Position(row.txn_epoch, offset, one.generation)
