"""Staged files for tests: by name only, or written with their records; and appended to a topic."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txnlog.cluster import Cluster
from txnlog.coordinator import appending
from txnlog.coordinator.appending import Append, Outcome
from txnlog.errors import TxnLogError
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.delta.readings import Reading
from txnlog.storage.tables.topic_log import TopicLog


def named_file(
    path: str = "p",
    topic: str = "t",
    *,
    topic_id: str = "id",
    partition: int = 0,
    records: int = 1,
    size_bytes: int = 1,
    times_us: tuple[int, int] = (0, 0),
    staged_ms: int = 0,
) -> StagedBatch:
    """A file that exists by name only: commits never read it."""
    return StagedBatch(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        path=path,
        size_bytes=size_bytes,
        num_records=records,
        timestamp_min_us=times_us[0],
        timestamp_max_us=times_us[1],
        staged_ms=staged_ms,
    )


def named_file_of(log: TopicLog, path: str, **given: Any) -> StagedBatch:
    """The same for a topic that exists; `given` as for `named_file`."""
    return named_file(path, log.name, topic_id=log.topic_id, **given)


def written_file(
    cluster: Cluster,
    topic: str,
    records: pa.RecordBatch | pa.Table,
    *,
    partition: int = 0,
    path: str | None = None,
) -> StagedBatch:
    """A data file with these records, of RECORD_SCHEMA, that no commit refers to yet."""
    path = path or f"part-{partition}-{uuid.uuid4()}.parquet"
    staged_ms = cluster.store.now_ms()
    file = write_batch_file(cluster.store, f"{topic}/{path}", records)
    return named_file_of(
        cluster.topic(topic),
        path,
        partition=partition,
        records=file.num_records,
        size_bytes=file.size_bytes,
        times_us=(file.timestamp_min_us, file.timestamp_max_us),
        staged_ms=staged_ms,
    )


def append_ongoing(
    cluster: Cluster,
    row: TransactionMetadata,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
    *,
    reading: Reading | None = None,
) -> tuple[int, ...]:
    """Append batches of one topic inside an Ongoing transaction; their first offsets."""
    append = Append(batches, base_sequences)
    [outcome] = appending.append_in_transaction(cluster, row, [append], reading=reading)
    return _offsets(outcome)


def append_idempotent(
    cluster: Cluster,
    producer_id: int,
    batches: Sequence[StagedBatch],
    base_sequences: Mapping[int, int],
) -> tuple[int, ...]:
    """Append batches of one topic outside of transactions; their first offsets."""
    append = Append(batches, base_sequences, producer_id)
    [outcome] = appending.append_idempotent(cluster, [append])
    return _offsets(outcome)


def _offsets(outcome: Outcome) -> tuple[int, ...]:
    if isinstance(outcome, TxnLogError):
        raise outcome
    return outcome


def record_columns(**columns: list[Any]) -> pa.RecordBatch:
    """Records of RECORD_SCHEMA; columns that are not given are null."""
    rows = len(next(iter(columns.values())))
    arrays = [
        pa.array(columns.get(field.name) or [None] * rows, field.type) for field in RECORD_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
