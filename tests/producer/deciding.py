"""Producers with commit.wait=decided, and stores that refuse what their threads publish."""

from __future__ import annotations

from tests.coordinator.processes import faults
from tests.producer.worlds import cluster_of, started
from txnlog.producer import Producer
from txnlog.testing.faults import Fault, SharedMemory

DAY_MS = 86_400_000


def deciding(shared: SharedMemory, publish: str = "deferred", **config: object) -> Producer:
    return started(shared, publish, commit_wait="decided", **config)


def commit_refused(made: Producer, fault: Fault) -> None:
    """A transaction; from its decision on each put of a commit of the topic meets `fault`."""
    made.begin_transaction()
    made.produce("orders", "0", partition=0)
    made.flush()
    refuse_markers(made, fault)
    made.commit_transaction()


def refuse_markers(made: Producer, fault: Fault) -> None:
    faults(cluster_of(made)).plan = lambda verb, path: (
        fault if verb == "put" and path.startswith("orders/_delta_log/") else Fault.NONE
    )


def allow_all(made: Producer) -> None:
    faults(cluster_of(made)).plan = lambda verb, path: Fault.NONE


def interrupted() -> None:
    raise KeyboardInterrupt
