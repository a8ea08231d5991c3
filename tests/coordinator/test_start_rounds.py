"""Budgets of a start: how many rounds it takes to fence and finish those who read before."""

from __future__ import annotations

import pytest

from tests.coordinator.test_rounds import Counted
from tests.producer.worlds import group
from tests.world import GROUP, PLAIN, decide
from txnlog.cluster import Cluster
from txnlog.coordinator.root import Root
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.protocol.groups import GroupOffsets
from txnlog.protocol.metadata import Owner


def names_in_shards(root: Root, count: int) -> list[str]:
    """A transactional.id in each of so many shards."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(root.shard_of(f"tx-{number}"), f"tx-{number}")
    return [found[shard] for shard in range(count)]


def holders(counted: Counted, count: int) -> list[Producer]:
    """Producers that have committed offsets of a partition each; their COMPLETE is left."""
    made = []
    for number, name in enumerate(names_in_shards(counted.cluster, count)):
        producer = counted.producer(transactional_id=name)
        producer.begin_transaction()
        ends = [TopicPartition("input", number, number + 1)]
        producer.send_offsets_to_transaction(ends, group())
        producer.commit_transaction()
        made.append(producer)
    return made


@pytest.mark.parametrize("count", [1, 2, 8])
def test_start_reads_and_fences_in_all_shards_together(count: int) -> None:
    """However many read before: what has its offsets in the group is published (R46)."""
    counted = Counted(1, 1)
    made = holders(counted, count)
    rounds, _ = counted.rounds(lambda: counted.cluster.groups.start(GROUP))
    assert rounds == 4
    assert found(counted.cluster) == {number: number + 1 for number in range(len(made))}


def test_start_finishes_what_several_holders_have_decided() -> None:
    """All of it is in the group before the position is read (R46)."""
    counted = Counted(1, 1)
    dying = Cluster.open(counted.shared.open(), settings=PLAIN)
    for number, name in enumerate(names_in_shards(counted.cluster, 3)):
        row = dying.coordinator.init_producer_id(name, Owner(run_id=name))
        offsets = GroupOffsets(
            group_id=GROUP, generation=1, start={}, end={"input": {number: number + 1}}
        )
        decide(dying, row, offsets=[offsets])
    assert found(counted.cluster) == {}
    rounds, _ = counted.rounds(lambda: counted.cluster.groups.start(GROUP))
    # Each is published by itself, as it may have a topic of another one; COMPLETE comes together.
    assert rounds == 17
    assert found(counted.cluster) == {0: 1, 1: 2, 2: 3}


def found(cluster: Cluster) -> dict[int, int]:
    """What is in the group's row now."""
    group = cluster.groups.describe(GROUP)
    assert group is not None
    return group.positions().get("input", {})
