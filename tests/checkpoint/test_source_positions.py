"""From a micro-batch's offsets to the positions its consumer groups move from and to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoint import Checkpoint, source_positions
from txnlog.errors import CheckpointError
from txnlog.protocol.groups import GroupOffsets

SPARKS = Path(__file__).parent / "spark_checkpoints"
SPARKS_CLUSTER = "c0ffee00-0000-4000-8000-000000000001"


def line(
    positions: dict[str, dict[str, int]],
    *,
    group: str | None = "g",
    generation: int | None = 1,
    cluster: str = "mine",
    topics: dict[str, str] | None = None,
    start: dict[str, dict[str, int]] | None = None,
) -> str:
    """The offset JSON of a txnlog source."""
    mark: dict[str, Any] = {"cluster": cluster}
    mark["topics"] = {topic: f"id-{topic}" for topic in positions} if topics is None else topics
    for key, value in (("group", group), ("generation", generation), ("start", start)):
        if value is not None:
            mark[key] = value
    return json.dumps({**positions, "@": mark})


class Batches:
    """A checkpoint folder that the test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "offsets").mkdir(parents=True)

    def write(self, batch_id: int, *lines: str, version: int = 1) -> None:
        text = "\n".join([f"v{version}", "{}", *lines])
        (self.folder / "offsets" / str(batch_id)).write_text(text)

    def positions(self, batch_id: int, **options: Any) -> list[GroupOffsets]:
        return source_positions(Checkpoint(str(self.folder)), batch_id, "mine", **options)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path)


@pytest.mark.parametrize("layout", ["v1", "v2", "v2_named"])
def test_positions_of_sparks_batches_follow_one_another(layout: str) -> None:
    """Hazard: a group's start is not where the batch before ended, so input repeats (R59)."""
    checkpoint = Checkpoint(str(SPARKS / layout))
    found = [source_positions(checkpoint, number, SPARKS_CLUSTER) for number in range(3)]
    shipping = [{each.group_id: each for each in batch}["shipping"] for batch in found]
    assert [each.start for each in shipping] == [
        {"flights": {0: 2, 1: 0}},
        {"flights": {0: 10, 1: 7}},
        {"flights": {0: 20, 1: 14}},
    ]
    assert [each.end["flights"] for each in shipping] == [
        {0: 10, 1: 7},
        {0: 20, 1: 14},
        {0: 30, 1: 21},
    ]
    assert {each.generation for each in shipping} == {3}
    assert shipping[0].topic_ids == {"flights": "id-of-flights"}


@pytest.mark.parametrize("layout", ["v1", "v2", "v2_named"])
def test_positions_of_an_idle_source_start_where_it_ended(layout: str) -> None:
    """Hazard: an idle source repeats batch 0's JSON, whose `start` is by then behind the group's
    committed position: the batch would seem to repeat input (R59).
    """
    checkpoint = Checkpoint(str(SPARKS / layout))
    for batch_id in (1, 2):
        seq = checkpoint.planned(batch_id)
        assert any(text and '"orders"' in text and '"start"' in text for text in seq.sources)
        billing, _ = source_positions(checkpoint, batch_id, SPARKS_CLUSTER)
        assert billing.group_id == "billing"
        assert billing.start == billing.end == {"orders": {0: 10, 1: 7}}


def test_positions_with_the_last_commit_deleted_are_the_same(tmp_path: Path) -> None:
    """Hazard: a replayed batch commits other positions than the first time (R54)."""
    folder = Path(shutil.copytree(SPARKS / "v1", tmp_path / "ck"))
    before = source_positions(Checkpoint(str(folder)), 2, SPARKS_CLUSTER)
    (folder / "commits" / "2").unlink()
    assert source_positions(Checkpoint(str(folder)), 2, SPARKS_CLUSTER) == before


def test_positions_that_were_planned_in_the_origin_of_a_copy(batches: Batches) -> None:
    """Hazard: the first batch in a copy commits no offsets, or those of other records (R75)."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}, cluster="origin"))
    batches.write(1, line({"t": {"0": 12}}))
    for ends, count in (((9,), 1), ((8,), 0), ((), 0)):
        assert len(batches.positions(0, origins={"origin": {"t": ends}})) == count
    (found,) = batches.positions(1, origins={"origin": {"t": (9,)}})
    assert (found.start, found.end) == ({"t": {0: 9}}, {"t": {0: 12}})


def test_positions_of_batch_zero_start_at_the_mark(batches: Batches) -> None:
    """Hazard: the first batch has no previous batch that gives its start (R59)."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    (found,) = batches.positions(0)
    assert found.start == {"t": {0: 4}}
    assert found.end == {"t": {0: 9}}


