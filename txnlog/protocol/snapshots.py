"""Snapshots: what every topic, every enlisted table, and every group, has at one boundary between
transactions.

A reader sees each topic change by whole transactions, but two topics at different moments. A
snapshot shows of all topics the same transactions. It is taken without stopping a writer, by reads
in this order, each after the one before: the shards of the transaction log (only for offsets), the
groups, the shards, the topics and tables, the shards. Whatever is decided at the second read of the
shards is shown: if a topic lacks it, it is published first. Whatever has been decided by the last
read, and not by the second, is left out: by its producer id and epoch, which the header of its
batches has. So is what a table is to decide, as its log may have said so since: but what it was to
decide at the first read is decided before the second one.

A row of a table does not say whose it is. So a table is shown as of the version before the first
publication that is left out. What was published before one that is shown cannot be left out: it is
shown, too, and the topics, the tables and the shards are read once more.

The shards are read one by one. So what is left out may have been read, and its effect be decided in
a shard that was read later: a group is then past a batch that is left out. Or another reader of the
group has gone on from the offsets of what is left out, with a newer ticket for the same partition.
In both cases the snapshot is begun again. Offsets and tickets are all that tells this order.

Leaving out needs the headers. Where files were removed from a topic since before the second read,
a batch may be in a segment, or a record may be gone that a newer one of its key superseded: then
the snapshot is begun again, unless nothing that is left out is in that topic.

tests/model/test_snapshots.py searches this, and tests/model/test_pins.py how long a snapshot is
kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from txnlog.errors import ConfigError
from txnlog.protocol.appends import has_marker
from txnlog.protocol.batches import COMMITTED, NONE, BatchHeader
from txnlog.protocol.decoding import (
    INT64_MAX,
    Codec,
    Int64,
    JsonObject,
    Natural,
    PartitionNumber,
    unreadable,
)
from txnlog.protocol.enlisted.actions import TableState
from txnlog.protocol.enlisted.parts import FENCE, app_id_of, app_ids_of
from txnlog.protocol.group_metadata import Group
from txnlog.protocol.metadata import ProducerIdAndEpoch, TransactionMetadata
from txnlog.protocol.states import TransactionState
from txnlog.protocol.tickets import with_unmoved
from txnlog.protocol.topics import TOPIC_NAME, TopicState

T = TypeVar("T")

TTL_MS_DEFAULT = 7 * 86_400_000
TTL_MS_MAX = 10 * 366 * 86_400_000
MARGIN_MS = 3_600_000

Offsets = dict[str, dict[str, dict[PartitionNumber, Int64]]]
"""Group -> topic -> partition -> the next offset to read."""


class TopicVersion(JsonObject, frozen=True, kw_only=True):
    """A version of a topic's table, and the transactions in it that the snapshot leaves out."""

    version: Natural
    excluded: tuple[ProducerIdAndEpoch, ...] = ()

    def hides(self, batch: BatchHeader) -> bool:
        """Whether the snapshot does not show a batch of that version: also what is undecided."""
        name = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch)
        return batch.status not in (NONE, COMMITTED) or name in self.excluded


class TableVersion(JsonObject, frozen=True, kw_only=True):
    """A version of an enlisted table; `table_id` is the id in its metaData."""

    url: str
    table_id: str
    version: Natural


class Snapshot(JsonObject, frozen=True, kw_only=True):
    """One state of the root with this cluster id: every topic and enlisted table by name, the
    offsets of every group.

    `at_ms` is when it was begun, by the store's clock. `missing`: tables that it does not have, and
    why. `shards`, only if it was taken without tables: the version of each row table; what has been
    decided in those of the transaction log is shown, and nothing later.
    """

    cluster_id: str
    at_ms: Int64
    topics: dict[str, TopicVersion]
    tables: dict[str, TableVersion] = msgspec.field(default_factory=dict)
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    offsets: Offsets = msgspec.field(default_factory=dict)
    shards: dict[str, Natural] = msgspec.field(default_factory=dict)


class Pin(JsonObject, frozen=True, kw_only=True):
    """A named snapshot, as `__cluster` has it: `file` holds it, and it is kept until it expires.

    Times are the store's.
    """

    at_ms: Int64
    expires_ms: Int64
    file: str


