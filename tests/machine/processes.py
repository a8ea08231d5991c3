"""Helper processes: sweepers, housekeepers, operators; and their chores, one by one."""

from __future__ import annotations

from tests.machine.world import DAY_MS, HOUR_MS, SETTINGS, TOPICS, World, seen
from txnlog.admin import AdminClient
from txnlog.coordinator.sweeper import Sweeper
from txnlog.housekeeping.age_gate import AgeGate
from txnlog.housekeeping.compaction.local import Compactor
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.housekeeping.retention import Retention
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.messages import TopicPartition
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.log_cleanup import clean_up

TABLES = (
    *TOPICS,
    "__consumer_offsets-0",
    "__consumer_offsets-1",
    "__transaction_state-0",
    "__transaction_state-1",
)
CHORES = (
    "checkpoint", "compact", "retain", "delete records", "expire producers", "clean up logs",
    "vacuum",
)  # fmt: skip
KEEPING = HousekeepingSettings(
    transactional_id_expiration_ms=DAY_MS,
    producer_id_expiration_ms=DAY_MS,
    remove_interval_ms=HOUR_MS,
    vacuum_age_ms=HOUR_MS,
    vacuum_interval_ms=HOUR_MS,
)


class Helper:
    """A helper process: a sweeper, a housekeeper, batch writes, an operator's client."""

    def __init__(self, world: World, number: int) -> None:
        self.process = world.process(number)
        self.cluster = self.process.open()
        self.sweeper = Sweeper(self.cluster, interval_ms=70_000)
        self.keeper = Housekeeper(self.cluster, KEEPING)
        self.admin = AdminClient({}, cluster=self.cluster)
        self.compactor = Compactor(self.cluster)
        self.retention = Retention(self.cluster)
        self.producer_expiry = ProducerExpiry(
            self.cluster, vacuum_age_ms=HOUR_MS, producer_id_expiration_ms=DAY_MS
        )
        self.log_cleanup = LogCleanup(self.cluster)
        self.vacuum = Vacuum(self.cluster, age_ms=HOUR_MS)
        self.gate = AgeGate(self.cluster.store)

    def tidy(self, chore: str, table: str) -> None:
        """One chore of housekeeping; readers see the same before and after."""
        match chore:
            case "checkpoint" if not self.process.store.list(f"{table}/_delta_log"):
                # The shard does not exist yet.
                return
            case "checkpoint":
                create_checkpoint(self.process.store, table, trust_ms=SETTINGS.trust_ms)
                clean_up(self.process.store, table, retention_ms=SETTINGS.log_retention_ms)
            case "compact":
                self.compactor.step(HOUR_MS)
            case "retain":
                self.retention.enforce_all()
            case "delete records":
                if table in TOPICS:
                    view = self.cluster.topic(table).view
                    place = TopicPartition(table, 0, view.last_stable_offset(0) // 2)
                    self.admin.delete_records([place])[place].result()
            case "expire producers":
                self.producer_expiry.run()
            case "clean up logs":
                self.gate.run(self.log_cleanup.run)
            case "vacuum":
                seen["files vacuumed"] += self.gate.run(self.vacuum.run)
