"""How old a file must be before vacuum deletes it, and how writers learn the age."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.housekeeping.steps import (
    DAY_MS,
    FOREVER,
    HOUR_MS,
    SHORT,
    WEEK_MS,
    check_files,
    vacuum,
    written,
    written_both,
)
from tests.staged_files import append_idempotent
from tests.world import MINUTE_MS, owned, process, world
from txnlog.coordinator.one_off import commit_one_off
from txnlog.coordinator.staged_files import check_batches
from txnlog.errors import ConfigError, StagedFileTooOldError
from txnlog.housekeeping.vacuum import Vacuum
from txnlog.protocol import vacuum as rules
from txnlog.protocol.decoding import INT64_MAX
from txnlog.protocol.metadata import Owner
from txnlog.protocol.topics import TopicCommit
from txnlog.protocol.vacuum import file_retention_ms, format_retention
from txnlog.storage.delta.checkpoints import create_checkpoint
from txnlog.storage.delta.delta_log import LogSettings
from txnlog.storage.delta.tombstones import read_tombstones
from txnlog.testing.faults import PausedClock


def test_commits_learn_of_a_smaller_vacuum_age_from_its_barrier() -> None:
    """A process that knows an age of seven days must not name files that an hour deletes."""
    shared = world(config=FOREVER)
    writer = process(shared)
    row = owned(writer, "a")
    batches = written_both(writer, "x")
    written_both(writer, "orphan")
    shared.clock.advance_ms(40 * MINUTE_MS)
    check_batches(writer, batches)
    shared.clock.advance_ms(80 * MINUTE_MS)
    short = LogSettings(checkpoint_mode="off", log_retention_ms=HOUR_MS)
    young = written_both(writer, "young")
    assert Vacuum(process(shared, settings=short), age_ms=HOUR_MS).run() == 4
    with pytest.raises(StagedFileTooOldError):
        writer.coordinator.commit(row, batches)
    shared.clock.advance_ms(20 * MINUTE_MS)
    writer.coordinator.commit(row, young)
    cold = process(shared)
    other, more = owned(cold, "b", tid="other"), written_both(cold, "more")
    shared.clock.advance_ms(31 * MINUTE_MS)
    with pytest.raises(StagedFileTooOldError):
        cold.coordinator.commit(other, more)
    with pytest.raises(StagedFileTooOldError):
        append_idempotent(cold, 99, more[:1], {more[0].partition: 0})
    check_files(process(shared))


@pytest.mark.parametrize("how", ["deferred", "idempotent", "one-off", "two-phase"])
def test_commit_of_a_paused_guest_names_no_file_that_vacuum_took(how: str) -> None:
    """Its clocks were stopped for longer than vacuum's age; the barrier has the time (R72)."""
    shared = world(config=FOREVER)
    clock = PausedClock(shared.clock)
    writer = process(shared, clock=clock)
    row = owned(writer, "a")
    batches = written_both(writer, "x")
    with clock.paused():
        shared.clock.advance_ms(2 * WEEK_MS)
        assert vacuum(shared) == 2
    commit: dict[str, Callable[[], object]] = {
        "deferred": lambda: writer.coordinator.commit(row, batches),
        "two-phase": lambda: writer.coordinator.prepare(row, batches),
        "one-off": lambda: commit_one_off(writer, batches, Owner(run_id="w")),
        "idempotent": lambda: append_idempotent(writer, 99, batches[:1], {batches[0].partition: 0}),
    }
    with pytest.raises(StagedFileTooOldError):
        commit[how]()
    check_files(process(shared))


def test_vacuum_age_of_less_than_an_hour_is_refused() -> None:
    """Transactions and readers under way would lose their files."""
    with pytest.raises(ConfigError, match="deletedFileRetentionDuration"):
        Vacuum(process(world()), age_ms=HOUR_MS - 1)