class TopicRead(NamedTuple):
    """A topic as it was read: its version, and the newest version that removed files from it.

    `before` is a version of it that was read before the shards; -1: none was.
    """

    state: TopicState
    version: int
    removed_at: int
    before: int


def decided(rows: Iterable[TransactionMetadata]) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
    """The decided commits among rows, by name: a decided row may be written more than once."""
    return {row.transaction: row for row in rows if row.state is TransactionState.PREPARE_COMMIT}


def maybe_decided(
    rows: Iterable[TransactionMetadata],
) -> dict[ProducerIdAndEpoch, TransactionMetadata]:
    """As `decided`, with those that a table decides, or has by now; what it refused is not there,
    if the rows say so.
    """
    found: dict[ProducerIdAndEpoch, TransactionMetadata] = {}
    for row in rows:
        if row.is_ending and row.state is not TransactionState.PREPARE_ABORT:
            found[row.transaction] = row
        elif row.state.is_aborted:
            found.pop(row.transaction, None)
    return found


def unpublished(
    rows: Iterable[TransactionMetadata], topics: Mapping[str, TopicState]
) -> list[TransactionMetadata]:
    """Those of these decided rows whose marker is missing in one of the topics."""
    return [
        row
        for row in rows
        if any(
            topic in topics and not has_marker(topics[topic], topic_id, row.transaction)
            for topic, topic_id in row.topic_ids
        )
    ]


def without_part(
    rows: Iterable[TransactionMetadata], state: TableState, cluster_id: str
) -> list[TransactionMetadata]:
    """Those of these decided rows whose part is missing in a table.

    A part of a table that was made again since is settled.
    """
    return [
        row
        for row in _of_table(rows, state)
        if state.txns.get(app_id_of(cluster_id, row.producer_id), -1) < row.txn_epoch
    ]


def drawn_in(
    states: Iterable[TableState], cluster_id: str, later: Iterable[TransactionMetadata]
) -> list[TransactionMetadata]:
    """What of `later`, in the order of decisions, is shown nevertheless: it was published in a
    table before something that is shown, or its id has gone on to such a transaction.
    """
    left = {_name(cluster_id, row): row for row in later}
    recent = [_recent(state, cluster_id) for state in states if left]
    drawn: list[TransactionMetadata] = []
    while True:
        more: set[_Name] = set()
        for published in recent:
            end = max((version for version, name in published if name not in left), default=-1)
            more |= {name for version, name in published if name in left and version < end}
        gone_on = set()
        for name, row in reversed(left.items()):
            if name in more or row.transactional_id in gone_on:
                gone_on.add(row.transactional_id)
                more.add(name)
        if not more:
            return drawn
        drawn += [left.pop(name) for name in more]


def table_version(
    state: TableState, cluster_id: str, later: Iterable[TransactionMetadata]
) -> int | None:
    """The newest version of a table without what was decided `later`; None: begin again."""
    left_out = {_name(cluster_id, row) for row in _of_table(later, state)}
    there = {name for name in left_out if state.txns.get(name[0], -1) >= name[1]}
    recent = _recent(state, cluster_id) if there else []
    if not there <= {name for _, name in recent}:
        return None
    return min((version - 1 for version, name in recent if name in there), default=state.version)


_Name = tuple[str, int]
"""The appId and version by which tables know a transaction."""


def _name(cluster_id: str, row: TransactionMetadata) -> _Name:
    return app_id_of(cluster_id, row.producer_id), row.txn_epoch


def _recent(state: TableState, cluster_id: str) -> list[tuple[int, _Name]]:
    """Versions of the table, with the transactions of the cluster that were published there."""
    return [
        (version, (app_id, epoch))
        for version, app_id, epoch in state.recent
        if app_id.startswith(app_ids_of(cluster_id)) and not app_id.endswith(FENCE)
    ]


def _of_table(
    rows: Iterable[TransactionMetadata], state: TableState
) -> Iterator[TransactionMetadata]:
    table_id = state.definition.metadata.id
    for row in rows:
        if any((one.url, one.table_id) == (state.url, table_id) for one in row.pending.tables):
            yield row


