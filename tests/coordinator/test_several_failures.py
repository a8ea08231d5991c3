"""Topics, files and tables that fail together: the error names each of them (D59)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.world import (
    TOPICS,
    both,
    faults,
    owned,
    process,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.coordinator.one_off import commit_one_off
from txnlog.errors import (
    FLAGS,
    StorageError,
    TopicAuthorizationError,
    TxnLogError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from txnlog.process.failures import parts_of
from txnlog.protocol.metadata import Owner
from txnlog.testing.faults import Fault, Plan


def failing(fault: Fault, *topics: str) -> Plan:
    """A plan in which no log of these topics can be read."""
    return lambda verb, path: (
        fault if verb in ("get", "list") and path.startswith(topics) else Fault.NONE
    )


def flags(error: TxnLogError) -> list[str]:
    return [flag for flag in FLAGS if getattr(error, flag)]


@pytest.mark.parametrize("is_one_off", [False, True])
@pytest.mark.parametrize(
    ("fault", "kind", "flag"),
    [
        (Fault.FAIL_BEFORE, StorageError, ["retriable"]),
        (Fault.DENY, TopicAuthorizationError, []),
    ],
)
def test_commit_names_every_topic_that_cannot_be_read(
    fault: Fault, kind: type[TxnLogError], flag: list[str], is_one_off: bool
) -> None:
    """Of the second an operator learned after mending the first; a handler needs the flags."""
    shared = world()
    row = owned(process(shared), "a")
    batches = both(process(shared), "mine")
    cluster = process(shared)
    faults(cluster).plan = failing(fault, *TOPICS)
    commit = partial(cluster.coordinator.commit, row, batches)
    one_off = partial(commit_one_off, cluster, batches, Owner(run_id="x"))
    with pytest.raises(kind) as failed:
        (one_off if is_one_off else commit)()
    assert len(parts_of(failed.value)) == len(TOPICS)
    assert all(f"topic {topic!r}: {kind.__name__}" in failed.value.message for topic in TOPICS)
    assert flags(failed.value) == flag
    faults(cluster).plan = failing(fault)
    commit()
    assert visible(cluster, "mine") == (True, True)


def test_commit_that_one_topic_refuses_is_not_retriable_because_of_another() -> None:
    """Repeated for the topic that cannot be read, it would be refused for ever (R71)."""
    shared = world()
    cluster, admin = process(shared), process(shared)
    row = owned(cluster, "a")
    batches = both(cluster, "mine")
    admin.delete_topic("orders")
    admin.create_topic("orders", partitions=2)
    faults(cluster).plan = failing(Fault.FAIL_BEFORE, "stock")
    with pytest.raises(TxnLogError) as failed:
        cluster.coordinator.commit(row, batches)
    assert [type(error) for error in parts_of(failed.value)] == [UnknownTopicIdError, StorageError]
    assert flags(failed.value) == ["abortable"]


def names_both(cluster: Cluster, call: Callable[[Cluster], object]) -> TxnLogError:
    with pytest.raises(TxnLogError) as failed:
        call(cluster)
    assert all(topic in failed.value.message for topic in TOPICS)
    assert len(parts_of(failed.value)) == len(TOPICS)
    return failed.value


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: cluster.topics(TOPICS),
        lambda cluster: cluster.list_topics(),
    ],
    ids=["topics", "list_topics"],
)
def test_reading_topics_names_every_unreadable_one(call: Callable[[Cluster], object]) -> None:
    cluster = process(world())
    faults(cluster).plan = failing(Fault.FAIL_BEFORE, *TOPICS)
    error = names_both(cluster, call)
    assert type(error) is StorageError
    assert flags(error) == ["retriable"]


def test_looking_up_topics_names_every_missing_one() -> None:
    cluster = process(world())
    for topic in TOPICS:
        cluster.delete_topic(topic)
    assert type(names_both(cluster, lambda c: c.topics(TOPICS))) is UnknownTopicOrPartitionError


def test_reading_shards_names_every_unreadable_one() -> None:
    """Listings of transactions read all of them."""
    shared = world()
    for name in "abcdefgh":
        owned(process(shared), "run", tid=name)
    cluster = process(shared)
    tables = [shard.path for shard in cluster.existing_shards()]
    assert len(tables) == 2
    faults(cluster).plan = failing(Fault.FAIL_BEFORE, *tables)
    with pytest.raises(StorageError) as failed:
        cluster.existing_shards()
    assert all(table in failed.value.message for table in tables)
