"""What a topic of a copy has: its table at a version, without what a snapshot leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from txnlog.coordinator.root import Root
from txnlog.coordinator.versions import topic_at_version
from txnlog.protocol.batches import ABORTED
from txnlog.protocol.copies import aborted_in_copy
from txnlog.protocol.snapshots import TopicVersion
from txnlog.protocol.topics import marker_app_id
from txnlog.protocol.txn_memory import (
    EXPIRING_TRANSACTIONS,
    VACUUM_AGE,
    TxnMemory,
    is_expired,
    is_horizon,
    producer_key,
)
from txnlog.storage.delta.actions import (
    Add,
    Adds,
    Commit,
    Metadata,
    Remove,
    Txn,
    decode_commit,
)
from txnlog.storage.delta.log_files import commit_path


@dataclass(slots=True)
class TableContents:
    """The live files, and the `txn` actions, that the commits of a table have named."""

    adds: dict[str, Add] = field(default_factory=dict)
    txns: dict[str, Txn] = field(default_factory=dict)

    def note(self, _: str, commit: Commit) -> None:
        """Take the actions of the next commit, or of a checkpoint."""
        for action in commit.actions:
            if isinstance(action, Add):
                self.adds[action.path] = action
            elif isinstance(action, Adds):
                self.adds |= {add.path: add for add in action}
            elif isinstance(action, Remove):
                self.adds.pop(action.path, None)
            elif isinstance(action, Txn):
                self.txns[action.app_id] = action

    def valid_txns(self, memory: TxnMemory) -> dict[str, Txn]:
        """Those that the table has not forgotten, horizons first; but of vacuum and expiry."""
        found = sorted(self.txns.values(), key=lambda one: not is_horizon(one.app_id))
        transactions_ms = memory.transactions_expired_ms
        producers_ms = memory.producers_expired_ms
        return {
            one.app_id: one
            for one in found
            if one.app_id not in (VACUUM_AGE, EXPIRING_TRANSACTIONS)
            and not is_expired(
                one.app_id,
                one.last_updated,
                transactions_ms=transactions_ms,
                producers_ms=producers_ms,
            )
        }


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """What the table of a topic shall have: `metadata` but for its home.

    Below `ends` it has the records of its origin: nothing that was left out, or undecided.
    """

    metadata: Metadata
    adds: Mapping[str, Add]
    txns: Mapping[str, Txn]
    ends: tuple[int, ...]


def read_topic(origin: Root, name: str, one: TopicVersion) -> CopiedTopic:
    contents = TableContents()
    log = topic_at_version(origin, name, one.version, contents.note)
    metadata = log.log.metadata
    assert metadata is not None
    aborted, markers = aborted_in_copy(log.view, one)
    adds = {path: contents.adds[path] for path in log.view.by_path}
    ends = [log.view.high_watermark(number) for number in range(log.partitions)]
    for path in aborted:
        batch = log.view.by_path[path]
        ends[batch.partition] = min(ends[batch.partition], batch.base_offset)
        values = {**adds[path].partition_values, "txn_status": ABORTED}
        adds[path] = replace(adds[path], partition_values=values)
    txns = contents.valid_txns(log.view.txns)
    now_ms = origin.store.now_ms() if markers else 0
    for producer_id, epoch in markers.items():
        app_id = marker_app_id(producer_id)
        txns[app_id] = Txn(app_id, epoch, now_ms)
    _take_back(origin, name, one, txns)
    return CopiedTopic(metadata, adds, txns, tuple(ends))


def _take_back(origin: Root, name: str, one: TopicVersion, txns: dict[str, Txn]) -> None:
    """Give batch writes that the snapshot leaves out back the txnVersion of before.

    Else their repetition would be taken for done. Each has one marker commit, since the snapshot;
    in the commit of a batch write that is shown, there may be markers of what is left out.
    """
    left = set(one.excluded)
    names = {(str(producer_id), str(epoch)) for producer_id, epoch in one.excluded}
    version = one.version
    taken: set[str] = set()
    kept: dict[str, Txn] = {}
    while left:
        path = commit_path(name, version)
        commit = decode_commit(origin.store.get(path), version=version, source=path)
        found = {action.app_id: action for action in commit.actions if isinstance(action, Txn)}
        apps = {app_id: txn for app_id, txn in found.items() if producer_key(app_id) is None}
        left -= {(producer_key(app_id), txn.version) for app_id, txn in found.items()}
        of = commit.info.operation_parameters
        if (of.get("producerId"), of.get("producerEpoch")) in names:
            taken |= apps.keys()
        else:
            kept = apps | kept
        version -= 1
    if taken:
        before = TableContents()
        topic_at_version(origin, name, version, before.note)
        kept = before.txns | kept
    for app_id in taken:
        txns.pop(app_id, None)
        if app_id in kept:
            txns[app_id] = kept[app_id]


def newest_markers(topics: Iterable[CopiedTopic]) -> dict[int, int]:
    """Producer id -> the newest epoch of which a topic has the marker."""
    newest: dict[int, int] = {}
    for topic in topics:
        for app_id, txn in topic.txns.items():
            key = producer_key(app_id)
            if isinstance(key, int):
                newest[key] = max(txn.version, newest.get(key, -1))
    return newest
