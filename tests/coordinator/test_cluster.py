"""The topics of a cluster, for clients with limited permissions."""

from __future__ import annotations

import pytest

from txnlog.cluster import Cluster
from txnlog.errors import CorruptLogError, TopicAuthorizationError, UnknownTopicOrPartitionError
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.log_files import commit_path
from txnlog.testing.faults import Fault, FaultyStore, Plan, SharedMemory

PLAIN = LogSettings(checkpoint_mode="off")


def process_seeing(plan: Plan) -> tuple[Cluster, FaultyStore]:
    """A new process on a root with topics orders and stock, whose calls follow a plan."""
    shared = SharedMemory()
    first = Cluster.open(shared.open(), create=True, shards=2, settings=PLAIN)
    for name in ("orders", "stock"):
        first.create_topic(name, partitions=1)
    store = shared.open(plan=plan)
    return Cluster.open(store, settings=PLAIN), store


def without_orders(verb: str, path: str) -> Fault:
    return Fault.DENY if path.startswith("orders") else Fault.NONE


def without_listing(verb: str, path: str) -> Fault:
    return Fault.DENY if (verb, path) == ("list", "") else Fault.NONE


def test_missing_topic_is_reported_although_other_topics_are_unreadable() -> None:
    """A message that reads every topic fails with the errors of an unrelated one."""
    cluster, store = process_seeing(without_orders)
    store.put(commit_path("stock", 1), b'{"add": {"pa')
    store.calls.clear()
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"'nope'.*; there are: orders, stock\. Create"
    ):
        cluster.topic("nope")
    assert not [path for _, path in store.calls if path.startswith(("orders", "stock"))]
    found = cluster.survey_topics()
    assert isinstance(found["orders"], TopicAuthorizationError)
    assert isinstance(found["stock"], CorruptLogError)


def test_missing_topic_is_reported_with_the_most_similar_names() -> None:
    """Thousands of names would hide the one that was meant."""
    cluster = Cluster.open(SharedMemory().open(), create=True, shards=2, settings=PLAIN)
    for number in range(30):
        cluster.create_topic(f"sensor-{number}")
    cluster.create_topic("orders")
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"'oders'.*; there are 31: orders\. Create it first"
    ):
        cluster.topic("oders")
    with pytest.raises(UnknownTopicOrPartitionError, match="there are 31: none is similar"):
        cluster.topic("xyz")


def test_missing_topic_is_reported_without_permission_to_list_the_root() -> None:
    """A client with permissions on its own topics only can still misspell one."""
    cluster, _ = process_seeing(without_listing)
    assert cluster.topic("orders").exists
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'nope' at memory://\. Create it fir"):
        cluster.topic("nope")
