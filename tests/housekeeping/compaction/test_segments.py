"""Segments: the records of their inputs, at their offsets, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.housekeeping.compaction.logs import (
    TOPIC,
    Record,
    append,
    begin,
    bounds,
    commit,
    live,
    records_of,
    stage,
    world,
)
from tests.world import process
from txnlog.cluster import Cluster
from txnlog.errors import CorruptLogError, ObjectNotFoundError
from txnlog.housekeeping.compaction import segments
from txnlog.housekeeping.compaction.segments import commit_segment, rewrite
from txnlog.protocol.compaction import CompactionGroup, CompactionSettings, Segment, plan
from txnlog.protocol.topics import TopicCommit
from txnlog.storage.batches.records import RECORD_SCHEMA
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.tables.offset_lookup import offsets_for_times

ALL = CompactionSettings(segment_bytes=1 << 30, inputs_min=1)
PLAIN = [Record(b"k", b"v", 3_000), Record(None, None, 1_000), Record(b"", b"", 2_000)]
HEADED = [Record(b"h", b"x", 9_000, [("a", b"1"), ("a", None)]), Record(b"i", b"y", 8_000, None)]


@pytest.fixture
def cluster() -> Cluster:
    return process(world())


def merged(cluster: Cluster) -> tuple[CompactionGroup, Segment]:
    """All of the topic in one segment."""
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, ALL)
    segment = rewrite(cluster.store, group)
    assert isinstance(commit_segment(cluster, group, segment), TopicCommit)
    return group, segment


def parquet(cluster: Cluster, segment: Segment) -> pq.ParquetFile:
    data = cluster.store.get(f"{TOPIC}/{segment.path}")
    assert len(data) == segment.size_bytes
    return pq.ParquetFile(pa.BufferReader(data))


def test_segment_keeps_offsets_times_keys_values_and_headers(cluster: Cluster) -> None:
    """With files that have a column of headers and files that have none (R20, R22)."""
    row = commit(cluster, begin(cluster), PLAIN)
    row = commit(cluster, row, HEADED)
    commit(cluster, row, PLAIN)
    before = records_of(cluster.topic(TOPIC))
    _, segment = merged(cluster)
    assert records_of(cluster.topic(TOPIC)) == before
    assert [seen.offset for seen in before] == list(range(8))
    assert (segment.num_records, segment.timestamp_min_us, segment.timestamp_max_us) == (
        8, 1_000, 9_000,
    )  # fmt: skip
    assert parquet(cluster, segment).schema_arrow.names[-1] == "headers"


def test_segment_without_headers_has_no_such_column(cluster: Cluster) -> None:
    """A column of nulls is read by every reader for ever."""
    row = commit(cluster, begin(cluster), PLAIN)
    commit(cluster, row, PLAIN)
    _, segment = merged(cluster)
    assert "headers" not in parquet(cluster, segment).schema_arrow.names
    assert len(records_of(cluster.topic(TOPIC))) == 6


def test_segment_has_gaps_where_transactions_were_aborted(cluster: Cluster) -> None:
    """Offsets never move, so positions and lags do not change (R16, R22)."""
    row = commit(cluster, begin(cluster), PLAIN)
    eager = append(cluster, begin(cluster, "eager"), HEADED)
    cluster.coordinator.abort(eager)
    commit(cluster, row, HEADED)
    before = records_of(cluster.topic(TOPIC)), bounds(cluster.topic(TOPIC).view)
    merged(cluster)
    log = cluster.topic(TOPIC)
    assert (records_of(log), bounds(log.view)) == before
    assert [seen.offset for seen in before[0]] == [0, 1, 2, 5, 6]
    (batch,) = log.view.partitions[0].batches
    assert (batch.base_offset, batch.last_offset, batch.num_records) == (0, 6, 5)
    assert offsets_for_times([(log, 0, 8)], read_committed=True) == [5]


def test_segment_of_only_aborted_batches_spans_their_offsets(cluster: Cluster) -> None:
    """Without it the log start, or the end, would move (R22)."""
    for number in range(3):
        row = append(cluster, begin(cluster), [Record(b"a", b"1", 5_000 + number)])
        cluster.coordinator.abort(row)
    assert bounds(cluster.topic(TOPIC).view) == [(0, 3, 3)]
    _, segment = merged(cluster)
    log = process_like(cluster).topic(TOPIC)
    assert live(log.view) == [(0, 2, "none")]
    assert bounds(log.view) == [(0, 3, 3)]
    assert records_of(log, read_committed=False) == []
    assert (segment.num_records, segment.timestamp_min_us, segment.timestamp_max_us) == (
        0, 5_000, 5_002,
    )  # fmt: skip
    assert parquet(cluster, segment).read().num_rows == 0
    commit(cluster, begin(cluster, "other"), HEADED)
    merged(cluster)
    assert [seen.offset for seen in records_of(cluster.topic(TOPIC))] == [3, 4]


def process_like(cluster: Cluster) -> Cluster:
    """Another process over the same store."""
    return Cluster.open(cluster.store, settings=cluster.settings)


def test_rewrite_keeps_only_the_given_offsets(cluster: Cluster) -> None:
    """Spark finds out which records survive; the rewrite must drop the others, no more."""
    row = commit(cluster, begin(cluster), PLAIN)
    commit(cluster, row, HEADED)
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, ALL)
    keep = np.array([-5, 1, 3, 99], dtype=np.int64)
    segment = rewrite(cluster.store, group, keep)
    commit_segment(cluster, group, segment)
    assert [seen.offset for seen in records_of(cluster.topic(TOPIC))] == [1, 3]
    nothing = rewrite(cluster.store, group, np.empty(0, dtype=np.int64))
    assert nothing.num_records == 0


def test_segment_of_a_segment_and_of_an_erased_file_keeps_offsets(cluster: Cluster) -> None:
    """Files whose offset_delta has gaps are inputs, too (R20)."""
    row = commit(cluster, begin(cluster), PLAIN)
    eager = append(cluster, begin(cluster, "eager"), PLAIN)
    cluster.coordinator.abort(eager)
    merged(cluster)
    row = commit(cluster, row, HEADED)
    before = records_of(cluster.topic(TOPIC))
    merged(cluster)
    assert records_of(cluster.topic(TOPIC)) == before
    assert [seen.offset for seen in before] == [0, 1, 2, 6, 7]


def test_rewrite_of_more_than_memory_holds_streams_row_groups(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of any size takes two row groups of memory."""
    monkeypatch.setattr(segments, "ROW_GROUP_BYTES", 20_000)
    monkeypatch.setattr(segments, "READ_ROWS", 300)
    row = begin(cluster)
    values = [b"%d" % (n * 7_919) for n in range(3_000)]
    for at in range(0, 3_000, 300):
        records = [Record(b"k", value, 1) for value in values[at : at + 300]]
        row = commit(cluster, row, records)
    _, segment = merged(cluster)
    file = parquet(cluster, segment)
    assert file.metadata.num_row_groups > 3
    found = records_of(cluster.topic(TOPIC))
    assert [seen.record.value for seen in found] == values
    assert pc.sum(file.read(["offset_delta"]).column(0)).as_py() == sum(range(3_000))


