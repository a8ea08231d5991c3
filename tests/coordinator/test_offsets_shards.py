"""One transaction with offsets of groups in several shards of the consumer offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests import world as worlds
from tests.cases import Some
from tests.faults import Trial, cuts
from tests.world import (
    CRASHES,
    both,
    consumed,
    outcome_of,
    owned,
    visible,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import IllegalGenerationError, LogGapError
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.shards import offsets_table, shard_number
from txnlog.testing.faults import FaultsAt, FaultyStore, SharedMemory
from txnlog.testing.invariants import check_cluster

GROUPS = ("a", "b", "c")
SHARDS = 4


process = partial(worlds.process, offsets_shards=SHARDS)
world = partial(worlds.world, groups=GROUPS, offsets_shards=SHARDS)


def offsets() -> list[GroupOffsets]:
    return [consumed(0, 10, group=group) for group in GROUPS]


def positions(cluster: Cluster) -> list[int]:
    """Of each group, decided offsets moved."""
    return [cluster.groups.fetch(group).get("input", {}).get(0, 0) for group in GROUPS]


def test_groups_are_in_several_shards() -> None:
    """Else the tests below show nothing."""
    cluster = process(world())
    assert len({cluster.offsets_shard_of(group) for group in GROUPS}) > 1
    assert {log.number for log in cluster.offsets_shards()} == {
        cluster.offsets_shard_of(group) for group in GROUPS
    }


def test_offsets_of_all_groups_move_or_none_after_a_crash_anywhere(some: Some[int]) -> None:
    """Between two shards, too; what is decided is finished by a sweeper (R36, R45, R73)."""

    def begin() -> Trial:
        shared = world()
        dying = process(shared)
        commit = partial(dying.coordinator.commit, owned(dying, "a"), both(dying, "out"))
        return Trial(shared, dying, partial(commit, offsets=offsets()))

    for trial in cuts(begin, some):
        after = process(trial.shared)
        sweeper = Sweeper(after)
        for _ in range(2):
            sweeper.sweep()
            trial.shared.clock.advance_ms(120_000)
        found, is_out = positions(after), visible(after, "out")
        assert (found, is_out) in (([10] * 3, (True, True)), ([0] * 3, (False, False)))
        assert trial.outcome != "done" or found == [10] * 3
        check_cluster(after)


def test_group_that_is_refused_leaves_nothing_in_the_others() -> None:
    """Its entry in another shard is of a transaction that was never decided (R46, R48)."""
    shared = world()
    cluster = process(shared)
    cluster.groups.start("b")
    row = owned(cluster, "a")
    with pytest.raises(IllegalGenerationError):
        cluster.coordinator.commit(row, both(cluster, "out"), offsets=offsets())
    assert positions(process(shared)) == [0, 0, 0]
    check_cluster(process(shared), settled=True)


def test_shard_that_was_announced_is_created_by_the_next_that_uses_it() -> None:
    """A process died between the announcement and the first version (R36)."""
    for number in range(12):
        shared = world()
        dying = process(shared)
        assert isinstance(dying.store, FaultyStore)
        dying.store.plan = FaultsAt({number: CRASHES[0]})
        outcome_of(lambda c=dying: c.groups.start("another"))
        after = process(shared)
        Sweeper(after).sweep()
        assert after.groups.start("another") in (1, 2)
        check_cluster(after, settled=True)


def test_shard_that_is_lost_is_an_error_and_never_made_again() -> None:
    """An empty one would hide that its offsets, or decided transactions, are lost (D95).

    Also if its creator died before it recorded that it had created it: the next sweep does.
    """
    lost = 0
    used = {shard_number(group, SHARDS) for group in GROUPS}
    group = next(name for name in "defghijk" if shard_number(name, SHARDS) not in used)
    for number in range(12):
        shared = world()
        dying = process(shared)
        assert isinstance(dying.store, FaultyStore)
        dying.store.plan = FaultsAt({number: CRASHES[0]})
        outcome_of(lambda c=dying: c.groups.start(group))
        after = process(shared)
        table = offsets_table(shard_number(group, SHARDS))
        files = [item.path for item in after.store.list_files(f"{table}/_delta_log")]
        if not files:
            continue
        lost += 1
        Sweeper(after).sweep()
        after.store.delete(files)
        acts: list[Callable[[Cluster], object]] = [
            lambda cluster: cluster.groups.start(group),
            lambda cluster: cluster.groups.describe(group),
            lambda cluster: cluster.groups.fetch(group),
            lambda cluster: Sweeper(cluster).sweep(),
        ]
        for act in acts:
            with pytest.raises(LogGapError, match=table):
                act(process(shared))
        assert not after.store.list_files(f"{table}/_delta_log")
    assert lost > 2


def test_lost_shard_of_decided_transactions_stops_the_successor() -> None:
    """It would begin anew, and the decided transaction would be half published for ever (R36)."""
    shared = world()
    owned(process(shared), "first")
    store = process(shared).store
    (table,) = {path.split("/")[0] for path in store.list_folders() if path.startswith("__tr")}
    store.delete([item.path for item in store.list_files(f"{table}/_delta_log")])
    with pytest.raises(LogGapError, match=table):
        owned(process(shared), "second")


def test_readers_create_no_shard() -> None:
    """A misspelt group or id must not cost a table for ever."""
    shared = SharedMemory()
    cluster = process(shared)
    assert cluster.groups.describe("nothing") is None
    assert cluster.groups.fetch("nothing") == {}
    assert cluster.coordinator.describe("nothing") is None
    assert (cluster.offsets_shards(), cluster.existing_shards()) == ([], [])
    Sweeper(cluster).sweep()
    assert sorted(cluster.store.list_folders()) == ["__cluster"]
