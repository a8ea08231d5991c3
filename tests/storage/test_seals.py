"""Seals of data files: a file under another's name (R66)."""

from __future__ import annotations

import pytest

from txnlog.errors import CorruptLogError
from txnlog.storage.batches.reader import FileSpan, read_batch_file
from txnlog.storage.batches.record_lists import RecordLists
from txnlog.storage.batches.writer import write_batch_file
from txnlog.storage.store.objects import ObjectStore


@pytest.mark.parametrize("records", [3, 2_000])
def test_data_file_of_another_name_is_damage(store: ObjectStore, records: int) -> None:
    """The file is intact: an upload under a wrong name, or a restore of the wrong file."""
    for name in ("a", "b"):
        lists = RecordLists([1] * records, [None] * records, [name.encode()] * records)
        write_batch_file(store, f"t/part-0-{name}.parquet", lists)
    store.put("t/part-0-a.parquet", store.get("t/part-0-b.parquet"))
    size_bytes = len(store.get("t/part-0-a.parquet"))
    for known in (None, size_bytes):
        with pytest.raises(CorruptLogError, match="part-0-a.parquet.*written under another name"):
            list(read_batch_file(store, FileSpan("t/part-0-a.parquet", size_bytes=known)))
