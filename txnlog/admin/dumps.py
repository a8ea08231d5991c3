"""Dumps of the Delta logs, commit by commit: headers, markers, and states of transactions.

Only commits that still exist: log clean-up deletes old commits that a checkpoint covers.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from txnlog.admin.histories import commits, row_changes
from txnlog.cluster import Cluster
from txnlog.protocol.batches import header_from_values
from txnlog.protocol.metadata import TransactionMetadata
from txnlog.protocol.shards import state_table
from txnlog.protocol.topics import END_PREFIX, MARKER_PREFIX, START_PREFIX
from txnlog.storage.delta.actions import Add, Commit, Metadata, Remove, Txn
from txnlog.storage.delta.log_files import commit_path
from txnlog.storage.tables.schemas import config_of

Entry = dict[str, object]


def dump_topic(
    cluster: Cluster, topic: str, *, partition: int | None = None, from_version: int = 0
) -> Iterator[Entry]:
    """Each header, marker and configuration of a topic's log, in the order of the commits.

    With a partition only its own entries, and markers, which belong to all partitions. Raises
    UnknownTopicOrPartitionError, CorruptLogError.
    """
    log = cluster.topic(topic)
    for commit in commits(cluster, log.path, from_version):
        for action in commit.actions:
            entry = _topic_entry(log.path, commit, action)
            if entry is not None and partition in (None, entry.get("partition", partition)):
                info = commit.info
                yield {**_commit(commit.version, info.timestamp, info.operation), **entry}


def _topic_entry(table: str, commit: Commit, action: object) -> Entry | None:
    if isinstance(action, Add):
        header = header_from_values(
            action.partition_values,  # type: ignore[arg-type]
            path=action.path,
            size_bytes=action.size,
            stats=action.stats or "",
            source=commit_path(table, commit.version),
        )
        return {
            "kind": "batch",
            "partition": header.partition,
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.num_records,
            "txnStatus": header.status,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "baseSequence": header.base_sequence,
            "sizeBytes": header.size_bytes,
            "file": header.path,
        }
    if isinstance(action, Remove):
        return {"kind": "removed", "file": action.path}
    if isinstance(action, Metadata):
        return {"kind": "topic", "topicId": action.id, "settings": config_of(action)}
    if isinstance(action, Txn):
        return _txn_entry(action)
    return None


def _txn_entry(action: Txn) -> Entry | None:
    for prefix, kind in ((END_PREFIX, "end"), (START_PREFIX, "start")):
        if action.app_id.startswith(prefix):
            number = int(action.app_id[len(prefix) :])
            return {"kind": kind, "partition": number, "offset": action.version}
    if not action.app_id.startswith(MARKER_PREFIX):
        return None
    producer_id, _, number_text = action.app_id[len(MARKER_PREFIX) :].partition("-")
    if number_text:
        return {
            "kind": "sequence",
            "partition": int(number_text),
            "producerId": int(producer_id),
            "lastSequence": action.version,
        }
    return {"kind": "marker", "producerId": int(producer_id), "txnEpoch": action.version}


def dump_transaction(cluster: Cluster, transactional_id: str) -> Iterator[Entry]:
    """Every state of a transactional.id, in the order of the commits. Raises CorruptLogError."""
    table = state_table(cluster.shard_of(transactional_id))
    for change in row_changes(cluster, table, {transactional_id}):
        entry = {"state": "removed"} if change.row is None else _row_entry(change.row)
        yield {**_commit(change.version, change.at_ms, change.operation), **entry}


def _row_entry(row: TransactionMetadata) -> Entry:
    last = row.owner.fenced
    return {
        "state": row.state.name,
        "producerId": row.producer_id,
        "producerEpoch": row.producer_epoch,
        "txnEpoch": row.txn_epoch,
        "topics": sorted({topic for topic, _ in row.topic_ids}),
        "batches": len(row.pending.batches),
        "tables": [one.name for one in row.pending.tables],
        "groups": [one.group_id for one in row.pending.tickets],
        "owner": row.owner.describe(),
        "fenced": None if last is None else msgspec.to_builtins(last),
    }


def _commit(version: int, at_ms: int, operation: str) -> Entry:
    return {"version": version, "timestampMs": at_ms, "operation": operation}