def test_vacuum_age_is_never_below_the_log_retention() -> None:
    """A retained version stays readable."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    written(cluster, "orders", "orphan")
    shared.clock.advance_ms(HOUR_MS)
    assert Vacuum(process(shared), age_ms=HOUR_MS).run() == 0
    shared.clock.advance_ms(23 * HOUR_MS)
    assert Vacuum(process(shared), age_ms=HOUR_MS).run() == 1


def test_transaction_may_take_all_of_its_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its staged files can be committed up to half the age, which is twice the time-out."""
    monkeypatch.setattr(rules, "VACUUM_AGE_MS_MIN", MINUTE_MS)
    shared = world(config=FOREVER)
    cluster = process(shared)
    cluster.coordinator.init_producer_id("slow", Owner(run_id="r"), timeout_ms=15 * MINUTE_MS)
    written(cluster, "orders", "orphan")
    for later_ms, deleted in ((30 * MINUTE_MS - 1, 0), (1, 1)):
        shared.clock.advance_ms(later_ms)
        vacuum = Vacuum(process(shared), age_ms=MINUTE_MS, log_retention_ms=MINUTE_MS)
        assert vacuum.run() == deleted


def test_vacuum_age_above_delta_default_becomes_a_table_property() -> None:
    """Else the next checkpoint loses tombstones that the next run needs."""
    shared = world(config=FOREVER)
    cluster = process(shared)
    written(cluster, "orders", "orphan")
    shared.clock.advance_ms(5 * WEEK_MS)
    assert vacuum(shared, age_ms=4 * WEEK_MS) == 1
    log = cluster.topic("orders").log
    assert log.metadata is not None
    assert file_retention_ms(log.metadata.configuration) == 4 * WEEK_MS
    assert cluster.topic("orders").config["retention.ms"] == "-1"


def test_vacuum_age_below_delta_default_becomes_a_table_property() -> None:
    """Else checkpoints keep tombstones for a week that no vacuum needs."""
    shared = world(config=FOREVER)
    cluster = process(shared, settings=SHORT)
    log = cluster.topic("orders")
    row = owned(cluster, "a")
    for number in range(3):
        row = cluster.coordinator.commit(row, [written(cluster, "orders", str(number))])
        log.transact(
            lambda state: (
                TopicCommit(operation="DELETE", removes=tuple(state.by_path))
                if state.by_path
                else None
            )
        )
        shared.clock.advance_ms(HOUR_MS)
    assert len(read_tombstones(cluster.store, "orders", version=log.log.version)) == 3
    assert vacuum(shared, age_ms=2 * HOUR_MS) == 2
    log.refresh()
    assert log.log.metadata is not None
    assert file_retention_ms(log.log.metadata.configuration) == 2 * HOUR_MS
    create_checkpoint(cluster.store, "orders", trust_ms=SHORT.trust_ms)
    assert len(read_tombstones(cluster.store, "orders", version=log.log.version)) == 1
    before = log.log.version
    assert vacuum(shared, age_ms=2 * HOUR_MS) == 0
    log.refresh()
    assert log.log.version == before, "it is as it was"


@pytest.mark.parametrize(
    ("value", "retention_ms"),
    [
        ("interval 1 week", WEEK_MS),
        ("interval 2 days", 2 * DAY_MS),
        ("interval 36 hours", 36 * HOUR_MS),
        ("INTERVAL 90 minutes", 90 * MINUTE_MS),
        ("30 seconds", 30_000),
        (format_retention(1_500), 2_000),
        ("soon", WEEK_MS),
        (f"interval {10**15:04000} milliseconds", 10**15),
        ("interval 20000000000 weeks", INT64_MAX),
        ("interval 99999999999999999999 weeks", INT64_MAX),
        (f"interval {'9' * 5_000} weeks", INT64_MAX),
    ],
)
def test_file_retention_is_read_as_delta_writes_it(value: str, retention_ms: int) -> None:
    """An unknown format means Delta's default."""
    assert file_retention_ms({"delta.deletedFileRetentionDuration": value}) == retention_ms
