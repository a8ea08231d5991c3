"""Offsets of times, looked up in headers and in one file."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from txnlog.errors import CorruptLogError
from txnlog.protocol.batches import BatchHeader
from txnlog.protocol.topics import START_PREFIX, TopicCommit
from txnlog.storage.tables import offset_lookup as timestamps
from txnlog.storage.tables.offset_lookup import offsets_for_times

MS = 1000


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The files that a look-up reads, and the columns."""
    reads: list[dict[str, Any]] = []
    read = timestamps.read_batch_file

    def counted(store: Any, span: Any, **options: Any) -> Any:
        reads.append({**asdict(span), **options})
        return read(store, span, **options)

    monkeypatch.setattr(timestamps, "read_batch_file", counted)
    return reads


def append(topics: Any, *times_ms: int, status: str = "none") -> BatchHeader:
    values = [str(at).encode() for at in times_ms]
    header: BatchHeader = topics.append(
        "t", 0, values, times_us=[at * MS for at in times_ms], status=status
    )
    return header


def look_up(topics: Any, time_ms: int, *, read_committed: bool = True) -> int | None:
    log = topics.cluster.topic("t")
    return offsets_for_times([(log, 0, time_ms)], read_committed=read_committed)[0]


def test_times_give_the_first_offset_at_or_after_them(topics, opened) -> None:
    """Kafka's offsetsForTimes: inclusive, in the order of offsets, whatever the order of times."""
    topics.create("t")
    append(topics, 10, 30, 20)
    append(topics, 15, 40)
    assert [look_up(topics, at) for at in (0, 10, 11, 30, 31, 40, 41)] == [0, 0, 1, 1, 4, 4, None]
    assert {read["path"].partition("/")[0] for read in opened} == {"t"}


def test_times_read_the_timestamps_of_one_file_only(topics, opened) -> None:
    """A look-up in a topic of 10,000 files must not read the topic."""
    topics.create("t")
    for first in range(0, 200, 2):
        header = append(topics, first, first + 1)
        if first == 100:
            wanted = header
    assert look_up(topics, 101) == 101
    assert [read["path"] for read in opened] == [f"t/{wanted.path}"]
    assert opened[0]["columns"] == ["offset_delta", "timestamp"]
    assert look_up(topics, 100) == 100
    assert len(opened) == 1, "the header alone gives it"


def test_times_of_open_and_aborted_data_are_not_seen(topics) -> None:
    """Undecided data and all later data is invisible to look-ups by time, too (R15)."""
    topics.create("t")
    append(topics, 10)
    undecided = append(topics, 20, status="ongoing")
    append(topics, 30)
    assert look_up(topics, 15) is None
    assert look_up(topics, 15, read_committed=False) == 1
    topics.settle("t", undecided, "aborted")
    assert look_up(topics, 15) == 2
    assert look_up(topics, 15, read_committed=False) == 1


def test_times_below_the_log_start_are_not_seen(topics) -> None:
    """Retention took the first file: the answer is never below the log start (R14)."""
    topics.create("t", 2)
    first = append(topics, 50)
    append(topics, 50)
    topics.expire("t", first)
    log = topics.cluster.topic("t")
    assert offsets_for_times([(log, 0, 1), (log, 1, 1)], read_committed=True) == [1, None]


def test_times_log_start_inside_a_file_is_honoured(topics) -> None:
    """What delete_records took is still in the file, and must not be found there (R14)."""
    topics.create("t")
    append(topics, 50, 10, 60, 20)
    commit = TopicCommit(operation="DELETE RECORDS", txns={f"{START_PREFIX}0": 1})
    topics.cluster.topic("t").transact(lambda _: commit)
    assert look_up(topics, 50) == 2
    assert look_up(topics, 5) == 1


def test_times_in_a_damaged_file_name_it(topics) -> None:
    """A guess would skip or repeat records silently (R66)."""
    topics.create("t")
    header = append(topics, 10, 20)
    path = topics.cluster.store.local_path(f"t/{header.path}")
    with open(path, "r+b") as file:
        file.truncate(header.size_bytes - 9)
    with pytest.raises(CorruptLogError, match=header.path):
        look_up(topics, 15)
