"""A root of format 1, and processes of the version that wrote it: one log of consumer offsets."""

from __future__ import annotations

from tests.coordinator.processes import GROUP, PLAIN, TOPICS
from txnlog.cluster import Cluster
from txnlog.errors import GroupAuthorizationError
from txnlog.protocol.group_metadata import GROUP_COLUMNS, Group
from txnlog.protocol.shards import state_table
from txnlog.protocol.upgrade import OLD_OFFSETS_TABLE
from txnlog.storage.delta.delta_log import DeltaLog
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import PATH, _View
from txnlog.storage.tables.row_log import OffsetsLog, RowLog
from txnlog.storage.tables.schemas import create_actions
from txnlog.testing.faults import SharedMemory

OTHERS = tuple(f"group {number}" for number in range(8))


class _OneLog(OffsetsLog):
    """`__consumer_offsets`, as the old version read and wrote it."""

    def __init__(self, store: ObjectStore) -> None:
        RowLog.__init__(
            self,
            store,
            OLD_OFFSETS_TABLE,
            kind=Group,
            columns=GROUP_COLUMNS,
            id_column="group_id",
            refused=GroupAuthorizationError,
            settings=PLAIN,
        )
        self.number = 0


class OldCluster(Cluster):
    """A process of the old version: it checks the format when it opens the root, never again."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store, settings=PLAIN)
        self._meta.refresh()
        assert self._meta.format == "1"
        self._one = _OneLog(store)

    def offsets_log(self, group_id: str) -> OffsetsLog:
        if not self._one.log.exists:
            self._one.create(f"{self.cluster_id}-offsets", {})
        return self._one

    def find_offsets_log(self, group_id: str) -> OffsetsLog:
        return self.offsets_log(group_id)

    def offsets_shards(self) -> list[OffsetsLog]:
        return [self.offsets_log("")]

    def _created(self) -> frozenset[str]:
        return frozenset(state_table(number) for number in range(self.shards))


def old_root(store: ObjectStore, *, shards: int = 2) -> OldCluster:
    """Create `__cluster` as the old version did; returns a process that has opened it."""
    log = DeltaLog(store, PATH, _View(), settings=PLAIN)
    log.refresh()
    config = {"format": "1", "transaction.state.log.num.partitions": str(shards)}
    actions = create_actions(
        table_id="an-old-cluster",
        data_columns={"created_at": "timestamp"},
        partition_columns={},
        config=config,
        created_ms=store.clock.now_ms(),
    )
    log.commit(actions, operation="CREATE CLUSTER")
    cluster = OldCluster(store)
    for number in range(shards):
        cluster.shard(number)
    cluster.offsets_log("")
    return cluster


def old_world() -> tuple[SharedMemory, OldCluster]:
    """A root of format 1 with topics and groups, and a process that has it open."""
    shared = SharedMemory()
    cluster = old_root(shared.open())
    for name in TOPICS:
        cluster.create_topic(name, partitions=2)
    for number, group in enumerate((GROUP, *OTHERS)):
        generation = cluster.groups.start(group)
        cluster.groups.commit(group, generation, {"input": {0: number, 1: 7}})
    return shared, cluster


def positions(cluster: Cluster) -> dict[str, dict[str, dict[int, int]]]:
    """The committed offsets of all groups, pending entries settled."""
    found = {}
    for log in cluster.offsets_shards():
        log.refresh()
        found.update({group: cluster.groups.fetch(group) for group in log.view.rows})
    return found