def version_of(
    topic: str, read: TopicRead, later: Iterable[TransactionMetadata]
) -> TopicVersion | None:
    """The topic in the snapshot without what was decided `later`; None: begin again."""
    excluded = sorted(
        row.transaction
        for row in later
        if (topic, read.state.topic_id) in row.topic_ids
        and has_marker(read.state, read.state.topic_id, row.transaction)
    )
    if excluded and read.removed_at > read.before:
        return None
    return TopicVersion(version=read.version, excluded=tuple(excluded))


def is_past(offsets: Offsets, topic: str, state: TopicState, one: TopicVersion) -> bool:
    """Whether a group has read what the snapshot leaves out of a topic: begin again."""
    ends: dict[int, int] = {}
    for topics in offsets.values():
        for partition, offset in topics.get(topic, {}).items():
            ends[partition] = max(offset, ends.get(partition, 0))
    return bool(one.excluded) and any(
        batch.last_offset < end and (batch.producer_id, batch.producer_epoch) in one.excluded
        for partition, end in ends.items()
        if partition < len(state.partitions)
        for batch in state.partitions[partition].batches
    )


def is_taken_over(
    shown: Iterable[TransactionMetadata], later: Iterable[TransactionMetadata]
) -> bool:
    """Whether what is shown goes on from offsets of what is left out: begin again."""
    newest: dict[tuple[str, str, int], int] = {}
    for row in shown:
        for place, ticket in _tickets(row):
            newest[place] = max(ticket, newest.get(place, -1))
    return any(newest.get(place, -1) > ticket for row in later for place, ticket in _tickets(row))


def _tickets(row: TransactionMetadata) -> Iterator[tuple[tuple[str, str, int], int]]:
    """Group, topic and partition of the offsets that a row moves, or may, with the ticket."""
    for carried in row.pending.tickets:
        for topic, offsets in carried.offsets.items():
            for partition in offsets:
                yield (carried.group_id, topic, partition), carried.ticket


def offsets_of(
    groups: Mapping[str, Group],
    markers: Mapping[int, int],
    rows: Collection[TransactionMetadata],
) -> Offsets:
    """The offsets of these groups, with what was decided and not moved when they were read.

    `groups` are all of a shard of theirs, and `markers` its. `rows`: what was decided, and not
    completed, at a read of the shards before the groups; and what has been decided from then on. In
    the order of tickets, as each ticket of a partition fences those before it.
    """
    found: Offsets = {}
    for group_id, group in sorted(groups.items()):
        mine = {
            (ticket.ticket, row.txn_epoch, row.producer_id): row
            for row in rows
            for ticket in row.moves
            if ticket.group_id == group_id
        }
        ordered = [mine[key] for key in sorted(mine)]
        positions = with_unmoved(group, ordered, markers).positions()
        if positions:
            found[group_id] = positions
    return found


def kept_from_ms(pins: Iterable[Pin], *, now_ms: int) -> int:
    """Versions of a log that were the newest one then, or later, stay readable for these pins.

    INT64_MAX if none of them is kept. An hour earlier than the oldest was begun: clocks of
    machines, and times that a store gives its objects, differ.
    """
    kept = (pin.at_ms - MARGIN_MS for pin in pins if pin.expires_ms > now_ms)
    return min(kept, default=INT64_MAX)


def check_snapshot_name(name: str) -> str:
    """Names are those that a topic may have. Raises ConfigError."""
    if not TOPIC_NAME.match(name):
        raise ConfigError(
            f"Snapshot name {name[:249]!r} is not valid: 1 to 249 of the characters a-z, A-Z, 0-9, "
            "'.', '_' and '-'.",
            snapshot=name,
        )
    return name


SNAPSHOT: Codec[Snapshot] = Codec(Snapshot)
PIN: Codec[Pin] = Codec(Pin)


def read_json(codec: Codec[T], text: str, *, source: str) -> T:
    """A snapshot or a pin. Raises CorruptLogError naming `source`."""
    try:
        return codec.decode(text)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise unreadable(f"the snapshot {text[:200]!r}", error, source=source) from error
