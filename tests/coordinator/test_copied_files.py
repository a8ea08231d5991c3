"""Data files of a copy on a local disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.coordinator.test_copies import ALL, Writer, copied, names
from tests.world import PLAIN, process, world
from txnlog.cluster import Cluster
from txnlog.coordinator import copies
from txnlog.errors import NothingWrittenError
from txnlog.storage.store import local_disk
from txnlog.storage.store.objects import ObjectStore


def test_copy_that_fails_damages_nothing_of_another_one(tmp_path: Path) -> None:
    """A full disk, as it wrote a file that the other had copied: that was cut, then gone (R75)."""
    shared = world(ALL)
    Writer(shared).commit()
    path = str(tmp_path / "copy")
    begin = copies._copy_files

    def full(file: int, _: object) -> None:
        os.write(file, b"re")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy_second(*arguments: Any) -> Any:
        with patch.object(copies, "_copy_files", begin):
            copied(process(shared), ObjectStore.from_url(path))
        with patch.object(local_disk, "write_all", full):
            return begin(*arguments)

    with (
        patch.object(copies, "_copy_files", copy_second),
        pytest.raises(NothingWrittenError, match="disk is full"),
    ):
        copied(process(shared), ObjectStore.from_url(path))
    copy = Cluster.open(ObjectStore.from_url(path), settings=PLAIN)
    assert names(copy, "orders") == names(copy, "stock") == {"1"}
    assert all(item.size_bytes == 7 for item in copy.store.list_files("orders"))


def test_copy_deletes_what_a_killed_one_was_writing(tmp_path: Path) -> None:
    """Under a name that no listing shows: it would stay for ever."""
    shared = world(ALL)
    Writer(shared).commit()
    left = tmp_path / "orders" / "part-0-1.parquet#7"
    copied(process(shared), ObjectStore.from_url(str(tmp_path)))
    left.write_bytes(b"re")
    later = left.with_name("part-0-2.parquet#8")
    begin = copies._copy_files

    def copy(*arguments: Any) -> Any:
        later.write_bytes(b"re")
        return begin(*arguments)

    with patch.object(copies, "_copy_files", copy):
        copied(process(shared), ObjectStore.from_url(str(tmp_path)))
    assert not left.exists()
    assert later.exists()  # of a run that has begun meanwhile
