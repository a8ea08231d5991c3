"""Errors of clients when the store denies access: Kafka's three authorization errors (R68)."""

from __future__ import annotations

import pytest

from tests.producer.worlds import (
    Reports,
    cluster_of,
    group,
    input_at,
    producer,
    started,
    values,
    world,
)
from tests.world import faults, process
from txnlog.cluster import Cluster
from txnlog.consumer import Consumer
from txnlog.errors import (
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionAbortableError,
    TransactionalIdAuthorizationError,
)
from txnlog.messages import TopicPartition
from txnlog.producer import Producer
from txnlog.testing.faults import Fault, SharedMemory
from txnlog.testing.invariants import check_cluster

WRITES = ("put",)
READS = ("get", "list")


def deny(cluster: Cluster, folder: str, verbs: tuple[str, ...] = WRITES) -> None:
    """Make the store deny these calls below a folder, in this process."""
    faults(cluster).plan = lambda verb, path: (
        Fault.DENY if verb in verbs and path.startswith(folder) else Fault.NONE
    )


def begun(shared: SharedMemory) -> Producer:
    made = started(shared)
    made.begin_transaction()
    return made


def test_no_permission_for_the_transaction_state_is_transactional_id_authorization() -> None:
    """The id cannot be owned; nothing is written under it."""
    shared = world()
    made = producer(shared, "tx")
    deny(cluster_of(made), "__transaction_state")
    with pytest.raises(TransactionalIdAuthorizationError, match="__transaction_state"):
        made.init_transactions()
    assert process(shared).coordinator.describe("tx") is None


def test_no_permission_for_a_topic_fails_its_transaction_and_leaves_the_id_usable() -> None:
    """Nothing is visible in its other topics; the next transaction commits."""
    shared = world()
    made, reports = begun(shared), Reports()
    made.produce("orders", "no", on_delivery=reports)
    made.produce("stock", "no")
    deny(cluster_of(made), "orders/")
    with pytest.raises(TransactionAbortableError, match="TopicAuthorizationError.*orders"):
        made.commit_transaction()
    made.abort_transaction()
    made.poll()
    assert len(reports.errors) == 1
    with made.transaction():
        made.produce("stock", "yes")
    check_cluster(process(shared))
    assert values(process(shared), "orders") == []
    assert values(process(shared), "stock") == ["yes"]


def test_no_permission_for_a_topic_fails_each_record_of_an_idempotent_producer() -> None:
    """The delivery callback gets the error; other topics can still be written."""
    shared = world()
    made, reports = producer(shared), Reports()
    deny(cluster_of(made), "orders/")
    made.produce("orders", "no", on_delivery=reports)
    made.produce("stock", "yes", on_delivery=reports)
    made.flush()
    assert reports.errors == ["TopicAuthorizationError"]
    assert values(process(shared), "stock") == ["yes"]


def test_no_permission_to_read_a_topic_is_topic_authorization() -> None:
    """For a producer that reads the topic's metadata, and for a consumer."""
    shared = world()
    made = producer(shared)
    deny(cluster_of(made), "orders/", READS)
    with pytest.raises(TopicAuthorizationError, match="read topic 'orders'"):
        made.produce("orders", "no")
    cluster = process(shared)
    reader = Consumer({}, cluster=cluster, background=False)
    deny(cluster, "orders/", READS)
    with pytest.raises(TopicAuthorizationError, match="read topic 'orders'"):
        reader.assign([TopicPartition("orders", 0)])


def test_no_permission_for_the_offsets_is_group_authorization() -> None:
    """A transaction with offsets fails whole; a consumer's join and commit name the folder."""
    shared = world()
    made = begun(shared)
    made.produce("orders", "no")
    made.send_offsets_to_transaction(input_at(5), group())
    deny(cluster_of(made), "__consumer_offsets-0")
    with pytest.raises(TransactionAbortableError, match="GroupAuthorizationError"):
        made.commit_transaction()
    assert values(process(shared), "orders") == []
    cluster = process(shared)
    reader = Consumer({"group.id": "g"}, cluster=cluster, background=False)
    reader.assign([TopicPartition("orders", 0)])
    deny(cluster, "__consumer_offsets-0")
    with pytest.raises(GroupAuthorizationError, match="__consumer_offsets-0"):
        reader.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    with pytest.raises(GroupAuthorizationError, match="__consumer_offsets-0"):
        reader.assign([TopicPartition("orders", 0)])
    assert process(shared).groups.describe("g").offsets == {}