def test_rewrite_of_a_file_that_is_gone_or_damaged_names_it(cluster: Cluster) -> None:
    """A record that cannot be read must never be left out (R66)."""
    row = commit(cluster, begin(cluster), PLAIN)
    commit(cluster, row, PLAIN)
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, ALL)
    path = f"{TOPIC}/{group.inputs[1].path}"
    data = cluster.store.get(path)
    cluster.store.put(path, data[:-20] + b"x" * 20)
    with pytest.raises(CorruptLogError, match=group.inputs[1].path):
        rewrite(cluster.store, group)
    cluster.store.delete([path])
    with pytest.raises(ObjectNotFoundError, match=group.inputs[1].path):
        rewrite(cluster.store, group)


def test_rewrite_that_fails_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt left one of up to segment.bytes, until vacuum: on a full disk all that was
    free.
    """
    monkeypatch.setattr(segments, "ROW_GROUP_BYTES", 20_000)
    monkeypatch.setattr(segments, "READ_ROWS", 3)
    cluster = Cluster.open(str(tmp_path), create=True)
    cluster.create_topic(TOPIC, partitions=1)
    row = begin(cluster)
    for number in range(9):
        row = commit(cluster, row, [Record(b"k", os.urandom(10_000), number) for _ in range(3)])
    (group,) = plan(cluster.topic(TOPIC).view, TOPIC, ALL)
    cluster.store.delete([f"{TOPIC}/{group.inputs[-1].path}"])
    before = {item.path for item in cluster.store.list_files(TOPIC)}
    with pytest.raises(ObjectNotFoundError, match=group.inputs[-1].path):
        rewrite(cluster.store, group)
    assert {item.path for item in cluster.store.list_files(TOPIC)} == before


def test_file_of_explicit_offsets_is_written_as_given(cluster: Cluster) -> None:
    """A staged batch counts its records; a segment says where each one is."""
    batch = stage(cluster, PLAIN)
    assert batch.num_records == 3
    times = pa.array([1, 2], RECORD_SCHEMA.field("timestamp").type)
    table = pa.table({"offset_delta": pa.array([4, 9]), "timestamp": times})
    for name in ("key", "value"):
        table = table.append_column(name, pa.nulls(2, pa.binary()))
    write_batch_file(cluster.store, f"{TOPIC}/x.parquet", table)
    file = pq.ParquetFile(pa.BufferReader(cluster.store.get(f"{TOPIC}/x.parquet")))
    assert file.read(["offset_delta"]).column(0).to_pylist() == [4, 9]
