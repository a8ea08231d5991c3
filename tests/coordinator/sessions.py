"""What the model of the coordinator's state machine remembers of producers and transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.coordinator.processes import GROUP
from txnlog.cluster import Cluster
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.testing.invariants import read_committed


@dataclass
class Txn:
    """What the model knows of a transaction: None means that it may have committed or not."""

    name: str
    batches: list[StagedBatch]
    committed: bool | None
    span: tuple[int, int] | None = None

    def settle(self, committed: bool) -> None:
        assert self.committed in (None, committed), (
            f"{self.name} was {self.committed}, now it is {committed}"
        )
        self.committed = committed


@dataclass
class Holder:
    """A producer session: its process, its row as it knows it, and where it reads on."""

    process: int
    run_id: str
    row: TransactionMetadata
    generation: int | None = None
    position: int = 0
    open: Txn | None = None
    again: Callable[[], TransactionMetadata] | None = None
    unknown: Txn | None = None


def shown(cluster: Cluster, topic: str) -> list[str]:
    """Names of the transactions a read_committed reader sees in a topic."""
    log = cluster.topic_log(topic)
    log.refresh()
    batches = [b for found in read_committed(log.view).values() for b in found]
    return [batch.path.rpartition("-")[2].removesuffix(".parquet") for batch in batches]


def check_positions(cluster: Cluster, txns: list[Txn]) -> None:
    """The committed spans of the input lie end to end, up to where the group stands (R45)."""
    position = cluster.groups.fetch(GROUP).get("input", {}).get(0, 0)
    spans = sorted(t.span for t in txns if t.span and t.committed)
    # A transaction whose topics are all gone can have committed without anyone seeing it.
    unseen = [t.span for t in txns if t.span and t.committed is None]
    reached = 0
    while reached < position:
        following = [s for s in [*spans, *unseen] if s[0] == reached]
        assert following, f"input from {reached} on is committed by nobody; at {position}"
        reached = following[0][1]
    assert reached == position
    starts = [span[0] for span in spans]
    assert len(set(starts)) == len(starts), f"input committed twice: {spans}"
    assert not spans or spans[-1][1] <= position, f"{spans[-1]} is above {position}"
