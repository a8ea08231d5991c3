"""Consumer groups through the admin client: describe, reset, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.admin.worlds import admin
from tests.cases import Some
from tests.faults import RETRIABLE, Trial, cuts
from tests.world import (
    GROUP,
    both,
    check_settled,
    consumed,
    decide,
    faults,
    owned,
    process,
    world,
)
from txnlog.admin import ConsumerGroupState, ConsumerGroupTopicPartitions
from txnlog.admin.ages import shown_now_ms
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    ConfigError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    NonEmptyGroupError,
    TxnLogError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnlog.messages import OFFSET_INVALID, TopicPartition
from txnlog.testing.faults import Fault, SharedMemory, SkewedClock
from txnlog.testing.invariants import check_cluster


def stood(*, committed: bool = True) -> tuple[SharedMemory, Cluster]:
    """GROUP with committed offset 5 in both partitions of `orders`, generation 1."""
    shared = world()
    cluster = process(shared)
    if committed:
        cluster.groups.commit(GROUP, 1, {"orders": {0: 5, 1: 5}})
    return shared, process(shared)


def positions(cluster: Cluster, *partitions: TopicPartition) -> dict[tuple[str, int], int]:
    asked = ConsumerGroupTopicPartitions(GROUP, partitions or None)
    found = admin(cluster).list_consumer_group_offsets([asked])[GROUP].result()
    return {(p.topic, p.partition): p.offset for p in found.topic_partitions or ()}


def at(offset: int, partition: int = 0, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, partition, offset)


def move(cluster: Cluster, *wanted: TopicPartition) -> None:
    request = ConsumerGroupTopicPartitions(GROUP, wanted)
    admin(cluster).alter_consumer_group_offsets([request])[GROUP].result()


def test_groups_listed_with_their_state_and_members() -> None:
    """A group with only a generation is not listed."""
    shared, cluster = stood(committed=False)
    client = admin(cluster)
    assert client.list_consumer_groups().result().valid == []
    with pytest.raises(GroupIdNotFoundError):
        client.describe_consumer_groups([GROUP])[GROUP].result()
    cluster.groups.commit(GROUP, 1, {"orders": {0: 5}})
    member = Consumer(
        {"group.id": "live", "client.id": "me"}, cluster=process(shared), background=False
    )
    member.subscribe(["orders"])
    member.poll(0)
    listed = client.list_consumer_groups().result().valid
    assert [(g.group_id, g.state, g.is_simple_consumer_group) for g in listed] == [
        ("live", ConsumerGroupState.STABLE, False),
        (GROUP, ConsumerGroupState.EMPTY, True),
    ]
    only = client.list_consumer_groups(states=[ConsumerGroupState.EMPTY]).result().valid
    assert [g.group_id for g in only] == [GROUP]
    told = client.describe_consumer_groups(["live"])["live"].result()
    [described] = told.members
    assert described.client_id == "me"
    assert described.member_id == member.memberid()
    assert [(p.topic, p.partition) for p in described.assignment.topic_partitions] == [
        ("orders", 0), ("orders", 1),
    ]  # fmt: skip
    with pytest.raises(NonEmptyGroupError, match=member.memberid()):
        client.delete_consumer_groups(["live"])["live"].result()
    member.close()
    # It committed its positions; now the group can be deleted.
    assert client.delete_consumer_groups(["live"])["live"].result() is None
    assert [g.group_id for g in client.list_consumer_groups().result().valid] == [GROUP]


def test_group_offsets_of_all_or_requested_partitions() -> None:
    """A partition without an offset is OFFSET_INVALID, not missing."""
    _, cluster = stood()
    assert positions(cluster) == {("orders", 0): 5, ("orders", 1): 5}
    asked = positions(cluster, TopicPartition("orders", 1), TopicPartition("stock", 0))
    assert asked == {("orders", 1): 5, ("stock", 0): OFFSET_INVALID}


def test_pending_group_offsets_are_unstable_and_reading_them_fences_no_producer() -> None:
    """A stable read raises; an unstable one returns the committed offsets (R46)."""
    shared, cluster = stood()
    row = cluster.coordinator.add_partitions(owned(cluster, "first"), offsets=[consumed(0, 10)])
    client = admin(process(shared))
    request = ConsumerGroupTopicPartitions(GROUP)
    with pytest.raises(UnstableOffsetCommitError):
        client.list_consumer_group_offsets([request], require_stable=True)[GROUP].result()
    assert positions(process(shared)) == {("orders", 0): 5, ("orders", 1): 5}
    [pending] = client.describe_consumer_groups([GROUP])[GROUP].result().pending
    assert pending.transactional_id == "tx"
    assert [(p.topic, p.partition) for p in pending.topic_partitions] == [("input", 0)]
    decide(cluster, row, both(cluster, "x"), offsets=[consumed(0, 10)])
    # Decided, and published nowhere: the offset counts, so nothing of it is pending.
    assert positions(process(shared))["input", 0] == 10
    assert client.describe_consumer_groups([GROUP])[GROUP].result().pending == []


def test_group_offsets_altered_under_a_new_generation() -> None:
    """Input read before the reset must not be committed after it (R48)."""
    shared, cluster = stood()
    move(process(shared), at(2), at(0, 1))
    assert positions(cluster) == {("orders", 0): 2, ("orders", 1): 0}
    with pytest.raises(IllegalGenerationError):
        cluster.groups.commit(GROUP, 1, {"orders": {0: 9}})
    for wrong, error in [
        (at(1, 9), UnknownTopicOrPartitionError),
        (at(1, 0, "nothing"), UnknownTopicOrPartitionError),
        (at(-1), ConfigError),
    ]:
        with pytest.raises(error):
            move(cluster, at(4, 1), wrong)
    assert positions(cluster) == {("orders", 0): 2, ("orders", 1): 0}


def test_group_offsets_altered_with_live_members_move_the_members() -> None:
    """They rejoin and continue there; Kafka would refuse the reset (R48)."""
    shared, cluster = stood()
    member = Consumer({"group.id": GROUP}, cluster=process(shared), background=False)
    member.subscribe(["orders"])
    member.poll(0)
    move(cluster, at(0), at(0, 1))
    for _ in range(20):
        shared.clock.advance_ms(3_000)
        member.poll(0)
    assert [p.offset for p in member.position(member.assignment())] == [0, 0]
    member.close()
    assert positions(cluster) == {("orders", 0): 0, ("orders", 1): 0}


def test_group_reset_fences_an_open_transaction() -> None:
    """Else its offsets overwrite the reset (R46, R47)."""
    shared, cluster = stood()
    row = owned(cluster, "first")
    cluster.groups.tickets(row, [consumed(0, 10)])
    move(process(shared), at(1))
    with pytest.raises(TxnLogError) as raised:
        cluster.coordinator.commit(row, both(cluster, "x"), offsets=[consumed(0, 10)])
    assert getattr(raised.value, "code", None) in (22, 47, 90)
    assert positions(cluster) == {("orders", 0): 1, ("orders", 1): 5}
    check_cluster(cluster, settled=True)


def test_group_offsets_deleted_and_the_group_with_them() -> None:
    """A deleted group's generation continues: an old query must never pass for a new one (R48)."""
    shared, cluster = stood()
    client = admin(cluster)
    request = ConsumerGroupTopicPartitions(GROUP, [TopicPartition("orders", 1)])
    client.delete_consumer_group_offsets([request])[GROUP].result()
    assert positions(cluster) == {("orders", 0): 5}
    with pytest.raises(IllegalGenerationError):
        process(shared).groups.commit(GROUP, 1, {"orders": {1: 9}})
    assert client.delete_consumer_groups([GROUP])[GROUP].result() is None
    assert client.list_consumer_groups().result().valid == []
    for error in (
        client.delete_consumer_groups([GROUP])[GROUP].exception(),
        client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[
            GROUP
        ].exception(),
    ):
        assert isinstance(error, GroupIdNotFoundError)
    assert process(shared).groups.start(GROUP) > 3
    check_settled(shared)


