"""Records of a commit that another process has made visible: what their reports say."""

from __future__ import annotations

from collections.abc import Callable

from tests.coordinator.restoring import remove_all
from tests.producer.worlds import Reports, cluster_of, started, world
from tests.world import faults, process, recover
from txnlog.cluster import Cluster
from txnlog.errors import CommitStateUnknownError
from txnlog.testing.faults import Fault, SharedMemory


def commit_while(shared: SharedMemory, act: Callable[[Cluster], object]) -> Reports:
    """A transaction; once it is decided, and before its own marker, another process acts."""
    made, reports = started(shared), Reports()
    made.begin_transaction()
    made.produce("orders", "0", partition=0, on_delivery=reports)
    is_done = False

    def plan(verb: str, path: str) -> Fault:
        nonlocal is_done
        if verb == "put" and path.startswith("orders/_delta_log/") and not is_done:
            is_done = True
            act(process(shared))
        return Fault.NONE

    faults(cluster_of(made)).plan = plan
    made.commit_transaction()
    made.flush()
    assert is_done
    return reports


def test_records_that_another_process_published_are_reported_with_their_offsets() -> None:
    shared = world()
    assert commit_while(shared, lambda _: recover(shared)).offsets == [("orders", 0, 0)]


def test_records_whose_file_is_gone_already_are_reported_as_committed() -> None:
    """Compaction has replaced it: where they are is not known (R22)."""
    shared = world()
    reports = commit_while(
        shared, lambda _: recover(shared).topic_log("orders").transact(remove_all)
    )
    [(error, message)] = reports.received
    assert isinstance(error, CommitStateUnknownError)
    assert not error.retriable
    assert "has replaced its file" in error.message
    assert message.offset() is None


def test_records_of_a_topic_deleted_before_they_were_visible_are_not_delivered() -> None:
    """They are in no topic (R71)."""
    reports = commit_while(world(), lambda other: other.delete_topic("orders"))
    assert reports.errors == ["UnknownTopicIdError"]
    assert not reports.offsets
