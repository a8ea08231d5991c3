"""Shared by the tests of the admin client: clients, and runs of a Spark query."""

from __future__ import annotations

from tests.world import MINUTE_MS, staged
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.messages import TopicPartition
from txnlog.protocol.metadata import Owner, TransactionMetadata


def admin(cluster: Cluster) -> AdminClient:
    """An operator's client with client.id ops."""
    return AdminClient({"client.id": "ops"}, cluster=cluster)


def partition_of(cluster: Cluster, name: str = "x") -> TopicPartition:
    """The partition of `orders` for the batch of this name."""
    return TopicPartition("orders", staged(cluster, "orders", name).partition)


def query(cluster: Cluster, run: str) -> TransactionMetadata:
    """A run of a Spark query becomes the owner of its id, as the sink does before each batch."""
    owner = Owner(run_id=run, query_id="q1", host="driver", pid=7)
    return cluster.coordinator.init_producer_id("tx", owner, timeout_ms=MINUTE_MS)
