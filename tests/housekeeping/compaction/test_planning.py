"""Which batches are merged when: pure decisions over headers."""

from __future__ import annotations

import pickle
import time

from hypothesis import given
from hypothesis import strategies as st

from txnlog.protocol.batches import ABORTED, COMMITTED, NONE, ONGOING, BatchHeader, encode_stats
from txnlog.protocol.compaction import (
    CompactionGroup,
    CompactionSettings,
    Obsolete,
    Segment,
    plan,
    plan_partition,
    prepare_compaction,
)
from txnlog.protocol.topics import TopicCommit, TopicState

SETTINGS = CompactionSettings(segment_bytes=1_000, inputs_min=3, inputs_max=50)
TOPIC = "orders"


def state_of(*batches: tuple[int, str], partitions: int = 1) -> TopicState:
    """Batches of (bytes, status), one record each, by a producer whose transactions have ended."""
    state = TopicState()
    state.set_topic("id", {"partitions": str(partitions)})
    for offset, (size_bytes, status) in enumerate(batches):
        state.add(header(offset, size_bytes, status))
    return state


def header(offset: int, size_bytes: int, status: str = COMMITTED) -> BatchHeader:
    return BatchHeader(
        f"f{offset}", 0, offset, offset, 7, offset, 0, status, size_bytes, encode_stats(1, 5, 9)
    )


def spans(groups: list[CompactionGroup] | tuple[CompactionGroup, ...]) -> list[tuple[int, int]]:
    return [(group.base_offset, group.last_offset) for group in groups]


def planned(*batches: tuple[int, str]) -> list[tuple[int, int]]:
    return spans(plan(state_of(*batches), TOPIC, SETTINGS))


def small(count: int, size_bytes: int = 100) -> list[tuple[int, str]]:
    return [(size_bytes, COMMITTED)] * count


def test_few_small_batches_wait_for_more() -> None:
    """A rewrite for each new batch would cost its square (R22)."""
    assert planned(*small(2)) == []
    assert planned(*small(3)) == [(0, 2)]


def test_batches_of_a_full_segment_are_merged_however_few() -> None:
    """It is never rewritten again."""
    assert planned((499, COMMITTED), (499, COMMITTED)) == [(0, 1)]
    assert planned((500, COMMITTED), *small(2), (500, COMMITTED)) == [(1, 2)]
    assert planned((500, COMMITTED), (100, COMMITTED), (500, COMMITTED)) == []


def test_segment_is_bounded_in_size_and_number_of_inputs() -> None:
    """Segments above the size, and commits without a bound, are useless."""
    assert planned(*small(25)) == [(0, 9), (10, 19), (20, 24)]
    assert planned(*small(120, 1)) == [(0, 49), (50, 99), (100, 119)]


def test_small_segment_is_left_until_as_much_has_come_after_it() -> None:
    """Rewritten each time, a record would be copied once for every few batches."""
    assert planned((151, COMMITTED), *small(3, 50)) == [(1, 3)]
    assert planned((150, COMMITTED), *small(3, 50)) == [(0, 3)]
    assert planned((151, COMMITTED), (80, COMMITTED), *small(2, 10)) == []


def test_aborted_batches_go_whatever_their_size() -> None:
    """No reader may see their data (R16, R18)."""
    large = (900, ABORTED)
    assert planned(large, large, large) == [(0, 2)]
    assert planned((500, COMMITTED), large, (500, COMMITTED)) == [(1, 1)]
    group = plan(state_of((5, COMMITTED), large, (5, COMMITTED)), TOPIC, SETTINGS)[0]
    assert [source.path for source in group.sources] == ["f0", "f2"]
    assert group.size_bytes == 10


def test_nothing_at_or_above_the_last_stable_offset_is_touched() -> None:
    """It may yet be aborted, and its header will be written again (R12, R22)."""
    assert planned(*small(4), (100, ONGOING), *small(9)) == [(0, 3)]
    assert planned((100, ONGOING), *small(9)) == []