def test_positions_of_a_source_first_seen_later_start_at_the_mark(batches: Batches) -> None:
    """Hazard: a source without data in batch 0 has its start in a later batch (R59)."""
    batches.write(0, "-", "5")
    batches.write(1, line({"t": {"0": 9}}, start={"t": {"0": 4}}), "6")
    (found,) = batches.positions(1)
    assert found.start == {"t": {0: 4}}


def test_positions_of_a_pattern_without_a_topic_yet_are_none(batches: Batches) -> None:
    """Its first batch was refused for ever, as one whose start is lost."""
    batches.write(0, line({}))
    batches.write(1, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    for batch_id, topics in enumerate(((), ("t",))):
        (found,) = batches.positions(batch_id)
        assert tuple(found.start) == tuple(found.end) == topics


def test_positions_of_a_new_partition_have_no_start(batches: Batches) -> None:
    """Hazard: a partition added between two batches gets another partition's start."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    batches.write(1, line({"t": {"0": 9, "1": 2}, "new": {"0": 1}}))
    (found,) = batches.positions(1)
    assert found.start == {"t": {0: 9}}
    assert found.end == {"t": {0: 9, 1: 2}, "new": {0: 1}}


def test_positions_replayed_with_other_data_are_those_of_the_new_plan(batches: Batches) -> None:
    """Hazard: an undecided batch that is planned again commits the old plan's positions (R55)."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    checkpoint = Checkpoint(str(batches.folder))
    before = source_positions(checkpoint, 0, "mine")
    read = checkpoint.planned(0)
    batches.write(0, line({"t": {"0": 11}}, start={"t": {"0": 4}}))
    (found,) = source_positions(checkpoint, 0, "mine")
    assert found.end == {"t": {0: 11}}
    # A caller that has read the file gets digest and positions from that one read.
    assert source_positions(checkpoint, 0, "mine", current=read) == before


def test_positions_of_other_sources_and_clusters_are_ignored(batches: Batches) -> None:
    """Hazard: a position of another cluster, or of no group, is committed here (R59)."""
    batches.write(
        0,
        line({"t": {"0": 9}}, cluster="theirs"),
        line({"t": {"0": 9}}, group=None, generation=None),
        '{"t": {"0": 9}}',
        '{"t": {"0": 9}, "@": "mine"}',
        '{"@": {"cluster": ["mine"]}, "group": "g"}',
        "[1]",
        "-",
    )
    assert batches.positions(0) == []


def test_positions_of_a_batch_without_groups_need_no_batch_before(batches: Batches) -> None:
    """Hazard: a sink whose sources have no group stops over a file it does not need."""
    batches.write(7, "41", "-")
    assert batches.positions(7) == []


def test_positions_of_a_self_union_merge(batches: Batches) -> None:
    """Hazard: a topic read twice by one query is refused, or counted twice (R59)."""
    twice = line({"t": {"0": 9}}, start={"t": {"0": 4}})
    batches.write(0, twice, twice)
    (found,) = batches.positions(0)
    assert found == GroupOffsets(
        group_id="g",
        generation=1,
        start={"t": {0: 4}},
        end={"t": {0: 9}},
        topic_ids={"t": "id-t"},
    )


def test_positions_of_two_topics_under_one_group_join(batches: Batches) -> None:
    """Hazard: the second source of a group replaces the first (R59)."""
    batches.write(
        0,
        line({"b": {"0": 1}}, start={"b": {"0": 0}}, group="z"),
        line({"a": {"0": 2}}, start={"a": {"0": 0}}),
        line({"b": {"0": 3}}, start={"b": {"0": 1}}),
    )
    first, second = batches.positions(0)
    assert (first.group_id, first.end) == ("g", {"a": {0: 2}, "b": {0: 3}})
    assert (second.group_id, second.end) == ("z", {"b": {0: 1}})


def test_positions_that_differ_in_one_group_are_refused(batches: Batches) -> None:
    """Hazard: two sources under one group at different positions; one of them loses input (R59)."""
    start = {"t": {"0": 0, "3": 0}}
    batches.write(
        0,
        line({"t": {"0": 9, "3": 5}}, start=start),
        line({"t": {"0": 9, "3": 7}}, start=start),
    )
    with pytest.raises(CheckpointError, match=r"topic 't' partition 3 in group 'g': 5 and 7"):
        batches.positions(0)


def test_positions_whose_starts_differ_in_one_group_are_refused(batches: Batches) -> None:
    """Hazard: one of two sources skipped input that the group counts as read (R59)."""
    batches.write(
        0,
        line({"t": {"0": 9}}, start={"t": {"0": 0}}),
        line({"t": {"0": 9}}, start={"t": {"0": 4}}),
    )
    with pytest.raises(CheckpointError, match=r"start of topic 't' partition 0.*: 0 and 4"):
        batches.positions(0)


def test_positions_of_two_generations_in_one_group_are_refused(batches: Batches) -> None:
    """Hazard: of two sources that joined one after the other, only one may commit (R48, R59)."""
    batches.write(
        0,
        line({"t": {"0": 9}}, start={"t": {"0": 0}}),
        line({"u": {"0": 9}}, start={"u": {"0": 0}}, generation=2),
    )
    with pytest.raises(CheckpointError, match=r"'g' under generation 1 and under generation 2"):
        batches.positions(0)


def test_positions_of_two_topic_ids_in_one_group_are_refused(batches: Batches) -> None:
    """Hazard: one source still holds the topic that was deleted and created again (R71)."""
    start = {"t": {"0": 0}}
    batches.write(
        0,
        line({"t": {"0": 9}}, start=start),
        line({"t": {"0": 9}}, start=start, topics={"t": "other"}),
    )
    with pytest.raises(CheckpointError, match=r"topic 't' in group 'g': id-t and other"):
        batches.positions(0)


def test_positions_after_a_new_generation_start_where_the_old_one_ended(batches: Batches) -> None:
    """Hazard: a group with a new generation loses its position in this checkpoint (R59)."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    batches.write(1, line({"t": {"0": 12}}, generation=2))
    (found,) = batches.positions(1)
    assert (found.generation, found.start) == (2, {"t": {0: 9}})


def test_positions_without_the_batch_before_name_its_file(batches: Batches) -> None:
    """Hazard: an unknown start is guessed (R59)."""
    batches.write(4, line({"t": {"0": 9}}, start={"t": {"0": 4}}))
    with pytest.raises(CheckpointError, match=r"offsets/3 does not exist"):
        batches.positions(4)


def test_positions_without_the_batch_itself_name_its_file(batches: Batches) -> None:
    """Hazard: output committed without the input's positions (R59)."""
    with pytest.raises(CheckpointError, match=r"offsets/0 does not exist"):
        batches.positions(0)


def test_positions_of_a_group_changed_on_a_running_checkpoint_are_refused(batches: Batches) -> None:
    """Hazard: the new group's start is unknown (R59)."""
    batches.write(0, line({"t": {"0": 9}}, group="old", start={"t": {"0": 4}}))
    batches.write(1, line({"t": {"0": 12}}, group="new"))
    with pytest.raises(CheckpointError, match=r"Group 'new' has no start.*group\.id was changed"):
        batches.positions(1)


def test_positions_in_a_file_that_lost_a_line_are_refused(batches: Batches) -> None:
    """Hazard: a file truncated at a line end seems complete, and its group falls behind (R66)."""
    batches.write(0, line({"t": {"0": 9}}, start={"t": {"0": 4}}), "1")
    batches.write(1, line({"t": {"0": 12}}))
    with pytest.raises(CheckpointError, match=r"offsets/1 is damaged: it has 1 sources.*has 2"):
        batches.positions(1)


@pytest.mark.parametrize(
    "text",
    [
        '{"t": {"0": -1}, "@": {"cluster": "mine", "topics": {"t": "i"}, "group": "g",'
        ' "generation": 1}}',
        '{"t": {"x": 1}, "@": {"cluster": "mine", "topics": {"t": "i"}, "group": "g",'
        ' "generation": 1}}',
        '{"t": {"0": 1.5}, "@": {"cluster": "mine", "topics": {"t": "i"}, "group": "g",'
        ' "generation": 1}}',
        '{"t": 5, "@": {"cluster": "mine", "topics": {"t": "i"}, "group": "g", "generation": 1}}',
        '{"t": {"0": 1}, "@": {"cluster": "mine", "topics": {"t": "i"}, "group": "g"}}',
        '{"t": {"0": 1}, "@": {"cluster": "mine", "topics": {}, "group": "g", "generation": 1}}',
        '{"t": {"0": 1}, "@": {"cluster": "mine", "group": "g", "generation": 1}}',
    ],
)
def test_positions_of_a_malformed_line_of_ours_are_refused(batches: Batches, text: str) -> None:
    """Hazard: a garbled position of our own is skipped, or committed (R66)."""
    batches.write(0, text)
    with pytest.raises(CheckpointError, match=r"offsets/0 is damaged: the offset of source 0"):
        batches.positions(0)
