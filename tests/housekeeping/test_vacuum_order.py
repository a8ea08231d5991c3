"""The order of vacuum's reads, and what its barriers carry (D40)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    WEEK_MS,
    check_files,
    written,
    written_both,
)
from tests.world import (
    MINUTE_MS,
    TOPICS,
    faults,
    owned,
    process,
    recover,
    visible,
    world,
)
from txnlog.cluster import Cluster
from txnlog.errors import StagedFileTooOldError
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.testing.faults import Fault, SharedMemory, SimulatedCrash

HOURLY = LogSettings(checkpoint_mode="off", log_retention_ms=HOUR_MS)


def hourly(shared: SharedMemory) -> tuple[Cluster, Vacuum]:
    """A vacuum whose age is the smallest there may be."""
    cluster = process(shared, settings=HOURLY)
    return cluster, Vacuum(cluster, age_ms=HOUR_MS)


def is_commit_of(path: str, table: str) -> bool:
    return path.startswith(f"{table}/_delta_log/") and path.endswith(".json")


def test_vacuum_reads_the_manifests_after_the_barriers_of_the_shards() -> None:
    """A PREPARE was sent when its files were young enough for all that its writer knew, and lands
    right before the shard's barrier: only a read after the barrier finds it (R72).
    """
    shared = world(config=FOREVER)
    writer = process(shared)
    row = owned(writer, "a")
    shard = f"__transaction_state-{writer.shard_of('tx')}"
    batches = written_both(writer, "x")
    shared.clock.advance_ms(2 * HOUR_MS)

    def send_and_die(verb: str, path: str) -> Fault:
        if verb == "put" and is_commit_of(path, shard):
            faults(writer).plan = lambda verb, path: Fault.CRASH_BEFORE
            return Fault.LAND_LATE
        return Fault.NONE

    faults(writer).plan = send_and_die
    with suppress(SimulatedCrash):
        writer.coordinator.commit(row, batches)
    cluster, vacuum = hourly(shared)
    landed: list[str] = []

    def land_before_the_barrier(verb: str, path: str) -> Fault:
        if verb == "put" and is_commit_of(path, shard):
            landed.extend(shared.land_late())
        return Fault.NONE

    faults(cluster).plan = land_before_the_barrier
    assert vacuum.run() == 0
    assert [path.partition("/")[0] for path in landed] == [shard]
    check_files(process(shared))
    recover(shared)
    assert visible(process(shared), "x") == (True, True)
    check_files(process(shared))


def test_vacuum_barrier_keeps_the_smallest_age_that_was_ever_used() -> None:
    """A vacuum of an hour may be at work still when one of a week has written its own barrier:
    a commit after it must not name what the first vacuum is about to delete (R72).
    """
    shared = world(config=FOREVER)
    cluster = process(shared)
    for topic in TOPICS:
        written(cluster, topic, "first")
    shared.clock.advance_ms(2 * HOUR_MS)
    _, vacuum = hourly(shared)
    assert vacuum.run() == 2
    for topic in TOPICS:
        written(cluster, topic, "second")
    shared.clock.advance_ms(8 * DAY_MS)
    assert Vacuum(process(shared), age_ms=WEEK_MS).run() == 2
    cold = process(shared)
    row, batches = owned(cold, "a"), written_both(cold, "x")
    shared.clock.advance_ms(31 * MINUTE_MS)
    with pytest.raises(StagedFileTooOldError):
        cold.coordinator.commit(row, batches)
    assert cold.vacuum_age_ms(TOPICS) == HOUR_MS
