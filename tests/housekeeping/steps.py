"""Steps of the housekeeping tests: files that are really in the store, housekeeping, and time."""

from __future__ import annotations

import msgspec

from tests.world import MINUTE_MS, PLAIN, TOPICS, process, staged
from txnlog.cluster import Cluster
from txnlog.housekeeping.age_gate import AgeGate
from txnlog.housekeeping.housekeeper import Housekeeper
from txnlog.housekeeping.log_cleanup import LogCleanup
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.protocol.metadata import StagedBatch, TransactionMetadata
from txnlog.protocol.transitions import Transition, prepare_expire
from txnlog.protocol.vacuum import ClockReading
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.store import clock_watch
from txnlog.storage.store.objects import ObjectStore
from txnlog.testing.faults import SharedMemory

HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
FOREVER = {"retention.ms": "-1"}
LOGGED = LogSettings(checkpoint_interval=20, checkpoint_mode="inline")
SHORT = LogSettings(checkpoint_interval=6, checkpoint_mode="inline", log_retention_ms=2 * HOUR_MS)


def written(cluster: Cluster, topic: str, name: str) -> StagedBatch:
    """A staged batch whose file is in the store."""
    batch = staged(cluster, topic, name)
    cluster.store.put(f"{topic}/{batch.path}", b"records")
    return batch


def written_both(cluster: Cluster, name: str) -> list[StagedBatch]:
    """One for each topic."""
    return [written(cluster, topic, name) for topic in TOPICS]


def names(cluster: Cluster, table: str) -> set[str]:
    """Files at a table's top level."""
    return {meta.path.rpartition("/")[2] for meta in cluster.store.list_files(table)}


def log_names(cluster: Cluster, table: str) -> list[str]:
    """Commits and checkpoints of a table, in order."""
    listed = cluster.store.list(f"{table}/_delta_log")
    found = [meta.path.rpartition("/")[2] for meta in listed]
    return sorted(name for name in found if name[0].isdigit())


def expire_producers(shared: SharedMemory) -> int:
    """Expiry of producers by a process of its own."""
    return ProducerExpiry(process(shared, settings=LOGGED)).run()


def log_cleanup(
    shared: SharedMemory, *, settings: LogSettings = PLAIN, log_retention_ms: int | None = None
) -> LogCleanup:
    """Log clean-up by a process of its own, which trusts the store's clock from the start."""
    return LogCleanup(process(shared, settings=settings), log_retention_ms=log_retention_ms)


def keep_house(cluster: Cluster) -> tuple[int, int, int]:
    """Producers expired, log files cleaned up and files vacuumed, as by the housekeeper."""
    gate = AgeGate(cluster.store)
    expired = ProducerExpiry(cluster).run()
    return expired, gate.run(LogCleanup(cluster).run), gate.run(Vacuum(cluster).run)


def watched_for_two_hours(store: ObjectStore) -> None:
    """As if the clocks had been compared for two hours: housekeeping trusts ages."""
    since = ClockReading(store.clock.boot_ms() - 2 * HOUR_MS, store.now_ms() - 2 * HOUR_MS)
    store.put(f"{clock_watch.FOLDER}/{store.clock.boot_id}", msgspec.json.encode(since))


def check_files(cluster: Cluster) -> None:
    """Every file that a log or a manifest names exists (R72)."""
    for topic in TOPICS:
        log = cluster.topic_log(topic)
        log.refresh()
        missing = set(log.view.by_path) - names(cluster, topic)
        assert not missing, f"{topic}: {missing} are live and gone"
    for number in range(cluster.shards):
        shard = cluster.shard(number)
        shard.refresh()
        missing = set(shard.view.sizes) - names(cluster, shard.path)
        assert not missing, f"{shard.path}: {missing} are live and gone"
        for row in shard.view.rows.values():
            for batch in row.pending.batches:
                assert batch.path in names(cluster, batch.topic), f"{batch} is named and gone"


def expire_row(cluster: Cluster, transactional_id: str) -> None:
    """As the housekeeper does after a week."""

    def decide(row: TransactionMetadata | None) -> Transition:
        found = prepare_expire(row, now_ms=0)
        assert isinstance(found, Transition)
        return found

    shard = cluster.shard(cluster.shard_of(transactional_id))
    assert shard.transition(transactional_id, decide) is None


def vacuum(shared: SharedMemory, *, age_ms: int = WEEK_MS) -> int:
    """How many files a vacuum by a process of its own deletes."""
    return Vacuum(process(shared, settings=SHORT), age_ms=age_ms).run()


def keep(shared: SharedMemory, keeper: Housekeeper, duration_ms: int) -> None:
    """Run a housekeeper for this time."""
    end_ms = shared.clock.boot_ms() + duration_ms
    while shared.clock.boot_ms() < end_ms:
        wait_ms = keeper.step()
        shared.clock.advance_ms(min(wait_ms, end_ms - shared.clock.boot_ms()))
