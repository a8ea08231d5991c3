"""Files fetched before their turn: order, bounds, and errors where they belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from txnlog.storage.batches import read_ahead as module
from txnlog.storage.batches.read_ahead import read_ahead
from txnlog.storage.batches.reader import READ_WHOLE_BELOW_BYTES, FileSpan
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash

T = TypeVar("T")


class Watched(ObjectStore):
    """Records how many calls are made together."""

    def __init__(self) -> None:
        super().__init__(SharedMemory().backing, "memory://")
        self.groups: list[int] = []

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        self.groups.append(len(calls))
        return super().together(calls)


def spans(*sizes: int) -> list[FileSpan]:
    return [FileSpan(f"f{number}", size_bytes=size) for number, size in enumerate(sizes)]


def filled(store: ObjectStore, files: Sequence[FileSpan]) -> list[FileSpan]:
    for file in files:
        store.put(file.path, file.path.encode())
    return list(files)


def test_files_come_in_order_with_their_bytes() -> None:
    """Records of a partition keep their order, whatever is fetched with what."""
    store = Watched()
    files = filled(store, spans(*[10] * 30))
    read = list(read_ahead(store, files, lambda file: file))
    assert read == [(file, file.path.encode()) for file in files]
    assert store.groups == [30]


@pytest.mark.parametrize(
    ("sizes", "groups"), [([40] * 5, [2, 2, 1]), ([101, 10, 10], [1, 2]), ([10] * 12, [8, 4])]
)
def test_what_is_held_is_bounded_in_bytes_and_files(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], groups: list[int]
) -> None:
    """A task must stay within its memory however many files it reads."""
    monkeypatch.setattr(module, "AHEAD_BYTES", 100)
    monkeypatch.setattr(module, "AHEAD_FILES", 8)
    store = Watched()
    files = filled(store, spans(*sizes))
    assert [file for file, _ in read_ahead(store, files, lambda file: file)] == files
    assert store.groups == groups


def test_large_file_is_left_to_its_turn() -> None:
    """It is read by ranges, a row group at a time."""
    store = Watched()
    files = filled(store, spans(10, READ_WHOLE_BELOW_BYTES + 1, 10))
    read = list(read_ahead(store, files, lambda file: file))
    assert [data for _, data in read] == [b"f0", None, b"f2"]


def test_file_that_cannot_be_fetched_is_left_to_its_turn() -> None:
    """Its error comes after the records before it, and a passing error not at all (R66)."""
    faults = {"f1": Fault.FAIL_BEFORE}
    store = SharedMemory().open(plan=lambda verb, path: faults.pop(path, Fault.NONE))
    files = spans(10, 10, 10)
    for file in (files[0], files[2]):
        store.put(file.path, file.path.encode())
    read = list(read_ahead(store, files, lambda file: file))
    assert [data for _, data in read] == [b"f0", None, b"f2"]
    store.plan = lambda verb, path: Fault.CRASH_BEFORE
    with pytest.raises(SimulatedCrash):
        list(read_ahead(store, files, lambda file: file))


def test_nothing_is_fetched_from_a_local_disk(tmp_path: object) -> None:
    """A file is opened there by its path, and nothing is won."""
    store = ObjectStore.from_url(str(tmp_path))
    files = filled(store, spans(10, 10))
    assert [data for _, data in read_ahead(store, files, lambda file: file)] == [None, None]
