"""A topic's folder that was copied, moved or restored from another topic or cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.world import PLAIN, both, owned, visible
from txnlog.admin import AdminClient
from txnlog.cluster import Cluster
from txnlog.coordinator.sweeper import Sweeper
from txnlog.errors import CorruptLogError
from txnlog.protocol.states import TransactionState
from txnlog.testing.invariants import check_cluster

TOPICS = ("orders", "stock")


def opened(root: Path) -> Cluster:
    return Cluster.open(str(root), create=True, shards=2, offsets_shards=2, settings=PLAIN)


def cluster_at(root: Path) -> Cluster:
    """Two topics with one transaction; equally old clusters have equal producer ids."""
    cluster = opened(root)
    for topic in TOPICS:
        cluster.create_topic(topic, partitions=2)
    cluster.coordinator.commit(owned(cluster, "first"), both(cluster, "before"))
    return cluster


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def copied(root: Path) -> Callable[[], None]:
    """Another cluster's topic in the place of ours; returns what brings ours back."""
    cluster_at(root.with_name("elsewhere"))
    kept = root.with_name("kept")
    (root / "orders").rename(kept)
    shutil.copytree(root.with_name("elsewhere") / "orders", root / "orders")

    def back() -> None:
        shutil.rmtree(root / "orders")
        kept.rename(root / "orders")

    return back


def swapped(root: Path) -> Callable[[], None]:
    swap(root / "orders", root / "stock")
    return lambda: swap(root / "orders", root / "stock")


@pytest.mark.parametrize("replace", [copied, swapped])
def test_commit_into_the_log_of_another_topic_is_refused(
    replace: Callable[[Path], Callable[[], None]], tmp_path: Path
) -> None:
    """Its markers would count as ours, and acknowledged records would be in no topic (R4, R36)."""
    root = tmp_path / "root"
    cluster_at(root)
    back = replace(root)
    late = opened(root)
    with pytest.raises(CorruptLogError, match=r"copied, moved or restored"):
        late.coordinator.commit(owned(late, "second"), both(late, "lost?"))
    back()
    after = opened(root)
    after.coordinator.commit(owned(after, "third"), both(after, "mine"))
    check_cluster(after, settled=True)
    assert visible(after, "before") == visible(after, "mine") == (True, True)


def test_decided_transaction_waits_until_its_topic_is_back(tmp_path: Path) -> None:
    """The other topic's marker of the same producer and epoch is not its own (R36, R73)."""
    root = tmp_path / "root"
    first = cluster_at(root)
    row = owned(first, "second")
    prepared = first.coordinator.prepare(row, both(first, "mine"))
    assert prepared.state is not TransactionState.COMPLETE_COMMIT
    back = copied(root)
    with pytest.raises(CorruptLogError, match="orders"):
        opened(root).coordinator.commit(prepared)
    back()
    Sweeper(opened(root)).sweep()
    after = opened(root)
    after.coordinator.commit(prepared)
    check_cluster(after, settled=True)
    assert visible(after, "mine") == (True, True)


def test_log_of_another_topic_can_be_deleted_with_force_and_created_again(tmp_path: Path) -> None:
    """A backup may not exist."""
    root = tmp_path / "root"
    cluster_at(root)
    copied(root)
    admin = AdminClient({"txnlog.root": str(root)})
    admin.delete_topics(["orders"], force=True)["orders"].result()
    again = opened(root).create_topic("orders", partitions=2)
    cluster = opened(root)
    cluster.coordinator.commit(owned(cluster, "second"), both(cluster, "mine"))
    assert again.exists
    assert visible(cluster, "mine") == (True, True)