def test_last_batches_of_an_idempotent_producer_stay_until_it_expires() -> None:
    """Merged, a repeat of one would be taken for a gap (R2, R22)."""
    state = state_of()
    for offset in range(12):
        pid, sequence = (7, offset // 2) if offset % 2 else (-1, -1)
        stats = encode_stats(1, 0, 0)
        state.add(BatchHeader(f"f{offset}", 0, offset, offset, pid, 0, sequence, NONE, 9, stats))
    state.set_txn("txnlog/7-0", 5, 10)
    # Of six, the first one may go; between the others is always one batch alone.
    assert spans(plan(state, TOPIC, SETTINGS)) == [(0, 2)]
    (group,) = plan(state, TOPIC, SETTINGS)
    state.set_txn("txnlog/expired/producers", 11)
    assert spans(plan(state, TOPIC, SETTINGS)) == [(0, 11)]
    (whole,) = plan(state, TOPIC, SETTINGS)
    state.set_txn("txnlog/7-0", 5, 12)
    assert isinstance(prepared(state, whole), Obsolete), "it is back"
    assert isinstance(prepared(state, group), TopicCommit)


def test_plan_in_steps_equals_a_whole_plan() -> None:
    """Housekeeping does one group at a time, and must come to the same end."""
    state = state_of(*small(25), (700, COMMITTED), *small(4), (100, ONGOING))
    whole = plan_partition(state, TOPIC, 0, SETTINGS)
    assert spans(whole.groups) == [(0, 9), (10, 19), (20, 24), (26, 29)]
    assert whole.resume_offset == 0
    found = []
    offset = 0
    while True:
        step = plan_partition(state, TOPIC, 0, SETTINGS, from_offset=offset, groups_max=1)
        offset = step.resume_offset
        if not step.groups:
            break
        found += spans(step.groups)
        commit(state, step.groups[0])
    assert found == spans(whole.groups)
    assert offset == 26, "more may join the last one"
    assert [b.base_offset for b in state.partitions[0].batches] == [0, 10, 20, 25, 26, 30]


def test_plan_up_to_an_offset_reads_nothing_beyond_it() -> None:
    """A round whose end is fixed when it begins: what came later neither joins nor hinders."""
    state = state_of(*small(25), *small(4))
    found = plan_partition(state, TOPIC, 0, SETTINGS, before_offset=24)
    assert spans(found.groups) == [(0, 9), (10, 19), (20, 23)]
    for group in found.groups:
        commit(state, group)
    none = plan_partition(state, TOPIC, 0, SETTINGS, from_offset=20, before_offset=24)
    assert (none.groups, none.resume_offset) == ((), 20)
    # Another's segment, which begins before the end and goes beyond it.
    (beyond,) = plan_partition(state, TOPIC, 0, SETTINGS, from_offset=24).groups
    commit(state, beyond)
    assert plan_partition(state, TOPIC, 0, SETTINGS, from_offset=24, before_offset=26).groups == ()


def prepared(state: TopicState, group: CompactionGroup, size_bytes: int = 1) -> object:
    segment = Segment(f"s{group.base_offset}-{group.last_offset}", size_bytes, 1, 0, 0, 0)
    return prepare_compaction(state, group, segment, now_ms=0)


def commit(state: TopicState, group: CompactionGroup) -> None:
    decision = prepared(state, group, group.size_bytes)
    assert isinstance(decision, TopicCommit)
    assert decision.data_change is False
    decision.apply(state)


@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from([COMMITTED, ABORTED])), max_size=80))
def test_compaction_comes_to_an_end_with_few_files_and_few_copies(
    batches: list[tuple[int, str]],
) -> None:
    """It must neither go round in circles nor leave what grows with the number of batches."""
    settings = CompactionSettings(segment_bytes=2_000, inputs_min=3)
    state = state_of()
    copied = 0
    for offset, (size_bytes, status) in enumerate(batches):
        state.add(header(offset, size_bytes, status))
        for _ in range(20):
            groups = plan(state, TOPIC, settings)
            if not groups:
                break
            copied += sum(group.size_bytes for group in groups)
            commit(state, groups[0])
        assert not plan(state, TOPIC, settings)
        left = state.partitions[0].batches
        assert [b.base_offset for b in left[1:]] == [b.last_offset + 1 for b in left[:-1]]
        # Full ones, then halves of halves: 2,000 is 2 to the 11th.
        full = sum(size for size, _ in batches) // 1_000
        assert len(left) <= full + 11 + settings.inputs_min
    assert copied <= 12 * sum(size for size, _ in batches)


def test_group_and_segment_travel_to_other_processes() -> None:
    """Spark pickles them."""
    (group,) = plan(state_of(*small(3)), TOPIC, SETTINGS)
    segment = Segment("s", 1, 2, 3, 4, 5)
    assert pickle.loads(pickle.dumps((group, segment))) == (group, segment)


def test_planning_and_applying_among_many_batches_is_quick() -> None:
    """10,000 inputs in a topic of 200,000 batches: nothing may take the product of the two."""
    state = TopicState()
    state.set_topic("id", {"partitions": "1"})
    batches = [header(offset, 10) for offset in range(200_000)]
    found = state.partitions[0]
    found.batches, found.end_offset = batches, len(batches)
    state.by_path = {batch.path: batch for batch in batches}
    settings = CompactionSettings(segment_bytes=1 << 20)
    started_s = time.process_time()
    step = plan_partition(state, TOPIC, 0, settings, groups_max=1)
    commit(state, step.groups[0])
    idle = plan_partition(state, TOPIC, 0, settings, from_offset=199_995)
    # A tenth of a second; the product would take a quarter of an hour.
    assert time.process_time() - started_s < 60
    assert len(step.groups[0].inputs) == 10_000
    assert len(state.by_path) == len(found.batches) == 190_001
    assert (idle.groups, idle.resume_offset) == ((), 199_995)