def _move(cluster: Cluster) -> None:
    move(cluster, at(1), at(1, 1))


def _delete_offsets(cluster: Cluster) -> None:
    request = ConsumerGroupTopicPartitions(GROUP, [at(0), at(0, 1)])
    admin(cluster).delete_consumer_group_offsets([request])[GROUP].result()


def _delete_group(cluster: Cluster) -> None:
    admin(cluster).delete_consumer_groups([GROUP])[GROUP].result()


@pytest.mark.parametrize("act", [_move, _delete_offsets, _delete_group])
def test_group_change_that_crashes_at_any_call_is_all_or_nothing(
    act: Callable[[Cluster], None], some: Some[int]
) -> None:
    """With an open transaction, which is settled first (R46, R63)."""

    def begin() -> Trial:
        shared, cluster = stood()
        cluster.coordinator.add_partitions(owned(cluster, "first"), offsets=[consumed(0, 10)])
        changing = process(shared)
        return Trial(shared, changing, partial(act, changing))

    for trial in cuts(begin, some):
        assert trial.outcome in ("done", "crashed", *RETRIABLE)
        assert trial.again() in ("done", "crashed", "GroupIdNotFoundError")
        group = process(trial.shared).groups.describe(GROUP)
        assert group is not None
        offsets = {number: at.offset for number, at in group.offsets.get("orders", {}).items()}
        expected = {0: 1, 1: 1} if act is _move else {}
        assert offsets in (expected, {0: 5, 1: 5})
        assert trial.outcome == "crashed" or offsets == expected


def test_members_described_with_the_time_of_their_last_heartbeat_by_the_clock_of_the_store() -> (
    None
):
    """A member that hangs is seen before its group expels it, whatever clock its machine has."""
    shared = world()
    skewed = SkewedClock(shared.clock, 24 * 3_600_000)
    silent = Consumer({"group.id": "g"}, cluster=process(shared, clock=skewed), background=False)
    silent.subscribe(["orders"])
    silent.poll(0)
    joined_ms = shared.clock.now_ms()
    shared.clock.advance_ms(40_000)
    [told] = admin(process(shared)).describe_consumer_groups(["g"])["g"].result().members
    assert abs(told.heartbeat_ms - joined_ms) < 1_000
    store = process(shared).store
    assert shown_now_ms(store) - told.heartbeat_ms >= 40_000


def test_ages_are_shown_to_who_may_not_write() -> None:
    """The store's time is that of a small write."""
    cluster = process(world())
    cluster.store.forget_clock()
    faults(cluster).plan = lambda verb, path: Fault.DENY if verb == "put" else Fault.NONE
    assert shown_now_ms(cluster.store) == cluster.store.clock.now_ms()
