"""A cluster in a folder, with topics that tests fill, for the source and for Spark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnlog.cluster import Cluster
from txnlog.protocol.batches import NONE, BatchHeader, encode_stats
from txnlog.protocol.topics import START_PREFIX, TopicCommit, TopicState, end_app_id
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.tables.topic_log import TopicLog

START_US = 1_700_000_000_000_000
Header = tuple[str, bytes | None]


class Topics:
    """Writes record batches straight into topics' logs: one file and one commit each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.root = cluster.root.removeprefix("file://")

    def create(self, topic: str, partitions: int = 1) -> TopicLog:
        return self.cluster.create_topic(topic, partitions=partitions)

    def append(
        self,
        topic: str,
        partition: int,
        values: Sequence[bytes | None] | pa.Array,
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[list[Header] | None] | None = None,
        status: str = NONE,
        times_us: Sequence[int] | None = None,
    ) -> BatchHeader:
        """One batch at the partition's end; `values` are its records. Returns its header."""
        log = self.cluster.topic(topic)
        count = len(values)
        times_us = times_us or range(START_US, START_US + count)
        records = pa.table(
            {
                "timestamp": pa.array(times_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
                "key": pa.array(keys or [None] * count, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "headers": pa.array(headers or [None] * count, RECORD_SCHEMA.field("headers").type),
            },
            schema=RECORD_SCHEMA,
        )
        name = f"part-{partition}-{uuid.uuid4()}.parquet"
        file = write_batch_file(self.cluster.store, f"{log.path}/{name}", records)
        stats = encode_stats(count, min(times_us), max(times_us))

        def place(state: TopicState) -> TopicCommit:
            base = state.high_watermark(partition)
            producer = (-1, -1) if status == NONE else (7, 0)
            header = BatchHeader(
                name,
                partition,
                base,
                base + count - 1,
                *producer,
                -1,
                status,
                file.size_bytes,
                stats,
            )
            return TopicCommit(operation="PRODUCE", adds=(header,))

        written = log.transact(place)
        assert isinstance(written, TopicCommit)
        return written.adds[0]

    def settle(self, topic: str, header: BatchHeader, status: str) -> None:
        """Re-add an ongoing batch as committed or aborted."""
        fields = {name: getattr(header, name) for name in header.__struct_fields__}
        settled = BatchHeader(**{**fields, "status": status})
        commit = TopicCommit(operation="WRITE TXN MARKERS", adds=(settled,))
        self.cluster.topic(topic).transact(lambda _: commit)

    def expire(self, topic: str, header: BatchHeader) -> None:
        """Retention: remove the file from the log, keep the partition's end."""

        def remove(state: TopicState) -> TopicCommit:
            end = state.high_watermark(header.partition)
            return TopicCommit(
                operation="RETENTION",
                removes=(header.path,),
                txns={end_app_id(header.partition): end},
            )

        self.cluster.topic(topic).transact(remove)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start, and leave the files where they are."""
        commit = TopicCommit(
            operation="DELETE RECORDS", txns={f"{START_PREFIX}{partition}": before}
        )
        self.cluster.topic(topic).transact(lambda _: commit)

    def erase(
        self, topic: str, header: BatchHeader, keep: Sequence[bool], *, with_stats: bool = True
    ) -> None:
        """Rewrite a file without some of its rows, as an erasure job would."""
        path = self.cluster.store.local_path(f"{topic}/{header.path}")
        assert path is not None
        pq.write_table(
            pq.read_table(path).filter(pa.array(keep)), path.replace("part-", "part-erased-")
        )
        fields = {name: getattr(header, name) for name in header.__struct_fields__}
        fields["path"] = header.path.replace("part-", "part-erased-")
        fields["size_bytes"] = self.cluster.store.head(f"{topic}/{fields['path']}").size_bytes
        fields["stats"] = f'{{"numRecords":{sum(keep)}}}' if with_stats else ""
        commit = TopicCommit(
            operation="ERASE", adds=(BatchHeader(**fields),), removes=(header.path,)
        )
        self.cluster.topic(topic).transact(lambda _: commit)

    def commit_offsets(self, group_id: str, positions: dict[str, dict[int, int]]) -> None:
        """Offsets a group has committed."""
        self.cluster.groups.reset(group_id, positions)


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    """An empty cluster in a new folder."""
    return Topics(Cluster.open(str(tmp_path / "root"), create=True))
