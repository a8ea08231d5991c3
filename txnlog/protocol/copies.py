"""Copies of a root: what one has of a snapshot of its origin.

A copy is a root of its own, with a cluster id of its own. It has the topics, the offsets of groups
and the transactional ids of one snapshot, and nothing that is under way: what the snapshot leaves
out, or was undecided, is aborted there. So no offset is missing, and none is another one.

`__cluster` says from its first version on that this is a copy, and who is making it; until the last
step nobody opens it. A later run brings all tables to a newer snapshot; until it ends, the last
whole copy can still be read, at the versions that it had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from txnlog.errors import ConcurrentTransactionsError, ConfigError
from txnlog.protocol.batches import ABORTED, ONGOING
from txnlog.protocol.decoding import Codec, Int64, JsonObject
from txnlog.protocol.group_metadata import CommittedOffset, Group
from txnlog.protocol.metadata import Owner, TransactionMetadata
from txnlog.protocol.snapshots import Snapshot, TopicVersion
from txnlog.protocol.states import TransactionState
from txnlog.protocol.topics import TopicState

COPYING = "COPY"
OF_A_COPY = (COPYING, "CREATE TABLE")
"""All that is in the log of a table of a copy, as long as no client has written to it."""


class Copy(JsonObject, frozen=True, kw_only=True):
    """What `__cluster` of a copy says of it.

    `origin` is the id of the copied cluster, `run` who is making the copy (empty: it is whole),
    `file` what holds the last one that was whole (empty: none was). `shared`: it is a clone, whose
    data files are on a local disk the origin's own, by other names.
    """

    origin: str
    shared: bool = False
    run: str = ""
    file: str = ""


class WholeCopy(JsonObject, frozen=True, kw_only=True):
    """A copy that is whole: the versions of its own tables, and its origins.

    `ends`: cluster id of an origin, or of an origin of that -> topic -> end offset by partition.
    Below these the offsets of both mean the same records.
    """

    snapshot: Snapshot
    ends: dict[str, dict[str, tuple[Int64, ...]]] = msgspec.field(default_factory=dict)

    @property
    def versions(self) -> dict[str, int]:
        """Of each table, which never goes below that."""
        topics = {name: one.version for name, one in self.snapshot.topics.items()}
        return topics | self.snapshot.shards


COPY: Codec[Copy] = Codec(Copy)
WHOLE_COPY: Codec[WholeCopy] = Codec(WholeCopy)


def check_copy_of(found: Copy | None, *, origin: str, shared: bool, url: str) -> None:
    """Raises ConfigError for a root that is no copy of this cluster, or one of the other kind."""
    if found is None:
        raise ConfigError(
            f"There is a root at {url}, and it is no copy. Choose an empty place.", root=url
        )
    if found.origin != origin:
        raise ConfigError(
            f"The root at {url} is a copy of cluster {found.origin}, not of {origin}. Choose an "
            "empty place.",
            root=url,
        )
    if found.shared != shared:
        made = "clone" if found.shared else "backup"
        raise ConfigError(
            f"The root at {url} was made by `txnlog {made}`. Use that, or choose an empty place.",
            root=url,
        )


def begin_copy(found: Copy | None, *, expected: Copy | None, run: str, url: str) -> Copy:
    """What `__cluster` says from now on: a run that another one has left, or is making, ends.

    `expected` is what it said before the tables were read. Raises ConcurrentTransactionsError if
    that has changed since.
    """
    if found is not None and found.run == run:
        return found
    if found is None or found != expected:
        raise _taken_over(url)
    return replace(found, run=run)


def end_copy(found: Copy | None, *, run: str, file: str, url: str) -> Copy:
    """The copy, whole. Raises ConcurrentTransactionsError if another run has begun meanwhile."""
    if found is not None and found.run == run:
        return replace(found, run="", file=file)
    if found is not None and not found.run and found.file == file:
        return found
    raise _taken_over(url)


def _taken_over(url: str) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"Another process has copied to {url}, or is about to. Run it again when that has ended.",
        root=url,
    )


def check_whole(found: Copy | None, url: str) -> None:
    """Raises ConfigError for a copy that is being made."""
    if found is not None and found.run:
        again = (
            " Or restore what it was before: `txnlog backup` from there to another place."
            if found.file
            else ""
        )
        raise ConfigError(
            f"The root at {url} is a copy that is not whole: `txnlog backup` is writing it, or was "
            f"interrupted. Run it again to the same place.{again}",
            root=url,
        )


def check_same(found: Copy | None, *, expected: Copy | None, url: str) -> None:
    """Raises ConfigError for a copy that is being made, or has become a newer one than expected."""
    check_whole(found, url)
    if found != expected:
        raise ConfigError(f"The root at {url} is a newer copy by now. Try again.", root=url)


def is_in_copy(
    positions: Mapping[str, Mapping[int, int]], ends: Mapping[str, Sequence[int]]
) -> bool:
    """Whether positions in an origin mean the same records in a copy that has these `ends` of it.

    Above them each has records of its own.
    """
    return all(
        topic in ends and number < len(ends[topic]) and offset <= ends[topic][number]
        for topic, partitions in positions.items()
        for number, offset in partitions.items()
    )


def aborted_in_copy(state: TopicState, one: TopicVersion) -> tuple[frozenset[str], dict[int, int]]:
    """Files whose batches are aborted in the copy of a topic, and the markers that this takes.

    A batch that the snapshot leaves out has its marker; one that was undecided has none.
    """
    hidden = [batch for batch in state.by_path.values() if one.hides(batch)]
    markers: dict[int, int] = {}
    for batch in hidden:
        if batch.status == ONGOING:
            known = markers.get(batch.producer_id, state.markers.get(batch.producer_id, -1))
            markers[batch.producer_id] = max(known, batch.producer_epoch)
    return frozenset(batch.path for batch in hidden if batch.status != ABORTED), markers


def row_in_copy(
    row: TransactionMetadata, *, marker: int, topics: Collection[str]
) -> TransactionMetadata | None:
    """The row of a transactional id in the copy, which nobody owns; None: it has none there.

    `marker` is the newest one of its producer id in the copy: it may be of a later transaction,
    which the snapshot leaves out. The last batch of a query is the last one that is shown.
    """
    if row.owner.one_off or row.state is TransactionState.DEAD:
        return None
    last = row.owner.last_batch
    if last is not None:
        last = replace(last, topics=tuple(name for name in last.topics if name in topics))
    txn_epoch = max(row.txn_epoch, marker)
    return TransactionMetadata(
        transactional_id=row.transactional_id,
        producer_id=row.producer_id,
        producer_epoch=max(row.producer_epoch, txn_epoch + 1) + 1,
        txn_epoch=txn_epoch,
        timeout_ms=row.timeout_ms,
        owner=Owner(query_id=row.owner.query_id, query_name=row.owner.query_name, last_batch=last),
        updated_ms=row.updated_ms,
    )


def group_in_copy(
    group: Group,
    offsets: Mapping[str, Mapping[int, int]],
    *,
    topics: Collection[str],
) -> Group:
    """The row of a group in the copy, without members and tickets, in the same generation.

    `offsets` are those of the snapshot. Their log version is 0: below all that comes.
    """
    found: dict[str, dict[int, CommittedOffset]] = {}
    for topic, partitions in offsets.items():
        known = group.offsets.get(topic, {})
        for partition, offset in partitions.items() if topic in topics else ():
            one = known.get(partition)
            is_same = one is not None and one.offset == offset
            metadata = one.metadata if one is not None and is_same else ""
            found.setdefault(topic, {})[partition] = CommittedOffset(
                offset, group.generation, 0, metadata
            )
    return Group(
        group_id=group.group_id,
        generation=group.generation,
        offsets=found,
        updated_ms=group.updated_ms,
    )
