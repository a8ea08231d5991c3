"""The source in a consumer group: bump before fetch, and a group set at a restart."""

from __future__ import annotations

import pytest

from tests.spark_source.stream_steps import next_end, reader_of, values
from txnlog.errors import IllegalGenerationError


def test_group_offsets_are_read_after_the_bump(topics, monkeypatch) -> None:
    """An old driver commits between the two: fetched first, its batch is repeated (D6, R59)."""
    topics.create("t")
    topics.append("t", 0, [b"a", b"b", b"c"])
    groups = topics.cluster.groups
    topics.commit_offsets("g", {"t": {0: 1}})
    start = type(groups).start

    def old_driver_first(self, group_id: str) -> int:
        groups.reset("g", {"t": {0: 2}})
        return start(self, group_id)

    monkeypatch.setattr(type(groups), "start", old_driver_first)
    reader = reader_of(topics, group_id="g", startingOffsets="committed")
    assert values(reader, {}, next_end(reader, {})) == [b"c"]


def test_query_overtaken_before_it_read_the_offsets_fails(topics, monkeypatch) -> None:
    """Two drivers start at once: only one of them may read in the group (R59)."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    topics.commit_offsets("g", {"t": {0: 1}})
    groups = type(topics.cluster.groups)
    start = groups.start

    def other_driver_next(self, group_id: str) -> int:
        generation = start(self, group_id)
        start(self, group_id)
        return generation

    monkeypatch.setattr(groups, "start", other_driver_next)
    reader = reader_of(topics, group_id="g", startingOffsets="committed")
    with pytest.raises(IllegalGenerationError, match="'g'"):
        next_end(reader, {})


@pytest.mark.parametrize("before", [{}, {"group_id": "old"}])
def test_group_replay_of_a_batch_planned_without_it_starts_the_group(topics, before) -> None:
    """It shows the sink that the source has the group, which the batch does not."""
    topics.create("t")
    topics.append("t", 0, [b"a"])
    planned = next_end(reader_of(topics, startingOffsets="earliest", **before), {})
    reader = reader_of(topics, startingOffsets="earliest", group_id="new")
    assert values(reader, {}, planned) == [b"a"]
    assert topics.cluster.groups.start("new") == 2
    topics.append("t", 0, [b"b"])
    again = reader_of(topics, startingOffsets="earliest", group_id="new")
    assert values(again, {}, planned) == [b"a"]
    following = next_end(again, planned)
    assert (following["@"]["group"], following["@"]["generation"]) == ("new", 3)
    assert following["@"]["start"] == {"t": {"0": 1}}
    assert values(again, planned, following) == [b"b"]
